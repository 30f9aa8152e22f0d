"""What the report says in words, and no more than is known: verdicts and the paragraph."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cvexp.report import statistics

SEEDS_FOR_A_VERDICT = 5  # the method's bound
SAME = "the same difference in every seed"


def text(value: Any) -> str:
    """Return a level as people type it."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def level(of: Sequence[Any]) -> str:
    """Return the levels of factors that move together."""
    return ", ".join(text(value) for value in of)


def clean(of: Any) -> str:
    """Return text on one line, without what a terminal would obey and XML does not have."""
    line = " ".join(str(of).split())
    return "".join(c if c.isprintable() or c == "\N{ZERO WIDTH JOINER}" else "\ufffd" for c in line)


def cell_name(levels: Mapping[str, Any]) -> str:
    """Return a cell's name: freeze=full, precision=32-true."""
    return clean(", ".join(f"{key}={text(value)}" for key, value in levels.items())) or "all runs"


def short(value: Any) -> str:
    """Return a value for a line of text."""
    said = text(value)
    return said if len(said) <= 40 else f"{said[:39]}…"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'s' * (number != 1)}"


def number(value: float | None, signed: bool = False) -> str:
    """Return a metric's value in four digits, or two of what is small."""
    if value is None:
        return "-"
    form = ".4f" if 5e-4 <= abs(value) < 10 or value == 0 else ".4g" if abs(value) >= 10 else ".2g"
    return f"{value:{'+' if signed else ''}{form}}"


def interval(of: Mapping[str, Any], signed: bool = False) -> str:
    """Return a 95 % interval, or that there is none."""
    if of["low"] is None:
        return "no uncertainty"
    return f"{number(of['low'], signed)} to {number(of['high'], signed)}"


def verdict(
    contrast: Mapping[str, Any], goal: str, margin: float | None, family: int
) -> tuple[str, str | None]:
    """Return what the seeds of one contrast show, and no more: a word, and what goes with it.

    Args:
        contrast: with its Holm-adjusted p in its family.
        family: how many contrasts are judged together.
    """
    n, p = contrast["n"], contrast["p_holm"]
    if n < 3:
        return "descriptive only", None
    if margin and contrast["p_equivalent"] is not None and contrast["p_equivalent"] < 0.05:
        return f"equivalent within {margin:g}", None
    if p is None:
        return SAME, "nothing to test"
    if p < 0.05 and n < SEEDS_FOR_A_VERDICT:
        return "too few seeds for a verdict", f"{n} of {SEEDS_FOR_A_VERDICT}"
    if p < 0.05 and contrast.get("kind") == "interaction":
        return ("above" if contrast["mean"] > 0 else "below") + " the sum of both", None
    if p < 0.05:
        return "better" if (contrast["mean"] > 0) == (goal == "max") else "worse", None
    if contrast["sd"] == 0:
        return "identical", f"in {count(n, 'seed')}"
    if contrast["p"] < 0.05:
        alone = f"p alone {contrast['p']:.2g}"
        return "no clear difference", f"not among {family} comparisons; {alone}"
    could = f"{contrast['detectable']:.2g}"
    return "no clear difference", f"{n} seeds could show {could} or more"


def short_verdict(contrast: Mapping[str, Any], n: int) -> str:
    """Return a verdict as a table has it: with the number of pairs where a cell has n values."""
    word = str(contrast["verdict"])
    if word.startswith("too few"):
        return f"{word} ({contrast['detail']})"
    return word if contrast["n"] == n else f"{word} ({count(contrast['n'], 'pair')})"


def told(cell: Mapping[str, Any], *more: str) -> str:
    """Return a cell with its mean, more of it, and what is lacking of its runs."""
    lacks = [cell["complete"]] if cell["counts"] != {"ok": cell["planned"]} else []
    return f"{cell['name']} ({', '.join([number(cell['mean']), *more, *lacks])})"


def paragraph(document: Mapping[str, Any]) -> str:
    """Return in plain words what helped, what did not, and what these seeds could not show."""
    cells, metric = document["cells"], document["metric"]
    ok = sum(cell["counts"].get("ok", 0) for cell in cells)
    planned = sum(cell["planned"] for cell in cells)
    better = "higher" if metric["goal"] == "max" else "lower"
    at = "at the last epoch" if metric["select"] == "last" else "at the epoch validation chose"
    said = [
        f"{ok} of {count(planned, 'run')} in {count(len(cells), 'cell')} completed; "
        f"{metric['name']} {at}, {better} is better."
    ]
    if ok < planned:
        lacking = [
            f"{c['name']} {c['complete']}" for c in cells if c["counts"] != {"ok": c["planned"]}
        ]
        said.append(f"Incomplete: {listed(lacking)}.")
    if document["baseline"] is None:
        said += [_alone(cell) for cell in cells if cell["n"]]
        return " ".join(said)
    base = next(cell for cell in cells if cell["name"] == document["baseline"])
    if base["n"]:
        said.append(f"The baseline is {told(base, interval(base))}.")
        said += _by_verdict([cell for cell in cells if cell["contrast"]], document["family"])
        said += _unpaired(cells, base)
        said += _by_factor(document["effects"])
    else:
        said.append(f"The baseline, {base['name']}, has no value, so nothing is compared with it.")
    if advice := document["recommendation"]:
        said.append(advice["sentence"])
    return " ".join(said)


