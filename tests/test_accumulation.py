"""k batches of B/k are one batch of B, in the last short window of an epoch too."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cvexp.accumulation import fixed, window_weight
from cvexp.config import UsageError
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


def test_accumulation_is_a_larger_batch(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    """180 training images: 48 a step leaves a window of 36, in batches of 12 a window of three."""
    runs = {"one": ("x1", 48), "four": ("x4", 12), "two": ("x2", 24)}
    for name, (option, batch_size) in runs.items():
        outcome = cvexp(
            *PLAIN,
            f"accumulation={option}",
            f"loader.batch_size={batch_size}",
            f"hydra.run.dir=multirun/{name}",
        )
        assert outcome.code == 0, outcome.err
    one, *others = (weights(tmp_path / "multirun" / name) for name in runs)
    for other in others:
        for key, tensor in one.items():
            assert torch.allclose(tensor, other[key], atol=1e-6, rtol=0), key
    (record,) = [path for path in tmp_path.glob("multirun/four/run.json")]
    assert '"effective_batch_size": 48' in record.read_text()
    assert '"optimizer_steps": 4' in record.read_text()


def test_a_full_window_of_equal_batches_weighs_one() -> None:
    assert window_weight(12, 48, 4) == 1
    assert window_weight(12, 36, 4) * 3 / 4 == 1  # a short window: three batches, divided by four


def test_more_batches_than_an_epoch_has_is_an_error() -> None:
    """Lightning ignores it, silently (Lightning#21808)."""
    assert fixed(8, batches=8) == 8
    with pytest.raises(UsageError, match=r"accumulation\.batches=8 is more than the 3 batches"):
        fixed(3, batches=8)
