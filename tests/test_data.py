"""Splits, sizes and where images come from."""

import hashlib
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from cvexp.config import UsageError
from cvexp.data import Arrays, Data, Form, cifar10, cifar100, digits
from tests.conftest import DIGITS, Outcome

ARGUMENTS = {**DIGITS, "size": 16}
CIFAR = {k: v for k, v in DIGITS.items() if k != "test_fraction"}


def test_digits_splits_are_whole_and_stratified(data: Data) -> None:
    splits = data.splits.values()
    assert [len(split) for split in splits] == [1257, 180, 360]
    shares = [np.bincount(split.labels, minlength=10) / len(split) for split in splits]
    assert np.abs(np.array(shares) - 0.1).max() < 0.01
    rows = np.concatenate([split.rows for split in splits])
    assert sorted(rows) == list(range(1797))


def test_split_seed_moves_the_split_and_nothing_else() -> None:
    first, again, other = (digits(**{**ARGUMENTS, "split_seed": seed}) for seed in (0, 0, 1))
    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256
    shown = [{row for s in d.splits.values() for row in s.rows} for d in (first, other)]
    assert shown[0] == shown[1]


def test_read_gives_one_form() -> None:
    images = np.arange(2 * 5 * 7 * 3, dtype=np.uint8).reshape(2, 5, 7, 3)
    assert Arrays(images, Form(16, "squash", 3, 99)).read(1).shape == (16, 16, 3)
    assert Arrays(images, Form(16, "pad", 1, 99)).read(1).shape == (16, 16, 1)
    same = Arrays(images[:, :, :5], Form(5, "crop", 3, 99)).read(1)
    assert np.array_equal(same, images[1, :, :5])


@pytest.mark.parametrize(
    "wrong", [{"val_fraction": 0.9}, {"test_fraction": 0.001}, {"val_fraction": 0.0001}]
)
def test_a_split_that_cannot_be_made_names_its_key(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"data\.(val|test)_fraction"):
        digits(**{**ARGUMENTS, **wrong})


def make_cifar(root: Path, dataset: type[CIFAR10], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a small archive in CIFAR's own format and tell torchvision its checksums."""
    rng, folder = np.random.default_rng(0), root / dataset.base_folder
    folder.mkdir(parents=True)
    key = dataset.meta["key"]
    classes = [f"class {i}" for i in range(100 if dataset is CIFAR100 else 10)]

    def write(name: str, content: object) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    def part(count: int) -> dict[str, object]:
        labels = [i % len(classes) for i in range(count)]
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        return {"data": pixels, "fine_labels" if dataset is CIFAR100 else "labels": labels}

    for attribute, count in (("train_list", 1000), ("test_list", 200)):
        names = [name for name, _ in getattr(dataset, attribute)]
        listed = [[name, write(name, part(count))] for name in names]
        monkeypatch.setattr(dataset, attribute, listed)
    meta = {**dataset.meta, "md5": write(dataset.meta["filename"], {key: classes})}
    monkeypatch.setattr(dataset, "meta", meta)


@pytest.mark.parametrize(("source", "dataset"), [(cifar10, CIFAR10), (cifar100, CIFAR100)])
def test_cifar_takes_validation_from_its_training_half(
    source: Callable[..., Data],
    dataset: type[CIFAR10],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_cifar(tmp_path, dataset, monkeypatch)
    data = source(**{**CIFAR, "val_fraction": 0.2}, root=str(tmp_path))
    half = 1000 * len(dataset.train_list)
    assert [len(split) for split in data.splits.values()] == [half * 4 // 5, half // 5, 200]
    assert len(data.classes) == (100 if dataset is CIFAR100 else 10)
    assert data.classes[0] == "class 0"
    assert np.bincount(data.val.labels).min() == np.bincount(data.val.labels).max()


def test_cifar_without_network_says_what_to_put_where(cvexp: Callable[..., Outcome]) -> None:
    outcome = cvexp("data=cifar10", "model.pretrained=false", "data.root=nowhere")
    assert outcome.code == 2
    (line,) = outcome.err.strip().splitlines()
    assert "data.root=nowhere" in line
    assert "cifar-10-python.tar.gz" in line


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz"):
        pass
    with pytest.raises(UsageError, match=r"data\.root"):
        cifar10(**CIFAR, root=str(tmp_path))


def test_class_weights_are_balanced_as_scikit_learn_has_it() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    data = digits(**{**ARGUMENTS, "class_weights": "balanced"})
    labels = data.train.labels
    expected = compute_class_weight("balanced", classes=np.arange(10), y=labels)
    assert data.class_weights == pytest.approx(tuple(expected))
    assert np.mean(np.array(data.class_weights)[labels]) == pytest.approx(1)
    given = digits(**{**ARGUMENTS, "class_weights": [1.0] * 10})
    assert given.class_weights == (1.0,) * 10
    with pytest.raises(UsageError, match="must be 10 numbers, one a class"):
        digits(**{**ARGUMENTS, "class_weights": [1.0]})
