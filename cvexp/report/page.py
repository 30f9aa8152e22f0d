"""The report's page: of the document of report.json and its figures, one HTML file, no network.

The texts of a report are strangers': each goes through _text, each number through _number, and a
Content-Security-Policy lets nothing run but the one script of page.html.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], str]]

MISSING = '<span data-value="">\N{EN DASH}</span>'
CURVE_POINTS = 150  # pairs of them at most, of a long curve: more than its width in pixels
COSTS = {  # title, and its unit in the document's
    "images_per_s": ("images/s", 1),
    "train_s": ("train time, s", 1),
    "peak_bytes": ("peak memory, GiB", 2**30),
    "energy_j": ("energy, J", 1),
    "trainable_parameters": ("trainable parameters", 1),
}
CAPTIONS = {
    "runs": "Every run as a dot, with each cell's mean and 95 % interval.",
    "differences": "Differences from the baseline, paired by seed.",
    "interaction": "Whether one factor's effect depends on the other's level.",
    "pareto": "What a better value costs in train time.",
    "curves": "How the cells learn, epoch by epoch.",
    "time": "Where the time goes.",
}


def page(
    report: Row, figures: Mapping[str, tuple[bytes, bytes]], alternatives: Mapping[str, str]
) -> str:
    """Return the HTML of the page.

    Args:
        report: the document of report.json.
        figures: SVG for a light page and for a dark one, by name.
        alternatives: what each figure shows, in a sentence.
    """
    template = files("cvexp.report").joinpath("page.html").read_text("utf-8")
    script = re.search("<script>(.*)</script>", template, re.DOTALL)
    assert script
    sections = {
        "What is missing": _missing(report),
        "Cells": _cells(report),
        "Effects": _effects(report),
        "Figures": _figures(figures, alternatives),
        "Runs": _runs(report),
    }
    shown = {title.split()[-1].lower(): title for title, body in sections.items() if body}
    return Template(template).substitute(
        script_hash=base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode(),
        title=_text(f"{report['metric']['name']}: {', '.join(report['source'])}"),
        links="".join(f'<a href="#{anchor}">{title}</a> ' for anchor, title in shown.items()),
        summary=_summary(report),
        sections="".join(
            f'<section id="{anchor}"><h2>{title}</h2>{sections[title]}</section>'
            for anchor, title in shown.items()
        ),
    )


# --- text, numbers, tables


def _text(value: object) -> str:
    """Return a value as HTML text: no markup, and nothing that is invisible or turns text about."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    joiner = "\N{ZERO WIDTH JOINER}"
    return html.escape("".join(c if c.isprintable() or c == joiner else "\ufffd" for c in line))


def _number(value: object, digits: int = 4, sign: str = "-", unit: int = 1) -> str:
    """Return a number as it is read, and in data-value as report.json has it."""
    if not isinstance(value, int | float):
        return MISSING if value is None else _text(value)
    size = value if unit == 1 else value / unit
    whole = isinstance(size, int) or abs(size) >= 1000
    shown = f"{size:{sign},.0f}" if whole else f"{size:{sign}#.{digits}g}".rstrip(".")
    return f'<span data-value="{json.dumps(value)}">{shown}</span>'


def _interval(of: Row, prefix: str = "", sign: str = "-") -> str:
    low, high = (of[f"{prefix}{end}"] for end in ("low", "high"))
    return MISSING if low is None else f"{_number(low, 4, sign)} to {_number(high, 4, sign)}"


def _by_seed(items: Iterable[Row], sign: str = "-") -> str:
    shown = ((_number(item["value"], 4, sign), item["seed"]) for item in items)
    return ", ".join(f"{value} (seed {_text(seed)})" for value, seed in shown)


def _seed(seed: object) -> str:
    shown = f'<span data-value="{seed}">{seed}</span>' if isinstance(seed, int) else _text(seed)
    return MISSING if seed is None else shown


def _list(items: Iterable[str]) -> str:
    lines = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def _facts(facts: Mapping[str, str]) -> str:
    """Return a list of names, which are text, and of what they stand for, which is HTML."""
    lines = (f"<dt>{_text(name)}</dt><dd>{fact}</dd>" for name, fact in facts.items() if fact)
    return f"<dl>{''.join(lines)}</dl>"


