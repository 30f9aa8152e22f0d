"""Contrasts with a baseline, effects of single factors, and what the whole family of them shows."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from hydra.errors import HydraException

from cvexp.config import CONF, UsageError, default_options
from cvexp.report import statistics, words
from cvexp.report.advice import best as best_of
from cvexp.report.cells import Cell
from cvexp.report.records import Run, plain, typed


def baseline_of(
    cells: Sequence[Cell],
    factors: Mapping[str, Sequence[Any]],
    runs: Sequence[Run],
    asked: str | None,
) -> Cell | None:
    """Return the cell to compare with: the levels that were asked for, and default ones.

    Raises:
        UsageError: no cell has the levels that were asked for.
    """
    parts = re.split(r",\s*(?=[\w./]+=)", asked.strip()) if asked else []
    try:
        wanted = {key: plain(level) for key, level in typed(parts).items()}
    except HydraException:
        wanted = {asked: None}  # type: ignore[dict-item]  # there are parts of it
    fits = [cell for cell in cells if wanted.items() <= cell["levels"].items()]
    if not fits:
        known = "; ".join(cell["name"] for cell in cells)
        raise UsageError(f"report --baseline {asked}: no cell is that; there are: {known}")
    if len(cells) == 1:
        return None
    usual = {key: _default(key, runs) for key in factors}
    full = [cell for cell in fits if cell["n"]] if not asked else []  # while a sweep goes on
    near = [sum(cell["levels"][key] == usual[key] for key in usual) for cell in full or fits]
    return (full or fits)[near.index(max(near))]


def _default(key: str, runs: Sequence[Run]) -> Any:
    """Return the level that a run has if nothing is typed, or None."""
    usual = default_options()
    if key in usual:
        return usual[key]
    group, _, rest = key.partition(".")
    option = next((run.level(group) for run in runs if run.record), None)
    path = CONF / group / f"{option}.yaml" if rest else CONF / "config.yaml"
    node = yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {}
    for part in (rest or key).split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def contrast_of(cell: Cell, base: Cell) -> dict[str, Any] | None:
    """Return a cell less the baseline, paired by the seeds that both have; None without any."""
    here, there = (_by_seed(of) for of in (cell, base))
    paired = [seed for seed in here if seed in there]
    if not paired:
        return None
    tested = _tested({seed: here[seed] - there[seed] for seed in paired})
    welch = statistics.welch(list(here.values()), list(there.values()))
    low, high = welch if welch else (None, None)
    return {"against": base["name"], **tested, "welch_low": low, "welch_high": high}


def _by_seed(cell: Cell) -> dict[Any, float]:
    return {item["seed"]: item["value"] for item in cell["values"]}


def _tested(by_seed: Mapping[Any, float]) -> dict[str, Any]:
    """Return what is said of differences by seed; the family's share comes with _judge."""
    differences = list(by_seed.values())
    estimate = statistics.estimate(differences)
    flip, floor = statistics.sign_flip(differences)
    return {
        "seeds": list(by_seed),
        "differences": [{"seed": seed, "value": value} for seed, value in by_seed.items()],
        **estimate._asdict(),
        "p": statistics.p_value(differences),
        "p_sign_flip": flip,
        "p_floor": floor,
        "detectable": None
        if estimate.sd is None
        else statistics.detectable(estimate.sd, len(differences)),
    }


def judge(family: Sequence[dict[str, Any]], goal: str, margin: float | None) -> None:
    """Give each contrast what depends on how many there are, and its verdict."""
    adjusted = statistics.holm([contrast["p"] for contrast in family])
    values = [[item["value"] for item in contrast["differences"]] for contrast in family]
    within = [statistics.equivalent(of, margin) if margin else None for of in values]
    equivalent = statistics.holm(within)
    for contrast, p, p_equivalent, of in zip(family, adjusted, equivalent, values, strict=True):
        low, high = statistics.simultaneous(of, len(family))
        won = sum((value > 0) == (goal == "max") for value in of if value)
        contrast |= {
            "simultaneous_low": low,
            "simultaneous_high": high,
            "wins": won,
            "p_holm": p,
            "p_equivalent": p_equivalent,
        }
        said = words.verdict(contrast, goal, margin, len(family))
        contrast["verdict"], contrast["detail"] = said


