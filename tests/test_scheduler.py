"""The learning rate of every step, from a real optimizer, equals its closed form."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler

from cvexp.config import UsageError
from cvexp.scheduler import (
    Horizon,
    constant,
    cosine,
    multi_step,
    one_cycle,
    poly,
    step,
    warmup_cosine,
)
from tests.conftest import TOY, Outcome

WARMUP = {"warmup_steps": None, "warmup_epochs": None, "warmup_fraction": 0.1}
SHAPE = {"start_factor": 0.01, "min_lr_fraction": 0.0}


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)


def horizon(total: int, per_epoch: int) -> Horizon:
    return Horizon(total, [per_epoch] * math.ceil(total / per_epoch))


def rates(scheduler: LRScheduler, steps: int) -> list[float]:
    """Return the rate that each of `steps` optimizer steps is made with."""
    found = []
    for _ in range(steps):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_constant() -> None:
    assert rates(constant(optimizer(), horizon(7, 7)), 7) == [0.5] * 7


@pytest.mark.parametrize("total", [1, 2, 3, 50])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_starts_at_one_and_ends_at_its_end(total: int, floor: float) -> None:
    found = rates(cosine(optimizer(), horizon(total, total), min_lr_fraction=floor), total)
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
    found = rates(warmup_cosine(optimizer(), horizon(100, 20), **build), 100)
    rise = [0.01 + 0.99 * t / steps for t in range(steps)]
    fall = [(1 + math.cos(math.pi * (t - steps) / (99 - steps))) / 2 for t in range(steps, 100)]
    assert found == pytest.approx([0.5 * factor for factor in rise + fall])
    assert max(found) == 0.5


def test_a_run_of_one_step_has_no_warmup() -> None:
    """trainer.fast_dev_run takes one step: the default fraction of it is none."""
    assert rates(warmup_cosine(optimizer(), horizon(1, 1), **WARMUP, **SHAPE), 1) == [0.5]


def test_a_warmup_that_does_not_fit_says_what_does() -> None:
    build = {**WARMUP, **SHAPE, "warmup_steps": 500}
    with pytest.raises(
        UsageError, match=r"warmup_steps=500.*400 steps.*try scheduler.warmup_steps=40"
    ):
        warmup_cosine(optimizer(), horizon(400, 100), **build)


@pytest.mark.parametrize("warmup", [{"warmup_epochs": 9.0}, {"warmup_fraction": 1.0}])
def test_other_lengths_that_do_not_fit(warmup: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be below the 400 steps"):
        warmup_cosine(optimizer(), horizon(400, 100), **{**WARMUP, **SHAPE, **warmup})


def test_two_lengths_of_the_warmup_are_one_too_many() -> None:
    both = {**WARMUP, **SHAPE, "warmup_steps": 5, "warmup_epochs": 1.0}
    with pytest.raises(UsageError, match="only one of them"):
        warmup_cosine(optimizer(), horizon(400, 100), **both)


@pytest.mark.parametrize("total", [2, 7, 101])
def test_one_cycle_is_two_half_cosines(total: int) -> None:
    build = {"warmup_fraction": 0.3, "start_factor": 0.1, "min_lr_fraction": 0.01}
    found = rates(one_cycle(optimizer(), horizon(total, total), **build), total)
    peak, last = 0.3 * (total - 1), total - 1

    def between(low: float, high: float, share: float) -> float:
        return low + (high - low) * (1 - math.cos(math.pi * share)) / 2

    expected = [
        between(0.1, 1, t / peak) if t < peak else between(1, 0.01, (t - peak) / (last - peak))
        for t in range(total)
    ]
    assert found == pytest.approx([0.5 * factor for factor in expected])
    assert found[0] == pytest.approx(0.05)
    assert found[-1] == pytest.approx(0.005)


def test_one_cycle_is_torchs() -> None:
    """Where its peak falls on a step: 0.3 of 100 steps after the first."""
    build = {"warmup_fraction": 0.3, "start_factor": 0.04, "min_lr_fraction": 0.04 / 1e4}
    ours = rates(one_cycle(optimizer(), horizon(101, 101), **build), 101)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer(), 0.5, 101, pct_start=31 / 101, div_factor=25, final_div_factor=1e4
    )
    assert ours == pytest.approx(rates(theirs, 101)[:101])


@pytest.mark.parametrize("power", [0.9, 1.0, 2.0])
def test_poly_is_a_power_of_what_is_left(power: float) -> None:
    found = rates(poly(optimizer(), horizon(50, 50), power=power, min_lr_fraction=0.1), 50)
    expected = [0.5 * (0.1 + 0.9 * (1 - t / 49) ** power) for t in range(50)]
    assert found == pytest.approx(expected)
    assert (found[0], found[-1]) == (0.5, pytest.approx(0.05))


def test_steps_fall_after_whole_and_half_epochs() -> None:
    """Ten steps an epoch; in a ramp, as many as each epoch has."""
    found = rates(step(optimizer(), horizon(40, 10), every_epochs=1.5, factor=0.1), 40)
    assert found == pytest.approx([0.5] * 15 + [0.05] * 15 + [0.005] * 10)
    found = rates(multi_step(optimizer(), horizon(40, 10), after_epochs=[1, 3.5], factor=0.5), 40)
    assert found == pytest.approx([0.5] * 10 + [0.25] * 25 + [0.125] * 5)
    ramp = Horizon(14, [8, 4, 2])
    found = rates(multi_step(optimizer(), ramp, after_epochs=[1, 2.5], factor=0.1), 14)
    assert found == pytest.approx([0.5] * 8 + [0.05] * 5 + [0.005])


def test_a_warmup_in_epochs_follows_a_ramp() -> None:
    build = {**WARMUP, **SHAPE, "warmup_epochs": 1.5}
    found = rates(warmup_cosine(optimizer(), Horizon(14, [8, 4, 2]), **build), 14)
    assert found.index(0.5) == 10


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("scheduler=step scheduler.every_epochs=4.0", "try scheduler.every_epochs=2"),
        ("scheduler=step scheduler.every_epochs=0.03", "at least a step after"),
        ("scheduler=multi-step scheduler.after_epochs=[4]", "try scheduler.after_epochs=[2]"),
        ("scheduler=multi-step scheduler.after_epochs=[1,9]", "must fall within the 4 epochs"),
        ("scheduler=multi-step scheduler.after_epochs=[2,1]", "try scheduler.after_epochs=[2]"),
        ("scheduler=plateau trainer.limit_val_batches=0", "type trainer.limit_val_batches=1.0"),
        ("scheduler=plateau scheduler.metric=val/acc", "scheduler.metric='val/acc'"),
    ],
)
def test_a_schedule_that_cannot_be_is_one_line(
    overrides: str, message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*TOY, "trainer.max_epochs=4", "tracker=none", *overrides.split())
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "schedule", ["scheduler=step", "scheduler=multi-step", "scheduler.warmup_steps=50"]
)
def test_a_smoke_test_makes_the_first_steps_of_the_run(
    schedule: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """What fits the run must not fail in a step of it."""
    recipe = [*TOY, "trainer.max_epochs=4", "optimizer.lr=0.01", schedule]
    outcome = cvexp(*recipe, "trainer.fast_dev_run=2", "tracker=none")
    assert outcome.code == 0, outcome.err
    effective = outcome.record(tmp_path)["effective"]
    assert effective["optimizer_steps"] == 2
    assert not effective["stopped_early"]
    first, second = (0.01 * (0.01 + 0.99 * t / 50) for t in range(2))
    expected = (first, second) if "warmup" in schedule else (0.01, 0.01)
    assert (effective["lr_first"], effective["lr_last"]) == pytest.approx(expected)


@pytest.mark.parametrize("every", [1, 2])
def test_plateau_follows_validation_by_epoch(
    every: int, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """A metric that no epoch can better by so much: the rate falls at each that was validated."""
    outcome = cvexp(
        *TOY,
        "trainer.max_epochs=5",
        f"trainer.check_val_every_n_epoch={every}",
        "trainer.limit_train_batches=2",
        "trainer.log_every_n_steps=1",
        "scheduler=plateau",
        "scheduler.metric=val/accuracy",
        "scheduler.threshold=2.0",
        "scheduler.patience_epochs=0",
        "scheduler.factor=0.5",
        "scheduler.min_lr_fraction=0.1",
        "optimizer.lr=0.01",
        "optimizer.head_lr_factor=10.0",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("multirun/*/metrics.jsonl")
    found = [line["lr"] for line in map(json.loads, path.read_text().splitlines()) if "lr" in line]
    falls = {1: [1, 1, 0.5, 0.25, 0.125], 2: [1, 1, 1, 1, 0.5]}  # the first is the best so far
    assert found == pytest.approx([0.01 * factor for factor in falls[every] for _ in range(2)])
