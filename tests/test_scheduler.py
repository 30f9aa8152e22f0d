"""The learning rate of every step, from a real optimizer, equals its closed form."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler

from cvexp.config import UsageError
from cvexp.scheduler import Horizon, constant, cosine, warmup_cosine

WARMUP = {"warmup_steps": None, "warmup_epochs": None, "warmup_fraction": 0.1}
SHAPE = {"start_factor": 0.01, "min_lr_fraction": 0.0}


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)


def rates(scheduler: LRScheduler, steps: int) -> list[float]:
    """Return the rate that each of `steps` optimizer steps is made with."""
    found = []
    for _ in range(steps):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_constant() -> None:
    assert rates(constant(optimizer(), Horizon(7, 7)), 7) == [0.5] * 7


@pytest.mark.parametrize("total", [1, 2, 3, 50])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_starts_at_one_and_ends_at_its_end(total: int, floor: float) -> None:
    found = rates(cosine(optimizer(), Horizon(total, total), min_lr_fraction=floor), total)
    span = max(total - 1, 1)
    half = [floor + (1 - floor) * (1 + math.cos(math.pi * t / span)) / 2 for t in range(total)]
    assert found == pytest.approx([0.5 * factor for factor in half])
    if total > 1:
        assert (found[0], found[-1]) == (0.5, pytest.approx(0.5 * floor))


@pytest.mark.parametrize(
    ("warmup", "steps"),
    [({"warmup_steps": 8}, 8), ({"warmup_epochs": 0.5}, 10), ({}, 10), ({"warmup_steps": 0}, 0)],
)
def test_warmup_is_linear_then_cosine(warmup: dict[str, float], steps: int) -> None:
    build = {**WARMUP, **SHAPE, **warmup}
    found = rates(warmup_cosine(optimizer(), Horizon(100, 20), **build), 100)
    rise = [0.01 + 0.99 * t / steps for t in range(steps)]
    fall = [(1 + math.cos(math.pi * (t - steps) / (99 - steps))) / 2 for t in range(steps, 100)]
    assert found == pytest.approx([0.5 * factor for factor in rise + fall])
    assert max(found) == 0.5


def test_a_run_of_one_step_has_no_warmup() -> None:
    """trainer.fast_dev_run takes one step: the default fraction of it is none."""
    assert rates(warmup_cosine(optimizer(), Horizon(1, 1), **WARMUP, **SHAPE), 1) == [0.5]


def test_a_warmup_that_does_not_fit_says_what_does() -> None:
    build = {**WARMUP, **SHAPE, "warmup_steps": 500}
    with pytest.raises(
        UsageError, match=r"warmup_steps=500.*400 steps.*try scheduler.warmup_steps=40"
    ):
        warmup_cosine(optimizer(), Horizon(400, 100), **build)


@pytest.mark.parametrize("warmup", [{"warmup_epochs": 9.0}, {"warmup_fraction": 1.0}])
def test_other_lengths_that_do_not_fit(warmup: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be below the 400 steps"):
        warmup_cosine(optimizer(), Horizon(400, 100), **{**WARMUP, **SHAPE, **warmup})


def test_two_lengths_of_the_warmup_are_one_too_many() -> None:
    both = {**WARMUP, **SHAPE, "warmup_steps": 5, "warmup_epochs": 1.0}
    with pytest.raises(UsageError, match="only one of them"):
        warmup_cosine(optimizer(), Horizon(400, 100), **both)
