"""One job of a sweep, in a process of its own, and the server that such processes are forked from.

The server has the imports done, so that a job starts at once and shares nothing. It runs no job and
touches no device. When the sweep dies, by the end of its pipe its jobs keep what they have and end.
"""

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, open_dict

from cvexp import record_file, signals
from cvexp.config import UsageError
from cvexp.console import log
from cvexp.sweep import Outcome, outcomes

LOCK_S = 60.0  # that a job waits for a directory: one of a sweep that was killed may yet be ending


def start_server() -> None:
    """Let the server begin its imports, from where this process imports; it would not by itself."""
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(["cvexp.server"])
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    # Whoever asks whether there is CUDA must not touch it: a fork of what did could not use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


class Work(NamedTuple):
    """What a job's process is told.

    Args:
        device: the only one that CUDA shows it; None for whatever there is.
        slots: jobs at a time, among which threads are divided.
        shares: with other jobs, so that its times mean less.
    """

    config: DictConfig
    device: str | None
    slots: int = 1
    shares: bool = False


def process(function: Callable[..., None], *work: Any) -> tuple[Any, Connection]:
    """Return a process that a function of this module runs in, and this end of its pipe."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    started = context.Process(target=_begin, args=(theirs, dict(os.environ), function, *work))
    started.start()
    theirs.close()
    return started, ours


def call(function: Callable[..., None], *work: Any) -> Any:
    """Return what a function sends from a process of its own."""
    started, connection = process(function, *work)
    try:
        return connection.recv()
    except EOFError:
        raise RuntimeError(f"its process ended with exit code {started.exitcode}") from None
    finally:
        started.join()


def _begin(
    connection: Connection, environment: dict[str, str], function: Callable[..., None], *work: Any
) -> None:
    """Set a job's process up: quiet, on its own, and ending with the sweep."""
    os.environ.clear()  # of the server, which may be of an earlier sweep
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)  # workers are forked, as ever
    os.setpgid(0, 0)  # the sweep passes a terminal's Ctrl-C on
    for number in signals.ASKING:  # the server ignores them
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    function(connection, *work)
    sys.exit(0)


def _end_with(connection: Connection) -> None:
    """Ask this process to end when the sweep does."""
    with suppress(EOFError, OSError):
        connection.recv()
    os.kill(os.getpid(), signal.SIGTERM)


def count(connection: Connection) -> None:
    """Send how many accelerators there are."""
    import torch

    connection.send(torch.cuda.device_count())


def _settle(work: Work) -> None:
    """Take the device and the threads that this job has."""
    import torch
    from hydra.core.utils import setup_globals

    from cvexp import config, meter

    if work.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = work.device
    if work.slots > 1:
        torch.set_num_threads(max(torch.get_num_threads() // work.slots, 1))
    meter.contended, record_file.LOCK_S = work.shares, LOCK_S
    config.register_resolvers()
    setup_globals()


def run(connection: Connection, work: Work) -> None:
    """Run a job as Hydra does, and send how it ended."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.utils import run_job
    from hydra.types import HydraContext

    from cvexp import cli

    _settle(work)
    log.addHandler(_Teller(connection))
    hydra = work.config.hydra
    directory = Path(hydra.sweep.dir) / hydra.sweep.subdir
    directory.mkdir(parents=True, exist_ok=True)
    trace = directory / "crash.txt"
    trace.unlink(missing_ok=True)
    with trace.open("x") as file:
        faulthandler.enable(file)
        context = HydraContext(config_loader=None, callbacks=Callbacks(work.config))  # type: ignore[arg-type]  # no job composes
        try:
            run_job(
                cli.run_job,
                work.config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                hydra_context=context,
            )
            outcome = outcomes[-1]
        except signals.Interrupted as stop:
            outcome = Outcome(directory, "interrupted", str(stop), stop.code)
        faulthandler.disable()
    connection.send(outcome)
    trace.unlink(missing_ok=True)


class _Teller(logging.Handler):
    """Send the sweep what a job says in one line."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.INFO)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send it."""
        text = record.getMessage()
        if "\n" not in text:
            with suppress(OSError):
                self._connection.send(" ".join(text.split()))


def dry(connection: Connection, work: Work, outcome: Outcome) -> None:
    """Prepare a job, and send whether it could run."""
    from cvexp.config import check
    from cvexp.prepare import prepare
    from cvexp.record import reason

    _settle(work)
    config = work.config.copy()
    with open_dict(config):
        hydra = config.pop("hydra")
    try:
        check(config, list(hydra.overrides.task))
        prepare(config).loaders.close()
    except UsageError as error:
        outcome = outcome._replace(status="refused", reason=str(error), code=2)
    except Exception as error:
        outcome = outcome._replace(status="refused", reason=reason(error), code=1)
    connection.send(outcome)
