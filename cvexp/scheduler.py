"""Stage scheduler: the learning rate of each optimizer step, as a closed form.

Steps are optimizer steps 0 .. total_steps - 1; the horizon is what will really run, not a second
number to type. Only `plateau` cannot be known beforehand: it follows validation.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Len, Lt
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from cvexp.config import UsageError

Fraction = Annotated[float, Ge(0), Le(1)]
Metric = Literal["val/loss", "val/accuracy", "val/balanced_accuracy", "val/macro_f1"]
Drop = Annotated[float, Gt(0), Lt(1)]


class Horizon(NamedTuple):
    """How many optimizer steps a run takes, in all and in each epoch (a ramp changes those)."""

    total_steps: int
    steps: Sequence[int]

    def at(self, epochs: float) -> int:
        """Return the step that comes after so many epochs, rounded to a whole one."""
        whole = int(epochs)
        within = self.steps[whole] if whole < len(self.steps) else self.steps[-1]
        return sum(self.steps[:whole]) + round((epochs - whole) * within)

    def epochs(self, steps: int) -> float:
        """Return after how many epochs a step comes."""
        before = 0
        for epoch, inside in enumerate(self.steps):
            if steps < before + inside:
                return epoch + (steps - before) / inside
            before += inside
        return float(len(self.steps))


def planned(
    batches: int, accumulation: Callable[[int], int], max_epochs: int, max_steps: int
) -> Horizon:
    """Return the horizon of a run, as Lightning will count it.

    Args:
        batches: that an epoch trains on.
        accumulation: from an epoch (from 0) to the batches of a step.
        max_steps: -1 for no limit.
    """
    steps = [math.ceil(batches / accumulation(epoch)) for epoch in range(max_epochs)]
    total = sum(steps) if max_steps < 0 else min(sum(steps), max_steps)
    return Horizon(total, steps)


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


def one_cycle(
    optimizer: Optimizer,
    horizon: Horizon,
    /,
    *,
    warmup_fraction: Annotated[float, Ge(0), Lt(1)],
    start_factor: Annotated[float, Gt(0), Le(1)],
    min_lr_fraction: Fraction,
) -> LambdaLR:
    """Rise along a half cosine from start_factor to 1, then fall along one to min_lr_fraction.

    Source: Smith & Topin 2017, arXiv 1708.07120; the shape of torch's OneCycleLR, whose momentum
    this leaves alone and whose last step it reaches.
    """
    last = horizon.total_steps - 1
    peak = warmup_fraction * last

    def factor(step: int) -> float:
        if step < peak:
            return start_factor + (1 - start_factor) * (1 - math.cos(math.pi * step / peak)) / 2
        return _half_cosine(step, peak, horizon.total_steps, min_lr_fraction)

    return LambdaLR(optimizer, factor)


def poly(
    optimizer: Optimizer,
    horizon: Horizon,
    /,
    *,
    power: Annotated[float, Gt(0)],
    min_lr_fraction: Fraction,
) -> LambdaLR:
    """Fall as a power of what is left, from 1 at the first step to min_lr_fraction at the last.

    Source: Liu et al. 2015, arXiv 1506.04579, section 3.4.
    """
    last = max(horizon.total_steps - 1, 1)

    def factor(step: int) -> float:
        left = max(1 - step / last, 0.0)
        return float(min_lr_fraction + (1 - min_lr_fraction) * left**power)

    return LambdaLR(optimizer, factor)


def step(
    optimizer: Optimizer,
    horizon: Horizon,
    /,
    *,
    every_epochs: Annotated[float, Gt(0)],
    factor: Drop,
) -> LambdaLR:
    """Multiply the learning rate by a factor after every so many epochs.

    Raises:
        UsageError: so many that it never would be, or so few that a drop falls on no step.
    """
    times = range(1, math.ceil(len(horizon.steps) / every_epochs))
    drops = [every_epochs * n for n in times]
    within = [drop for drop in drops if horizon.at(drop) < horizon.total_steps]
    return _falling(optimizer, horizon, within, factor, f"every_epochs={every_epochs}")


def multi_step(
    optimizer: Optimizer,
    horizon: Horizon,
    /,
    *,
    after_epochs: Annotated[list[Annotated[float, Gt(0)]], Len(1)],
    factor: Drop,
) -> LambdaLR:
    """Multiply the learning rate by a factor after each of these epochs.

    Raises:
        UsageError: epochs that do not rise, or one that the run does not reach.
    """
    return _falling(optimizer, horizon, after_epochs, factor, f"after_epochs={after_epochs}")


def _falling(
    optimizer: Optimizer, horizon: Horizon, after: Sequence[float], factor: float, asked: str
) -> LambdaLR:
    """Return a staircase."""
    drops = [horizon.at(epochs) for epochs in after]
    if not drops or drops[-1] >= horizon.total_steps or drops[0] < 1:
        end = horizon.epochs(horizon.total_steps)
        raise UsageError(
            f"scheduler.{asked}: every drop must fall within the {end:g} epochs "
            f"({horizon.total_steps} steps) of this run; try scheduler.{_fitting(asked, end)}"
        )
    if any(later <= earlier for earlier, later in pairwise(drops)):
        raise UsageError(
            f"scheduler.{asked}: each drop must come at least a step after the one before; "
            f"try scheduler.{_fitting(asked, horizon.epochs(horizon.total_steps))}"
        )
    return LambdaLR(optimizer, lambda step: factor ** sum(step >= drop for drop in drops))


def _fitting(asked: str, epochs: float) -> str:
    key = asked.partition("=")[0]
    return f"{key}={epochs / 2:g}" if key == "every_epochs" else f"{key}=[{epochs / 2:g}]"


def direction(metric: Metric) -> Literal["min", "max"]:
    """Return which way a metric gets better."""
    return "min" if metric == "val/loss" else "max"


class Plateau(ReduceLROnPlateau):
    """torch's, which knows the metric that it follows."""

    metric = ""


def plateau(
    optimizer: Optimizer,
    horizon: Horizon,
    /,
    *,
    metric: Metric,
    factor: Drop,
    patience_epochs: Annotated[int, Ge(0)],
    threshold: Annotated[float, Ge(0)],
    min_lr_fraction: Fraction,
) -> Plateau:
    """Multiply the learning rate by a factor once so many epochs bring no better validation."""
    scheduler = Plateau(
        optimizer,
        mode=direction(metric),
        factor=factor,
        patience=patience_epochs,
        threshold=threshold,
        threshold_mode="abs",
        min_lr=[group["lr"] * min_lr_fraction for group in optimizer.param_groups],
    )
    scheduler.metric = metric
    return scheduler


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
        asked, warmup = f"warmup_epochs={epochs}", horizon.at(epochs)
        fits = f"warmup_epochs={horizon.epochs(total // 10):g}"
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


def _half_cosine(step: int, first: float, total_steps: int, floor: float) -> float:
    """Return 1 at step `first`, `floor` at the last step and after it, a half cosine between."""
    span = (total_steps - 1 - first) or 1
    progress = min((step - first) / span, 1.0)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
