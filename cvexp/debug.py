"""Presets for finding faults: what they add to a run are Lightning callbacks."""

import os
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from lightning.pytorch import Callback, LightningModule, Trainer

from cvexp.console import log, stage

Count = Annotated[int, Ge(1)]


def none(run_dir: Path, /) -> list[Callback]:
    """Add nothing."""
    return []


def overfit(
    run_dir: Path, /, *, until_loss: Annotated[float, Gt(0)], max_steps: Count
) -> list[Callback]:
    """Train on one same batch until its loss is below until_loss, and say whether it got there."""
    return [_Overfit(until_loss, max_steps)]


class _Overfit(Callback):
    def __init__(self, until_loss: float, max_steps: int) -> None:
        self._until_loss, self._max_steps = until_loss, max_steps
        self._loss = float("inf")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repeat the first batch."""
        loader: Any = trainer.train_dataloader
        loader.order.pin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop as soon as the batch is known by heart."""
        self._loss = float(outputs["loss"])
        trainer.should_stop = self._loss < self._until_loss

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say whether it got there."""
        reached = self._loss < self._until_loss
        verdict = "reached" if reached else "did NOT reach"
        stage(
            "overfit",
            f"one batch {verdict} a loss below {self._until_loss:g}: {self._loss:.4g} after "
            f"{trainer.global_step} of at most {self._max_steps} steps",
        )


def profile(
    run_dir: Path, /, *, skip_batches: Count, active_batches: Count, rows: Count
) -> list[Callback]:
    """Record active_batches after skip_batches by torch.profiler: a table, run_dir/trace.json."""
    return [_Profile(run_dir / "trace.json", skip_batches, active_batches, rows)]


class _Profile(Callback):
    def __init__(self, trace: Path, skip: int, active: int, rows: int) -> None:
        self._trace, self._rows = trace, rows
        self._needed = skip + active
        self._seen = 0
        self._on_device = False
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # or its library prints remarks of its own
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._on_device = True
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=skip - 1, warmup=1, active=active, repeat=1),
            on_trace_ready=self._report,
            acc_events=True,
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin."""
        self._profiler.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count one batch."""
        self._seen += 1
        self._profiler.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End; a run that was too short says so."""
        if self._seen < self._needed:
            stage(
                "profile",
                f"only {self._seen} of {self._needed} batches ran; "
                "type trainer.max_epochs=K for more",
            )
        self._profiler.stop()

    def _report(self, profiler: Any) -> None:
        """Write the trace, print the table."""
        profiler.export_chrome_trace(str(self._trace))
        order = "self_device_time_total" if self._on_device else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=order, row_limit=self._rows)
        stage("profile", f"trace in {self._trace} (open it in chrome://tracing or ui.perfetto.dev)")
        log.info("%s", table)
