"""Where a sweep's jobs run: each in a fresh process, one on each device, none twice.

A job that dies is seen by its exit.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from cvexp import child, signals
from cvexp.config import UsageError, check_keys
from cvexp.console import say
from cvexp.design import keep
from cvexp.plan import Cell, plan
from cvexp.record_file import lock, now, read_record, write_record
from cvexp.sweep import Outcome, Progress, outcomes

EXIT_S = 30.0  # that a process may take to end once its job has


def launch(
    config: DictConfig, configs: Sequence[DictConfig], jobs: Any, first_number: int
) -> list[JobReturn]:
    """Run what is left to do of a sweep, and return how each job ended.

    Args:
        config: the sweep's own.
        configs: of the jobs, Hydra's node included.
        jobs: at a time, or auto.

    Raises:
        UsageError: jobs is neither, or a job's folder is not below the sweep's.
        Interrupted: a signal, once every job that ran has ended.
    """
    if not (jobs == "auto" or (isinstance(jobs, int) and jobs > 0)):
        raise UsageError(f"hydra.launcher.jobs={jobs}: type auto, or how many at a time")
    check_keys(config)
    folder = Path(config.hydra.sweep.dir)
    if config.dry_run:
        cells = plan(folder, configs, first_number)
        ended = _check(cells)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder):
            cells = plan(folder, configs, first_number)
            keep(config, cells)
            devices = _devices()
            slots = max(len(devices), 1) if jobs == "auto" else jobs
            with Progress(cells) as progress:
                ended = _Sweep(cells, config.sweep, devices, slots, progress).run()
    outcomes.extend(ended)
    of = {n: outcome for cell, outcome in zip(cells, ended, strict=True) for n in cell.numbers}
    return [_returned(of[number]) for number in sorted(of)]  # one for each that was asked for


def _returned(outcome: Outcome) -> JobReturn:
    done = JobReturn(status=JobStatus.COMPLETED)
    done.return_value = outcome
    return done


class _Job(NamedTuple):
    """A process that runs a cell."""

    cell: Cell
    slot: int
    process: Any
    connection: Connection


class _Sweep:
    """Cells waiting, cells running, and what became of the others."""

    def __init__(
        self,
        cells: Sequence[Cell],
        sweep: DictConfig,
        devices: Sequence[str],
        slots: int,
        progress: Progress,
    ) -> None:
        self._cells, self._devices, self._slots = cells, devices, slots
        self._progress = progress
        self._retries, self._stops = int(sweep.retries), sweep.on_error == "stop"
        self._ended = {cell.number: _as_it_is(cell) for cell in cells if cell.is_done}
        self._waiting = [cell for cell in cells if not cell.is_done]
        self._running: dict[int, _Job] = {}
        self._tries: dict[int, int] = {}

    def run(self) -> list[Outcome]:
        """Run them all."""
        with _told() as told:
            while self._running or (self._waiting and not told):
                while self._waiting and len(self._running) < self._slots and not told:
                    self._start(self._waiting.pop(0))
                self._listen()
                self._pass_on(told)
        if told:
            folder = self._cells[0].config.hydra.sweep.dir
            say("interrupted", f"python -m cvexp resume {folder} goes on")
            raise signals.Interrupted(told[0])
        left = [cell for cell in self._cells if cell.number not in self._ended]
        for cell in left:  # sweep.on_error=stop
            self._ended[cell.number] = Outcome(
                cell.directory, "missing", "not begun: sweep.on_error=stop", 1
            )
        return [self._ended[cell.number] for cell in self._cells]

    def _start(self, cell: Cell) -> None:
        slot = min(set(range(self._slots)) - {job.slot for job in self._running.values()})
        shares = self._slots > max(len(self._devices), 1)
        device = self._devices[slot % len(self._devices)] if self._devices else None
        work = child.Work(cell.config, device, self._slots, shares)
        process, connection = child.process(child.run, work)
        self._running[cell.number] = _Job(cell, slot, process, connection)
        self._progress.begun(cell)

    def _listen(self) -> None:
        """Wait for a moment, for what jobs say or for one's end."""
        jobs = list(self._running.values())
        wait([*(j.connection for j in jobs), *(j.process.sentinel for j in jobs)], timeout=0.5)
        for job in jobs:
            ended = not job.process.is_alive()
            outcome = None
            with suppress(EOFError, OSError):
                while job.connection.poll():
                    said = job.connection.recv()
                    if isinstance(said, Outcome):
                        outcome = said
                    else:
                        self._progress.said(job.cell, said)
            if outcome is not None or ended:
                job.process.join(EXIT_S)
                if job.process.is_alive():  # it said how it ended, and hangs
                    job.process.kill()
                    job.process.join()
                self._end(job, outcome or _died(job))
        self._progress.show(len(self._waiting))

    def _end(self, job: _Job, outcome: Outcome) -> None:
        number = job.cell.number
        del self._running[number]
        job.connection.close()
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        if outcome.status == "failed" and outcome.code == 1 and tries <= self._retries:
            self._progress.said(job.cell, f"{outcome.reason}; tried again ({tries})")
            self._waiting.insert(0, job.cell)
            return
        self._ended[number] = outcome
        self._progress.ended(job.cell, outcome)
        if outcome.code and self._stops:
            self._waiting.clear()

    def _pass_on(self, told: list[int]) -> None:
        """Give each signal that came on to the jobs, once."""
        if told.count(signal.SIGINT) > 2:  # the second ends a job at once, but for one that hangs
            told.append(signal.SIGKILL)
        for job in self._running.values():
            for number in told[job.cell.passed_on :]:
                with suppress(ProcessLookupError):
                    os.kill(job.process.pid, number)
            job.cell.passed_on = len(told)


def _as_it_is(cell: Cell) -> Outcome:
    return Outcome(cell.directory, cell.status, cell.reason, int(cell.status != "completed"))


def _died(job: _Job) -> Outcome:
    """Return how a process ended that said nothing of it, and write that into its record."""
    code, directory = job.process.exitcode, job.cell.directory
    if code < 0:
        name = signal.Signals(-code).name
        reason = f"killed by {name}" + " (out of memory?)" * (name == "SIGKILL")
    else:
        reason = f"its process ended with exit code {code}"
    trace = directory / "crash.txt"
    if trace.exists() and not trace.stat().st_size:
        trace.unlink()
    with suppress(UsageError):
        record = read_record(directory)
        if record is not None and record["status"] == "running":
            failed = {"status": "failed", "reason": reason, "ended": now()}
            write_record(directory, {**record, **failed})
    return Outcome(directory, "failed", reason, 1)


@contextmanager
def _told() -> Iterator[list[int]]:
    """Collect the signals that ask to end."""
    told: list[int] = []
    before = {n: signal.signal(n, lambda number, _: told.append(number)) for n in signals.ASKING}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(cells: Sequence[Cell]) -> list[Outcome]:
    """Prepare every job without training any, and show what a sweep of them would do."""
    from cvexp.sweep import show_plan

    found = []
    for cell in cells:
        outcome = Outcome(cell.directory, cell.status, cell.reason, 0)
        if not cell.is_done:
            try:
                outcome = child.call(child.dry, child.Work(cell.config, None), outcome)
            except RuntimeError as error:
                outcome = outcome._replace(status="refused", reason=str(error), code=1)
        found.append(outcome)
    show_plan(cells, found)
    return found


def _devices() -> list[str]:
    """Return the accelerators, as CUDA_VISIBLE_DEVICES names them."""
    if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
        return []
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = child.call(child.count)
    return seen.split(",")[:count] if seen else [str(i) for i in range(count)]
