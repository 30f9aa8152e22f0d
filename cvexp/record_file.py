"""run.json as a file, read and written whole; without torch, so that a sweep and `status` may."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cvexp.atomic import write_atomically
from cvexp.config import UsageError


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
    if not isinstance(fields, dict) or "status" not in fields:
        raise UsageError(f"{path} is no record of a run")
    return fields


def write_record(run_dir: Path, fields: Mapping[str, Any]) -> None:
    """Write the record of a directory."""
    text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(run_dir / "run.json", text.encode("utf-8", "backslashreplace"))
