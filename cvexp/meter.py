"""What a run costs: time, throughput, memory. What was not measured is None, never an estimate."""

import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cvexp.loader import Batches
from cvexp.module import Classifier

WARMUP_STEPS = (
    5  # optimizer steps that throughput leaves out: allocation, kernel choice, worker start
)
contended: bool | None = None  # whether a sweep's jobs share this run's device; None: not known


class _Mark:
    """A moment on the device's clock; comparing two waits for the device, making one does not."""

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
        if self._event is None:
            self._host = time.perf_counter()
        else:
            self._event.record()

    def seconds_since(self, earlier: "_Mark") -> float:
        """Return the time between two marks in seconds."""
        if self._event is None or earlier._event is None:
            return self._host - earlier._host
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000


class _Compiling:
    """A clock that runs while torch.compile works, on a backward pass at its first call too."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0
        self._handler: Any = None

    def watch(self) -> None:
        """Listen to torch."""
        from torch._dynamo.callback import callback_handler

        if self._handler is None:
            self._handler = callback_handler
            self._handler.register_start_callback(self._begin)
            self._handler.register_end_callback(self._end)

    def leave(self) -> None:
        """Listen no more."""
        if self._handler is not None:
            self._handler.remove_start_callback(self._begin)
            self._handler.remove_end_callback(self._end)
            self._handler = None

    def _begin(self, what: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, what: Any) -> None:
        self.seconds += time.perf_counter() - self._began


class Meter(Callback):
    """Measure one run.

    A step's time runs from the end of the step before it, or from the epoch's start, to its own
    end, on the device's clock: waiting for data is in it, validation, checkpoints and steps that
    wait for the compiler are not.

    Args:
        began: time.perf_counter() when the run began.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._train: Batches | None = None  # the training loader, which times its own waits
        self._steps: list[tuple[int, float]] = []  # images, seconds
        self._pending: list[tuple[int, _Mark, _Mark]] = []
        self._last: _Mark | None = None
        self._images = 0
        self._seen_steps = 0
        self._startup_s: float | None = None
        self._train_s = self._validation_s = 0.0
        self._epoch_began: float | None = None
        self._validation_in_epoch_s = 0.0
        self._validation_began: float | None = None
        self._host_peak_is_own = _reset_host_peak()
        self._compiling: _Compiling | None = None
        self._compiled_s = 0.0  # so far
        self._compiled_in_step = False
        self._saving_began: float | None = None  # of a checkpoint within an epoch
        # Before the checkpoint that this run goes on from.
        self._rates: list[float] = []
        self._earlier = {"wall_s": 0.0, "compile_s": 0.0, "wait_s": 0.0}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch the compiler, if it is to work."""
        assert isinstance(pl_module, Classifier)
        if pl_module.plan.network.compiles:
            self._compiling = self._compiling or _Compiling()
            self._compiling.watch()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch it no more."""
        if self._compiling:
            self._compiling.leave()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Watch it no more."""
        self.teardown(trainer, pl_module, "")

    def _newly_compiled_s(self) -> float:
        """Return the seconds that the compiler took since the last call."""
        if self._compiling is None:
            return 0.0
        before, self._compiled_s = self._compiled_s, self._compiling.seconds
        return self._compiled_s - before

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything before the first batch is start-up."""
        self._startup_s = (self._startup_s or 0.0) + time.perf_counter() - self._began
        self._train = cast(Batches, trainer.train_dataloader)
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the epoch's clock."""
        self._epoch_began, self._validation_in_epoch_s = time.perf_counter(), 0.0
        self._seen_steps = trainer.global_step
        self._last = _Mark(pl_module.device)
        self._saving_began = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mark the end of each optimizer step."""
        self._images += len(batch.labels)
        compiled_s = self._newly_compiled_s()
        self._train_s -= compiled_s
        self._compiled_in_step |= compiled_s > 0
        if trainer.global_step > self._seen_steps:
            mark = _Mark(pl_module.device)
            if self._last is not None and not self._compiled_in_step:
                self._pending.append((self._images, self._last, mark))
            self._last, self._images, self._seen_steps = mark, 0, trainer.global_step
            self._compiled_in_step = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the step's clock."""
        self._validation_began = time.perf_counter()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the step's clock again after a validation or a checkpoint in mid-epoch."""
        if self._validation_began is not None:
            self._end_validation()
            self._last = _Mark(pl_module.device)
        if self._saving_began is not None:
            self._train_s -= time.perf_counter() - self._saving_began
            self._saving_began, self._last = None, _Mark(pl_module.device)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the epoch's marks, with the device synchronised."""
        self._end_validation()
        self._read_marks()
        self._train_s += self._in_epoch_s()
        self._epoch_began = None

    def _read_marks(self) -> None:
        self._steps += [(images, end.seconds_since(begin)) for images, begin, end in self._pending]
        self._pending = []

    def _in_epoch_s(self) -> float:
        """Return the time of this epoch's training so far."""
        if self._epoch_began is None:
            return 0.0
        now = time.perf_counter()
        validates = now - self._validation_began if self._validation_began is not None else 0.0
        return now - self._epoch_began - self._validation_in_epoch_s - validates

    def _end_validation(self) -> None:
        """Add validation, with keeping the best checkpoint, to its own sum."""
        if self._validation_began is not None:
            elapsed = time.perf_counter() - self._validation_began
            self._validation_s += elapsed - self._newly_compiled_s()
            self._validation_in_epoch_s += elapsed
            self._validation_began = None

    def images_per_s(self) -> dict[str, float | int] | None:
        """Return median and interquartile range over steps after warm-up; None before any."""
        rates = self._measured()
        if not rates:
            return None
        lower, median, upper = (float(q) for q in np.percentile(rates, [25, 50, 75]))
        return {"median": median, "iqr": upper - lower, "steps": len(rates)}

    def _measured(self) -> list[float]:
        """Return images/s of each step after the warm-up of each process that trained."""
        rates = [images / seconds for images, seconds in self._steps[WARMUP_STEPS:]]
        return self._rates + rates

    def _so_far(self) -> dict[str, float]:
        """Return what grows in every process of a run."""
        here = {
            "wall_s": time.perf_counter() - self._began,
            "compile_s": self._compiling.seconds if self._compiling else 0.0,
            "wait_s": self._train.wait_s if self._train else 0.0,
        }
        return {key: here[key] + seconds for key, seconds in self._earlier.items()}

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Stop the step's clock."""
        self._saving_began = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured so far; waits for the device."""
        self._read_marks()
        return {
            "startup_s": self._startup_s,
            "train_s": self._train_s + self._in_epoch_s(),
            "validation_s": self._validation_s,
            "rates": self._measured(),
            "earlier": self._so_far(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what was measured before a checkpoint; what came after it is not counted."""
        self._startup_s = state_dict["startup_s"]
        self._train_s, self._validation_s = state_dict["train_s"], state_dict["validation_s"]
        self._rates, self._earlier = list(state_dict["rates"]), dict(state_dict["earlier"])

    def cost(self, device: torch.device) -> dict[str, Any]:
        """Return the record's cost."""
        on_cuda, so_far = device.type == "cuda", self._so_far()
        return {
            "startup_s": self._startup_s,
            "train_s": self._train_s,
            "validation_s": self._validation_s,
            "compile_s": so_far["compile_s"] if self._compiling else None,
            "wall_s": so_far["wall_s"],
            "images_per_s": self.images_per_s(),
            "data_wait_fraction": so_far["wait_s"] / self._train_s if self._train_s else None,
            "peak_host_bytes": _host_peak_bytes() if self._host_peak_is_own else None,
            "peak_device_bytes": torch.cuda.max_memory_allocated(device) if on_cuda else None,
            "flops_per_image": None,
            "mfu": None,
            "energy_j": None,
            "contended": contended,
        }


def _reset_host_peak() -> bool:
    """Make the process's peak memory begin anew; return whether later peaks are this run's own."""
    if sys.platform != "linux":
        return False
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def _host_peak_bytes() -> int:
    """Return the process's peak resident memory since the reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
