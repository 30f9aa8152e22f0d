"""After the last job of a sweep: one table of all of them."""

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class JobsTable(Callback):
    """Hydra's callback at the end of a sweep."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Show every job with its status; exit 1 if one of them did not complete."""
        from cvexp.console import console, jobs_table
        from cvexp.record import load

        directory = Path(config.hydra.sweep.dir)
        jobs = load(directory)
        console.print(jobs_table(jobs))
        failed = {name: job for name, job in jobs.items() if job["status"] != "completed"}
        for name, job in failed.items():
            console.print(f"{job['status']:<12}  {name}: {job.get('reason')}", markup=False)
        console.print(
            f"{'sweep':<12}  {directory}: {len(jobs) - len(failed)} of {len(jobs)} completed"
        )
        if failed:
            sys.exit(1)
