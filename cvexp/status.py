"""The verb status: the runs below a folder, how far each is and when it was last heard of.

It reads records and locks and imports no torch, so it answers at once, also beside a running sweep.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Column, Table
from rich.text import Text

from cvexp.arguments import Arguments
from cvexp.config import UsageError
from cvexp.console import console, say
from cvexp.record_file import is_held, read_record

ORDER = ("running", "lost", "interrupted", "diverged", "failed", "completed")
STYLES = {"running": "cyan", "completed": "", "interrupted": "yellow"}
SHOWN = ("val/loss", "val/accuracy", "test/accuracy")
SIGNS_OF_LIFE = ("run.json", "metrics.jsonl", "cvexp.log")


class Run(NamedTuple):
    """One run directory as it is found.

    Args:
        status: that of its record, or lost: it says running, and no process holds its lock.
        epoch: the last that left a line of metrics, from 1.
        age_s: since the last file of it was written.
    """

    name: str
    status: str
    reason: str | None
    epoch: int | None
    metrics: dict[str, float]
    age_s: float


def main(arguments: Sequence[str]) -> None:
    """Print the runs below a folder as a table, those that need a person first.

    Raises:
        UsageError: no folder, or none with a run in it.
    """
    parser = Arguments("status [DIR]")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("multirun"))
    folder = parser.parse_args(arguments).folder
    if not folder.is_dir():
        raise UsageError(f"status {folder}: no such folder; try one below multirun/")
    runs = sorted(find(folder), key=lambda run: (ORDER.index(run.status), run.name))
    if not runs:
        raise UsageError(f"status {folder}: no run below it, for there is no run.json")
    columns = [Column(name, justify="right") for name in ("epoch", *SHOWN, "last heard of")]
    table = Table(Column("run", overflow="fold"), "status", *columns)
    for run in runs:
        figures = [f"{run.metrics[name]:.4f}" if name in run.metrics else "-" for name in SHOWN]
        status = Text(run.status, style=STYLES.get(run.status, "red"))
        epoch = "-" if run.epoch is None else str(run.epoch)
        table.add_row(Text(run.name), status, epoch, *figures, age(run.age_s))
    console.print(table)
    for run in runs:
        if run.reason and run.status != "completed":
            say(run.status, f"{run.name}: {run.reason}")
    counts = {status: sum(run.status == status for run in runs) for status in ORDER}
    say("status", ", ".join(f"{n} {status}" for status, n in counts.items() if n))


def find(folder: Path) -> Iterator[Run]:
    """Return the runs in a folder and below it."""
    for path in folder.rglob("run.json"):
        record = _record(path)
        directory = path.parent
        status = str(record["status"])
        if status == "running" and not is_held(directory / ".lock"):
            status = "lost"
        line = _last_values(directory / "metrics.jsonl")
        written = [directory / name for name in SIGNS_OF_LIFE if (directory / name).exists()]
        yield Run(
            directory.name if directory == folder else str(directory.relative_to(folder)),
            status if status in ORDER else "failed",
            record.get("reason"),
            line.pop("epoch", None),
            record.get("metrics") or line,
            time.time() - max(file.stat().st_mtime for file in written),
        )


def _record(path: Path) -> dict[str, Any]:
    try:
        return read_record(path.parent) or {"status": "failed"}  # it went just now
    except UsageError as error:
        return {"status": "failed", "reason": str(error)}


def age(seconds: float) -> str:
    """Return a time that has passed, in the unit in which people would say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _last_values(path: Path) -> dict[str, Any]:
    """Return the last value of each metric, and the last epoch that has one."""
    if not path.exists():
        return {}
    found: dict[str, Any] = {}
    for text in path.read_text("utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # being written just now
            continue
        # The best epoch is tested after the last one.
        found |= {**line, "epoch": max(line["epoch"], found.get("epoch", 0))}
    return found
