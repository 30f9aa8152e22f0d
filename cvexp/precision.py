"""Stage precision: Lightning's Trainer(precision=), its effect on the hardware known beforehand."""

import functools
from typing import Literal, NamedTuple

import torch

from cvexp.config import UsageError

Name = Literal["64-true", "32-true", "16-mixed", "bf16-mixed", "bf16-true"]


class Precision(NamedTuple):
    """What the Trainer is given, and what a person should know of it."""

    trainer: Name
    warning: str | None


def lightning(
    device: torch.device,
    /,
    *,
    trainer: Name,
    float32_matmul: Literal["highest", "high"],
) -> Precision:
    """Set torch's float32 matmul precision and return the Trainer's.

    Raises:
        UsageError: the device would compute in another precision than the one that was asked for.
    """
    if trainer == "16-mixed" and device.type != "cuda":
        raise UsageError(
            "precision=16-mixed needs a CUDA device and this run has none; "
            "try precision=bf16-mixed or precision=32-true"
        )
    if trainer == "64-true" and device.type == "mps":
        raise UsageError("precision=64-true: Apple's GPUs have none; try precision=32-true")
    if float32_matmul == "high" and not _has_tf32(device):
        raise UsageError(
            "precision=tf32 needs an NVIDIA GPU of compute capability 8.0 or newer and would be "
            "plain fp32 here; try precision=32-true"
        )
    torch.set_float32_matmul_precision(float32_matmul)
    # cuDNN rounds float32 convolutions to TF32 by default: only if it was asked for.
    torch.backends.cudnn.allow_tf32 = float32_matmul == "high"
    reason = bf16_emulated(device) if trainer.startswith("bf16") else None
    if reason is None:
        return Precision(trainer, None)
    return Precision(
        trainer,
        f"precision={trainer} is emulated here: {reason}; expect it to be slower than 32-true",
    )


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def bf16_emulated(device: torch.device) -> str | None:
    """Return why bfloat16 has no instructions of its own on this device, or None where it has."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 0):
            return f"compute capability {major}.{minor} is below 8.0, the first with bfloat16"
    if device.type == "cpu":
        wanted = ("avx512_bf16", "amx_bf16", "bf16")  # the last on ARM
        if not any(_cpu_features().get(name) for name in wanted):
            return "this CPU has neither avx512_bf16 nor amx_bf16 instructions"
    return None


@functools.cache
def _cpu_features() -> dict[str, object]:
    return dict(torch.cpu.get_capabilities())
