"""Open every file once: is it whole, what is in it, and its pixels for all later runs.

What was found is kept below data.cache_dir, by file list, sizes and times of change; pixels by
content and form. Both are written beside their place and moved into it, so two processes may do
so at once.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image
from rich.progress import Progress

from cvexp.atomic import write_atomically
from cvexp.config import UsageError
from cvexp.console import console, stage, warn
from cvexp.data.decode import load, to_size
from cvexp.data.store import Files, Form, Pixels, Store, free_host_bytes

Cache = Literal["memory", "disk", "none"]


class Finding(NamedTuple):
    """What one file holds; error is why it cannot be used."""

    sha256: str
    width: int
    height: int
    mode: str
    error: str | None


def inspect(
    paths: Sequence[Path], form: Form, cache: Cache, cache_dir: Path
) -> tuple[list[Finding], Store]:
    """Return a finding for each file, and where their pixels are read from, row by row.

    Raises:
        UsageError: a file that cannot be read just now, or a cache that has no room.
    """
    known_at = cache_dir / "findings" / f"{_files_key(paths, form)}.json"
    shape = (len(paths), form.size, form.size, form.channels)
    findings = _load_findings(known_at, len(paths))
    if findings is not None:
        key = _pixels_key(findings, form)
        if cache == "none":
            return findings, Files(paths, form)
        if cache == "memory" and key in _in_memory:
            return findings, Pixels(_in_memory[key])
        if (pixels := _open(cache_dir / "pixels" / f"{key}.npy", shape)) is not None:
            return findings, Pixels(pixels)
    _check_room(cache, len(paths) * form.image_bytes, cache_dir)
    if cache == "none":
        findings = _look_at_all(paths, form, None)
        _write(known_at, json.dumps(findings).encode())
        return findings, Files(paths, form)
    if cache == "memory":
        pixels = np.zeros(shape, np.uint8)
        findings = _look_at_all(paths, form, pixels)
        _write(known_at, json.dumps(findings).encode())
        _in_memory.clear()  # one set: that of this process's jobs
        _in_memory[_pixels_key(findings, form)] = pixels
        return findings, Pixels(pixels)
    unfinished = cache_dir / f".pixels-{os.urandom(8).hex()}.npy"
    try:
        mapped = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
        with unfinished.open("r+b") as file:  # a full disk is an error now, not a fault later
            os.posix_fallocate(file.fileno(), 0, unfinished.stat().st_size)
        findings = _look_at_all(paths, form, mapped)
        mapped.flush()
        place = cache_dir / "pixels" / f"{_pixels_key(findings, form)}.npy"
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished, place)
        _write(known_at, json.dumps(findings).encode())
    except OSError as error:
        raise UsageError(
            f"data.cache_dir={cache_dir} cannot be written ({error.strerror}); type "
            "data.cache_dir=FOLDER or data.cache=none"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return findings, Pixels(mapped)


_in_memory: dict[str, NDArray[np.uint8]] = {}  # data.cache=memory: shared by this process's jobs


def _look_at_all(
    paths: Sequence[Path], form: Form, pixels: NDArray[np.uint8] | None
) -> list[Finding]:
    """Open files in parallel (Pillow's decoders release the lock), with a bar in a terminal."""

    def look(row: int) -> Finding:
        finding, image = look_at(paths[row], form)
        if image is not None and pixels is not None:
            pixels[row] = image
        return finding

    stage("", f"opening {len(paths):,} files, once")
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        return list(progress.track(pool.map(look, range(len(paths))), total=len(paths)))


def look_at(path: Path, form: Form) -> tuple[Finding, NDArray[np.uint8] | None]:
    """Decode one file in full; any fault of it is a finding, not an exception."""
    sha256, size, mode = "", (0, 0), ""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with Image.open(path) as image:
            size, mode = image.size, image.mode
            upright = load(image, form.max_pixels, form.channels)
            pixels = to_size(upright, form.size, form.resize)
        return Finding(sha256, *size, mode, None), pixels
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises whatever its bytes lead Pillow to
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            # Not the file's fault but the machine's, which may pass: nothing to remember of a file.
            raise UsageError(f"{path} cannot be read: {error.strerror}; try again") from error
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return Finding(sha256, *size, mode, reason.replace(str(path), path.name)), None


def _files_key(paths: Sequence[Path], form: Form) -> str:
    """Return a key of the file list, their sizes and times of change, and the form."""
    digest = hashlib.sha256(f"{PIL.__version__} {form} {form.max_pixels}".encode())
    for path in paths:
        stat = path.stat() if path.exists() else None
        change = (stat.st_size, stat.st_mtime_ns) if stat else None
        digest.update(os.fsencode(path.absolute()) + f"\0{change}\n".encode())
    return digest.hexdigest()


def _pixels_key(findings: Sequence[Finding], form: Form) -> str:
    """Return a key of these contents in this form, as this Pillow decodes them."""
    digest = hashlib.sha256(f"{PIL.__version__} {form}".encode())
    for finding in findings:
        digest.update(f"{finding.sha256} {finding.error}\n".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _load_findings(path: Path, count: int) -> list[Finding] | None:
    """Return what was found before; a damaged file of it counts as none."""
    try:
        findings = [Finding(*row) for row in json.loads(path.read_text("utf-8"))]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError):
        warn(f"{path} is damaged: the files are opened again")
        return None
    return findings if len(findings) == count else None


def _open(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """Return mapped pixels; a damaged file of them counts as none."""
    if not path.exists():
        return None
    try:
        pixels: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        warn(f"{path} is damaged: the files are opened again")
        return None
    return pixels if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _check_room(cache: Cache, needed: int, cache_dir: Path) -> None:
    """Say before anything is decoded that its pixels have no room.

    Raises:
        UsageError: no room, or a cache folder that cannot be made.
    """
    mib = f"{needed / 2**20:,.0f} MiB"
    if cache == "memory" and needed > free_host_bytes() / 2:
        raise UsageError(
            f"data.cache=memory needs {mib}, over half of what is free; try data.cache=disk"
        )
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache_dir).free
    except OSError as error:
        raise UsageError(
            f"data.cache_dir={cache_dir} cannot be written ({error.strerror}); "
            "type data.cache_dir=FOLDER"
        ) from error
    if cache == "disk" and needed > 0.9 * free:
        raise UsageError(
            f"data.cache=disk needs {mib} in data.cache_dir={cache_dir}, which has "
            f"{free / 2**20:,.0f} MiB; try data.cache=none"
        )
