"""Where a split's pixels are read from: arrays in memory, files, or what was decoded before."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cvexp.data.decode import (
    RULE,
    Placement,
    Resize,
    decode,
    place,
    plain_jpeg,
    to_mode,
    to_size,
)


@dataclass(frozen=True)
class Form:
    """What every image is brought to: (size, size, channels) uint8."""

    size: int
    resize: Resize
    channels: int
    max_pixels: int

    def __str__(self) -> str:
        colour = "RGB" if self.channels == 3 else "grey"
        return f"decode rule {RULE}, {colour}, {self.resize} to {self.size} px, bicubic"

    @property
    def image_bytes(self) -> int:
        """Return what one image takes."""
        return self.size * self.size * self.channels

    def of_file(self, path: Path) -> NDArray[np.uint8]:
        """Return a file's pixels in this form."""
        image = decode(path, self.max_pixels, self.channels)
        return to_size(image, self.size, self.resize)

    def of_image(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return an image that a library opened in this form."""
        return to_size(to_mode(image, self.channels), self.size, self.resize)

    def of_array(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return an (H, W), (H, W, 1) or (H, W, 3) array in this form."""
        if image.shape == (self.size, self.size, self.channels):
            return image
        return self.of_image(Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image))


class Store(Protocol):
    """Pixels by position."""

    def read(self, position: int) -> NDArray[np.uint8]:
        """Return one image, (size, size, channels) uint8."""


@dataclass(frozen=True)
class Arrays:
    """Images as a library gives them, (N, H, W) or (N, H, W, 3), brought to form when read."""

    images: NDArray[np.uint8]
    form: Form

    def read(self, position: int) -> NDArray[np.uint8]:
        """Return one image in form."""
        return self.form.of_array(self.images[position])


@dataclass(frozen=True)
class Files:
    """Files that are decoded each time they are read (data.cache=none)."""

    paths: Sequence[Path]
    form: Form

    def read(self, position: int) -> NDArray[np.uint8]:
        """Return one image in form.

        Raises:
            RuntimeError: the file was whole when the run began and is not any more.
        """
        with self._unchanged(position) as path:
            return self.form.of_file(path)

    def encoded(self, position: int) -> tuple[bytes, Placement]:
        """Return a file for another decoder: its bytes, and how its pixels fill the square.

        A plain JPEG is given as it is. Of anything else there are as many readings as decoders, so
        it is decoded here by our rule, brought to form, and given as PNG.

        Raises:
            RuntimeError: the file was whole when the run began and is not any more.
        """
        form = self.form
        with self._unchanged(position) as path:
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                shape = plain_jpeg(image, form.channels)
            if shape is not None:
                return content, place(*shape, form.size, form.resize)
            pixels = form.of_file(path)
            file = io.BytesIO()
            Image.fromarray(pixels if form.channels == 3 else pixels[..., 0]).save(
                file, "PNG", compress_level=0
            )
            return file.getvalue(), place(form.size, form.size, form.size, form.resize)

    @contextmanager
    def _unchanged(self, position: int) -> Iterator[Path]:
        path = self.paths[position]
        try:
            yield path
        except Exception as error:  # whatever Pillow raises on what became of it
            raise RuntimeError(f"{path} changed during the run: {error}") from error


@dataclass(frozen=True)
class Pixels:
    """Images that are in form already: (N, size, size, channels), in memory or mapped from disk."""

    pixels: NDArray[np.uint8]

    def read(self, position: int) -> NDArray[np.uint8]:
        """Return one image."""
        image: NDArray[np.uint8] = self.pixels[position]
        return image


def free_host_bytes() -> int:
    """Return how much memory the kernel says it can still give."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(meminfo["MemAvailable"].split()[0]) * 1024  # the kernel writes kB and means KiB
