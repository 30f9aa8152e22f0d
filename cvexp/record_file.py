"""run.json and .lock as files; without torch, so that a sweep and `status` may."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Required

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cvexp.atomic import write_atomically
from cvexp.config import UsageError

LOCK_S = 0.5  # that whoever wants a directory in use waits for it


class _Rate(TypedDict):
    median: FiniteFloat


class _Cost(TypedDict, total=False):
    startup_s: FiniteFloat | None
    train_s: FiniteFloat | None
    validation_s: FiniteFloat | None
    compile_s: FiniteFloat | None
    wall_s: FiniteFloat | None
    images_per_s: _Rate | None
    data_wait_fraction: FiniteFloat | None
    peak_host_bytes: FiniteFloat | None
    peak_device_bytes: FiniteFloat | None
    energy_j: FiniteFloat | None
    contended: bool | None


class _Effective(TypedDict, total=False):
    trainable_parameters: int | None
    optimizer_steps: int | None


class _Data(TypedDict, total=False):
    splits: dict[str, int]


class _Environment(TypedDict, total=False):
    versions: dict[str, Any]
    hardware: dict[str, Any]


class _Resumed(TypedDict, total=False):
    optimizer_steps: int


class _Record(TypedDict, total=False):
    """What is read without another look of a record that may be a stranger's; it may hold more."""

    status: Required[str]
    reason: str | None
    identity: str | None
    factors: dict[str, Any]
    choices: dict[str, str]
    effective: _Effective
    data: _Data
    metrics: dict[str, FiniteFloat | None]
    metrics_best: dict[str, FiniteFloat | None]
    cost: _Cost
    environment: _Environment
    resumed: list[_Resumed]


_RECORD = TypeAdapter(_Record)


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """Return the record that a directory holds, or None.

    Raises:
        UsageError: it is no record.
    """
    path = run_dir / "run.json"
    try:
        fields = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    try:
        _RECORD.validate_python(fields, strict=True)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UsageError(f"{path} is no record of a run{where and ': '}{where}") from error
    return fields  # type: ignore[no-any-return]  # it is a mapping


def write_record(run_dir: Path, fields: Mapping[str, Any]) -> None:
    """Write the record of a directory."""
    text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(run_dir / "run.json", text.encode("utf-8", "backslashreplace"))


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold a directory's .lock, which names host and process; the kernel frees it with the process.

    Raises:
        UsageError: another process uses the directory.
    """
    until = time.monotonic() + LOCK_S
    with (directory / ".lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:  # by `status` for a moment, or by another run
                if time.monotonic() > until:
                    file.seek(0)
                    holder = file.read().strip() or "another process"
                    raise UsageError(
                        f"{directory} is in use by {holder}; choose another folder, or wait"
                    ) from error
                time.sleep(0.02)
        _locks.add(file.fileno())
        file.truncate(0)
        file.write(f"{socket.gethostname()} process {os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            _locks.discard(file.fileno())


def is_held(lock: Path) -> bool:
    """Return whether a process holds a run's lock; the kernel frees it with its holder."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


_locks: set[int] = set()


def _let_go() -> None:
    """Leave the locks to the parent: a worker that outlives it would hold them."""
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor in _locks:
        os.dup2(null, descriptor)
    os.close(null)


os.register_at_fork(after_in_child=_let_go)
