"""The report's figures: of the document of report.json, as PNG and SVG, and their alt texts.

A figure is a function that returns its drawing and the sentence that tells it in numbers, or None
where the report has nothing to show. The report's text is strangers': none of it is a formula.
"""

import io
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from cvexp.report import words

Report = dict[str, Any]
Cell = dict[str, Any]
Drawn = tuple[Figure, str] | None

WIDTH = 4.5  # inches, little more than a phone's
POINTS = 9  # of all text but the title
LINE = POINTS * 1.3 / 72  # inches
EMS = WIDTH * 72 / POINTS - 2  # of a line of text
PROSE = 64  # characters of a line of our own
DOTS_PER_INCH = 192  # twice a page's 96
NAMED = 8  # cells told apart in one figure or named in one sentence
# Okabe and Ito 2008, less black and yellow: colour-blind eyes tell them apart. Strong ones first.
ON_WHITE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
ON_BLACK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2")
MARKERS = "osD^vPX"  # 7 and 6: 42 pairs before one comes again
GREY = "#808080"
SLIM = dict.fromkeys(" ,.:;-/()[]'fijlrt", 0.42)  # ems
INTERVAL = "95\N{NO-BREAK SPACE}% t-interval"
A_POINT = f"A point is a cell's mean ({{}}) with its {INTERVAL}."
PHASES = ("startup_s", "data_wait_s", "compute_s", "validation_s")


def draw(report: Report, dark: bool = False) -> dict[str, Figure]:
    """Return the figures that this report has something to show in, by name.

    Args:
        report: the document of report.json.
        dark: light text on no background, for a dark page.
    """
    with _settings(_style(dark)):
        figures = {name: figure for name, (figure, _) in _drawn(report)}
        for figure in figures.values():  # laid out once for PNG and SVG
            if engine := figure.get_layout_engine():
                engine.execute(figure)
            figure.set_layout_engine("none")
    return figures


def alternatives(report: Report) -> dict[str, str]:
    """Return what each figure shows, in one sentence with its numbers, as plain text."""
    with _settings(_style()):
        return {name: words.clean(sentence) for name, (_, sentence) in _drawn(report)}


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure's file, the same bytes each time; an SVG's text is text.

    Args:
        kind: "png" or "svg".
    """
    buffer = io.BytesIO()
    with _settings({"svg.fonttype": "none", "svg.hashsalt": "cvexp"}):
        if kind == "svg":  # not by savefig, which draws everything twice
            canvas: Any = FigureCanvasSVG(figure)
            canvas.print_svg(buffer, metadata={"Date": None})
        else:
            figure.set_dpi(DOTS_PER_INCH)
            canvas = FigureCanvasAgg(figure)
            canvas.print_png(buffer)
    return buffer.getvalue()


def _drawn(report: Report) -> list[tuple[str, tuple[Figure, str]]]:
    kinds = (runs, differences, interaction, pareto, curves, time)
    return [(kind.__name__, drawn) for kind in kinds if (drawn := kind(report))]


@contextmanager
def _settings(settings: Any) -> Iterator[None]:
    """Set matplotlib up; a character that its font lacks is a box in a PNG, no warning."""
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        lacking = "Glyph .* missing from|Matplotlib currently does not support"
        warnings.filterwarnings("ignore", lacking, UserWarning)
        yield


def _style(dark: bool = False) -> dict[str, Any]:
    inked = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    return {
        **dict.fromkeys(inked, "#E6E6E6" if dark else "#222222"),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), GREY),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        **dict.fromkeys(("text.parse_math", "text.usetex", "axes.formatter.useoffset"), False),
        **dict.fromkeys(("font.size", "xtick.labelsize", "ytick.labelsize"), POINTS),
        **dict.fromkeys(("axes.labelsize", "legend.fontsize"), POINTS),
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "axes.prop_cycle": cycler(color=ON_BLACK if dark else ON_WHITE),
        "figure.facecolor": "none" if dark else "white",
        "font.family": ["DejaVu Sans", "sans-serif"],  # matplotlib's own: the same layout anywhere
        "grid.alpha": 0.25,
        "lines.linewidth": 1.2,
        "lines.markersize": 4.5,
    }


# --- words


@lru_cache(1024)
def _short(text: str, ems: float = EMS) -> str:
    """Return text on one line, with … for the middle of its parts, the longest first."""
    whole = words.clean(text)
    for parts in (whole.split(", "), [whole]):
        for size in range(min(len(whole), int(ems / 0.42)), 0, -1):
            ends = [(p[: size // 2], p[len(p) - (size - 1) // 2 :]) for p in parts]
            cut = ["…".join(of) if len(p) > size else p for p, of in zip(parts, ends, strict=True)]
            if _width(line := ", ".join(cut)) <= ems:
                return line
    return ""


def _width(text: str) -> float:
    """Return what a text's width does not exceed, in ems."""
    return sum(
        1.5 if c > "\u052f" else 1 if c.isupper() or c in "mw%@&#+=<>~^" else SLIM.get(c, 0.65)
        for c in text
    )


