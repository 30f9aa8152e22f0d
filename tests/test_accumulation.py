"""k batches of B/k are one batch of B, in the last short window of an epoch too."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cvexp.accumulation import window_weight
from tests.conftest import TOY, Outcome

# A network without BatchNorm or dropout, plain SGD: the gradient shows in the weights.
PLAIN = [
    *TOY,
    "model.name=test_vit",
    "model.image_size=32",
    "augmentation=none",
    "optimizer=sgd",
    "scheduler=constant",
    "tracker=none",
    "data.val_fraction=0.5",
    "data.test_fraction=0.4",
]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("checkpoints/last.ckpt")
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "data.class_weights=balanced loss=focal",
        "mix=mixup mix.alpha=1.0 mix.p=1.0",
        "mix=cutmix mix.p=1.0 loss=bce data.class_weights=balanced",
        "optimizer.grad_clip_norm=0.05 scheduler=warmup-cosine",
    ],
    ids=["plain", "weighted", "mixup", "cutmix-weighted", "clipped"],
)
def test_accumulation_is_a_larger_batch(
    recipe: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """180 training images: 48 a step leaves a window of 36, in batches of 12 a window of three."""
    runs = {
        "one": "accumulation=x1 loader.batch_size=48",
        "four": "accumulation=x4 loader.batch_size=12",
        "split": "accumulation=x2 accumulation.keep_batch=true loader.batch_size=48",
    }
    for name, run in runs.items():
        outcome = cvexp(*PLAIN, *run.split(), *recipe.split(), f"hydra.run.dir=multirun/{name}")
        assert outcome.code == 0, outcome.err
    one, *others = (weights(tmp_path / "multirun" / name) for name in runs)
    for other in others:
        for key, tensor in one.items():
            assert torch.allclose(tensor, other[key], atol=1e-6, rtol=0), key
    for name, batch_size in (("one", 48), ("four", 12), ("split", 24)):
        effective = outcome.record(tmp_path, name)["effective"]
        assert effective["effective_batch_size"] == 48
        assert effective["optimizer_steps"] == 4
        assert effective["batch_size"] == batch_size


def test_a_ramp_takes_more_batches_from_its_epochs_on(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Of 8 batches an epoch: 8 steps, then 4, then 2; the learning rate still ends at its end."""
    outcome = cvexp(
        *PLAIN[:-2],
        "data.val_fraction=0.5",
        "data.test_fraction=0.4",
        "loader.batch_size=24",
        "accumulation=ramp",
        "accumulation.after_epochs=[1,2]",
        "accumulation.batches=[1,2,4]",
        "trainer.max_epochs=3",
        "trainer.log_every_n_steps=1",
        "scheduler=poly",
        "optimizer.lr=0.02",
    )
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("multirun/*/metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_epoch = Counter(line["epoch"] for line in lines if "lr" in line)
    assert by_epoch == {1: 8, 2: 4, 3: 2}
    rates = [line["lr"] for line in lines if "lr" in line]
    assert rates == pytest.approx([0.02 * (1 - step / 13) for step in range(14)])
    assert outcome.record(tmp_path)["effective"]["effective_batch_size"] == 96


def test_a_full_window_of_equal_batches_weighs_one() -> None:
    assert window_weight(12, 48, 4) == 1
    assert window_weight(12, 36, 4) * 3 / 4 == 1  # a short window: three batches, divided by four


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("accumulation=x8 loader.batch_size=200", "accumulation.batches=8 is more than the 7"),
        ("accumulation=ramp loader.batch_size=1300", "accumulation.batches=2 is more than the 1 "),
        ("accumulation=ramp trainer.max_epochs=2", "try trainer.max_epochs=3"),
        ("accumulation=ramp accumulation.after_epochs=[2,1]", "must rise"),
        ("accumulation=ramp accumulation.batches=[1,2,4]", "one more than"),
        (
            "accumulation=x4 accumulation.keep_batch=true loader.batch_size=50",
            "cannot split loader.batch_size=50 into 4 equal batches; try loader.batch_size=52",
        ),
        (
            "accumulation=x2 accumulation.keep_batch=true loader.drop_last=true",
            "type loader.drop_last=false",
        ),
    ],
)
def test_what_cannot_be_accumulated_is_one_line(
    overrides: str, message: str, cvexp: Callable[..., Outcome]
) -> None:
    """Lightning ignores more batches than an epoch has, silently (Lightning#21808)."""
    outcome = cvexp(*TOY, "trainer.max_epochs=4", "tracker=none", *overrides.split())
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
