"""A progress bar in a terminal, plain lines elsewhere."""

import math
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cvexp.console import console, stage
from cvexp.module import Classifier

REFRESH_S = (
    0.5  # between readings of the running loss in a terminal, each of which waits for the device
)
LINE_S = 30.0  # between lines within an epoch elsewhere


class Bar(Callback):
    """Show how far training is, when it will end, how fast it goes, and the running loss."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._shown = self._began = self._epoch_began = 0.0
        self._images = 0
        self._rate = 0.0  # images/s of this epoch so far, validation left out

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the bar up."""
        self._began = time.perf_counter()
        assert isinstance(pl_module, Classifier)
        self._batches = int(trainer.num_training_batches)
        self._steps, self._from = pl_module.horizon.total_steps, trainer.global_step
        self._epochs = math.ceil(pl_module.horizon.epochs(self._steps))
        if console.is_terminal:
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[rate]} images/s  loss {task.fields[loss]}"),
            ]
            self._progress = Progress(*columns, console=console, transient=True)
            self._task = self._progress.add_task("", total=self._steps, rate="-", loss="-")
            self._progress.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the epoch's clock."""
        self._epoch_began = self._shown = time.perf_counter()
        self._images = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar, now and then."""
        self._images += len(batch.labels)
        now = time.perf_counter()
        self._rate = self._images / (now - self._epoch_began)
        if now - self._shown < (REFRESH_S if self._progress else LINE_S):
            return
        self._shown = now
        assert isinstance(pl_module, Classifier)
        loss = pl_module.running_loss()
        shown = "-" if loss is None else f"{loss:.4f}"
        if self._progress:
            self._progress.update(
                self._task,
                description=f"epoch {trainer.current_epoch + 1}/{self._epochs}",
                completed=trainer.global_step,
                rate=f"{self._rate:,.0f}",
                loss=shown,
            )
        else:
            share = f"{batch_idx + 1}/{self._batches} batches"
            left = self._left(now, trainer.global_step)
            stage("", f"{share}, loss {shown}, {self._rate:,.0f} images/s{left}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what the epoch came to."""
        assert isinstance(pl_module, Classifier)
        pl_module.finish_epoch()  # Lightning calls the module's own hooks after its callbacks'
        now, epoch = time.perf_counter(), trainer.current_epoch + 1
        metrics = ", ".join(
            f"{name} {value:.4f}"
            for name, value in pl_module.results.items()
            if name.endswith(("/loss", "/accuracy")) and not name.startswith("test/")
        )
        left = self._left(now, trainer.global_step)
        stage(f"epoch {epoch}/{self._epochs}", f"{metrics}, {self._rate:,.0f} images/s{left}")

    def _left(self, now: float, steps: int) -> str:
        """Return the time left, taking the steps to come to be as fast as those so far."""
        remaining = self._steps - steps
        here = steps - self._from
        if not (here and remaining):
            return ""
        return f", {(now - self._began) / here * remaining:,.0f} s left"

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the bar down."""
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Take the bar down."""
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None
