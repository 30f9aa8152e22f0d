"""Stage checkpoint: what a run goes on from, whole or absent, and which one that is.

A file is written beside its target, synced and moved into place, with its sha256 beside it; at each
moment at least one of last.ckpt and previous.ckpt is sound.
"""

import hashlib
import io
import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Gt
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from cvexp import signals
from cvexp.atomic import link_atomically, write_atomically
from cvexp.config import UsageError
from cvexp.console import size, warn
from cvexp.module import Classifier


class Found(NamedTuple):
    """A sound checkpoint: its file's name, its content."""

    name: str
    checkpoint: dict[str, Any]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint format, written atomically with its sha256 beside it.

    Args:
        found: what a run goes on from, already read.
    """

    def __init__(self, found: Found | None = None) -> None:
        self._found = found

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write the checkpoint, then its hash in the form that `sha256sum --check` reads."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        content = buffer.getbuffer()
        write_atomically(target, content)
        _write_hash(target, hashlib.sha256(content).hexdigest())

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what was found."""
        assert self._found is not None
        return self._found.checkpoint


def _hash_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _write_hash(path: Path, digest: str) -> None:
    write_atomically(_hash_file(path), f"{digest}  {path.name}\n".encode())


def link_checkpoint(source: Path, target: Path) -> None:
    """Let a second name stand for a sound checkpoint; the file there before is replaced."""
    link_atomically(source, target)
    _write_hash(target, _hash_file(source).read_text("utf-8").split()[0])


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's plain types and tensors, on the CPU; no code in it can run.

    Raises:
        UsageError: it is not there, or is not what was written.
    """
    try:
        content = path.read_bytes()
        recorded = _hash_file(path).read_text("utf-8").split()[:1]
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    if recorded != [hashlib.sha256(content).hexdigest()]:
        raise UsageError(f"{path} is damaged: its sha256 is not the one in {path.name}.sha256")
    try:
        checkpoint: dict[str, Any] = torch.load(
            io.BytesIO(content), map_location="cpu", weights_only=True
        )
    except Exception as error:  # whatever a stranger's bytes lead to
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"{path}: not plain types and tensors: {reason}") from error
    return checkpoint


def newest(directory: Path) -> Found | None:
    """Return the newest sound checkpoint that a run can go on from; say what is wrong with others.

    None where no sound one is: the run begins anew.
    """
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        path = directory / name
        if not path.exists():
            continue
        try:
            checkpoint = read_checkpoint(path)
            if not _is_ours(checkpoint):
                raise UsageError(f"{path}: no checkpoint that this cvexp can go on from")
        except UsageError as error:
            warn(f"{error}; the one before is tried")
            continue
        if not checkpoint["resume"]["within_step"]:
            return Found(name, checkpoint)
    return None


def _is_ours(checkpoint: Any) -> bool:
    """Return whether plain types that were read have the parts that a run goes on from."""
    try:
        resume, progress = checkpoint["resume"], checkpoint["progress"]
        said = {"within_step", "validates", "should_stop"} <= resume.keys()
        numbers = [resume["metrics_bytes"], progress["counts"]["steps"], checkpoint["epoch"]]
        best = [state.get("best") for state in checkpoint["callbacks"].values()]
    except (TypeError, KeyError, AttributeError):
        return False
    whole = all(isinstance(number, int) for number in numbers)
    return said and whole and any(isinstance(state, dict) for state in best)


def last_and_best(
    run_dir: Path,
    /,
    *,
    every_steps: Annotated[int, Ge(1)] | None,
    every_s: Annotated[float, Gt(0)] | None,
) -> "LastAndBest":
    """Keep a run's last two checkpoints and its best one."""
    return LastAndBest(run_dir / "checkpoints", every_steps, every_s)


