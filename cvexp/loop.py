"""Lightning's training loop with less around each batch: its own costs a millisecond a step.

What a batch goes through is the same, in the same order, with the same precision plug-in, scaler
and counters (a checkpoint resumes from them). What is left out is what cvexp has no use for: hooks
that nothing overrides, a profiler's context around each, metric objects, several loaders. Whatever
is not plain training on one device goes Lightning's own way.
"""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import SingleDeviceStrategy


def shorten(trainer: Trainer) -> None:
    """Let a Trainer train by this loop."""
    theirs = trainer.fit_loop.epoch_loop
    ours = EpochLoop(trainer, min_steps=theirs.min_steps, max_steps=theirs.max_steps)
    trainer.fit_loop.epoch_loop = ours


class EpochLoop(_TrainingEpochLoop):
    """One epoch, batch by batch."""

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Find out what there is to call."""
        super().on_run_start(data_fetcher)
        self._at_start = _overriding(self.trainer, "on_train_batch_start")
        self._at_end = _overriding(self.trainer, "on_train_batch_end")

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train on one batch.

        Raises:
            StopIteration: there is none left.
        """
        trainer, module = self.trainer, self.trainer.lightning_module
        if self.restarting or type(trainer.strategy) is not SingleDeviceStrategy:
            super().advance(data_fetcher)
            return
        self.val_loop.restarting = False
        fetched, _, _ = next(data_fetcher)
        batch_idx, progress = self.batch_idx + 1, self.batch_progress
        progress.is_last_batch = data_fetcher.done
        overlaps = module.device.type == "cuda"
        batch = type(fetched)(*(t.to(module.device, non_blocking=overlaps) for t in fetched))
        progress.increment_ready()
        for hook in self._at_start:
            hook(trainer, module, batch, batch_idx)
        module.on_train_batch_start(batch, batch_idx)
        progress.increment_started()
        loss = self._gradients(batch, batch_idx)
        accumulates = self._should_accumulate()
        if not accumulates:
            self._step()
        progress.increment_processed()
        if not accumulates:
            self._schedule()
        output = {"loss": loss}
        for hook in self._at_end:
            hook(trainer, module, output, batch, batch_idx)
        module.on_train_batch_end(output, batch, batch_idx)
        progress.increment_completed()

    @torch.enable_grad()
    def _gradients(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Add a batch's gradients to those of its window, and return its loss."""
        trainer = self.trainer
        loss: torch.Tensor = trainer.strategy.training_step(batch, batch_idx)
        k, scaler = trainer.accumulate_grad_batches, _scaler(trainer)
        if batch_idx % k == 0:
            zeroed = self.automatic_optimization.optim_progress.optimizer.zero_grad
            zeroed.increment_ready()
            zeroed.increment_started()
            trainer.optimizers[0].zero_grad()
            zeroed.increment_completed()
        part = loss if k == 1 else loss / k
        (part if scaler is None else scaler.scale(part)).backward()
        return loss.detach()

    def _step(self) -> None:
        """Make an optimizer step."""
        optimizer, scaler = self.trainer.optimizers[0], _scaler(self.trainer)
        steps = self.automatic_optimization.optim_progress.optimizer.step
        steps.increment_ready()
        if scaler is not None:
            scaler.unscale_(optimizer)
        self.trainer.lightning_module.configure_gradient_clipping(optimizer)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        steps.increment_completed()

    def _schedule(self) -> None:
        """Move the learning rate of a schedule by step; a plateau follows validation instead."""
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "step":
                self.scheduler_progress.increment_ready()
                config.scheduler.step()
                self.scheduler_progress.increment_completed()


def _scaler(trainer: Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _overriding(trainer: Trainer, name: str) -> list[Callable[..., Any]]:
    """Return the callbacks' hooks of this name that do something."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    own = [c for c in callbacks if getattr(type(c), name) is not getattr(Callback, name)]
    return [getattr(callback, name) for callback in own]
