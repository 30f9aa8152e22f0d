"""Lightning's training loop with less around each batch, and with an exact resume.

Its own loop costs a millisecond a step, and loses or repeats batches when it takes a checkpoint up
(Lightning#18780, #19764). Here a checkpoint says after which batch of which epoch it was written,
and training goes on with the next one.

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
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import SingleDeviceStrategy


def shorten(trainer: Trainer) -> None:
    """Let a Trainer train by these loops."""
    theirs = trainer.fit_loop
    ours = FitLoop(trainer, theirs.min_epochs, theirs.max_epochs)
    ours.epoch_loop = EpochLoop(trainer, min_steps=theirs.min_steps, max_steps=theirs.max_steps)
    trainer.fit_loop = ours


class FitLoop(_FitLoop):
    """Epoch by epoch."""

    def load_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Take a checkpoint's counters up as if the run had never stopped.

        Lightning would restart, which guesses from the counters where it was.
        """
        super().load_state_dict(state_dict, prefix)
        epochs, batches = self.epoch_progress, self.epoch_loop.batch_progress
        trackers: list[Any] = [epochs.total, epochs.current, batches.total, batches.current]
        goes_on = trackers[1].ready > trackers[1].processed
        for tracker in trackers:
            tracker.ready = tracker.started = tracker.completed = tracker.processed
        _Loop.restarting.fset(self, False)  # type: ignore[attr-defined]  # of children too
        for loop in (self, self.epoch_loop, self.epoch_loop.val_loop):
            loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        if goes_on:
            ours: Any = self.epoch_loop, self.trainer.lightning_module
            for part in ours:
                part.goes_on = True


class EpochLoop(_TrainingEpochLoop):
    """One epoch, batch by batch.

    A callback may have a method after_step(trainer, module): it is called where a checkpoint can be
    taken up again, after each optimizer step and the validation that is due then, but for an
    epoch's last.
    """

    goes_on = False  # the epoch that a checkpoint was written in
    validates = False  # first: the checkpoint was written when that was due

    @property
    def done(self) -> bool:
        """Return whether the epoch is over."""
        return not self.validates and bool(super().done)

    def reset(self) -> None:
        """Begin an epoch, or go on with one."""
        if not self.goes_on:
            super().reset()

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Find the epoch's next batch, and what there is to call."""
        super().on_run_start(data_fetcher)
        if self.goes_on:
            self.trainer.train_dataloader.order.start_at(self.batch_progress.current.ready)
            self.goes_on = False
        every: list[Any] = self.trainer.callbacks
        self._after_step = [c.after_step for c in every if hasattr(c, "after_step")]
        self._at_start = _overriding(self.trainer, "on_train_batch_start")
        self._at_end = _overriding(self.trainer, "on_train_batch_end")

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train on one batch.

        Raises:
            StopIteration: there is none left.
        """
        if self.validates:  # what follows this batch does it, from the start
            self.validates, batches = False, self.val_loop.batch_progress
            for name, counted in vars(batches.current).items():
                setattr(batches.total, name, getattr(batches.total, name) - counted)
            return
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

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        """Validate if that is due; then a step is over, if this batch ended one."""
        super().on_advance_end(data_fetcher)
        if not self._should_accumulate() and not self._num_ready_batches_reached():
            for hook in self._after_step:
                hook(self.trainer, self.trainer.lightning_module)

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
