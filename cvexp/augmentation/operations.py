"""Each operation once: how its parameters are drawn, and its kernel in every engine.

Shapes: B images, H = W = size. Images in torch are (B, 3, H, W) float32 in [0, 255]; in numpy
(H, W, 3) uint8. Coordinates are continuous pixels: the centre of pixel i lies at i + 0.5. OpenCV
puts it at i, torch's grid_sample(align_corners=False) at i + 0.5; each kernel converts. Outside
the image is black.
"""

import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or its import asks the network


class Parameters(NamedTuple):
    """What was drawn for one operation: (B,) whether it applies, (B, K) its values."""

    applied: NDArray[np.bool_]
    values: NDArray[np.float32]


class Operation(Protocol):
    """One operation of a policy."""

    @property
    def p(self) -> float:
        """Return the probability that an image gets it."""

    @property
    def draws(self) -> int:
        """Return how many uniform numbers an image needs."""

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Turn (B, draws) uniform numbers into (B, K) parameters."""

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Apply (K,) parameters to one image."""

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Apply (B, K) parameters to B images."""


def _symmetric(u: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Spread (0, 1) over (-limit, limit)."""
    return (2 * u - 1) * limit


@dataclass(frozen=True)
class Affine:
    """Move, zoom and rotate about the image's centre; bilinear."""

    p: float
    translate_fraction: float
    scale_fraction: float
    rotate_degrees: float
    draws = 4

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 6): the rows of the 2x3 matrix from input to output, in continuous pixels."""
        shift = _symmetric(u[:, 0:2], self.translate_fraction * size)
        scale = 1 + _symmetric(u[:, 2], self.scale_fraction)
        angle = np.deg2rad(_symmetric(u[:, 3], self.rotate_degrees))
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        centre = size / 2
        dx = centre - cos * centre + sin * centre + shift[:, 0]
        dy = centre - sin * centre - cos * centre + shift[:, 1]
        return np.stack([cos, -sin, dx, sin, cos, dy], axis=1).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Warp by cv2.warpAffine through albumentations."""
        matrix = values.astype(np.float64).reshape(2, 3)
        matrix[:, 2] += matrix[:, :2].sum(axis=1) * 0.5 - 0.5  # centres at i, not at i + 0.5
        shape = (image.shape[0], image.shape[1])
        return self._kernel.apply(image, matrix=np.vstack([matrix, [0, 0, 1]]), output_shape=shape)  # type: ignore[no-any-return]  # albumentations is untyped

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import Affine as Kernel

        return Kernel(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Warp by grid_sample: output pixel -> where it comes from."""
        size = images.shape[-1]
        forward = values.double().view(-1, 2, 3)
        inverse = torch.linalg.inv(forward[:, :, :2])
        offset = -(inverse @ forward[:, :, 2:])
        # Pixels p = (n + 1) * size / 2 for normalised n in [-1, 1], on both sides of the map.
        half = size / 2
        shift = (inverse.sum(dim=2, keepdim=True) * half + offset - half) / half
        theta = torch.cat([inverse, shift], dim=2).float()
        shape = list(images.shape)
        grid = torch.nn.functional.affine_grid(theta, shape, align_corners=False)
        return torch.nn.functional.grid_sample(images, grid, align_corners=False)


@dataclass(frozen=True)
class RgbShift:
    """Add one number to each channel."""

    p: float
    limit: float
    draws = 3

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 3): the shift of each channel in 1/255."""
        return _symmetric(u, self.limit).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Shift by albumentations."""
        shift = values if image.shape[2] == 3 else values.mean(keepdims=True)
        return self._kernel.apply(image, noise_map=shift)  # type: ignore[no-any-return]  # untyped

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import RGBShift

        return RGBShift(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Shift by broadcasting."""
        shift = values if images.shape[1] == 3 else values.mean(dim=1, keepdim=True)
        return images + shift[:, :, None, None]


@dataclass(frozen=True)
class BrightnessContrast:
    """Multiply by the contrast, then add the brightness."""

    p: float
    brightness_fraction: float
    contrast_fraction: float
    draws = 2

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 2): factor, and offset in 1/255."""
        factor = 1 + _symmetric(u[:, 0], self.contrast_fraction)
        offset = _symmetric(u[:, 1], self.brightness_fraction) * 255
        return np.stack([factor, offset], axis=1).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Apply by albumentations' look-up table."""
        factor, offset = (float(value) for value in values)
        return self._kernel.apply(image, alpha=factor, beta=offset)  # type: ignore[no-any-return]  # untyped

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import RandomBrightnessContrast

        return RandomBrightnessContrast(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Apply by broadcasting."""
        return images * values[:, 0, None, None, None] + values[:, 1, None, None, None]


@dataclass(frozen=True)
class Flip:
    """Mirror left to right."""

    p: float
    draws = 0

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 0): whether to mirror is all there is to know."""
        return u.astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Mirror by albumentations."""
        return self._kernel.apply(image)  # type: ignore[no-any-return]  # untyped

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import HorizontalFlip

        return HorizontalFlip(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Mirror the last axis."""
        return images.flip(-1)


@dataclass(frozen=True)
class Crop:
    """Pad with black on every side, crop the image's own size at a random place."""

    p: float
    padding_fraction: float
    draws = 2

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
        return self._kernel.apply(  # type: ignore[no-any-return]  # untyped
            image, crop_coords=(x, y, x + width, y + height), pad_params=pads
        )

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
