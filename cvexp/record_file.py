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
from typing import Any

from cvexp.atomic import write_atomically
from cvexp.config import UsageError

LOCK_S = 0.5  # that whoever wants a directory in use waits for it
_MAPPINGS = ("factors", "effective", "data", "metrics", "metrics_best", "cost", "environment")


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
    if not _is_record(fields):
        raise UsageError(f"{path} is no record of a run")
    return fields  # type: ignore[no-any-return]  # it is a mapping


def _is_record(fields: Any) -> bool:
    """Return whether what a stranger's file holds has the form that is read without a look."""
    if not isinstance(fields, dict) or not isinstance(fields.get("status"), str):
        return False
    parts = {key: fields.get(key) or {} for key in _MAPPINGS}
    numbers = (int, float)
    return (
        all(isinstance(part, dict) for part in parts.values())
        and all(isinstance(value, numbers) for value in parts["metrics"].values())
        and all(
            value is None
            or isinstance(value, numbers)
            or (isinstance(value, dict) and all(isinstance(v, numbers) for v in value.values()))
            for value in parts["cost"].values()
        )
    )


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