def _table(
    noun: str, columns: Columns, rows: Sequence[Row], more: Callable[[Row], str] | None = None
) -> str:
    """Return a table in a frame that scrolls: a body for each row, and for what it opens to.

    Without JavaScript all of it is seen; page.html's script sorts, filters and opens.
    """
    if not rows:
        return ""
    shown = [[show(row) for row in rows] for show in columns.values()]
    numbers = [any('data-value="' in c and c != MISSING for c in column) for column in shown[1:]]
    kinds = [' class="n"' * number for number in numbers]
    head = "".join(
        f'<th scope="col"{kind}>{_text(title)}</th>'
        for title, kind in zip(columns, ["", *kinds], strict=True)
    )
    bodies = []
    for row, (first, *rest) in zip(rows, zip(*shown, strict=True), strict=True):
        cells = "".join(f"<td{kind}>{c}</td>" for c, kind in zip(rest, kinds, strict=True))
        lines = f'<tr><th scope="row">{first}</th>{cells}</tr>'
        if more:
            opened = f'<td colspan="{len(columns)}"><div>{more(row)}</div></td>'
            lines += f'<tr class="more">{opened}</tr>'
        bodies.append(f"<tbody>{lines}</tbody>")
    return (
        f'<p class="filter" hidden><label>Filter {noun} <input type="search"></label> '
        f'<output aria-live="polite" data-noun="{noun}"></output></p>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="Table of {noun}">'
        f"<table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table></div>"
    )


# --- the parts of the page


def _summary(report: Row) -> str:
    """Return what somebody in a hurry reads."""
    metric, recommendation = report["metric"], report["recommendation"]
    better = "higher" if metric["goal"] == "max" else "lower"
    margin = report["margin"]
    return (
        f'<p class="muted"><code>{_text(metric["name"])}</code> of the {_text(metric["select"])} '
        f"epoch; {better} is better"
        + (f"; differences within {_text(margin)} are equivalent" if margin is not None else "")
        + (f". {_text(metric['note'])}" if metric["note"] else "")
        + f"</p><p>{_text(report['paragraph'])}</p>"
        + (f'<p class="box">{_text(recommendation["sentence"])}</p>' if recommendation else "")
        + _list(_text(note) for note in report["notes"])
    )


def _status(status: str, reason: str | None = None) -> str:
    shown = _text(status) if status == "ok" else f'<span class="bad">{_text(status)}</span>'
    return f"{shown}<br><small>{_text(reason)}</small>" if reason else shown


def _missing(report: Row) -> str:
    """Return the completeness table, cell by seed, if not each planned run has gone well."""
    if all(cell["counts"] == {"ok": cell["planned"]} for cell in report["cells"]):
        return ""

    def at(place: int) -> Callable[[Row], str]:
        return lambda cell: _status(cell["by_seed"][place]["status"] or "not planned")

    seeds = enumerate(report["seeds"])
    return _table(
        "cells by seed",
        {
            "cell": lambda cell: _text(cell["name"]),
            "runs": lambda cell: _text(cell["complete"]),
            **{"no seed" if seed is None else f"seed {seed}": at(i) for i, seed in seeds},
        },
        report["cells"],
    )


def _comparison() -> Columns:
    """Return the columns of a contrast or of an effect."""

    def verdict(of: Row) -> str:
        kind = {"better": " good", "worse": " bad"}.get(of["verdict"], "")
        detail = f" ({of['detail']})" if of.get("detail") else ""
        return f'<span class="verdict{kind}">{_text(of["verdict"] + detail)}</span>'

    return {
        "difference": lambda of: _number(of["mean"], sign="+"),
        "verdict": verdict,
        "95 % interval of the difference": lambda of: _interval(of, "", "+"),
        "Holm p": lambda of: _number(of["p_holm"], 2),
        "simultaneous interval": lambda of: _interval(of, "simultaneous_", "+"),
        "p": lambda of: _number(of["p"], 2),
    }


