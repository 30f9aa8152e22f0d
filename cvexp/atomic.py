"""Files that are whole or not there."""

import os
import shutil
from pathlib import Path


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Put content at path so that a reader, or a crash, sees the old file or the new one only.

    The temporary file lies beside the target: a rename across file systems is a copy
    (Lightning#21253).
    """
    beside = _beside(path)
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)


def link_atomically(source: Path, target: Path) -> None:
    """Give a file that is on disk a second name, in place of the file that had it."""
    beside = _beside(target)
    try:
        try:
            os.link(source, beside)
        except OSError:  # a file system without links
            shutil.copyfile(source, beside)
            _sync(beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    _sync(target.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")  # pids repeat across hosts


def _sync(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
