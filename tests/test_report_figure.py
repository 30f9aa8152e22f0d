"""The report's figures."""

import io
import itertools
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image
from scipy import stats

from cvexp.report import figure as room

SVG = "{http://www.w3.org/2000/svg}"
PHASES = {"startup_s": 4.0, "data_wait_s": 2.0, "compute_s": 20.0, "validation_s": 3.0}
HOSTILE = [r"a=$\frac{", r"$x$_<b>&amp;", "_hidden\nline", "emoji=🦄", "bell=\x07", "名前" * 20]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Return n, mean, sd and the 95 % t-interval, as a report has them."""
    n = len(values)
    result: dict[str, Any] = {"n": n, "mean": None, "sd": None, "low": None, "high": None}
    if n:
        result["mean"] = float(np.mean(values))
    if n > 1:
        result["sd"] = float(np.std(values, ddof=1))
        half = float(stats.t.ppf(0.975, n - 1)) * result["sd"] / n**0.5
        result |= {"low": result["mean"] - half, "high": result["mean"] + half}
    return result


def make_cell(name: str, levels: dict[str, Any], values: Sequence[float], planned: int) -> Any:
    failed = planned - len(values)
    counts = {"ok": len(values), "diverged": failed}
    train_s = 10 + 20 * sum(map(ord, name)) % 97
    return {
        "name": name,
        "levels": levels,
        "counts": {status: count for status, count in counts.items() if count},
        "planned": planned,
        "complete": f"{len(values)}/{planned}" + f" ({failed} diverged)" * (failed > 0),
        "values": [{"seed": s, "value": v, "directory": f"r{s}"} for s, v in enumerate(values)],
        **summary(values),
        "flags": [],
        "separates": False,
        "pareto": False,
        "contrast": None,
        "cost": {
            "train_s": {"median": train_s, "low": 9, "high": 99, "n": len(values)}
            if values
            else None
        },
        "contended": 0,
        "time": PHASES if values else None,
        "curves": {"val/accuracy": curve(values)} if values else {},
    }


def curve(values: Sequence[float]) -> dict[str, Any]:
    epochs = [1, 2, 3, 4, 5]
    points = [summary([value - 0.3 / epoch**2 for value in values]) for epoch in epochs]
    columns = {key: [point[key] for point in points] for key in ("mean", "low", "high", "n")}
    return {"epoch": epochs, **columns}


def make_report(
    values: dict[str, Sequence[float]],
    factors: dict[str, list[Any]] | None = None,
    planned: int = 5,
    **more: Any,
) -> Any:
    """Return a report whose cells have these values, by seed; the first is the baseline."""
    factors = factors or {"freeze": list(values)}
    levels = [
        dict(zip(factors, chosen, strict=True)) for chosen in itertools.product(*factors.values())
    ]
    cells = [
        make_cell(name, level, numbers, planned)
        for (name, numbers), level in zip(values.items(), levels, strict=True)
    ]
    goal = more.get("goal", "max")
    for cell in cells:
        cell["contrast"] = contrast(cells[0], cell, goal) if cell is not cells[0] else None
        cell["pareto"] = bool(cell["n"]) and not any(
            other["n"]
            and (other["mean"] - cell["mean"]) * (1 if goal == "max" else -1) > 0
            and other["cost"]["train_s"]["median"] <= cell["cost"]["train_s"]["median"]
            for other in cells
        )
    return {
        "metric": {"name": "test/accuracy", "select": "last", "goal": goal, "note": None},
        "factors": factors,
        "baseline": cells[0]["name"] if len(cells) > 1 else None,
        "margin": more.get("margin"),
        "family": len(cells) - 1,
        "cells": cells,
        "effects": [],
        "recommendation": None,
    }


def contrast(baseline: Any, cell: Any, goal: str) -> Any:
    n = min(baseline["n"], cell["n"])
    if not n:
        return None
    pairs = zip(cell["values"], baseline["values"], strict=False)
    values = [ours["value"] - theirs["value"] for ours, theirs in pairs]
    result = summary(values)
    spread = 1.5 * (result["high"] - result["mean"]) if n > 1 else None
    verdict = "descriptive only"
    if spread is not None:
        verdict = f"no clear difference ({n} seeds could show {spread:.2g} or more)"
        if abs(result["mean"]) > spread:
            verdict = "better" if (result["mean"] > 0) == (goal == "max") else "worse"
    return {
        "against": baseline["name"],
        "differences": [{"seed": seed, "value": value} for seed, value in enumerate(values)],
        **result,
        "simultaneous_low": None if spread is None else result["mean"] - spread,
        "simultaneous_high": None if spread is None else result["mean"] + spread,
        "verdict": verdict,
    }


def noisy(centres: Sequence[float], n: int = 5) -> list[list[float]]:
    draws = np.random.default_rng(0).normal(size=(len(centres), n))
    return [list(centre + 0.01 * row) for centre, row in zip(centres, draws, strict=True)]


def factorial(**more: Any) -> Any:
    factors = {"freeze": ["last", "most", "full"], "precision": ["32-true", "bf16-mixed"]}
    names = [f"freeze={f}, precision={p}" for f, p in itertools.product(*factors.values())]
    values = noisy([0.82, 0.815, 0.87, 0.872, 0.91, 0.88])
    return make_report(dict(zip(names, values, strict=True)), factors, **more)


def one_cell() -> Any:
    return make_report({"all runs": [0.9, 0.91, 0.93]}, {"freeze": ["last"]}, planned=3)


def with_failures() -> Any:
    return make_report({"a": [0.9, 0.92, 0.91], "b": [], "c": [0.85], "d": [0.95, 0.96]})


def thirty() -> Any:
    stem = "augmentation=randaugment-strong, scheduler=cosine-with-warmup"
    names = [f"{stem}, x={i}, precision=bf16-mixed" for i in range(30)]
    return make_report(dict(zip(names, noisy(np.linspace(0.6, 0.9, 30).tolist()), strict=True)))


def hostile() -> Any:
    return make_report(dict(zip(HOSTILE, noisy([0.9, 0.8, 0.85, 0.7, 0.75, 0.88]), strict=True)))


@pytest.fixture(scope="module")
def six() -> tuple[Any, dict[str, Figure], dict[str, str]]:
    """Return a report of six cells, its figures and their sentences."""
    report = factorial(margin=0.02)
    return report, room.draw(report), room.alternatives(report)


def dots(figure: Figure) -> set[float]:
    """Return where the dots of a figure of rows are, less the ticks of the means."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() in ("o", "s")]
    return {round(float(x), 12) for line in lines for x in np.asarray(line.get_xdata())}


