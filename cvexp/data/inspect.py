"""Open every file once: is it whole, what is in it, and its pixels for all later runs.

What was found is kept below data.cache_dir, by file list, sizes and times of change; pixels by
content and form. Both are written beside their place and moved into it, so two processes may do
so at once.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import Progress

from cvexp.atomic import write_atomically
from cvexp.config import UsageError
from cvexp.console import console, stage
from cvexp.data.decode import RULE, load, to_size
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
        UsageError: the cache cannot be written, or has no room.
    """
    known_at = cache_dir / "findings" / f"{_files_key(paths, form)}.json"
    findings = _load_findings(known_at)
    if findings is not None:
        if cache == "none":
            return findings, Files(paths, form)
        if (
            cache == "disk"
            and (pixels := _open(_pixels_path(findings, form, cache_dir))) is not None
        ):
            return findings, Pixels(pixels)
    needed = len(paths) * form.image_bytes
    _check_room(cache, needed, cache_dir)
    shape = (len(paths), form.size, form.size, form.channels)
    unfinished = cache_dir / f".pixels-{os.getpid()}.npy"
    pixels = None
    if cache == "memory":
        pixels = np.zeros(shape, np.uint8)
    elif cache == "disk":
        pixels = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
    try:
        findings = _look_at_all(paths, form, pixels)
        _write(known_at, json.dumps(findings).encode())
        if cache == "none":
            return findings, Files(paths, form)
        if cache == "disk":
            assert isinstance(pixels, np.memmap)
            pixels.flush()
            place = _pixels_path(findings, form, cache_dir)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(unfinished, place)
            pixels = _open(place)
        assert pixels is not None
        return findings, Pixels(pixels)
    finally:
        unfinished.unlink(missing_ok=True)


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
    except Exception as error:  # a damaged file raises whatever its bytes lead Pillow to
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return Finding(sha256, *size, mode, reason.replace(str(path), path.name)), None


def _files_key(paths: Sequence[Path], form: Form) -> str:
    """Return a key of the file list, their sizes and times of change, and the form."""
    digest = hashlib.sha256(f"{RULE} {form} {form.max_pixels}".encode())
    for path in paths:
        stat = path.stat() if path.exists() else None
        change = (stat.st_size, stat.st_mtime_ns) if stat else None
        digest.update(os.fsencode(path.absolute()) + f"\0{change}\n".encode())
    return digest.hexdigest()


def _pixels_path(findings: Sequence[Finding], form: Form, cache_dir: Path) -> Path:
    """Return where the pixels of these contents in this form lie."""
    digest = hashlib.sha256(str(form).encode())
    for finding in findings:
        digest.update(f"{finding.sha256} {finding.error}\n".encode("utf-8", "backslashreplace"))
    return cache_dir / "pixels" / f"{digest.hexdigest()}.npy"


def _load_findings(path: Path) -> list[Finding] | None:
    try:
        return [Finding(*row) for row in json.loads(path.read_text("utf-8"))]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _open(path: Path) -> NDArray[np.uint8] | None:
    return np.load(path, mmap_mode="r") if path.exists() else None


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
