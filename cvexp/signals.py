"""Signals that ask a run to end: it keeps what it has at the next step, and ends as interrupted.

SIGTERM and SIGUSR1 are how a scheduler asks; SIGINT is a person's Ctrl-C, the second at once.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Interrupted(BaseException):
    """A run was asked to end, and did; no Exception, so that nothing takes it for a fault."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        self.code = 130 if self.signal == signal.SIGINT else 143
        super().__init__(self.signal.name)


_received: Interrupted | None = None
_patient = False  # whether a step will come that looks for it


def received() -> Interrupted | None:
    """Return what a run was asked to end by, for whoever can keep its state to raise."""
    return _received


@contextmanager
def handled() -> Iterator[None]:
    """Take up signals: outside of `patient`, with nothing to keep, they end it at once."""
    global _received
    _received = None
    before = {number: signal.signal(number, _receive) for number in ASKING}
    try:
        yield
    finally:
        _received = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def patient() -> Iterator[None]:
    """Let signals wait for the next step.

    Raises:
        Interrupted: one came that no step saw.
    """
    global _patient
    _patient = True
    try:
        yield
    finally:
        _patient = False
    if _received is not None:
        raise _received


def _receive(number: int, frame: FrameType | None) -> None:
    global _received
    if _received is not None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        return  # the run is ending, and must not be cut while it writes that
    _received = Interrupted(number)
    if not _patient:
        raise _received
    if number == signal.SIGINT:  # not by print, which may be what the signal interrupts
        os.write(2, b"interrupting at the next step; Ctrl-C again ends at once\n")


def slurm_job() -> str | None:
    """Return this SLURM job as `scontrol` names it, or None outside of one."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{key}_ID") for key in ("JOB", "TASK"))
    job = f"{array}_{task}" if array else os.environ.get("SLURM_JOB_ID", "")
    return job if re.fullmatch(r"\d+(_\d+)?", job) else None


def requeue(stop: Interrupted) -> None:
    """Ask SLURM to run the job again where SIGUSR1 told of its end (sbatch --signal=USR1@90)."""
    job, scontrol = slurm_job(), shutil.which("scontrol")
    if stop.signal == signal.SIGUSR1 and job and scontrol:
        subprocess.run([scontrol, "requeue", job], check=False)
