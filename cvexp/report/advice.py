"""Which cell to take: the cheapest that is not shown worse than the best, as far as is known."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cvexp.report import words

HARDWARE = tuple(f"differs also in {key}:" for key in ("cpu", "cores", "gpus", "threads", "device"))


def best(cells: Iterable[dict[str, Any]], goal: str) -> dict[str, Any] | None:
    """Return the cell with the best mean, the first of equals, or None.

    Of as many seeds as a verdict needs, where there is any such cell: few luck into a mean.
    """
    sign = 1 if goal == "max" else -1
    full = [cell for cell in cells if cell["n"]]
    enough = [cell for cell in full if cell["n"] >= words.SEEDS_FOR_A_VERDICT]
    return max(enough or full, key=lambda cell: sign * cell["mean"], default=None)


def recommend(
    cells: Sequence[dict[str, Any]],
    top: dict[str, Any] | None,
    against: Mapping[str, Any],
    goal: str,
) -> dict[str, Any] | None:
    """Return the cheapest cell that is not shown worse than the best, in a sentence.

    Args:
        top: the best cell.
        against: each other cell's contrast with it, judged as one family.
    """
    others = [cell for cell in cells if cell["n"] and cell is not top]
    if top is None or not others:
        return None
    first = f"the best, {_timed(top)}"
    sign = 1 if goal == "max" else -1
    if any(sign * cell["mean"] > sign * top["mean"] for cell in others):
        first = f"the best of those with {words.SEEDS_FOR_A_VERDICT} seeds, {_timed(top)}"
    left, apart = [], []
    for cell in others:
        contrast = against[cell["name"]]
        if contrast is None or contrast["n"] < words.SEEDS_FOR_A_VERDICT:
            seeds = words.count(contrast["n"] if contrast else 0, "seed")
            apart.append(f"{_timed(cell)}, {seeds} in common")
        elif not (cell["cost"]["train_s"] or _is_worse(cell, contrast, goal)):
            apart.append(f"{_timed(cell)}, no train time of its own")
        elif not _is_worse(cell, contrast, goal):
            left.append(cell)
    advice = {"cell": None, "best": top["name"], "against": against}
    if len(apart) == len(others) or not top["cost"]["train_s"]:
        why = "has no train time of its own"
        if len(apart) == len(others):
            why = (
                f"has too little in common with the others ({words.SEEDS_FOR_A_VERDICT} seeds are "
                f"needed, and train times): {words.listed(apart)}"
            )
        said = f"Which cheaper cell would do cannot be said: {first}, {why}."
        return {**advice, "sentence": said}
    chosen = min([top, *left], key=lambda cell: cell["cost"]["train_s"]["median"])
    if chosen is top:
        sentence = f"T{first[1:]}, is also the cheapest of those that are not shown worse."
    else:
        sentence = _advice(chosen, against[chosen["name"]], first)
    if apart:
        sentence += f" Not judged: {words.listed(apart)}."
    if any(flag.startswith(HARDWARE) for cell in (top, *left) for flag in cell["flags"]):
        sentence += " Their train times are of different hardware."
    return {**advice, "cell": chosen["name"], "sentence": sentence}


def _is_worse(cell: Mapping[str, Any], contrast: Mapping[str, Any], goal: str) -> bool:
    """Return whether a cell is shown worse than the best, or than the baseline."""
    wrong_way = (contrast["mean"] < 0) == (goal == "max")
    shown = {contrast["verdict"], (cell["contrast"] or {}).get("verdict")}
    return "worse" in shown or (contrast["verdict"] == words.SAME and wrong_way)


def _advice(chosen: Mapping[str, Any], contrast: Mapping[str, Any], first: str) -> str:
    difference = f"{words.number(contrast['mean'], True)}, {words.interval(contrast, True)}"
    p = "" if contrast["p_holm"] is None else f", Holm p {contrast['p_holm']:.2g} against the best"
    return (
        f"{_timed(chosen)} is the cheapest cell that is not shown worse than {first}: the "
        f"difference is {difference} (n = {contrast['n']}{p})."
    )


def _timed(cell: Mapping[str, Any]) -> str:
    spent = cell["cost"]["train_s"]
    return words.told(cell, *([_seconds(spent["median"])] if spent else []))


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
