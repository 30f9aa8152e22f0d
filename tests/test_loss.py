"""The loss is a mean over images, whatever their weights and however targets are written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cvexp.loss import Loss, bce, cross_entropy, focal
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


LOSSES = {
    "cross_entropy": cross_entropy(label_smoothing=0.1),
    "bce": bce(label_smoothing=0.1),
    "focal": focal(gamma=2.0, label_smoothing=0.1),
}
SHARES = (
    torch.nn.functional.one_hot(LABELS, 5)
    .float()
    .lerp(torch.nn.functional.one_hot(LABELS.roll(1), 5).float(), 0.3)
)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_every_loss_takes_classes_and_shares_alike(
    loss: Loss, weights: torch.Tensor | None
) -> None:
    shares = torch.nn.functional.one_hot(LABELS, 5).float()
    by_class = loss(LOGITS, LABELS, weights)
    assert by_class.shape == (7,)
    assert torch.allclose(by_class, loss(LOGITS, shares, weights), atol=1e-6)
    whole = loss(LOGITS, SHARES, weights)
    parts = [loss(LOGITS[part], SHARES[part], weights) for part in (slice(0, 3), slice(3, 7))]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("targets", [LABELS, SHARES], ids=["classes", "shares"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_focal_without_gamma_is_cross_entropy(
    targets: torch.Tensor, weights: torch.Tensor | None
) -> None:
    for smoothing in (0.0, 0.1):
        ours = focal(gamma=0.0, label_smoothing=smoothing)(LOGITS, targets, weights)
        expected = cross_entropy(label_smoothing=smoothing)(LOGITS, targets, weights)
        assert torch.allclose(ours, expected, atol=1e-6)


def test_focal_is_its_formula_and_has_a_gradient_where_nothing_is_left_to_learn() -> None:
    own = LOGITS.softmax(dim=1)[torch.arange(7), LABELS]
    expected = -((1 - own) ** 2) * own.log()
    ours = focal(gamma=2.0, label_smoothing=0.0)(LOGITS, LABELS, None)
    assert torch.allclose(ours, expected, atol=1e-6)
    certain = torch.tensor([[200.0, 0.0]], requires_grad=True)
    focal(gamma=0.5, label_smoothing=0.0)(certain, torch.tensor([0]), None).sum().backward()
    assert torch.isfinite(certain.grad).all()


def test_bce_is_torchs_on_shares_and_weighs_an_image_by_its_classes() -> None:
    plain = torch.nn.functional.binary_cross_entropy_with_logits(LOGITS, SHARES, reduction="none")
    ours = bce(label_smoothing=0.0)
    assert torch.allclose(ours(LOGITS, SHARES, None), plain.mean(dim=1))
    weighed = ours(LOGITS, SHARES, WEIGHTS) / ours(LOGITS, SHARES, None)
    assert torch.allclose(weighed, 0.7 * WEIGHTS[LABELS] + 0.3 * WEIGHTS[LABELS.roll(1)], atol=1e-6)


@pytest.mark.parametrize("option", ["bce", "focal"])
def test_a_run_learns_by_every_loss(
    option: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = cvexp(*TOY, f"loss={option}", "mix=cutmix", "trainer.max_epochs=3", "tracker=none")
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("multirun/*/metrics.jsonl")
    lines = map(json.loads, path.read_text().splitlines())
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < 0.95 * losses[0]
