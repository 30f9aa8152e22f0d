"""Operations that move pixels."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from cvexp.augmentation.operation import Node, by_kernel, log_symmetric, symmetric


class _Warp:
    """A 2x3 matrix from input to output in continuous pixels, row by row; bilinear.

    Args:
        black_outside: what lies outside the image is black; else its edge goes on.
    """

    black_outside: ClassVar[bool]
    pointwise = False
    neutral = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Warp by cv2.warpAffine through albumentations."""
        matrix = values.astype(np.float64).reshape(2, 3)
        matrix[:, 2] += matrix[:, :2].sum(axis=1) * 0.5 - 0.5  # centres at i, not at i + 0.5
        shape = (image.shape[0], image.shape[1])
        whole = np.vstack([matrix, [0, 0, 1]])
        return by_kernel(self._kernel, image, matrix=whole, output_shape=shape)

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import Affine as Kernel

        border = cv2.BORDER_CONSTANT if self.black_outside else cv2.BORDER_REPLICATE
        return Kernel(border_mode=border, p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Warp by grid_sample: output pixel -> where it comes from."""
        size = images.shape[-1]
        forward = values.double().view(-1, 2, 3)
        inverse = torch.linalg.inv(forward[:, :, :2])
        offset = -(inverse @ forward[:, :, 2:])
        # Pixels p = (n + 1) * size / 2 for normalised n in [-1, 1], on both sides of the map.
        half = size / 2
        shift = (inverse.sum(dim=2, keepdim=True) * half + offset - half) / half
        columns, rows, shift = (part.float() for part in (*inverse.split(1, dim=2), shift))
        centres = (torch.arange(size, device=images.device) + 0.5) / half - 1
        # (B, H, W, 2), by broadcasting: affine_grid's product of matrices takes six times as long
        grid = (columns * centres).mT[:, None] + (rows * centres + shift).mT[:, :, None]
        padding = "zeros" if self.black_outside else "border"
        return torch.nn.functional.grid_sample(
            images, grid, padding_mode=padding, align_corners=False
        )

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Warp by warp_affine."""
        from nvidia.dali import fn, types

        outside: dict[str, Any] = {"fill_value": 0.0} if self.black_outside else {}
        return fn.warp_affine(
            images,
            matrix=fn.reshape(values, shape=[2, 3]),
            inverse_map=False,
            interp_type=types.INTERP_LINEAR,
            **outside,
        )


@dataclass(frozen=True)
class Affine(_Warp):
    """Move, zoom and rotate about the image's centre."""

    p: float
    translate_fraction: float
    scale_fraction: float
    rotate_degrees: float
    draws = 4
    black_outside = True

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 6): the matrix."""
        shift = symmetric(u[:, 0:2], self.translate_fraction * size)
        scale = 1 + symmetric(u[:, 2], self.scale_fraction)
        angle = np.deg2rad(symmetric(u[:, 3], self.rotate_degrees))
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        centre = size / 2
        dx = centre - cos * centre + sin * centre + shift[:, 0]
        dy = centre - sin * centre - cos * centre + shift[:, 1]
        return np.stack([cos, -sin, dx, sin, cos, dy], axis=1).astype(np.float32)


@dataclass(frozen=True)
class ResizedCrop(_Warp):
    """Cut a window of random area, shape and place, and stretch it to the image's size.

    The window is not rounded to whole pixels, and is never smaller than one.
    """

    p: float
    min_area_fraction: float
    max_aspect_ratio: float
    draws = 4
    black_outside = False

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 6): the matrix."""
        area = self.min_area_fraction + (1 - self.min_area_fraction) * u[:, 0]
        stretch = np.sqrt(log_symmetric(u[:, 1], self.max_aspect_ratio))
        width, height = (
            np.clip(np.sqrt(area) * side, 1 / size, 1) for side in (stretch, 1 / stretch)
        )
        left, top = (u[:, 2] * (1 - width)) * size, (u[:, 3] * (1 - height)) * size
        zero = np.zeros(len(u))
        rows = [1 / width, zero, -left / width, zero, 1 / height, -top / height]
        return np.stack(rows, axis=1).astype(np.float32)


