"""What the report says in words, and no more than is known: verdicts, advice, the paragraph."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cvexp.report import statistics

SEEDS_FOR_A_VERDICT = 5  # with fewer, no p of a sign-flip test can be below 0.05


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


def verdict(contrast: Mapping[str, Any], goal: str, margin: float | None) -> str:
    """Return what the seeds of one contrast show, and no more.

    Args:
        contrast: with its Holm-adjusted p in its family.
    """
    n, p = contrast["n"], contrast["p_holm"]
    if n < 3:
        return "descriptive only"
    if margin and contrast["p_equivalent"] is not None and contrast["p_equivalent"] < 0.05:
        return f"equivalent within {margin:g}"
    if p is None:
        return f"the same difference in {count(n, 'seed')}: nothing to test"
    if p < 0.05 and n >= SEEDS_FOR_A_VERDICT:
        return "better" if (contrast["mean"] > 0) == (goal == "max") else "worse"
    if p < 0.05:
        return f"too few seeds for a verdict ({n} of {SEEDS_FOR_A_VERDICT})"
    if contrast["sd"] == 0:
        return f"identical in {count(n, 'seed')}"
    return f"no clear difference ({n} seeds could show {contrast['detectable']:.2g} or more)"


def best(cells: Iterable[dict[str, Any]], goal: str) -> dict[str, Any] | None:
    """Return the cell with the best mean, the first of equals; None without any."""
    sign = 1 if goal == "max" else -1
    full = [cell for cell in cells if cell["n"]]
    return max(full, key=lambda cell: sign * cell["mean"], default=None)


def recommend(cells: Sequence[dict[str, Any]], goal: str) -> dict[str, Any] | None:
    """Return the cheapest cell that is not shown worse than the best, in a sentence.

    Cells with too few seeds in common with the best to be shown worse are no candidates.
    """
    top = best(cells, goal)
    if top is None or sum(bool(cell["n"]) for cell in cells) < 2:
        return None
    if not top["cost"]["train_s"]:
        return _none(f"the best, {top['name']}, has no train time of its own")
    against = {cell["name"]: _against(cell, top) for cell in cells if cell["n"] and cell is not top}
    adjusted = statistics.holm([statistics.p_value(of) if of else None for of in against.values()])
    tested = zip(against.items(), adjusted, strict=True)
    enough = {name: p for (name, of), p in tested if len(of) >= SEEDS_FOR_A_VERDICT}
    if not enough:
        return _none(
            f"no cell has {SEEDS_FOR_A_VERDICT} seeds in common with the best, {top['name']} "
            f"({number(top['mean'])})"
        )
    as_good = [name for name, p in enough.items() if p is None or p >= 0.05]
    left = [top, *(cell for cell in cells if cell["name"] in as_good and cell["cost"]["train_s"])]
    chosen = min(left, key=lambda cell: cell["cost"]["train_s"]["median"])
    return {"cell": chosen["name"], "sentence": _advice(chosen, top, against)}


def _none(why: str) -> dict[str, Any]:
    return {"cell": None, "sentence": f"Which cheaper cell would do cannot be said: {why}."}


def _against(cell: Mapping[str, Any], top: Mapping[str, Any]) -> list[float]:
    there = {item["seed"]: item["value"] for item in top["values"]}
    return [i["value"] - there[i["seed"]] for i in cell["values"] if i["seed"] in there]


def _advice(
    chosen: Mapping[str, Any], top: Mapping[str, Any], against: Mapping[str, Sequence[float]]
) -> str:
    def told(cell: Mapping[str, Any]) -> str:
        return f"({number(cell['mean'])}, {_seconds(cell['cost']['train_s']['median'])})"

    if chosen is top:
        return (
            f"{top['name']} {told(top)} has the best mean, and no cell that is not shown worse "
            "trains in less time."
        )
    estimate = statistics.estimate(against[chosen["name"]])
    difference = f"{number(estimate.mean, True)}, {interval(estimate._asdict(), True)}"
    return (
        f"{chosen['name']} {told(chosen)} is the cheapest cell that is not shown worse than the "
        f"best, {top['name']} {told(top)}: the difference is {difference} (n = {estimate.n})."
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


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
        said.append(f"Incomplete: {_listed(lacking)}.")
    if document["baseline"] is None:
        said += [_alone(cell) for cell in cells if cell["n"]]
        return " ".join(said)
    base = next(cell for cell in cells if cell["name"] == document["baseline"])
    if not base["n"]:
        said.append(f"The baseline, {base['name']}, has no value, so nothing is compared with it.")
        return " ".join(said)
    said.append(f"The baseline is {base['name']} ({number(base['mean'])}, {interval(base)}).")
    said += _by_verdict([cell for cell in cells if cell["contrast"]])
    said += _by_factor(document["effects"])
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


def _by_verdict(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which cells are better, worse, equivalent, and what could not have been shown."""
    said, groups = [], dict[str, list[Mapping[str, Any]]]()
    for cell in cells:
        word = cell["contrast"]["verdict"].partition(" (")[0]
        groups.setdefault(word, []).append(cell)
    for word in ("better", "worse", *(word for word in groups if word not in ("better", "worse"))):
        if word in groups:
            named = [_difference(cell) for cell in groups[word]]
            said.append(f"{word[0].upper()}{word[1:]}: {_listed(named)}.")
    if unclear := groups.get("no clear difference"):
        said += _not_shown([cell["contrast"] for cell in unclear])
    if groups.get("descriptive only"):
        said.append("With fewer than three seeds in common nothing can be tested.")
    return said


def _difference(cell: Mapping[str, Any]) -> str:
    contrast = cell["contrast"]
    return f"{cell['name']} ({number(contrast['mean'], True)}, {interval(contrast, True)})"


def _not_shown(contrasts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what the seeds could have shown, and how many more a difference as seen would take."""
    could = sorted(contrast["detectable"] for contrast in contrasts)
    n = sorted({contrast["n"] for contrast in contrasts})
    seeds = " to ".join(str(k) for k in dict.fromkeys([n[0], n[-1]]))
    least = " to ".join(dict.fromkeys(f"{of:.2g}" for of in (could[0], could[-1])))
    said = [
        f"These {seeds} seeds could have shown differences of {least} or more, each taken alone."
    ]
    largest = max(contrasts, key=lambda contrast: abs(contrast["mean"]))
    needed = statistics.seeds_needed(largest["sd"], largest["mean"])
    if needed is None or needed > 1000:
        said.append("What was seen is so small that no practical number of seeds would show it.")
    elif needed > largest["n"]:
        more = needed - largest["n"]
        said.append(
            f"To show one as large as the largest of them ({abs(largest['mean']):.2g}) takes some "
            f"{needed} seeds, {more} more."
        )
    return said


def _by_factor(effects: Sequence[Mapping[str, Any]]) -> list[str]:
    clear = [effect for effect in effects if effect["verdict"] in ("better", "worse")]
    said = [
        f"{effect['name']}: {effect['verdict']} ({number(effect['mean'], True)}, "
        f"{interval(effect, True)})"
        for effect in clear
        if effect["kind"] == "main"
    ]
    crossed = [effect["name"] for effect in clear if effect["kind"] == "interaction"]
    lines = [f"Averaged over the rest, {_listed(said)}."] if said else []
    if crossed:
        lines.append(f"The factors do not simply add up: {_listed(crossed)}.")
    return lines


def _listed(items: Sequence[str], most: int = 6) -> str:
    """Return items in a row, and how many more there are."""
    more = f", and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
