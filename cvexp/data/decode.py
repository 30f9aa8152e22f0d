"""From a file to pixels of one size: the rule that the package's docstring states."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

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


class Placement(NamedTuple):
    """What is kept of an image, what it is resized to, and where that lies in the square.

    Args:
        box: left, top, right, bottom of what is kept, in continuous pixels.
        width, height: of what is kept, once resized.
        left, top: its place in the square; the rest is black.
    """

    box: tuple[float, float, float, float]
    width: int
    height: int
    left: int
    top: int


def place(width: int, height: int, size: int, resize: Resize) -> Placement:
    """Return how an upright image of width x height pixels fills a square of side `size`."""
    if resize == "crop":
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return Placement((left, top, left + side, top + side), size, size, 0, 0)
    whole = (0.0, 0.0, float(width), float(height))
    if resize == "squash":
        return Placement(whole, size, size, 0, 0)
    longer = max(width, height)
    w, h = (max(round(side / longer * size), 1) for side in (width, height))
    return Placement(whole, w, h, round((size - w) / 2), round((size - h) / 2))


def to_size(image: Image.Image, size: int, resize: Resize) -> NDArray[np.uint8]:
    """Return (size, size, C) uint8, bicubic with antialiasing; black where `pad` leaves room."""
    if image.size != (size, size):
        box, width, height, left, top = place(*image.size, size, resize)
        image = image.resize((width, height), Image.Resampling.BICUBIC, box)
        if image.size != (size, size):
            square = Image.new(image.mode, (size, size))
            square.paste(image, (left, top))
            image = square
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def plain_jpeg(image: Image.Image, channels: int) -> tuple[int, int] | None:
    """Return the upright width and height of what any JPEG decoder reads by our rule, else None.

    That is a JPEG of 8-bit colour, or of grey where grey is wanted.
    """
    grey_only = image.mode == "L" and channels == 1
    if image.format != "JPEG" or not (image.mode == "RGB" or grey_only):
        return None
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return image.size[::-1] if turned else image.size


def check_readable(path: Path, key: str) -> None:
    """Say in one line that a file or folder which the user named is not there.

    Raises:
        UsageError: it does not exist.
    """
    if not path.exists():
        raise UsageError(f"{key}={path}: no such file or folder")
