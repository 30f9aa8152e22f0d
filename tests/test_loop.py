"""The shorter loop does what Lightning's own does, its counters and its scaler included."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

import cvexp.run as run_module
from cvexp.checkpoint import LastAndBest
from cvexp.console import quieten_lightning
from cvexp.loop import EpochLoop
from cvexp.prepare import Prepared, prepare
from cvexp.record import MetricsLog
from cvexp.run import make_trainer
from cvexp.window import total_norm
from tests.conftest import TOY, Outcome
from tests.test_contract import composed


def assert_same(one: Any, other: Any) -> None:
    """Compare nested containers of tensors and plain values."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "accumulation=ramp accumulation.after_epochs=[1] accumulation.batches=[2,3]",
        "scheduler=plateau trainer.val_check_interval=0.5",
        "precision=bf16-mixed trainer.max_steps=9 optimizer.grad_clip_norm=0.1",
        "freeze=gradual freeze.unfreeze_epochs=[1] ema=weights",
    ],
    ids=["plain", "ramp", "plateau", "bf16-clipped", "gradual"],
)
def test_a_checkpoint_is_that_of_lightnings_own_loop(
    recipe: str, cvexp: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, optimizer, schedule and every counter of its loops."""
    recipe = f"trainer.limit_train_batches=7 trainer.max_epochs=2 tracker=none {recipe}"
    kept = []
    for name in ("ours", "theirs"):
        if name == "theirs":
            monkeypatch.setattr(EpochLoop, "advance", _TrainingEpochLoop.advance)
        outcome = cvexp(*TOY, *recipe.split(), f"hydra.run.dir=multirun/{name}")
        assert outcome.code == 0, outcome.err
        folder = tmp_path / "multirun" / name
        checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        del checkpoint["callbacks"]["Meter"]  # which holds times
        kept.append((checkpoint, (folder / "metrics.jsonl").read_text()))
    assert_same(*kept)


def test_a_run_takes_the_shorter_loop(tmp_path: Path) -> None:
    trainer = make_trainer(prepare(composed(*TOY)), tmp_path, [], [])
    assert type(trainer.fit_loop.epoch_loop) is EpochLoop


def scaled(
    folder: Path, scale: float, *overrides: str
) -> tuple[Prepared, Trainer, list[dict[str, Any]]]:
    """Train under a GradScaler, as 16-mixed does on a GPU: autocast's kernels apart, the same code.

    The toy computes in bfloat16 here: CPUs have no float16 worth the name.
    """
    ready = prepare(
        composed(*TOY, "trainer.limit_train_batches=8", "trainer.log_every_n_steps=1", *overrides)
    )
    quieten_lightning()
    logger = MetricsLog(folder / "metrics.jsonl")
    trainer = make_trainer(ready, folder, [logger], [LastAndBest(folder / "checkpoints")])
    loss = ready.module._loss
    ready.module._loss = lambda *given: 100 * loss(*given)  # so that a scale can be too large
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    plugin.precision = "bf16-mixed"  # what autocast is told; the scaler stays
    trainer.strategy._precision_plugin = plugin
    trainer.fit(ready.module, ready.loaders.train, ready.loaders.val)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return ready, trainer, [json.loads(line) for line in lines]


@pytest.mark.parametrize("loop", ["ours", "theirs"])
def test_skipped_steps_are_counted_and_the_scale_is_logged(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale that overflows: steps are skipped until it fits, and are no divergence."""
    if loop == "theirs":
        monkeypatch.setattr(run_module, "shorten", lambda trainer: None)
    ready, trainer, lines = scaled(tmp_path, 2.0**127)
    skipped = trainer.global_step - ready.module.counts.steps
    assert 0 < skipped < 8
    assert trainer.global_step == 8
    scales = [line["scale"] for line in lines if "scale" in line]
    assert scales[-1] < 2.0**127
    kept = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    (state,) = [value for key, value in kept.items() if key == "MixedPrecision"]
    assert state["scale"] == scales[-1]
    assert state["growth_interval"] == 3
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(state)
    assert scaler.get_scale() == scales[-1]


@pytest.mark.parametrize("accumulation", ["x1", "x4"])
def test_accumulated_gradients_are_clipped_after_unscaling(
    accumulation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the scale, the update is that of the clipped gradients."""
    norms: list[float] = []
    clip = nn.utils.clip_grads_with_norm_

    def watch(parameters: Any, max_norm: float, norm: torch.Tensor) -> None:
        clip(parameters, max_norm, norm)
        norms.append(float(total_norm([p.grad for p in parameters if p.grad is not None])))

    monkeypatch.setattr("cvexp.module.clip_grads_with_norm_", watch)
    ends = []
    for scale in (1.0, 2.0**12):
        folder = tmp_path / str(scale)
        folder.mkdir()
        clipped = "optimizer.grad_clip_norm=0.01 optimizer=sgd scheduler=constant".split()
        ready, _, _ = scaled(folder, scale, f"accumulation={accumulation}", *clipped)
        ends.append(ready.module.state_dict())
    assert norms == pytest.approx([0.01] * len(norms), rel=1e-3)
    assert all(torch.allclose(ends[0][k].float(), ends[1][k].float(), atol=1e-4) for k in ends[0])