def bars(figure: Figure, axis: int) -> set[tuple[float, float]]:
    """Return the ends of a figure's intervals: those across (axis 0) or upright (axis 1)."""
    segments = [
        segment
        for collection in figure.axes[0].collections
        if isinstance(collection, LineCollection)
        for segment in np.asarray(collection.get_segments())
    ]
    return {
        (round(float(a[axis]), 12), round(float(b[axis]), 12))
        for a, b in segments
        if a[1 - axis] == b[1 - axis]
    }


def ends(of: Any, prefix: str = "") -> tuple[float, float]:
    return round(of[f"{prefix}low"], 12), round(of[f"{prefix}high"], 12)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text().strip()]


def outside(figure: Figure) -> list[str]:
    """Return the texts that the canvas cuts off, and "axes" if it cuts off a label of theirs."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    texts = [*figure.texts, *axes.texts, *(t for box in figure.legends for t in box.get_texts())]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    boxes.append(("axes", axes.get_tightbbox()))
    width, height = canvas.get_width_height()
    return [
        name
        for name, box in boxes
        if min(box.x0, box.y0) < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]


def pixels(png: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def test_figures_of_a_factorial_are_all_six_each_with_its_sentence(six: Any) -> None:
    _, figures, sentences = six
    names = ["runs", "differences", "interaction", "pareto", "curves", "time"]
    assert list(figures) == list(sentences) == names


def test_runs_are_dots_at_their_values(six: Any) -> None:
    report, figures, _ = six
    values = {round(i["value"], 12) for cell in report["cells"] for i in cell["values"]}
    assert len(values) == 30
    assert dots(figures["runs"]) == values


def test_runs_have_the_intervals_of_the_report(six: Any) -> None:
    report, figures, _ = six
    assert bars(figures["runs"], 0) == {ends(cell) for cell in report["cells"]}


def test_differences_are_dots_with_both_intervals(six: Any) -> None:
    report, figures, _ = six
    contrasts = [cell["contrast"] for cell in report["cells"][1:]]
    expected = {ends(of, prefix) for of in contrasts for prefix in ("", "simultaneous_")}
    assert bars(figures["differences"], 0) == expected
    values = {round(item["value"], 12) for of in contrasts for item in of["differences"]}
    assert dots(figures["differences"]) == values


def test_differences_say_the_verdict_the_margin_and_the_better_side(six: Any) -> None:
    report, figures, _ = six
    said = "\n".join(texts(figures["differences"]))
    assert all(cell["contrast"]["verdict"].split(" (")[0] in said for cell in report["cells"][1:])
    assert "margin of 0.02" in said
    assert "better: right" in said
    lower = room.draw(factorial(goal="min"))["differences"]
    assert "better: left" in "\n".join(texts(lower))


@pytest.mark.parametrize("name", ["interaction", "pareto"])
def test_means_have_the_intervals_of_the_report(six: Any, name: str) -> None:
    report, figures, _ = six
    assert bars(figures[name], 1) == {ends(cell) for cell in report["cells"]}


def test_pareto_joins_the_pareto_set_only(six: Any) -> None:
    report, figures, sentences = six
    front = {cell["mean"] for cell in report["cells"] if cell["pareto"]}
    (line,) = (line for line in figures["pareto"].axes[0].lines if line.get_linestyle() == "-")
    assert set(np.asarray(line.get_ydata())) == front
    assert all(f"{mean:.4f}" in sentences["pareto"] for mean in front)


def test_curves_are_the_means_by_epoch(six: Any) -> None:
    report, figures, _ = six
    drawn = {tuple(np.asarray(line.get_ydata())) for line in figures["curves"].axes[0].lines}
    assert drawn == {tuple(cell["curves"]["val/accuracy"]["mean"]) for cell in report["cells"]}


def test_time_stacks_the_phases(six: Any) -> None:
    report, figures, _ = six
    widths = [bar.get_width() for bar in figures["time"].axes[0].patches]
    assert sorted(widths) == sorted([*PHASES.values()] * len(report["cells"]))
    assert texts(figures["time"]).count("29 s") == len(report["cells"])


def test_times_of_hours_are_in_full() -> None:
    report = one_cell()
    report["cells"][0]["time"] = {**PHASES, "compute_s": 54321.9}
    assert "54,331 s" in texts(room.draw(report)["time"])
    assert "compute 54,322 s" in room.alternatives(report)["time"]


def test_sentences_carry_the_numbers_of_each_cell(six: Any) -> None:
    report, _, sentences = six
    for cell in report["cells"]:
        numbers = f"{cell['mean']:.4f} ({cell['low']:.4f} to {cell['high']:.4f}, n = 5)"
        assert numbers in sentences["runs"]
        assert f"{cell['mean']:.4f}" in sentences["interaction"]
        assert f"{cell['curves']['val/accuracy']['mean'][-1]:.4f} at epoch 5" in sentences["curves"]
    for cell in report["cells"][1:]:
        assert cell["contrast"]["verdict"] in sentences["differences"]
    assert sentences["time"].count("compute 20 s") == 6


def test_interactions_that_were_tested_are_told() -> None:
    report = factorial()
    effect = {"name": "freeze x precision", **summary([0.01, 0.02, 0.04]), "verdict": "better"}
    report["effects"] = [{"kind": "interaction", **effect}, {"kind": "main", **effect, "name": "m"}]
    sentence = room.alternatives(report)["interaction"]
    assert "interaction freeze x precision: 0.0233 (" in sentence
    assert "interaction m" not in sentence


def test_interaction_has_a_gap_where_a_cell_has_no_run() -> None:
    report = factorial()
    middle = report["cells"][2]
    middle |= {"values": [], "contrast": None, "curves": {}, **summary([])}
    first, _ = room.draw(report)["interaction"].axes[0].lines
    assert np.isnan(np.asarray(first.get_ydata(), float)).tolist() == [False, True, False]


def test_one_cell_has_no_comparison() -> None:
    report = one_cell()
    assert list(room.draw(report)) == ["runs", "curves", "time"]
    assert "all runs: 0.9133" in room.alternatives(report)["runs"]


def test_no_run_draws_nothing() -> None:
    assert room.draw(make_report({"a": [], "b": []})) == {}


def test_cells_without_runs_keep_their_row_and_one_run_has_no_interval() -> None:
    report = with_failures()
    figure, sentence = room.draw(report)["runs"], room.alternatives(report)["runs"]
    assert {"a, baseline", "b", "c", "d", "0/5 (5 diverged)"} <= set(texts(figure))
    assert bars(figure, 0) == {ends(report["cells"][0]), ends(report["cells"][3])}
    assert "b: 0/5 (5 diverged)" in sentence
    assert "c: 0.8500 (no uncertainty, n = 1)" in sentence


def test_contended_cells_are_left_out_with_a_note() -> None:
    report = factorial()
    shared = report["cells"][1]
    shared |= {"contended": 5, "time": None, "pareto": False}
    shared["cost"]["train_s"] = None
    figures, sentences = room.draw(report), room.alternatives(report)
    for name in ("pareto", "time"):
        note = f"Left out, with no value or no uncontended time:\n{shared['name']}"
        assert note in texts(figures[name])
        assert shared["name"] in sentences[name]
    assert len(figures["time"].axes[0].patches) == 5 * len(PHASES)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("make", [factorial, one_cell, with_failures, thirty, hostile])
def test_text_stays_on_the_canvas(make: Any) -> None:
    cut = {name: outside(figure) for name, figure in room.draw(make()).items()}
    assert not any(cut.values()), cut


def test_long_names_of_thirty_cells_stay_apart() -> None:
    said = texts(room.draw(thirty())["runs"])
    rows = {text for text in said if text.startswith("aug")}
    assert len(rows) == 30
    assert all("…" in text and ", x=" in text for text in rows)
    assert not any(text.endswith("…") for text in rows)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("name", ["M" * 300, "=" * 300, "a, " * 200, "", "名" * 300, "\ud800"])
def test_names_of_any_kind_fit(name: str) -> None:
    report = make_report({name: [0.9, 0.8], "b": [0.7, 0.8]}, planned=2)
    report["metric"] |= {"name": f"test/{name}", "note": f"Of {name}."}
    report["factors"] = {name: ["a", "b"]}
    for figure in room.draw(report).values():
        assert outside(figure) == []


def test_hostile_text_is_shown_as_it_is() -> None:
    report = hostile()
    svg = room.render(room.draw(report)["runs"], "svg")
    shown = {text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert {r"a=$\frac{, baseline", "$x$_<b>&amp;", "_hidden line", "emoji=🦄"} <= shown
    assert "bell=\ufffd" in shown
    assert b"\x07" not in svg


def test_levels_that_look_like_formulas_are_text() -> None:
    factors = {"$a_b$": ["$x^2$", r"\frac{"], "_b": [True, None]}
    values = dict(zip("abcd", noisy([0.1, 0.2, 0.3, 0.4]), strict=True))
    figure = room.draw(make_report(values, factors))["interaction"]
    assert {"$x^2$", r"\frac{", "$a_b$", "_b=true", "_b=null"} <= set(texts(figure))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_files_are_the_same_bytes_twice(six: Any, kind: str) -> None:
    report, figures, _ = six
    first, again = (
        {name: room.render(figure, kind) for name, figure in drawn.items()}
        for drawn in (figures, room.draw(report))
    )
    assert first == again


@pytest.mark.parametrize("dark", [False, True])
def test_png_has_ink_on_its_background(dark: bool) -> None:
    for figure in room.draw(with_failures(), dark).values():
        image = pixels(room.render(figure, "png"))
        assert (image[0, 0] == ([255, 255, 255, 0] if dark else [255, 255, 255, 255])).all()
        inked = (image != image[0, 0]).any(axis=2).mean()
        assert 0.02 < inked < 0.6


def test_svg_is_xml_of_text_without_scripts_or_links(six: Any) -> None:
    for figure in six[1].values():
        root = ElementTree.fromstring(room.render(figure, "svg"))
        assert {node.tag for node in root.iter()}.isdisjoint({f"{SVG}script", f"{SVG}image"})
        references = [v for n in root.iter() for k, v in n.attrib.items() if k.endswith("href")]
        assert all(reference.startswith("#") for reference in references)
        assert any(node.text for node in root.iter(f"{SVG}text"))


def test_cells_have_the_same_look_in_each_figure(six: Any) -> None:
    report, figures, _ = six
    looks = []
    for name in ("curves", "pareto"):
        (legend,) = figures[name].legends
        handles = [handle for handle in legend.legend_handles if isinstance(handle, Line2D)]
        labels = [text.get_text() for text in legend.get_texts()]
        pairs = zip(handles, labels, strict=True)
        looks.append({label: (of.get_color(), of.get_marker()) for of, label in pairs})
    assert looks[0] == looks[1]
    assert len(set(looks[0].values())) == len(report["cells"])


def test_pyplot_is_not_imported() -> None:
    code = "import sys, cvexp.report.figure; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
