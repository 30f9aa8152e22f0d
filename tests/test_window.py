"""Divergence is seen with its step, its rate and its images, and no step waits for that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cvexp.checkpoint import LastAndBest
from cvexp.prepare import prepare
from cvexp.record import MetricsLog
from cvexp.run import make_trainer
from cvexp.window import Diverged, Window, total_norm
from tests.conftest import TOY, Outcome
from tests.test_contract import composed

NAN, INF = torch.tensor(float("nan")), torch.tensor(float("inf"))
LOGITS, LABELS = torch.eye(3)[[0, 1, 1, 2]], torch.tensor([0, 1, 2, 2])


def batch(window: Window, step: int, loss: float, first: int, count: int = 4) -> None:
    indices = torch.arange(first, first + count)
    window.add(step, torch.tensor(loss), LOGITS[:count], LABELS[:count], indices)


def test_sums_are_over_images() -> None:
    window = Window()
    batch(window, 1, 2.0, 0)
    batch(window, 2, 5.0, 4, count=1)
    window.add_norm(torch.tensor(3.0))
    window.stepped(1)
    window.add_norm(torch.tensor(5.0))
    window.stepped(2)
    assert window.loss() == pytest.approx(13 / 5)
    assert window.read() == (13.0, 4.0, 5, 4.0, None)
    assert window.read() == (0.0, 0.0, 0, None, None)
    assert window.loss() is None


def test_the_first_fault_is_found_with_its_images() -> None:
    window = Window()
    batch(window, 1, 1.0, 0)
    batch(window, 2, 1.0, 4)
    batch(window, 2, float("inf"), 8)
    batch(window, 3, float("nan"), 12)
    fault = window.read().fault
    assert fault == ("training loss", 2, [8, 9, 10, 11])


def test_a_gradient_names_all_images_of_its_step() -> None:
    window = Window()
    for step in (1, 2, 3):
        batch(window, step, 1.0, 8 * step)
        batch(window, step, 1.0, 8 * step + 4)
        window.add_norm(INF if step == 2 else torch.tensor(1.0))
        window.stepped(step)
    assert window.read().fault == ("gradient norm", 2, list(range(16, 24)))


def test_a_step_that_a_scaler_skips_is_no_fault() -> None:
    window = Window()
    batch(window, 1, 1.0, 0)
    window.add_norm(INF)  # and no step
    window.add_norm(torch.tensor(2.0))
    window.stepped(1)
    reading = window.read()
    assert (reading.fault, reading.grad_norm) == (None, 2.0)


def test_weights_are_looked_at() -> None:
    window = Window()
    batch(window, 1, 1.0, 0)
    fault = window.read([torch.ones(3), torch.stack([NAN, NAN])]).fault
    assert fault is not None
    assert fault.what == "norm of the weights"


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_total_norm_is_torchs_and_passes_on_what_is_no_number(value: torch.Tensor) -> None:
    tensors = [torch.randn(3, 4), torch.randn(5), torch.arange(3)]
    expected = torch.nn.utils.get_total_norm(tensors[:2])
    assert torch.allclose(total_norm(tensors), expected)
    assert not torch.isfinite(total_norm([*tensors, value[None]]))


def test_a_run_that_diverges_names_the_batch(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    """The images are those that the order gave in that step."""
    recipe = [*TOY, "optimizer=sgd", "optimizer.lr=1e30", "scheduler=constant", "tracker=none"]
    outcome = cvexp(*recipe)
    assert outcome.code == 1
    record = outcome.record(tmp_path)
    assert record["status"] == "diverged"
    where = record["diverged"]
    assert where["step"] == 2  # the first step destroys the weights, or the second sees it
    assert where["learning_rate"] == pytest.approx(1e30)
    ready = prepare(composed(*recipe))
    keys = list(ready.loaders.train.order)
    names = [ready.data.train.names[int(i)] for i in keys[where["step"] - 1].indices]
    assert where["images"] == names
    assert f"{names[0]}, {names[1]}, {names[2]} and {len(names) - 3} more" in record["reason"]
    assert not list(tmp_path.glob("multirun/*/checkpoints/*.ckpt"))


class Spoil(Callback):
    """Make a weight no number at the end of an epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do it."""
        if trainer.current_epoch == self._epoch:
            next(pl_module.parameters()).data.fill_(float("nan"))


def test_weights_that_are_no_number_overwrite_no_checkpoint(tmp_path: Path) -> None:
    ready = prepare(composed(*TOY, "trainer.max_epochs=3", "trainer.limit_train_batches=2"))
    callbacks = [Spoil(1), LastAndBest(tmp_path)]
    logger = MetricsLog(tmp_path / "metrics.jsonl")
    ready.arguments["log_every_n_steps"] = 1
    with pytest.raises(Diverged, match="norm of the weights is not finite at optimizer step 4"):
        make_trainer(ready, tmp_path, [logger], callbacks).fit(
            ready.module, ready.loaders.train, ready.loaders.val
        )
    kept = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert kept["epoch"] == 0
    assert all(torch.isfinite(t).all() for t in kept["state_dict"].values())


def test_a_step_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are read when a line is logged, twice in ten steps, and at the epoch's end."""
    ready = prepare(
        composed(
            *TOY,
            "trainer.limit_train_batches=10",
            "trainer.limit_val_batches=0",
            "optimizer.grad_clip_norm=1.0",
            "mix=mixup",
            "ema=weights",
        )
    )
    ready.arguments["log_every_n_steps"] = 5
    logger = MetricsLog(tmp_path / "metrics.jsonl")
    trainer = make_trainer(ready, tmp_path, [logger], [])
    reads: list[int] = []

    def watched(name: str) -> Callable[..., Any]:
        own = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *rest: Any) -> Any:
            if tensor.is_floating_point():
                reads.append(trainer.global_step)
            return own(tensor, *rest)

        return read

    for name in ("item", "tolist", "__float__", "__bool__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, watched(name))
    trainer.fit(ready.module, ready.loaders.train, ready.loaders.val)
    assert set(reads) <= {5, 10}
    assert 5 in reads


@pytest.mark.gpu
def test_a_step_on_a_gpu_waits_for_nothing(tmp_path: Path) -> None:
    """By torch's own watch over synchronisations."""

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Trainer, *rest: Any) -> None:
            """Watch steps 1 to 4 of 5: the first makes buffers, the fifth logs a line."""
            watches = 1 <= trainer.global_step < 4
            torch.cuda.set_sync_debug_mode("error" if watches else "default")

    ready = prepare(
        composed(
            *TOY,
            "trainer.accelerator=gpu",
            "trainer.limit_train_batches=5",
            "trainer.limit_val_batches=0",
            "loader=device",
        )
    )
    ready.arguments["log_every_n_steps"] = 5
    logger = MetricsLog(tmp_path / "metrics.jsonl")
    trainer = make_trainer(ready, tmp_path, [logger], [Watch()])
    trainer.fit(ready.module, ready.loaders.train, ready.loaders.val)
