"""Files that are whole or not there."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Put content at path so that a reader, or a crash, sees the old file or the new one only.

    The temporary file lies beside the target: a rename across file systems is a copy
    (Lightning#21253).
    """
    beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")  # pids repeat across hosts
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
