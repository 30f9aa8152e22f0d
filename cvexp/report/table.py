"""The document as tables: in the terminal, as Markdown, and its runs as CSV."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from cvexp.console import console, size
from cvexp.report import words

Document = Mapping[str, Any]


class Sheet(NamedTuple):
    """A table before it has a form: text that nobody has escaped yet.

    Args:
        bold: the rows that stand out.
        lead: how many columns name a row.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: Sequence[int] = ()
    lead: int = 1

    def without_empty(self) -> "Sheet":
        """Return it without the columns in which no row has anything."""
        assert all(len(row) == len(self.header) for row in self.rows)
        kept = [
            place
            for place in range(len(self.header))
            if place < self.lead or any(row[place] not in ("", "-") for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return self._replace(header=[self.header[place] for place in kept], rows=rows)

    def split(self, title: str, name: str) -> "tuple[Sheet, Sheet]":
        """Return the columns before one, and it and those behind under a title of their own."""
        at, lead = self.header.index(name), self.lead
        tables = [self.header, *self.rows]
        (left, *before), (right, *behind) = (
            [row[:at] for row in tables],
            [[*row[:lead], *row[at:]] for row in tables],
        )
        return (
            self._replace(header=left, rows=before),
            self._replace(header=right, rows=behind, title=title),
        )


_COMPARED = ("difference", "its interval", "Holm p", "could show", "verdict")
COSTS = ("trainable_parameters", "images_per_s", "train_s", "peak_bytes", "energy_j")
_COSTS = ("parameters", "images/s", "train s", "memory", "energy J")
_MOST_FACTORS = 4  # in columns of their own


def cells(document: Document) -> Sheet:
    """Return a row a cell: what it reached, against the baseline, at what cost."""
    keys = _keys(document)
    header = [*keys, "n", "mean", "95 % interval", *_COMPARED, *_COSTS]
    rows = [[*_named(cell, keys), *_cell(cell, document["baseline"])] for cell in document["cells"]]
    bold = [place for place, cell in enumerate(document["cells"]) if cell["separates"]]
    return Sheet(document["metric"]["name"], header, rows, bold, len(keys))


def _keys(document: Document) -> list[str]:
    """Return the columns that name a cell: its factors, where these are few."""
    factors = list(document["factors"])
    return factors if 0 < len(factors) <= _MOST_FACTORS else ["cell"]


def _named(cell: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    if keys == ["cell"]:
        return [cell["name"]]
    return [words.text(cell["levels"][key]) for key in keys]


def _cell(cell: Mapping[str, Any], baseline: str | None) -> list[str]:
    cost = cell["cost"]
    return [
        cell["complete"] if cell["counts"] != {"ok": cell["planned"]} else str(cell["n"]),
        words.number(cell["mean"]),
        words.interval(cell) if cell["n"] else "-",
        *(
            ["-"] * (len(_COMPARED) - 1) + ["baseline"]
            if cell["name"] == baseline
            else _difference(cell["contrast"], cell["n"] if baseline else 0)
        ),
        _cost(cost["trainable_parameters"], "{:,.0f}".format),
        _cost(cost["images_per_s"], "{:,.0f}".format),
        _cost(cost["train_s"], "{:,.1f}".format) + " *" * cell["pareto"],
        _cost(cost["peak_bytes"], size),
        _cost(cost["energy_j"], "{:,.0f}".format),
    ]


def _difference(contrast: Mapping[str, Any] | None, n: int) -> list[str]:
    """Return the columns of a contrast of a cell with n values."""
    if contrast is None:
        return [*["-"] * (len(_COMPARED) - 1), "no seed in common" if n else "-"]
    return [
        words.number(contrast["mean"], signed=True),
        words.interval(contrast, signed=True) if contrast["low"] is not None else "-",
        probability(contrast["p_holm"]),
        words.number(contrast["detectable"]) if contrast["detectable"] else "-",
        words.short_verdict(contrast, n),
    ]


def probability(p: float | None) -> str:
    """Return a p in two digits."""
    return "-" if p is None else "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def _cost(spread: Mapping[str, Any] | None, form: Callable[[float], str]) -> str:
    return "-" if spread is None else form(spread["median"])


def completeness(document: Document) -> Sheet | None:
    """Return cell by seed what became of each run; None where nothing is missing."""
    if all(cell["counts"] == {"ok": cell["planned"]} for cell in document["cells"]):
        return None
    keys = _keys(document)
    header = [*keys, "completed", *(f"seed {words.text(seed)}" for seed in document["seeds"])]
    rows = [
        [*_named(cell, keys), cell["complete"], *(at["status"] for at in cell["by_seed"])]
        for cell in document["cells"]
    ]
    return Sheet("Completeness", header, rows, lead=len(keys))


def effects(document: Document) -> Sheet | None:
    """Return main effects and interactions; None where there are none."""
    if not document["effects"]:
        return None
    header = ["effect", "n", *_COMPARED]
    rows = [
        [effect["name"], str(effect["n"]), *_difference(effect, effect["n"])]
        for effect in document["effects"]
    ]
    return Sheet("Effects of single factors, averaged over the others", header, rows)


def values(document: Document) -> Sheet:
    """Return each cell's spread, and its values where they are few."""
    keys = _keys(document)
    rows = []
    for cell in document["cells"]:
        each = [words.number(item["value"]) for item in cell["values"]]
        spread = [words.number(cell[name]) for name in ("sd", "min", "max")]
        rows.append([*_named(cell, keys), *spread, ", ".join(each) if len(each) <= 10 else "-"])
    return Sheet("Values", [*keys, "sd", "min", "max", "each seed"], rows, lead=len(keys))


def costs(document: Document) -> Sheet:
    """Return each cell's costs as medians and ranges; times of runs that had the device alone."""
    keys = _keys(document)
    forms = ["{:,.0f}".format, "{:,.0f}".format, "{:,.1f}".format, size, "{:,.0f}".format]
    rows = [
        [*_named(cell, keys), *map(_range, (cell["cost"][name] for name in COSTS), forms)]
        for cell in document["cells"]
    ]
    return Sheet("Costs: median (lowest to highest, n)", [*keys, *_COSTS], rows, lead=len(keys))


def _range(spread: Mapping[str, Any] | None, form: Callable[[float], str]) -> str:
    if spread is None:
        return "-"
    return (
        f"{form(spread['median'])} ({form(spread['low'])} to {form(spread['high'])}, {spread['n']})"
    )


def tests(document: Document) -> Sheet | None:
    """Return all that was computed of each contrast and effect; None where there are none."""
    named = [(cell["name"], cell["contrast"]) for cell in document["cells"] if cell["contrast"]]
    named += [(effect["name"], effect) for effect in document["effects"]]
    if not named:
        return None
    header = [
        "difference in",
        "pairs",
        "wins",
        "p",
        "Holm p",
        "sign-flip p (floor)",
        "simultaneous interval",
    ]
    header += ["Welch's interval", "equivalence p"]
    return Sheet("Tests", header, [[name, *_test(contrast)] for name, contrast in named])


def _test(contrast: Mapping[str, Any]) -> list[str]:
    flip = f"{probability(contrast['p_sign_flip'])} ({probability(contrast['p_floor'])})"
    return [
        str(contrast["n"]),
        f"{contrast['wins']}/{contrast['n']}",
        probability(contrast["p"]),
        probability(contrast["p_holm"]),
        flip,
        _ends(contrast, "simultaneous_"),
        _ends(contrast, "welch_"),
        probability(contrast["p_equivalent"]),
    ]


def _ends(contrast: Mapping[str, Any], prefix: str) -> str:
    low, high = contrast.get(f"{prefix}low"), contrast.get(f"{prefix}high")
    return "-" if low is None else words.interval({"low": low, "high": high}, signed=True)


def sheets(document: Document) -> list[Sheet]:
    """Return the tables that this document has, the first thing to read first."""
    every = (completeness(document), cells(document), effects(document))
    return [sheet.without_empty() for sheet in every if sheet]


def below(document: Document) -> list[str]:
    """Return what stands under the tables: floors, flags, notes."""
    metric, floor = document["metric"], document["floor"]
    lines = [metric["note"]] if metric["note"] else []
    if floor:
        lines.append(
            f"One run's {metric['name']} on {floor['images']:,} images has a binomial standard "
            f"error of {floor['standard_error']:.2g}."
        )
    if document["baseline"] is not None:
        lines.append(
            "Differences are paired by seed, with 95 % t-intervals of each alone; verdicts go by "
            f"Holm's p, which counts all {document['family']} contrasts and effects; could show: "
            "the smallest difference that so many seeds find in 80 % of cases, if it were the "
            "only one."
        )
    if any(cell["pareto"] for cell in document["cells"]):
        lines.append(
            f"*: the Pareto set of {metric['name']} against train time; costs are medians."
        )
    lines += [f"{cell['name']} {flag}." for cell in document["cells"] for flag in cell["flags"]]
    lines += [document["effects_note"]] if document["effects_note"] else []
    return lines + [f"{note}." for note in document["notes"]]


def show(document: Document) -> None:
    """Print the report: the tables, what stands under them, and the paragraph."""
    for sheet in sheets(document):
        for part in _fitting(sheet):
            console.print(_rich(part))
    for line in below(document):
        console.print(Text(words.clean(line), style="dim"))
    console.print()
    console.print(Text(words.clean(document["paragraph"])), soft_wrap=False)


def _fitting(sheet: Sheet) -> list[Sheet]:
    """Return a table in as few parts as the terminal is wide enough for."""
    parts: list[Sheet] = []
    costs = next((name for name in _COSTS if name in sheet.header), "")
    for title, name in (("Costs", costs), ("Against the baseline", "difference")):
        if (
            "mean" in sheet.header
            and name in sheet.header
            and _rich(sheet)
            .__rich_measure__(console, console.options.update(max_width=1000))
            .maximum
            > console.width
        ):
            sheet, rest = sheet.split(title, name)
            parts.insert(0, rest)
    return [sheet, *parts]


def _rich(sheet: Sheet) -> Table:
    columns = [Column(words.clean(name), overflow="fold") for name in sheet.header]
    title = words.clean(sheet.title)
    narrow: Any = {"box": SIMPLE_HEAD, "collapse_padding": True, "pad_edge": False}
    table = Table(*columns, title=title, title_justify="left", **narrow)
    for place, row in enumerate(sheet.rows):
        style = "bold" if place in sheet.bold else ""
        table.add_row(*(Text(words.clean(of)) for of in row), style=style)
    return table


def markdown(document: Document, alternatives: Mapping[str, str]) -> str:
    """Return report.md.

    Args:
        alternatives: name of a figure -> what it shows.
    """
    metric = document["metric"]
    lines = [f"# {_escaped(metric['name'])}: {_escaped(', '.join(document['source']))}", ""]
    lines += [_escaped(document["paragraph"]), ""]
    every = (values(document), costs(document), tests(document))
    detail = [sheet.without_empty() for sheet in every if sheet]
    for sheet in [*sheets(document), *detail]:
        lines += [f"## {_escaped(sheet.title)}", "", _row(sheet.header)]
        lines.append(_row(["---"] * len(sheet.header), escape=False))
        for place, row in enumerate(sheet.rows):
            lines.append(_row(row, bold=place in sheet.bold))
        lines.append("")
    lines += [f"- {_escaped(line)}" for line in below(document)]
    for name, sentence in alternatives.items():
        lines += ["", f"![{_escaped(sentence)}]({name}.png)"]
    return "\n".join(lines).rstrip() + "\n"


def _row(row: Sequence[str], bold: bool = False, escape: bool = True) -> str:
    marked = [_escaped(of) if escape else of for of in row]
    return f"| {' | '.join(f'**{of}**' if bold and of else of for of in marked)} |"


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, and that is no HTML."""
    plain = re.sub(r"([\\`*_{}\[\]|~#!])", r"\\\1", words.clean(text))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def comma_separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return report.csv, in which no text of a stranger is a formula of a spreadsheet.

    Args:
        rows: one a run, as records.rows has them.
    """
    buffer = io.StringIO()
    header = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(buffer, [_cell_text(name) for name in header], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({_cell_text(name): _cell_text(value) for name, value in row.items()})
    return buffer.getvalue()


def _cell_text(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
