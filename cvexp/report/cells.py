"""Cells: the runs of each combination of levels, with their values, costs and curves."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from cvexp.report import statistics, words
from cvexp.report.records import STATUSES, Run

Cell = dict[str, Any]
_PHASES = ("startup_s", "data_wait_s", "compute_s", "validation_s")


def levels(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return factor -> its levels in order of appearance, of what varies besides the seed."""
    typed = dict.fromkeys(key for run in runs for key in run.factors if key != "seed")
    found = {key: list(dict.fromkeys(run.level(key) for run in runs)) for key in typed}
    return {key: levels for key, levels in found.items() if len(levels) > 1}


def cells_of(
    runs: Sequence[Run],
    factors: Mapping[str, Sequence[Any]],
    seeds: Sequence[Any],
    metric: str,
    select: str,
) -> list[Cell]:
    """Return the cells in the order of the factors' levels, each with its runs and estimate."""
    members: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        members.setdefault(tuple(run.level(key) for key in factors), []).append(run)
    rank = [{level: place for place, level in enumerate(levels)} for levels in factors.values()]
    ordered = sorted(members, key=lambda at: [r[level] for r, level in zip(rank, at, strict=True)])
    cells = []
    for at in ordered:
        levels = dict(zip(factors, at, strict=True))
        planned = {run.seed for run in members[at]}
        cells.append(_cell(levels, members[at], [s for s in seeds if s in planned], metric, select))
        cells[-1]["by_seed"] = [
            {"seed": seed, "status": cells[-1]["by_seed"].get(seed, "")} for seed in seeds
        ]
    return cells


def _cell(
    levels: dict[str, Any], runs: Sequence[Run], seeds: Sequence[Any], metric: str, select: str
) -> Cell:
    """Return one cell: of several runs of a seed, the first that completed counts."""
    chosen: dict[Any, Run] = {}
    for run in sorted(runs, key=lambda run: (run.status != "ok", str(run.record.get("started")))):
        chosen.setdefault(run.seed, run)
    status = {seed: chosen[seed].status for seed in seeds}
    besides = [run for run in runs if run is not chosen[run.seed] and run.status != "missing"]
    again = Counter("duplicate" if run.status == "ok" else run.status for run in besides)
    counts = Counter(status.values())
    values = [
        {"seed": seed, "value": value, "directory": str(chosen[seed].directory)}
        for seed in seeds
        if (value := chosen[seed].value(metric, select)) is not None
    ]
    numbers = [item["value"] for item in values]
    lacking = [f"{counts[word]} {word}" for word in STATUSES if counts[word] and word != "ok"]
    beside = {word: "" if word == "duplicate" else " besides" for word in STATUSES}
    lacking += [f"{again[word]} {word}{beside[word]}" for word in STATUSES if again[word]]
    wrong = ", ".join(lacking)
    counts += again
    counted = {word: counts[word] for word in STATUSES if counts[word]}
    ok = [run for run in chosen.values() if run.status == "ok"]
    return {
        "name": words.cell_name(levels),
        "levels": levels,
        "counts": counted,
        "planned": len(seeds),
        "complete": f"{counts['ok']}/{len(seeds)}" + f" ({wrong})" * bool(wrong),
        "by_seed": status,
        "values": values,
        **statistics.estimate(numbers)._asdict(),
        "min": min(numbers, default=None),
        "max": max(numbers, default=None),
        "flags": [],
        "separates": False,
        "pareto": False,
        "contrast": None,
        "cost": _cost(ok),
        "contended": sum(bool(run.part("cost").get("contended")) for run in ok),
        "time": _time(ok),
        "curves": _curves(ok, metric),
        "runs": list(runs),
        "chosen": {seed: run for seed, run in chosen.items() if run.status == "ok"},
    }


def is_whole(run: Run) -> bool:
    """Return whether a run's times are its own and all of it."""
    cut = any(entry.get("optimizer_steps") for entry in run.record.get("resumed") or [])
    return not run.part("cost").get("contended") and not cut


def _cost(runs: Sequence[Run]) -> dict[str, Any]:
    """Return medians and ranges; times only of runs that had the device to themselves."""
    alone = [run for run in runs if is_whole(run)]
    cost = {
        "images_per_s": [
            (run.part("cost").get("images_per_s") or {}).get("median") for run in alone
        ],
        "train_s": [run.part("cost").get("train_s") for run in alone],
        "peak_bytes": [peak_bytes(run) for run in runs],
        "energy_j": [run.part("cost").get("energy_j") for run in alone],
        "trainable_parameters": [run.part("effective").get("trainable_parameters") for run in runs],
    }
    return {name: _spread(values) for name, values in cost.items()}


def peak_bytes(run: Run) -> Any:
    """Return the most memory of the device, or of the host where that is the device."""
    cost = run.part("cost")
    return cost.get("peak_device_bytes") or cost.get("peak_host_bytes")


def _spread(values: Iterable[Any]) -> dict[str, Any] | None:
    there = [value for value in values if value is not None]
    if not there:
        return None
    return {"median": median(there), "low": min(there), "high": max(there), "n": len(there)}


def _time(runs: Sequence[Run]) -> dict[str, float] | None:
    """Return the median seconds of each phase, of runs that had the device to themselves."""
    found = [phases for run in runs if is_whole(run) and (phases := _phases(run.part("cost")))]
    return {name: median(of[name] for of in found) for name in _PHASES} if found else None


def _phases(cost: Mapping[str, Any]) -> dict[str, float] | None:
    train_s = cost.get("train_s")
    if train_s is None:
        return None
    waits = train_s * (cost.get("data_wait_fraction") or 0.0)
    seconds = (cost.get("startup_s"), waits, train_s - waits, cost.get("validation_s"))
    return {name: of or 0.0 for name, of in zip(_PHASES, seconds, strict=True)}


def _curves(runs: Sequence[Run], metric: str) -> dict[str, Any]:
    """Return metric -> its mean and interval by epoch."""
    curves = {}
    for name in shown(metric):
        points: dict[float, list[float]] = {}
        for run in runs:
            for epoch, value in run.curves.get(name, []):
                points.setdefault(epoch, []).append(value)
        if points:
            at = sorted(points)
            estimates = [statistics.estimate(points[epoch]) for epoch in at]
            columns = {
                key: [getattr(e, key) for e in estimates] for key in ("mean", "low", "high", "n")
            }
            curves[name] = {"epoch": at, **columns}
    return curves


def shown(metric: str) -> list[str]:
    """Return the curves that belong to a metric."""
    return list(dict.fromkeys([f"val/{metric.rpartition('/')[2]}", "val/loss", "train/loss"]))