def _alone(cell: Mapping[str, Any]) -> str:
    """Say what one cell alone has, and what a comparison would need."""
    seen = f"{cell['name']}: {number(cell['mean'])} ({interval(cell)}, n = {cell['n']})."
    if cell["sd"] and (least := statistics.detectable(cell["sd"] * 2**0.5, cell["n"])):
        seen += (
            f" Against another cell as noisy, {count(cell['n'], 'seed')} could show a difference "
            f"of {least:.2g} or more."
        )
    return seen


def _by_verdict(cells: Sequence[Mapping[str, Any]], family: int) -> list[str]:
    """Say which cells are better, worse, equivalent, and what could not have been shown."""
    if cells and all(cell["contrast"]["n"] == 1 for cell in cells):
        return ["One seed in common: nothing can be tested, and the best of many is optimistic."]
    said, groups = [], dict[str, list[Mapping[str, Any]]]()
    for cell in cells:
        groups.setdefault(cell["contrast"]["verdict"], []).append(cell)
    for word in ("better", "worse", *(word for word in groups if word not in ("better", "worse"))):
        if word in groups:
            named = [_difference(cell) for cell in groups[word]]
            said.append(f"{word[0].upper()}{word[1:]}: {listed(named)}.")
    if unclear := groups.get("no clear difference"):
        said += _not_shown(unclear, family)
    if groups.get("descriptive only"):
        said.append("With fewer than three seeds in common nothing can be tested.")
    return said


def _difference(cell: Mapping[str, Any]) -> str:
    contrast = cell["contrast"]
    seen = f"{number(contrast['mean'], True)}, {interval(contrast, True)}"
    whole = cell["counts"] == {"ok": cell["planned"]}
    return f"{cell['name']} ({seen}{'' if whole else ', ' + cell['complete']})"


def _unpaired(cells: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> list[str]:
    """Say which cells have no seed in common with the baseline, and what is known without."""
    found = []
    for cell in cells:
        if cell["n"] and not cell["contrast"] and cell is not base:
            here, there = ([item["value"] for item in of["values"]] for of in (cell, base))
            ends = statistics.welch(here, there)
            known = interval({"low": ends[0], "high": ends[1]}, True) if ends else "no interval"
            found.append(f"{told(cell)}, Welch's interval {known}")
    return [f"No seed in common with the baseline: {listed(found)}."] if found else []


def _not_shown(cells: Sequence[Mapping[str, Any]], family: int) -> list[str]:
    """Say what the seeds could have shown, and how many more a difference as seen would take."""
    contrasts = [cell["contrast"] for cell in cells]
    could = sorted(contrast["detectable"] for contrast in contrasts)
    least = " to ".join(dict.fromkeys(f"{of:.2g}" for of in (could[0], could[-1])))
    said = [f"Alone, each of these could have been shown from a difference of {least} on."]
    cell = max(cells, key=lambda cell: abs(cell["contrast"]["mean"]))
    largest = cell["contrast"]
    alone, among = (
        statistics.seeds_needed(largest["sd"], largest["mean"], level=1 - 0.05 / many, most=1000)
        for many in (1, family)
    )
    if among is None or alone is None:
        said.append("What was seen is so small that no practical number of seeds would show it.")
    else:
        said.append(
            f"To show the largest, {abs(largest['mean']):.2g} of {cell['name']}, takes some "
            f"{among} seeds, {max(among - largest['n'], 0)} more"
            + (f", among {family} comparisons ({alone} alone)." if family > 1 else ".")
        )
    return said


def _by_factor(effects: Sequence[Mapping[str, Any]]) -> list[str]:
    said = [
        f"{effect['name']}: {effect['verdict']} ({number(effect['mean'], True)}, "
        f"{interval(effect, True)})"
        for effect in effects
        if effect["verdict"] in ("better", "worse")
    ]
    crossed = [
        f"{effect['name']} is {effect['verdict']}"
        for effect in effects
        if effect["verdict"].endswith("the sum of both")
    ]
    lines = [f"Averaged over the rest, {listed(said)}."] if said else []
    if crossed:
        lines.append(f"The factors do not simply add up: {listed(crossed)}.")
    return lines


def listed(items: Sequence[str], most: int = 6) -> str:
    """Return items in a row, and how many more there are."""
    more = f", and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
