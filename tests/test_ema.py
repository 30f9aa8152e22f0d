"""The average is the recursion, evaluated beside the weights and kept with them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from cvexp.ema import Average, too_slow
from cvexp.prepare import prepare
from tests.conftest import TOY, Outcome
from tests.test_contract import composed

RUN = [*TOY, "ema=weights", "trainer.limit_train_batches=6", "tracker=none"]


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_the_average_is_the_recursion_with_its_warm_up(decay: float) -> None:
    """Float buffers too; the start is the weights after the first step."""
    module = nn.BatchNorm1d(3)
    average = Average(module, ["weight", "bias"], decay)
    expected: torch.Tensor | None = None
    for step in range(1, 40):
        with torch.no_grad():
            module.weight.normal_()
            module.running_mean.normal_()
        now = torch.cat([module.weight.detach(), module.running_mean]).double()
        d = min(decay, (1 + step) / (10 + step))
        expected = now.clone() if expected is None else d * expected + (1 - d) * now
        average.update()
    found = average.tensors("x.")
    assert set(found) == {"x.weight", "x.bias", "x.running_mean", "x.running_var"}
    both = torch.cat([found["x.weight"], found["x.running_mean"]]).double()
    assert torch.allclose(both, expected, atol=1e-5)


def test_half_precision_is_averaged_in_float32() -> None:
    """A step of 1e-3 is lost in bfloat16's average, not in ours."""
    module = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.fill_(1.0)
    average = Average(module, ["weight"], 0.999)
    average.update()
    average.steps = 10**6
    with torch.no_grad():
        module.weight.fill_(2.0)
    average.update()
    assert average.state()["tensors"]["weight"].item() == pytest.approx(1.001, abs=1e-6)
    assert average.tensors("")["weight"].dtype == torch.bfloat16


def test_no_decay_is_the_weights_themselves(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(*RUN, "ema.decay=0.0")
    assert outcome.code == 0, outcome.err
    metrics = outcome.record(tmp_path)["metrics"]
    for name in ("loss", "accuracy", "balanced_accuracy", "macro_f1"):
        for split in ("val", "test"):
            assert metrics[f"{split}/ema_{name}"] == pytest.approx(metrics[f"{split}/{name}"])


@pytest.mark.parametrize("freeze", ["full", "most"])
def test_the_metrics_are_those_of_the_kept_average(
    freeze: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Load the checkpoint's average as weights, and evaluate: the recorded accuracy, exactly."""
    recipe = [*RUN, "ema.decay=0.8", f"freeze={freeze}", "optimizer.lr=0.01"]
    outcome = cvexp(*recipe)
    assert outcome.code == 0, outcome.err
    metrics = outcome.record(tmp_path)["metrics"]
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["ema"]["steps"] == 6

    ready = prepare(composed(*recipe))
    module = ready.module.eval()
    module.load_state_dict(checkpoint["state_dict"])
    module.network.load_state_dict(checkpoint["ema"]["tensors"], strict=False)
    with torch.no_grad():
        right = [(module(b.images).argmax(1) == b.labels).sum() for b in ready.loaders.val]
    assert metrics["val/ema_accuracy"] == pytest.approx(int(sum(right)) / 180)
    assert metrics["val/ema_loss"] != pytest.approx(metrics["val/loss"], abs=1e-4)


def test_averaging_changes_no_weight(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    states = []
    for option in ("none", "weights"):
        outcome = cvexp(*RUN, f"ema={option}", f"hydra.run.dir=multirun/{option}")
        assert outcome.code == 0, outcome.err
        path = tmp_path / "multirun" / option / "checkpoints" / "last.ckpt"
        states.append(torch.load(path, weights_only=True)["state_dict"])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_head_on_cached_features_is_averaged_too(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    found = []
    for name, cached in (("images", "false"), ("features", "true")):
        outcome = cvexp(
            *RUN,
            "freeze=last",
            f"freeze.cache_features={cached}",
            "augmentation=none",
            f"hydra.run.dir=multirun/{name}",
        )
        assert outcome.code == 0, outcome.err
        found.append(outcome.record(tmp_path, name)["metrics"])
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 6, 20, 80, 12_345, 10**6, 10**9])
def test_the_decay_that_is_suggested_fits(steps: int) -> None:
    warning = too_slow(1 - 1e-12, steps)
    assert warning is not None
    fits = float(warning.rpartition("=")[2])
    assert 0 <= fits < 1
    assert too_slow(fits, steps) is None


def test_a_decay_too_slow_is_warned_about_with_one_that_fits(cvexp: Callable[..., Outcome]) -> None:
    outcome = cvexp(*RUN, "ema.decay=0.9999")
    assert outcome.code == 0
    (line,) = [line for line in outcome.out.splitlines() if "ema.decay=0.9999" in line]
    assert "10,000 steps" in line
    fits = float(line.rpartition("=")[2])
    assert too_slow(fits, 6) is None
    assert "ema.decay" not in cvexp(*RUN, "ema.decay=0.5").out
