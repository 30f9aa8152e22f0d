"""A loss that brings a job down in the way that it is asked for."""

import os
import signal
from pathlib import Path
from typing import Any

import torch

from cvexp.loss import Loss, cross_entropy


def faulty(*, fault: str, once: str | None, label_smoothing: float) -> Loss:
    """Return cross-entropy, which at its first call has the fault; never again if `once` exists."""

    def loss(logits: torch.Tensor, targets: torch.Tensor, weights: Any) -> torch.Tensor:
        if once is not None and not os.path.exists(once):
            open(once, "x").close()
        elif once is not None:
            return inner(logits, targets, weights)
        if fault == "raise":
            raise ZeroDivisionError("of the job's own")
        if fault == "memory":
            torch.empty(10**15)
        if fault.startswith("tell"):  # which accelerator this job has
            Path(f"{fault}.txt").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit":
            os._exit(7)
        if fault == "quit":
            raise SystemExit(3)
        scale = float("nan") if fault == "diverge" else 1.0
        return scale * inner(logits, targets, weights)

    inner = cross_entropy(label_smoothing=label_smoothing)
    return loss