def _listed(items: Sequence[str]) -> str:
    more = [f"and {len(items) - NAMED} more"] * (len(items) > NAMED)
    return "; ".join([*items[:NAMED], *more])


def _label(report: Report, cell: Cell) -> str:
    return f"{cell['name']}{', baseline' * (cell['name'] == report['baseline'])}"


def _metric(report: Report, between: str = " ") -> str:
    better = "higher is better" if report["metric"]["goal"] == "max" else "lower is better"
    return f"{_short(report['metric']['name'], 18)}{between}({better})"


def _interval(of: Cell) -> str:
    """Return the numbers of a cell, of a contrast or of an effect."""
    return f"{words.number(of['mean'])} ({words.interval(of)}, n = {of['n']})"


def _span(numbers: Iterable[int]) -> str:
    """Return numbers of runs: "n = 5" or "n = 3 to 5"."""
    distinct = sorted(set(numbers))
    return f"n = {distinct[0]}" + f" to {distinct[-1]}" * (len(distinct) > 1)


def _seconds(of: float) -> str:
    return f"{of:,.0f} s" if of >= 1000 else f"{of:.3g} s"


# --- the parts of a figure


def _frame(
    axes: Axes, height: float, title: str, about: str, key: Sequence[Any] = (), note: str = ""
) -> Figure:
    """Give the axes a height in inches, with a heading above, and the key and the note below."""
    figure, about = axes.figure, textwrap.fill(about, PROSE)
    assert isinstance(figure, Figure)
    labels = [_short(label, EMS - 4) for _, label in key]
    rows = -(-len(key) // max(1, int((EMS + 2) / (5 + max(map(_width, labels), default=0)))))
    top = 0.4 + LINE * (about.count("\n") + 1)
    foot = 0.08 + LINE * (note.count("\n") + 1) * bool(note)
    bottom = foot + 1.1 * LINE * rows
    total = top + height + bottom
    figure.set_size_inches(WIDTH, total)
    left: Any = {"x": 0.02, "va": "top", "linespacing": 1.25}
    figure.text(y=1 - 0.06 / total, s=_short(title, 26), size=11, weight="bold", **left)
    figure.text(y=1 - 0.3 / total, s=about, **left)
    figure.text(y=(foot - 0.04) / total, s=note, **left)
    corner: Any = {"loc": "upper left", "bbox_to_anchor": (0.01, bottom / total)}
    if key:
        packed: Any = {"borderaxespad": 0, "labelspacing": 0.3, "ncols": -(-len(key) // rows)}
        figure.legend([handle for handle, _ in key], labels, **corner, **packed)
    figure.set_layout_engine("constrained", rect=(0.01, bottom / total, 0.98, height / total))
    return figure


def _rows(axes: Axes, names: Sequence[str], remarks: Sequence[str]) -> tuple[Any, float]:
    """Give each name a row with a remark on its right; return the tops, and the axes' height."""
    place: Any = {"transform": axes.get_yaxis_transform(), "va": "top", "in_layout": False}
    for row, (name, remark) in enumerate(zip(names, remarks, strict=True)):
        said = _short(remark, EMS / 2)
        axes.text(0, row + 0.08, _short(name, EMS - _width(said) - 1), **place)
        axes.text(1, row + 0.08, said, ha="right", **place)
    axes.set(ylim=(len(names), 0), yticks=range(len(names) + 1), yticklabels=[])
    axes.tick_params(left=False, labeltop=len(names) > 12)
    axes.locator_params(axis="x", nbins=5)
    axes.spines["left"].set_visible(False)
    axes.grid()
    return np.arange(len(names)), 0.5 * len(names) + (0.65 if len(names) > 12 else 0.45)


def _dots(axes: Axes, row: int, values: Sequence[Cell], of: Cell, place: int = 0) -> None:
    """Draw a row's values, each a little below the one before, and under them its intervals."""
    numbers = [item["value"] for item in values]
    below = row + 0.46 + 0.18 * np.arange(len(numbers)) / max(len(numbers) - 1, 1)
    axes.plot(numbers, below, linestyle="", alpha=0.8, **_look(place))
    for prefix, width in {"simultaneous_": 0.8, "": 2.4}.items():
        if of.get(f"{prefix}low") is not None:
            axes.hlines(row + 0.8, of[f"{prefix}low"], of[f"{prefix}high"], _ink(), lw=width)
    if of["n"] > 1:
        axes.plot(of["mean"], row + 0.8, marker="|", markersize=8, mew=1.8, color=_ink())


def _rule(axes: Axes, x: float, rows: Any, **look: Any) -> None:
    """Draw a line down through the dots of all rows, but not through their names."""
    axes.vlines([x] * len(rows), rows + 0.42, rows + 1, linewidth=1, zorder=0.9, **look)


def _plane(report: Report) -> Axes:
    """Return axes with the metric upwards."""
    axes = Figure().subplots()
    axes.set_ylabel(_metric(report, "\n"))
    axes.grid()
    return axes


def _points(axes: Axes, x: Any, cells: Sequence[Cell], **look: Any) -> Any:
    """Draw cells' means and, where there are any, their intervals; return what a key shows."""
    for at, cell in zip(x, cells, strict=True):
        if cell["low"] is not None:
            axes.vlines(at, cell["low"], cell["high"], look["color"], lw=1)
    return axes.plot(x, np.array([cell["mean"] for cell in cells], float), **look)[0]


def _look(place: int) -> dict[str, Any]:
    """Return the colour and the marker of the nth series."""
    return {"color": _colour(place), "marker": MARKERS[place % len(MARKERS)]}


def _looks(report: Report, cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any], str]]:
    """Yield each cell with its look, the same in each figure, and its label; the last are grey."""
    named = len(cells) if len(cells) <= NAMED else NAMED - 1
    for cell in cells[:named]:
        yield cell, _look(report["cells"].index(cell)), _label(report, cell)
    for place, cell in enumerate(cells[named:]):
        grey = {"color": GREY, "marker": ".", "linewidth": 0.6, "zorder": 1.5}
        yield cell, grey, f"{len(cells) - named} other cells" * (place == 0)


def _colour(place: int) -> Any:
    colours = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    return colours[place % len(colours)]


def _ink() -> Any:
    return matplotlib.rcParams["text.color"]


# --- the figures


def runs(report: Report) -> Drawn:
    """Draw each run as a dot, and below a cell's dots its mean and 95 % t-interval."""
    cells, name = report["cells"], report["metric"]["name"]
    full = _ranked(report, [cell for cell in cells if cell["n"]])
    if not full:
        return None
    lacks = ["" if c["counts"] == {"ok": c["planned"]} else c["complete"] for c in cells]
    axes, dotted = Figure().subplots(), ""
    rows, height = _rows(axes, [_label(report, cell) for cell in cells], lacks)
    for row, cell in zip(rows, cells, strict=True):
        is_baseline = cell["name"] == report["baseline"]
        _dots(axes, row, cell["values"], cell, int(is_baseline))
        if is_baseline and cell["n"]:
            _rule(axes, cell["mean"], rows, color=_colour(1), linestyle=":")
            dotted = "; dotted, the baseline's mean"
    axes.set_xlabel(_metric(report))
    what = f"{words.count(sum(c['n'] for c in cells), 'run')} in {words.count(len(cells), 'cell')}"
    about = f"A dot is a run ({_span(c['n'] for c in cells)} a cell); a bar, their mean and its "
    note = "\n".join(map(_short, textwrap.wrap(words.clean(report["metric"]["note"] or ""), 52)))
    told = _listed([f"{_label(report, cell)}: {_interval(cell)}" for cell in full])
    gaps = _listed([f"{c['name']}: {lack}" for c, lack in zip(cells, lacks, strict=True) if lack])
    return _frame(axes, height, f"{name}: {what}", f"{about}{INTERVAL}{dotted}.", note=note), (
        f"{_metric(report)} of {what}; means, the best first, with {INTERVAL}s: {told}"
        f"{gaps and f'. Incomplete: {gaps}'}."
    )


def _ranked(report: Report, cells: Iterable[Cell]) -> list[Cell]:
    """Return the best cell first, and last those that have no mean."""
    sign = -1 if report["metric"]["goal"] == "max" else 1
    return sorted(cells, key=lambda cell: (not cell["n"], sign * (cell["mean"] or 0)))


def differences(report: Report) -> Drawn:
    """Draw each seed's difference from the baseline, their mean, and both of its intervals."""
    cells, metric = [cell for cell in report["cells"] if cell["contrast"]], report["metric"]
    if not cells:
        return None
    verdicts = [cell["contrast"]["verdict"].partition(" (")[0] for cell in cells]
    axes = Figure().subplots()
    rows, height = _rows(axes, [cell["name"] for cell in cells], verdicts)
    for row, cell in zip(rows, cells, strict=True):
        _dots(axes, row, cell["contrast"]["differences"], cell["contrast"])
    _rule(axes, 0, rows, color=_ink())
    about = (
        f"A dot is a seed's difference ({_span(c['contrast']['n'] for c in cells)}); a bar, their "
        f"mean and its {INTERVAL}, thick, and the simultaneous one of "
        f"{words.count(report['family'], 'comparison')}, thin."
    )
    if margin := report["margin"]:
        axes.axvspan(-margin, margin, color=_colour(5), alpha=0.2, linewidth=0, zorder=0.5)
        about += f" Shaded: the margin of {margin:g}."
    better = "right" if metric["goal"] == "max" else "left"
    axes.set_xlabel(f"difference in {_short(metric['name'], 15)} (better: {better})")
    against = cells[0]["contrast"]["against"]
    counts = ", ".join(f"{verdict} in {count}" for verdict, count in Counter(verdicts).items())
    ranked = sorted(cells, key=lambda cell: -abs(cell["contrast"]["mean"]))
    told = [f"{c['name']}: {_interval(c['contrast'])}, {c['contrast']['verdict']}" for c in ranked]
    title, note = f"{metric['name']}: paired differences", f"Baseline: {_short(against, EMS - 6)}"
    return _frame(axes, height, title, about, note=note), (
        f"Paired differences in {_metric(report)} from {against}: {counts}; the largest first, "
        f"with {INTERVAL}s: {_listed(told)}."
    )


def interaction(report: Report) -> Drawn:
    """Draw the cells' means by the level of one factor, a line for each level of the other."""
    factors, full = report["factors"], [cell for cell in report["cells"] if cell["n"]]
    sizes = [len(levels) for levels in factors.values()]
    if len(sizes) != 2 or min(sizes) < 2 or len(full) <= max(sizes):
        return None
    (a, levels), (b, others) = factors.items()
    axes, key, told = _plane(report), [], []
    for place, other in enumerate(others):
        by_level = {words.text(c["levels"][a]): c for c in full if c["levels"][b] == other}
        cells = [by_level.get(words.text(x), {"mean": None, "low": None}) for x in levels]
        dodged = np.arange(len(levels)) + 0.24 * (place / (len(others) - 1) - 0.5)
        label = f"{b}={words.text(other)}"
        key.append((_points(axes, dodged, cells, **_look(place)), label))
        means = ", ".join(f"{x} {words.number(cell['mean'])}" for x, cell in by_level.items())
        told.append(f"{label}: {means or 'no run'}")
    upright = len(levels) > 5
    ticks = [_short(words.text(x), 12 if upright else 26 / len(levels)) for x in levels]
    axes.set_xticks(range(len(levels)), ticks, rotation=90 * upright)
    axes.set_xlabel(_short(a, 26))
    tested = [effect for effect in report["effects"] if effect["kind"] == "interaction"]
    told += [f"interaction {e['name']}: {_interval(e)}, {e['verdict']}" for e in tested]
    about = f"{A_POINT.format(_span(c['n'] for c in full))} Not parallel: a hint at an interaction."
    title = f"{report['metric']['name']} by {a} and {b}"
    return _frame(axes, 2.6 + upright, title, about, key), (
        f"Mean {_metric(report)} by {a}, for {_listed(told)}."
    )


def pareto(report: Report) -> Drawn:
    """Draw the metric against train time, and the line of the cells that none beats in both."""
    cells, note = _timed(report, "mean")
    if len(cells) < 2:
        return None
    seconds = {cell["name"]: float(cell["cost"]["train_s"]["median"]) for cell in cells}
    cells.sort(key=lambda cell: (not cell["pareto"], seconds[cell["name"]]))
    front = [cell for cell in cells if cell["pareto"]]
    chosen = (report["recommendation"] or {}).get("cell")
    axes, key = _plane(report), []
    for cell, look, label in _looks(report, cells):
        look |= {"linestyle": "", "markersize": 8 if cell["pareto"] else 4.5}
        point = _points(axes, [seconds[cell["name"]]], [cell], **look)
        if label:
            key.append((point, label + ", recommended" * (cell["name"] == chosen)))
    line = np.array([(seconds[cell["name"]], cell["mean"]) for cell in front]).reshape(-1, 2)
    axes.plot(*line.T, color=_ink(), linewidth=1, zorder=1)
    axes.set_xlabel("train time, s (median)")
    if max(seconds.values()) > 10 * min(seconds.values()) > 0:
        axes.set(xscale="log", xlabel="train time, s (median, log scale)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")  # not a formula
        axes.xaxis.set_minor_formatter("")
    about = A_POINT.format(_span(cell["n"] for cell in cells))
    about += " Large: the Pareto set, which no other cell beats in both."
    told = [
        f"{_label(report, cell)}: {words.number(mean)}, {_seconds(at)}"
        for cell, (at, mean) in zip(front, line, strict=True)
    ]
    return _frame(axes, 2.6, f"{report['metric']['name']} against train time", about, key, note), (
        f"Mean {_metric(report)} against median train time of {len(cells)} cells; the Pareto set, "
        f"the fastest first: {_listed(told)}{note and f'. {note}'}."
    )


def _timed(report: Report, part: str) -> tuple[list[Cell], str]:
    """Return the cells that have a part and a train time of their own, and a note on the others."""
    timed = [c for c in report["cells"] if c["cost"]["train_s"] and c[part] is not None]
    others = [_short(cell["name"], EMS - 1) for cell in report["cells"] if cell not in timed]
    lines = ["Left out, with no value or no uncontended time:", *_listed(others).split("; ")]
    return timed, "\n".join(lines) if others else ""


def curves(report: Report) -> Drawn:
    """Draw a metric by epoch: each cell's mean, and its interval as a band."""
    names = [name for cell in report["cells"] for name in cell["curves"]]
    if not names:
        return None
    wanted = f"val/{report['metric']['name'].rpartition('/')[2]}"
    name = wanted if wanted in names else names[0]
    cells = _ranked(report, [cell for cell in report["cells"] if name in cell["curves"]])
    cells.sort(key=lambda cell: bool(cell["name"] != report["baseline"]))
    axes, key, told, ns = _plane(report), [], [], []
    for cell, look, label in _looks(report, cells):
        curve = cell["curves"][name]
        columns = (np.array(curve[of], float) for of in ("epoch", "mean", "low", "high"))
        epoch, mean, low, high = columns
        (line,) = axes.plot(epoch, mean, **look, markevery=max(1, len(epoch) // 10))
        if label:
            key.append((line, label))
        if look["color"] != GREY:
            axes.fill_between(epoch, low, high, color=look["color"], alpha=0.13, linewidth=0)
        ns += curve["n"]
        ends = [f"{words.number(mean[i])} at epoch {epoch[i]:g}" for i in (0, -1)]
        told.append(f"{_label(report, cell)}: {' to '.join(ends)}")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set(xlabel="epoch", ylabel=_short(name, 18))
    about = f"A line is the mean of a cell's runs ({_span(ns)}); a band, its {INTERVAL}."
    figure = _frame(axes, 2.6, f"{name} by epoch", about, key)
    return figure, f"Mean {name} by epoch: {_listed(told)}."


def time(report: Report) -> Drawn:
    """Draw where each cell's time goes."""
    cells, note = _timed(report, "time")
    if not cells:
        return None
    seconds = {
        phase[:-2].replace("_", " "): [cell["time"][phase] for cell in cells] for phase in PHASES
    }
    totals = np.sum([*seconds.values()], axis=0)
    labels, axes, key = [_label(report, cell) for cell in cells], Figure().subplots(), []
    rows, height = _rows(axes, labels, [*map(_seconds, totals)])
    ends = np.zeros(len(cells))
    colours = (GREY, _colour(1), _colour(0), _colour(3))
    for (name, widths), colour in zip(seconds.items(), colours, strict=True):
        key.append((axes.barh(rows + 0.7, widths, 0.36, ends, color=colour), name))
        ends += widths
    axes.set(xlim=(0, None), xlabel="time, s")
    ns = _span(cell["cost"]["train_s"]["n"] for cell in cells)
    about = f"A bar stacks the medians of a cell's runs ({ns}); on the right, their sum."
    told = []
    for row in np.argsort(-totals, kind="stable"):
        parts = ", ".join(f"{name} {_seconds(widths[row])}" for name, widths in seconds.items())
        told.append(f"{labels[row]}: {_seconds(totals[row])} ({parts})")
    return _frame(axes, height, "Where the time goes", about, key, note), (
        f"Median time, the longest first: {_listed(told)}{note and f'. {note}'}."
    )
