"""The report on the runs below some folders: numbers, tables, figures, one page; no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cvexp.arguments import Arguments
from cvexp.atomic import write_atomically
from cvexp.config import UsageError
from cvexp.console import say

if TYPE_CHECKING:
    import pandas


def main(arguments: Sequence[str]) -> None:
    """Show what the runs below some folders came to, and write it as files.

    Raises:
        UsageError: no run there, a metric or a baseline that none has, no right to write.
    """
    parser = Arguments(
        "report DIR... [--metric test/accuracy] [--baseline freeze=full] [--margin 0.005] "
        "[--select last|best] [--out FOLDER]"
    )
    add = parser.add_argument
    add("folders", nargs="*", type=Path, help="sweeps, run directories, or folders of such")
    add("--metric", help="as the record has it: test/accuracy (the default), val/loss")
    add("--baseline", help="levels of the cell to compare with: freeze=full,precision=32-true")
    add("--margin", type=float, help="below which a difference does not matter: 0.005")
    add("--select", choices=("last", "best"), default="last", help="the epoch whose value counts")
    add("--out", type=Path, help="where the files go: report/ in the one folder, or here")
    add("--help", "-h", action="store_true", help="this")
    given = vars(parser.parse_args(arguments))
    if given.pop("help"):
        print(parser.format_help(), end="")
        return
    folders, out = given.pop("folders"), given.pop("out")
    if not folders:
        raise UsageError("report takes folders: type report multirun/NAME")
    margin = given["margin"]
    if margin is not None and not 0 < margin < float("inf"):
        raise UsageError(f"report --margin {margin:g}: a difference above 0; try --margin 0.005")
    report(folders, out, **given)


def report(folders: Sequence[Path], out: Path | None = None, **options: Any) -> dict[str, Any]:
    """Show the report on the runs below some folders and write its files; return its document.

    Args:
        out: where the files go; by default report/ in the one folder, or here for several.
        options: of analysis.analyse.
    """
    from cvexp.report import analysis, records, table

    runs = records.find(folders)
    document = analysis.analyse(runs, [str(folder) for folder in folders], **options)
    table.show(document)
    target = out or (folders[0] / "report" if len(folders) == 1 else Path("report"))
    try:
        write(document, records.rows(runs), target)
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror}); type --out FOLDER"
        ) from error
    say("report", f"{target}/report.html, and .md, .csv, .json and figures beside it")
    return document


def write(document: dict[str, Any], rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write report.json, .csv, .md, .html and the figures."""
    from cvexp.report import figure, page, table

    folder.mkdir(parents=True, exist_ok=True)
    alternatives = figure.alternatives(document)
    texts = {
        "report.json": json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "report.csv": table.comma_separated(rows),
        "report.md": table.markdown(document, alternatives),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode("utf-8", "backslashreplace"))
    dark = figure.draw(document, dark=True)
    drawn = {}
    for name, light in figure.draw(document).items():
        drawn[name] = (figure.render(light, "svg"), figure.render(dark[name], "svg"))
        write_atomically(folder / f"{name}.svg", drawn[name][0])
        write_atomically(folder / f"{name}.png", figure.render(light, "png"))
    html = page.page(document, drawn, alternatives)
    write_atomically(folder / "report.html", html.encode("utf-8", "backslashreplace"))


def load(*folders: str | Path) -> "pandas.DataFrame":
    """Return the runs below some folders as a tidy frame, one row a run.

    Columns: directory, status, reason, what the command line set, seed, then metrics of the last
    epoch (test/accuracy), of the one that validation chose (best/test/accuracy), and costs.

    Raises:
        UsageError: no run there.
    """
    import pandas

    from cvexp.report import records

    return pandas.DataFrame(records.rows(records.find([Path(folder) for folder in folders])))