@dataclass(frozen=True)
class Flip:
    """Mirror left to right."""

    p: float
    draws = 0
    pointwise = False
    neutral = (0.0,)

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 1) ones: an image that is drawn is mirrored."""
        return np.ones((len(u), 1), np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Mirror by albumentations."""
        return by_kernel(self._kernel, image)

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import HorizontalFlip

        return HorizontalFlip(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Mirror the last axis."""
        return images.flip(-1)

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Mirror by flip."""
        from nvidia.dali import fn, types

        mirrored = fn.cast(fn.reshape(values, shape=[]), dtype=types.INT32)
        return fn.flip(images, horizontal=mirrored)


@dataclass(frozen=True)
class Crop:
    """Pad with black on every side, crop the image's own size at a random place."""

    p: float
    padding_fraction: float
    draws = 2
    pointwise = False
    neutral = (0.0, 0.0)

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 2): crop's top and left in the unpadded image, whole pixels in [-pad, pad]."""
        pad = math.ceil(self.padding_fraction * size)
        return (np.floor(u * (2 * pad + 1)) - pad).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Pad on the sides that are needed and crop, by albumentations."""
        top, left = (int(value) for value in values)
        height, width = image.shape[:2]
        pads = {"pad_top": -top, "pad_bottom": top, "pad_left": -left, "pad_right": left}
        pads = {side: max(amount, 0) for side, amount in pads.items()}
        y, x = max(top, 0), max(left, 0)
        window = (x, y, x + width, y + height)
        return by_kernel(self._kernel, image, crop_coords=window, pad_params=pads)

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import RandomCrop

        return RandomCrop(1, 1, p=1)  # its own size is not used: the crop comes with each call

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Gather rows and columns; what lies outside is black."""
        size = images.shape[-1]
        steps = torch.arange(size, device=images.device)
        rows, columns = (values[:, axis, None].long() + steps for axis in (0, 1))
        inside = [((part >= 0) & (part < size)).float() for part in (rows, columns)]
        batch = torch.arange(len(images), device=images.device)[:, None, None]
        rows, columns = rows.clamp(0, size - 1), columns.clamp(0, size - 1)
        cut = images[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return cut * (inside[0][:, None, :, None] * inside[1][:, None, None, :])

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Cut by slice, which pads with black."""
        from nvidia.dali import fn, types

        size = fn.slice(images.shape(dtype=types.INT32), start=0, shape=2, axes=[0])
        return fn.slice(
            images,
            start=fn.cast(values, dtype=types.INT32),
            shape=size,
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=0.0,
        )


@dataclass(frozen=True)
class Erasing:
    """Paint one rectangle of random area, shape and place over."""

    p: float
    min_area_fraction: float
    max_area_fraction: float
    max_aspect_ratio: float
    fill: float
    draws = 4
    pointwise = False
    neutral = (0.0, 0.0, 0.0, 0.0)

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 4): top, left, height and width in whole pixels, within the image."""
        low, high = self.min_area_fraction, self.max_area_fraction
        area = low + (high - low) * u[:, 0]
        stretch = np.sqrt(log_symmetric(u[:, 1], self.max_aspect_ratio))
        sides = (np.sqrt(area) * side * size for side in (stretch, 1 / stretch))
        height, width = (np.clip(np.rint(side), 1, size) for side in sides)
        top, left = np.floor(u[:, 2] * (size - height + 1)), np.floor(u[:, 3] * (size - width + 1))
        return np.stack([top, left, height, width], axis=1).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Paint by albumentations."""
        top, left, height, width = (int(value) for value in values)
        hole = np.array([[left, top, left + width, top + height]])
        return by_kernel(self._kernel, image, holes=hole, seed=0)

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import CoarseDropout

        return CoarseDropout(fill=round(self.fill), p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Paint by a mask."""
        steps = torch.arange(images.shape[-1], device=images.device)
        start, length = values[:, :2, None], values[:, 2:, None]
        inside = (steps >= start) & (steps < start + length)  # (B, 2, size)
        mask = inside[:, 0, :, None] & inside[:, 1, None, :]
        return images.masked_fill(mask[:, None], round(self.fill))

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Paint by erase."""
        from nvidia.dali import fn

        parts = [fn.slice(values, start=start, shape=2, axes=[0]) for start in (0, 2)]
        return fn.erase(
            images, anchor=parts[0], shape=parts[1], axes=[0, 1], fill_value=round(self.fill)
        )
