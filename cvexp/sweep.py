"""What the jobs of this process came to, and one table of them after a sweep."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from hydra.experimental.callback import Callback


class Outcome(NamedTuple):
    """How one job ended: its folder, its status and reason, and the exit code of it alone."""

    directory: Path
    status: str
    reason: str | None
    code: int


outcomes: list[Outcome] = []  # of the jobs of this command line, in the order of their ends


class JobsTable(Callback):
    """Hydra's callback at the end of a sweep."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        """Show every job with its status."""
        show_jobs(Path(config.hydra.sweep.dir))


def show_jobs(directory: Path) -> None:
    """Print the jobs as a table, and why each that did not complete ended."""
    from cvexp.console import console, jobs_table, say

    jobs = []
    for outcome in outcomes:
        inside = outcome.directory.is_relative_to(directory.absolute())
        name = outcome.directory.relative_to(directory.absolute()) if inside else outcome.directory
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