def against_best(cells: Sequence[Cell], top: Cell | None, goal: str) -> dict[str, Any]:
    """Return each cell's contrast with the best cell, judged as one family; None without seeds."""
    others = [cell for cell in cells if top and cell["n"] and cell is not top]
    found = {cell["name"]: contrast_of(cell, top) for cell in others if top}
    judge([contrast for contrast in found.values() if contrast], goal, None)
    return found


def effects_of(
    cells: Sequence[Cell], factors: Mapping[str, Sequence[Any]], base: Cell
) -> tuple[list[dict[str, Any]], str | None]:
    """Return main effects and two-way interactions, or why there are none."""
    axes = _axes(cells, factors)
    if len(axes) < 2:
        return [], None
    at = {tuple(_level(cell, axis) for axis in axes): _by_seed(cell) for cell in cells}
    levels = [list(dict.fromkeys(_level(cell, axis) for cell in cells)) for axis in axes]
    if len(at) < math.prod(map(len, levels)):
        return [], "No effects of single factors: the design leaves out cells, so they overlap."
    found = [set(by_seed) for by_seed in at.values()]
    seeds = [seed for seed in at[next(iter(at))] if all(seed in there for there in found)]
    every = set().union(*found)
    if len(seeds) < 2:
        return [], (
            f"No effects of single factors: {words.count(len(seeds), 'seed')} of {len(every)} "
            "completed in every cell, and two are needed."
        )
    note = None
    if len(seeds) < len(every):
        said = ", ".join(words.text(seed) for seed in sorted(every - set(seeds), key=str))
        note = f"Effects are of the seeds that every cell has; without {said}."
    usual = [_level(base, axis) for axis in axes]
    names = [", ".join(axis) for axis in axes]
    others = [[level for level in of if level != u] for of, u in zip(levels, usual, strict=True)]
    effects = []
    for i, name in enumerate(names):
        for level in others[i]:
            by_seed = {s: _mean(at, s, {i: level}) - _mean(at, s, {i: usual[i]}) for s in seeds}
            label = f"{name}: {words.level(level)} against {words.level(usual[i])}"
            effects.append({"kind": "main", "name": label, "factors": [name], **_tested(by_seed)})
    for i, j in itertools.combinations(range(len(axes)), 2):
        for here, there in itertools.product(others[i], others[j]):
            by_seed = {
                s: _mean(at, s, {i: here, j: there})
                - _mean(at, s, {i: usual[i], j: there})
                - _mean(at, s, {i: here, j: usual[j]})
                + _mean(at, s, {i: usual[i], j: usual[j]})
                for s in seeds
            }
            label = f"{names[i]}={words.level(here)} with {names[j]}={words.level(there)}"
            both = [names[i], names[j]]
            effects.append(
                {"kind": "interaction", "name": label, "factors": both, **_tested(by_seed)}
            )
    return effects, note


def _axes(cells: Sequence[Cell], factors: Mapping[str, Sequence[Any]]) -> list[tuple[str, ...]]:
    """Return the factors, with those together that never move apart (sweep.pair)."""
    axes: list[tuple[str, ...]] = []
    for key in factors:
        for place, axis in enumerate(axes):
            pairs = {(_level(cell, axis[:1]), cell["levels"][key]) for cell in cells}
            if len(pairs) == len(factors[key]) == len(factors[axis[0]]):
                axes[place] = (*axis, key)
                break
        else:
            axes.append((key,))
    return axes


def _level(cell: Cell, axis: Sequence[str]) -> tuple[Any, ...]:
    return tuple(cell["levels"][key] for key in axis)


def _mean(at: Mapping[Any, Mapping[Any, float]], seed: Any, fixed: Mapping[int, Any]) -> float:
    """Return one seed's mean over the cells with some axes fixed."""
    fits = [
        by_seed[seed]
        for levels, by_seed in at.items()
        if all(levels[axis] == level for axis, level in fixed.items())
    ]
    return math.fsum(fits) / len(fits)


def separate(cells: Sequence[Cell], goal: str) -> None:
    """Mark the best cell if it is clear of every other, in the family of all pairs."""
    best, full = best_of(cells, goal), [cell for cell in cells if cell["n"]]
    if best is None or len(full) < 2:
        return
    pairs = len(full) * (len(full) - 1) // 2
    contrasts = [contrast_of(best, cell) for cell in full if cell is not best]
    best["separates"] = all(
        of
        and of["p"] is not None
        and of["n"] >= words.SEEDS_FOR_A_VERDICT
        and of["p"] * pairs < 0.05
        for of in contrasts
    )
