"""What the jobs of this process came to: a live table while they run, and one after a sweep."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.experimental.callback import Callback
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from cvexp.console import console, jobs_table, say

if TYPE_CHECKING:
    from cvexp.plan import Cell


class Outcome(NamedTuple):
    """How one job ended: its folder, its status and reason, and the exit code of it alone."""

    directory: Path
    status: str
    reason: str | None
    code: int


outcomes: list[Outcome] = []  # of the jobs of this command line, in the order of their ends


class Progress:
    """Say how far a sweep is: by a live table in a terminal, else by lines."""

    def __init__(self, cells: Sequence["Cell"]) -> None:
        self._total = len(cells)
        self._done = sum(cell.is_done for cell in cells)
        self._estimates = {cell.number: cell.estimate_s for cell in cells if not cell.is_done}
        self._failed = 0
        self._running: dict[int, tuple[str, float, str]] = {}  # name, when it began, its last line
        self._took: list[float] = []
        self._slots = 1
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if self._done:
            say("sweep", f"{self._done} of {self._total} jobs are done and left as they are")
        if console.is_terminal:
            self._live = Live(console=console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def begun(self, cell: "Cell") -> None:
        """Tell of a job that begins, or goes on."""
        goes_on = " goes on" * (cell.status == "resumed")
        self._running[cell.number] = (cell.name, time.monotonic(), "")
        self._slots = max(self._slots, len(self._running))
        if not self._live:
            number = self._done + self._failed + len(self._running)
            say("job", f"{number} of {self._total}: {cell.name}{goes_on}")

    def said(self, cell: "Cell", text: str) -> None:
        """Take up what a job says of itself."""
        name, began, _ = self._running[cell.number]
        self._running[cell.number] = (name, began, text)

    def ended(self, cell: "Cell", outcome: Outcome) -> None:
        """Tell how a job ended."""
        _, began, _ = self._running.pop(cell.number)
        self._estimates.pop(cell.number, None)
        seconds = time.monotonic() - began
        if outcome.code:
            self._failed += 1
        else:
            self._done += 1
            self._took.append(seconds)
        if not self._live or outcome.code:
            reason = f": {outcome.reason}" if outcome.code else f" in {seconds:.1f} s"
            say("", f"{cell.name} {outcome.status}{reason}{self._left()}")

    def show(self, waiting: int) -> None:
        """Refresh the live table."""
        if not self._live:
            return
        counts = [f"{self._done} of {self._total} done", f"{len(self._running)} running"]
        counts += [f"{waiting} waiting"] * bool(waiting) + [f"{self._failed} failed"] * self._failed
        table = Table(Column("job", overflow="fold"), "for", "last")
        for name, began, text in self._running.values():
            table.add_row(Text(name), f"{time.monotonic() - began:.0f} s", Text(text))
        self._live.update(Group(Text(", ".join(counts) + self._left()), table))

    def _left(self) -> str:
        """Return the time left, by the jobs that ended here or earlier runs of the same kind."""
        mean = sum(self._took) / len(self._took) if self._took else None
        each = [mean if mean is not None else known for known in self._estimates.values()]
        known = [seconds for seconds in each if seconds is not None]
        if not each or len(known) < len(each):
            return ""
        ran = sum(time.monotonic() - began for _, began, _ in self._running.values())
        return f", {max(sum(known) - ran, 0) / self._slots:,.0f} s left"


class JobsTable(Callback):
    """Hydra's callback at the end of a sweep."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        """Show every job with its status."""
        if not config.dry_run:
            show_jobs(Path(config.hydra.sweep.dir))


class Report(Callback):
    """Hydra's callback that shows what a sweep showed; ~hydra.callbacks.report leaves it out."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        """Make the report; a fault in it is no fault of the runs."""
        folder = Path(config.hydra.sweep.dir)
        if config.dry_run or not any(folder.glob("*/run.json")):
            return
        from cvexp.report import report

        try:
            report([folder])
        except Exception as error:
            say("report", f"none: {error}; python -m cvexp report {folder} tries again")


def show_jobs(directory: Path) -> None:
    """Print the jobs as a table, and why each that did not complete ended."""
    jobs = []
    for outcome in outcomes:
        inside = outcome.directory.absolute().is_relative_to(directory.absolute())
        name = (
            outcome.directory.absolute().relative_to(directory.absolute())
            if inside
            else outcome.directory
        )
        figures = {}
        if outcome.code == 0:
            figures = json.loads((outcome.directory / "run.json").read_text("utf-8"))
        jobs.append((str(name), outcome.status, figures))
    console.print(jobs_table(jobs))
    failed = [
        (job[0], outcome) for job, outcome in zip(jobs, outcomes, strict=True) if outcome.code
    ]
    for job, outcome in failed:
        say(outcome.status, f"{job}: {outcome.reason}")
    done = len(jobs) - len(failed)
    say("sweep", f"{directory}: {done} of {len(jobs)} completed")


def show_plan(cells: Sequence["Cell"], found: Sequence[Outcome]) -> None:
    """Print what a sweep would do, job by job, and how long it would take."""
    table = Table(Column("job", overflow="fold"), "identity", "", Column("about", justify="right"))
    for cell, outcome in zip(cells, found, strict=True):
        style = "red" if outcome.code else "" if cell.is_done else "cyan"
        about = "-" if cell.estimate_s is None else f"{cell.estimate_s:,.0f} s"
        identity = (cell.identity or "-")[:12]
        table.add_row(Text(cell.name), identity, Text(outcome.status, style=style), about)
    console.print(table)
    for cell, outcome in zip(cells, found, strict=True):
        if outcome.code:
            say("refused", f"{cell.name}: {outcome.reason}")
    left = [c for c, o in zip(cells, found, strict=True) if not (c.is_done or o.code)]
    known = [cell.estimate_s for cell in left if cell.estimate_s is not None]
    unknown = f"; {len(left) - len(known)} of a kind that never ran" * (len(known) < len(left))
    done = sum(cell.is_done for cell in cells)
    seconds = f", about {sum(known):,.0f} s one after another" if known else ""
    say("dry run", f"{len(cells)} jobs, {done} done, {len(left)} to run{seconds}{unknown}")