class LastAndBest(Checkpoint):
    """Keep the last two, and best.ckpt of the highest validation accuracy (first of equals).

    Args:
        directory: where; None keeps nothing (trainer.fast_dev_run).
        every_steps, every_s: optimizer steps and seconds between them, besides each epoch's.
    """

    METRIC = "val/accuracy"

    def __init__(
        self,
        directory: Path | None,
        every_steps: int | None = None,
        every_s: float | None = None,
    ) -> None:
        self.directory = directory
        self._every_steps, self._every_s = every_steps, every_s
        self._written = time.monotonic()
        self.best: dict[str, float] = {}  # epoch (from 1), step, validation metrics of best.ckpt
        self._is_best = False  # what validation was just made with
        self._validates = False  # the checkpoint that is written is from before its validation

    @property
    def best_path(self) -> Path | None:
        """Return where best.ckpt lies, if there is one."""
        return self.directory / "best.ckpt" if self.directory and self.best else None

    def check_space(self, module: Classifier) -> None:
        """Look before the start whether there is room for the three that are kept and a fourth.

        Raises:
            UsageError: there is less.
        """
        if self.directory is None:
            return
        trains = sum(p.numel() * p.element_size() for p in module.plan.trainable.values())
        whole = sum(t.numel() * t.element_size() for t in module.state_dict().values())
        there = {path.stat().st_ino for path in self.directory.glob("*.ckpt")}  # of a run cut
        # Two moments of Adam for what trains, and an average of it.
        each = whole + (2 + (module.average is not None)) * trains
        needed = max(4 - len(there), 1) * each
        free = shutil.disk_usage(self.directory.parent).free
        if free < needed:
            raise UsageError(
                f"checkpoints of this run take up to {size(needed)}, and {size(free)} are free on "
                "the disk; type hydra.run.dir=FOLDER on another"
            )

    def take_up(self, found: Found, *, extended: bool) -> None:
        """Make last.ckpt and best.ckpt the files that a checkpoint takes them for.

        Args:
            extended: the epochs to come are others than those that a newer best.ckpt is of.
        """
        best, path = found.checkpoint["callbacks"][self.state_key]["best"], self.directory
        if path is None:
            return
        if found.name != "last.ckpt":  # which is damaged, and must not become the one before
            link_checkpoint(path / found.name, path / "last.ckpt")
        if not best:
            return
        try:
            kept = read_checkpoint(path / "best.ckpt")["progress"]["counts"]["steps"]
        except UsageError as error:
            kept, reason = None, str(error)
        else:
            reason = f"best.ckpt is of step {kept}"
        if kept == best["step"] or (kept is not None and kept > best["step"] and not extended):
            return  # what is newer comes again
        if best["step"] == found.checkpoint["progress"]["counts"]["steps"]:
            link_checkpoint(path / "last.ckpt", path / "best.ckpt")
        else:
            warn(f"{reason}, not the best so far, of step {best['step']}, which is left out")
            best.clear()

    def after_step(self, trainer: Trainer, module: Classifier) -> None:
        """Keep a step's state where it is the best, or asked for, or the last for now."""
        stop, step = signals.received(), trainer.global_step
        due = self._every_steps is not None and step % self._every_steps == 0
        late = self._every_s is not None and time.monotonic() - self._written >= self._every_s
        if stop or due or late or self._is_best:
            self._save(trainer)
        if stop:
            raise stop

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See whether the weights that validation was just made with are the best so far."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        assert isinstance(pl_module, Classifier)
        metrics = pl_module.results
        if metrics[self.METRIC] > self.best.get(self.METRIC, float("-inf")):
            validation = {key: value for key, value in metrics.items() if key.startswith("val/")}
            at = {"epoch": trainer.current_epoch + 1, "step": pl_module.counts.steps}
            self.best = {**at, **validation}
            self._is_best = True  # kept once all that belongs to this step is done
            if _within_step(trainer):
                pl_module.check_weights()
                self._write(trainer, "best.ckpt")
                self._is_best = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the epoch's last state."""
        self._save(trainer)
        if stop := signals.received():
            raise stop

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """End a validation that was interrupted; the next run makes it again."""
        stop = signals.received()
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if stop is None or (fits and _within_step(trainer)):
            return
        if fits:
            self._validates = True
            self._save(trainer)
        raise stop

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """End a test that was interrupted."""
        if stop := signals.received():
            raise stop

    def _save(self, trainer: Trainer) -> None:
        module = trainer.lightning_module
        assert isinstance(module, Classifier)
        module.check_weights()  # what is no number must not take the place of what is
        if self.directory is None:
            return
        last = self.directory / "last.ckpt"
        if _hash_file(last).exists():
            link_checkpoint(last, self.directory / "previous.ckpt")
        self._write(trainer, last.name)
        if self._is_best:
            link_checkpoint(last, self.directory / "best.ckpt")
        self._is_best, self._written = False, time.monotonic()

    def _write(self, trainer: Trainer, name: str) -> None:
        if self.directory is not None:
            trainer.save_checkpoint(self.directory / name)

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers: a run directory may move, and weights_only must load it."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where the checkpoint was."""
        self.best = dict(state_dict["best"])

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Say what is left to do, and how long metrics.jsonl is; those lines are on disk then."""
        assert self.directory is not None
        checkpoint["resume"] = {
            "within_step": _within_step(trainer),
            "validates": self._validates,
            "should_stop": trainer.should_stop,
            "metrics_bytes": _synced_bytes(self.directory.parent / "metrics.jsonl"),
        }

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take up what is left to do."""
        trainer.should_stop = checkpoint["resume"]["should_stop"]
        trainer.fit_loop.epoch_loop.validates = checkpoint["resume"]["validates"]


def _within_step(trainer: Trainer) -> bool:
    """Return whether gradients are being accumulated, which no checkpoint holds."""
    return trainer.fit_loop._should_accumulate()


def _synced_bytes(path: Path) -> int:
    """Return a file's size once its content is on disk; 0 where there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
