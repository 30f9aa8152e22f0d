"""The loss is a mean over images, whatever their weights and however targets are written."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cvexp.loss import cross_entropy
from tests.conftest import TOY, Outcome

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 1])
WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_classes_and_shares_are_the_same_target(
    smoothing: float, weights: torch.Tensor | None
) -> None:
    loss = cross_entropy(label_smoothing=smoothing)
    shares = torch.nn.functional.one_hot(LABELS, 5).float()
    assert torch.allclose(loss(LOGITS, LABELS, weights), loss(LOGITS, shares, weights), atol=1e-6)


def test_smoothing_gives_each_class_its_part_of_the_target() -> None:
    """Against the definition: (1 - e) of the target's own plus e / K of every class."""
    logs = LOGITS.log_softmax(dim=1)
    own = -logs[torch.arange(7), LABELS]
    expected = 0.8 * own + 0.2 * (-logs).mean(dim=1)
    assert torch.allclose(cross_entropy(label_smoothing=0.2)(LOGITS, LABELS, None), expected)


def test_an_image_counts_the_same_in_any_batch() -> None:
    """Torch's weighted mean divides by the batch's own weights."""
    loss = cross_entropy(label_smoothing=0.0)
    whole = loss(LOGITS, LABELS, WEIGHTS)
    parts = [loss(LOGITS[part], LABELS[part], WEIGHTS) for part in (slice(0, 3), slice(3, 7))]
    assert torch.equal(whole, torch.cat(parts))
    plain = torch.nn.functional.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.allclose(whole, plain * WEIGHTS[LABELS])


def test_smoothing_and_weights_act_on_training_alone(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Validation's loss is plain, so that runs compare: with a rate of nearly 0, equal."""
    runs = {"plain": [], "smooth": ["loss.label_smoothing=0.3", "data.class_weights=balanced"]}
    found = {}
    for name, overrides in runs.items():
        outcome = cvexp(
            *TOY,
            "trainer.limit_train_batches=2",
            "augmentation=none",
            "optimizer=sgd",
            "optimizer.lr=1e-12",
            "tracker=none",
            f"hydra.run.dir=multirun/{name}",
            *overrides,
        )
        assert outcome.code == 0, outcome.err
        found[name] = outcome.record(tmp_path, name)["metrics"]
    assert found["plain"]["val/loss"] == pytest.approx(found["smooth"]["val/loss"], abs=1e-6)
    assert found["plain"]["train/loss"] != pytest.approx(found["smooth"]["train/loss"], abs=1e-4)