def _cells(report: Row) -> str:
    chosen = (report["recommendation"] or {}).get("cell")

    def name(cell: Row) -> str:
        badges = {
            "baseline": cell["name"] == report["baseline"],
            "recommended": cell["name"] == chosen,
            "Pareto set": cell["pareto"],
        }
        given = (f' <span class="badge">{badge}</span>' for badge, true in badges.items() if true)
        return _text(cell["name"]) + "".join(given)

    def contrast(show: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda cell: show(cell["contrast"]) if cell["contrast"] else MISSING

    def cost(key: str, unit: int) -> Callable[[Row], str]:
        return lambda cell: _number((cell["cost"][key] or {}).get("median"), unit=unit)

    def mean(cell: Row) -> str:
        shown = _number(cell["mean"])
        return f"<strong>{shown}</strong>" if cell["separates"] else shown

    columns: Columns = {
        "cell": name,
        "mean": mean,
        "95 % interval": _interval,
        "runs": lambda cell: f'<span data-value="{cell["n"]}">{_text(cell["complete"])}</span>',
        **{title: contrast(show) for title, show in _comparison().items()},
        "sign-flip p": contrast(lambda of: _number(of["p_sign_flip"], 2)),
        "its floor": contrast(lambda of: _number(of["p_floor"], 2)),
        **{title: cost(key, unit) for key, (title, unit) in COSTS.items()},
        "flags": lambda cell: _list(map(_text, cell["flags"])),
    }
    floor, baseline = report["floor"], report["baseline"]
    notes = [
        f"Differences are from {_text(baseline)}, paired by seed." if baseline else "",
        "Bold is what is clear of every other cell. A cell opens to the rest of its numbers.",
        f"The binomial floor: {_number(floor['images'])} test images alone give a standard error "
        f"of {_number(floor['standard_error'], 2)}."
        if floor
        else "",
    ]
    table = _table("cells", columns, report["cells"], _cell)
    return f'{table}<p class="muted" id="floor">{" ".join(filter(None, notes))}</p>'


def _cell(cell: Row) -> str:
    """Return what a row of the table of cells opens to."""
    facts = {"values": _by_seed(cell["values"]), "sd": _number(cell["sd"])}
    if of := cell["contrast"]:
        facts |= {
            "differences": _by_seed(of["differences"], "+"),
            "better": f"in {_number(of['wins'])} of {_number(of['n'])} seeds",
            "could show": _number(of["detectable"], 2),
            "Welch's 95 % interval": _interval(of, "welch_", "+"),
            "p of equivalence": _number(of["p_equivalent"], 2),
        }
    if cell["contended"]:
        facts["timings left out"] = f"{_number(cell['contended'])} runs shared a device"
    return _facts(facts)


def _effects(report: Row) -> str:
    columns: Columns = {
        "effect": lambda effect: _text(effect["name"]),
        "kind": lambda effect: _text(effect["kind"]),
        "n": lambda effect: _number(effect["n"]),
        **_comparison(),
    }
    note = report["effects_note"]
    table = _table("effects", columns, report["effects"])
    return table + (f'<p class="muted">{_text(note)}</p>' if note else "")


def _figures(figures: Mapping[str, tuple[bytes, bytes]], alternatives: Mapping[str, str]) -> str:
    """Return the figures as images, in which no script of an SVG runs."""
    shown = []
    for name, pair in figures.items():
        light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(f).decode()}" for f in pair)
        caption = _text(CAPTIONS.get(name, name))
        alternative = _text(alternatives[name]) if name in alternatives else caption
        shown.append(
            '<figure><picture><source media="screen and (prefers-color-scheme: dark)" '
            f'srcset="{dark}"><img src="{light}" alt="{alternative}"></picture>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return f'<div class="figures">{"".join(shown)}</div>' if shown else ""


def _runs(report: Row) -> str:
    columns: Columns = {
        "run": lambda run: _text(run["directory"]),
        "value": lambda run: _number(run["value"]),
        "status": lambda run: _status(run["status"], run["reason"]),
        "cell": lambda run: _text(run["cell"] or ""),
        "seed": lambda run: _seed(run["seed"]),
        "train time, s": lambda run: _number(run["train_s"]),
        "flags": lambda run: _list(
            [*map(_text, run["flags"]), *["shared a device"] * run["contended"]]
        ),
    }
    return _table("runs", columns, report["runs"], _run)


def _run(run: Row) -> str:
    """Return what a row of the table of runs opens to."""
    changes = {
        key: f"{_text(baseline)} \N{RIGHTWARDS ARROW} {_text(this)}"
        for key, (baseline, this) in run["difference"].items()
    }
    return (
        "<h3>Config: baseline \N{RIGHTWARDS ARROW} this run</h3>"
        + (_facts(changes) if changes else "<p>No difference.</p>")
        + "<h3>Metrics</h3>"
        + _facts({name: _number(value) for name, value in run["metrics"].items()})
        + f'<div class="curves">{"".join(_curve(*curve) for curve in run["curves"].items())}</div>'
    )


def _curve(name: str, points: Sequence[tuple[float, float | None]]) -> str:
    """Return a metric by epoch as a line, and in words with its numbers."""
    drawn = [(epoch, value) for epoch, value in points if value is not None]
    if not drawn:
        return ""
    (first, *_), (last, *_) = drawn[0], drawn[-1]
    low, high = (end(value for _, value in drawn) for end in (min, max))
    step = -(-len(drawn) // CURVE_POINTS)
    corners = []
    for start in range(0, len(drawn), step):  # the extremes of each stretch: a spike is kept
        stretch = sorted(drawn[start : start + step], key=lambda point: point[1])
        for epoch, value in sorted({stretch[0], stretch[-1]}):
            x, y = (epoch - first) / (last - first or 1), (high - value) / (high - low or 1)
            corners.append(f"{4 + 232 * x:.1f},{4 + 72 * y:.1f}")
    x_end, y_end = corners[-1].split(",")
    return (
        f'<figure><svg viewBox="0 0 240 80" role="img" aria-label="{_text(name)} by epoch">'
        f'<polyline points="{" ".join(corners)}"/><circle cx="{x_end}" cy="{y_end}" r="3"/></svg>'
        f"<figcaption>{_text(name)}: {_number(drawn[0][1])} at epoch {_number(first)}, "
        f"{_number(drawn[-1][1])} at epoch {_number(last)}; from {_number(low)} to {_number(high)}"
        "</figcaption></figure>"
    )
