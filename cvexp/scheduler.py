"""Stage scheduler: the learning rate of each optimizer step, as a closed form.

Steps are optimizer steps 0 .. total_steps - 1; the horizon is what will really run, not a second
number to type.
"""

import math
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from cvexp.config import UsageError

Fraction = Annotated[float, Ge(0), Le(1)]


class Horizon(NamedTuple):
    """How many optimizer steps a run takes, in all and in one epoch."""

    total_steps: int
    steps_per_epoch: int


def planned(batches: int, accumulation: int, max_epochs: int, max_steps: int) -> Horizon:
    """Return the horizon of a run, as Lightning will count it.

    Args:
        batches: that an epoch trains on.
        max_steps: -1 for no limit.
    """
    steps_per_epoch = math.ceil(batches / accumulation)
    total = max_epochs * steps_per_epoch
    return Horizon(total if max_steps < 0 else min(total, max_steps), steps_per_epoch)


def constant(optimizer: Optimizer, horizon: Horizon, /) -> LambdaLR:
    """Keep the learning rate."""
    return LambdaLR(optimizer, lambda step: 1.0)


def cosine(optimizer: Optimizer, horizon: Horizon, /, *, min_lr_fraction: Fraction) -> LambdaLR:
    """Fall along a half cosine from 1 at the first step to min_lr_fraction at the last."""
    return LambdaLR(
        optimizer, lambda step: _half_cosine(step, 0, horizon.total_steps, min_lr_fraction)
    )


def warmup_cosine(
    optimizer: Optimizer,
    horizon: Horizon,
    /,
    *,
    warmup_steps: Annotated[int, Ge(0)] | None,
    warmup_epochs: Annotated[float, Ge(0)] | None,
    warmup_fraction: Fraction,
    start_factor: Annotated[float, Gt(0), Le(1)],
    min_lr_fraction: Fraction,
) -> LambdaLR:
    """Rise linearly from start_factor to 1, then fall along a half cosine.

    Step warmup_steps is the first at the full rate, and the last step is at min_lr_fraction of it.

    Raises:
        UsageError: two lengths of the warm-up, or one that leaves no step after it.
    """
    warmup = _warmup_steps(horizon, warmup_steps, warmup_epochs, warmup_fraction)

    def factor(step: int) -> float:
        if step < warmup:
            return start_factor + (1 - start_factor) * step / warmup
        return _half_cosine(step, warmup, horizon.total_steps, min_lr_fraction)

    return LambdaLR(optimizer, factor)


def _warmup_steps(
    horizon: Horizon, steps: int | None, epochs: float | None, fraction: float
) -> int:
    """Return the warm-up in steps: steps or epochs where one of them is set, else the fraction."""
    total = horizon.total_steps
    if steps is not None and epochs is not None:
        raise UsageError(
            f"scheduler.warmup_steps={steps} and scheduler.warmup_epochs={epochs} both name the "
            "warm-up; type only one of them"
        )
    if steps is not None:
        asked, warmup, fits = f"warmup_steps={steps}", steps, f"warmup_steps={total // 10}"
    elif epochs is not None:
        asked, warmup = f"warmup_epochs={epochs}", round(epochs * horizon.steps_per_epoch)
        fits = f"warmup_epochs={total / 10 / horizon.steps_per_epoch:g}"
    else:
        asked, warmup, fits = (
            f"warmup_fraction={fraction}",
            int(fraction * total),
            "warmup_fraction=0.1",
        )
    if warmup >= total:
        raise UsageError(
            f"scheduler.{asked} ({warmup} steps) must be below the {total} steps of this run; "
            f"try scheduler.{fits}"
        )
    return warmup


def _half_cosine(step: int, first: int, total_steps: int, floor: float) -> float:
    """Return 1 at step `first`, `floor` at the last step and after it, a half cosine between."""
    span = max(total_steps - 1 - first, 1)
    progress = min((step - first) / span, 1.0)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
