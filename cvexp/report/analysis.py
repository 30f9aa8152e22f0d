"""From runs to the report's document, report.json: every number with its inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

from cvexp.config import UsageError, did_you_mean
from cvexp.report import advice, statistics, words
from cvexp.report.cells import Cell, cells_of, levels, shown
from cvexp.report.comparable import compare, notes_of
from cvexp.report.contrasts import (
    against_best,
    baseline_of,
    contrast_of,
    effects_of,
    judge,
    separate,
)
from cvexp.report.records import Run


def analyse(
    runs: Sequence[Run],
    sources: Sequence[str],
    *,
    metric: str | None = None,
    select: str = "last",
    baseline: str | None = None,
    margin: float | None = None,
) -> dict[str, Any]:
    """Return the document of report.json.

    Args:
        metric: test/accuracy where there is one, else val/accuracy.
        select: "last" or "best", the epoch that validation chose.
        baseline: levels of a cell, as freeze=full,precision=32-true; default levels for the rest.
        margin: below which a difference does not matter, in the metric's units.

    Raises:
        UsageError: a metric that no run has, a baseline that no cell is.
    """
    read = [run for run in runs if run.record or run.is_planned]
    name = _metric(read, metric, select)
    goal = "min" if name.endswith("loss") else "max"
    factors = levels(read)
    seeds = sorted({run.seed for run in read}, key=lambda seed: (str(type(seed)), seed or 0))
    cells = cells_of(read, factors, seeds, name, select)
    base = baseline_of(cells, factors, read, baseline)
    document: dict[str, Any] = {
        "schema": 1,
        "source": list(sources),
        "metric": {"name": name, "select": select, "goal": goal, "note": _bias(name, select)},
        "factors": factors,
        "seeds": seeds,
        "baseline": base["name"] if base is not None else None,
        "margin": margin,
        "cells": cells,
        "effects": [],
        "effects_note": None,
        "family": 0,
    }
    if base is not None:
        for cell in cells:
            cell["contrast"] = None if cell is base else contrast_of(cell, base)
        effects, document["effects_note"] = effects_of(cells, factors, base)
        document["effects"] = effects
        family = [cell["contrast"] for cell in cells if cell["contrast"]] + effects
        judge(family, goal, margin)
        document["family"] = len(family)
    separate(cells, goal)
    _mark_front(cells, goal)
    flags = compare(cells, base or cells[0], factors)
    document["floor"] = _floor(cells, base or cells[0], name)
    document["notes"] = notes_of(runs, cells, name)
    top = advice.best(cells, goal)
    against = against_best(cells, top, goal)
    document["recommendation"] = advice.recommend(cells, top, against, goal)
    document["paragraph"] = words.paragraph(document)
    document["runs"] = [_row(run, cells, name, select, base, flags.get(run, {})) for run in runs]
    for cell in cells:
        del cell["runs"], cell["chosen"]
    return document


def _metric(runs: Sequence[Run], asked: str | None, select: str) -> str:
    """Return the metric that was asked for, or the first of the usual ones that there is.

    Raises:
        UsageError: no run has it.
    """
    part = "metrics" if select == "last" else "metrics_best"
    ended = [run for run in runs if run.status == "ok"]
    known = dict.fromkeys(name for run in ended for name in run.part(part) if "/" in name)
    for name in [asked] if asked else ["test/accuracy", "val/accuracy"]:
        if name in known:
            return name
    if asked is None or not known:
        return asked or "test/accuracy"  # nothing has completed yet, which the table says
    raise UsageError(
        f"report --metric {asked}: no run has it{did_you_mean(asked, known)}; they have: "
        f"{', '.join(known)}"
    )


def _bias(metric: str, select: str) -> str | None:
    if select == "best" and metric.startswith("val/"):
        return (
            "Optimistic: validation chose the epoch and is what is shown; the best of 10 epochs "
            "lies some 1.5 standard deviations of their noise above their mean, of 30 some 2."
        )
    if select == "best":
        return "At the epoch that validation chose."
    return None


def _mark_front(cells: Sequence[Cell], goal: str) -> None:
    """Mark the Pareto set of the metric against train time."""
    times = [(cell["cost"]["train_s"] or {}).get("median") for cell in cells]
    points = [(time, cell["mean"]) for time, cell in zip(times, cells, strict=True)]
    for cell, on_it in zip(cells, statistics.pareto(points, goal), strict=True):
        cell["pareto"] = on_it


def _floor(cells: Sequence[Cell], base: Cell, metric: str) -> dict[str, Any] | None:
    """Return the binomial standard error of one run's accuracy; None for what is no share."""
    split, _, leaf = metric.rpartition("/")
    images = {
        (run.part("data").get("splits") or {}).get(split)
        for cell in cells
        for run in cell["chosen"].values()
    }
    if base["mean"] is None or leaf not in ("accuracy", "ema_accuracy") or len(images) != 1:
        return None
    (count,) = images
    if not count or not 0 <= base["mean"] <= 1:
        return None
    return {
        "images": count,
        "standard_error": statistics.binomial_standard_error(base["mean"], count),
    }


def _row(
    run: Run,
    cells: Sequence[Cell],
    metric: str,
    select: str,
    base: Cell | None,
    flags: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the document has of one run."""
    cell = next((cell for cell in cells if run in cell["runs"]), None)
    reference = base["chosen"] if base else {}
    other = reference.get(run.seed) or next(iter(reference.values()), None)
    difference = run.differs(other) if other else {}
    difference.pop("seed", None)
    part = run.part("metrics" if select == "last" else "metrics_best")
    return {
        "directory": str(run.directory),
        "cell": cell and cell["name"],
        "seed": run.seed,
        "status": run.status,
        "reason": run.reason,
        "value": run.value(metric, select),
        "metrics": {name: value for name, value in part.items() if "/" in name},
        "difference": difference,
        "flags": [f"{key}: {said}" for key, said in flags.items()],
        "contended": bool(run.part("cost").get("contended")),
        "train_s": run.part("cost").get("train_s"),
        "curves": {name: run.curves[name] for name in shown(metric) if name in run.curves},
    }
