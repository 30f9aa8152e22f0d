"""From a file to pixels of one size: the rule that the package's docstring states."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from cvexp.config import UsageError

RULE = 1  # rises when the rule changes, so that what was decoded under another is not taken for it
Resize = Literal["crop", "squash", "pad"]
Image.MAX_IMAGE_PIXELS = None  # data.max_pixels is checked before anything is decoded


def decode(path: Path, max_pixels: int, channels: int) -> Image.Image:
    """Return a file's first frame, upright, as RGB or (channels=1) grey.

    Raises:
        ValueError, OSError and what else Pillow raises: the file has no such pixels.
    """
    with Image.open(path) as image:
        return load(image, max_pixels, channels)


def load(image: Image.Image, max_pixels: int, channels: int) -> Image.Image:
    """Decode an opened image in full: `verify` alone passes a truncated file."""
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(f"{width} x {height} pixels are more than data.max_pixels={max_pixels}")
    image.load()
    return to_mode(image, channels)


def to_mode(image: Image.Image, channels: int) -> Image.Image:
    """Return an opened image upright, as 8-bit RGB or grey.

    Raises:
        ValueError: floating-point pixels, whose range nothing declares.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels (mode F) have no declared range")
    if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow's own conversion clips to white
        wide = np.clip(np.asarray(image).astype(np.float64), 0, 65535)
        grey = np.rint(wide / 257).astype(np.uint8)
        if isinstance(see_through := image.info.get("transparency"), int):
            grey[wide == see_through] = 255
        image = Image.fromarray(grey)
    if image.mode == "La":
        image = image.convert("LA")
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA", "RGBa"):
        colour = image.convert("RGBA")
        white = Image.new("RGBA", colour.size, "white")
        image = Image.alpha_composite(white, colour)
    return image.convert("RGB" if channels == 3 else "L")


def to_size(image: Image.Image, size: int, resize: Resize) -> NDArray[np.uint8]:
    """Return (size, size, C) uint8, bicubic with antialiasing; black where `pad` leaves room."""
    square = (size, size)
    if image.size != square:
        if resize == "squash":
            image = image.resize(square, Image.Resampling.BICUBIC)
        elif resize == "crop":
            image = ImageOps.fit(image, square, Image.Resampling.BICUBIC)
        else:
            image = ImageOps.pad(image, square, Image.Resampling.BICUBIC, color=0)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def check_readable(path: Path, key: str) -> None:
    """Say in one line that a file or folder which the user named is not there.

    Raises:
        UsageError: it does not exist.
    """
    if not path.exists():
        raise UsageError(f"{key}={path}: no such file or folder")
