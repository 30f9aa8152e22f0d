"""Checkpoints that are whole or absent: written beside the target, synced, moved into place."""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from cvexp.atomic import write_atomically
from cvexp.config import UsageError
from cvexp.module import Classifier


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint format, written atomically with its sha256 beside it."""

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
        line = f"{hashlib.sha256(content).hexdigest()}  {target.name}\n"
        write_atomically(target.with_name(f"{target.name}.sha256"), line.encode())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's plain types and tensors, on the CPU; no code in it can run.

    Raises:
        UsageError: it is not there, or is not what was written.
    """
    try:
        content = path.read_bytes()
        recorded = path.with_name(f"{path.name}.sha256").read_text("utf-8").split()[:1]
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


class LastAndBest(Checkpoint):
    """Keep last.ckpt, and best.ckpt of the epoch of highest validation accuracy (first of equals).

    Args:
        directory: where; None keeps nothing (trainer.fast_dev_run).
    """

    METRIC = "val/accuracy"

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.best: dict[str, float] = {}  # epoch (from 1), step, validation metrics of best.ckpt

    @property
    def best_path(self) -> Path | None:
        """Return where best.ckpt lies, if there is one."""
        return self._directory / "best.ckpt" if self._directory and self.best else None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights that validation was just made with, if they are the best so far."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        assert isinstance(pl_module, Classifier)
        metrics = pl_module.results
        if metrics[self.METRIC] > self.best.get(self.METRIC, float("-inf")):
            validation = {key: value for key, value in metrics.items() if key.startswith("val/")}
            at = {"epoch": trainer.current_epoch + 1, "step": pl_module.counts.steps}
            self.best = {**at, **validation}
            self._save(trainer, "best.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the epoch's last state."""
        self._save(trainer, "last.ckpt")

    def _save(self, trainer: Trainer, name: str) -> None:
        module = trainer.lightning_module
        assert isinstance(module, Classifier)
        module.check_weights()  # what is no number must not take the place of what is
        if self._directory is not None:
            trainer.save_checkpoint(self._directory / name)

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers: a run directory may move, and weights_only must load it."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where the checkpoint was."""
        self.best = dict(state_dict["best"])
