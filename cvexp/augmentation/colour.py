"""Operations that change colours, pixel by pixel."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cvexp.augmentation.operation import Node, by_kernel, spread, symmetric


@dataclass(frozen=True)
class RgbShift:
    """Add one number to each channel; a grey image gets their mean."""

    p: float
    limit: float
    draws = 3
    pointwise = True
    neutral = (0.0, 0.0, 0.0)

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 3): the shift of each channel in 1/255."""
        return symmetric(u, self.limit).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Shift by albumentations."""
        shift = values if image.shape[2] == 3 else values.mean(keepdims=True)
        return by_kernel(self._kernel, image, noise_map=shift)

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import RGBShift

        return RGBShift(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Shift by broadcasting."""
        shift = values if images.shape[1] == 3 else values.mean(dim=1, keepdim=True)
        return images.add_(spread(shift, images))

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Shift by DALI's arithmetic."""
        from nvidia.dali import fn

        shift = values if channels == 3 else fn.reductions.mean(values, keep_dims=True)
        return _rounded(images + _like(images, fn.reshape(shift, shape=[1, 1, channels])))


@dataclass(frozen=True)
class BrightnessContrast:
    """Multiply by the contrast, then add the brightness."""

    p: float
    brightness_fraction: float
    contrast_fraction: float
    draws = 2
    pointwise = True
    neutral = (1.0, 0.0)

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 2): factor, and offset in 1/255."""
        factor = 1 + symmetric(u[:, 0], self.contrast_fraction)
        offset = symmetric(u[:, 1], self.brightness_fraction) * 255
        return np.stack([factor, offset], axis=1).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Apply by albumentations' look-up table."""
        factor, offset = (float(value) for value in values)
        return by_kernel(self._kernel, image, alpha=factor, beta=offset)

    @cached_property
    def _kernel(self) -> Any:
        from albumentations import RandomBrightnessContrast

        return RandomBrightnessContrast(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Apply by broadcasting."""
        return images.mul_(values[:, 0, None, None, None]).add_(values[:, 1, None, None, None])

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Apply by brightness_contrast, whose contrast turns about 0 here."""
        from nvidia.dali import fn

        return fn.brightness_contrast(
            images,
            contrast=_scalar(values, 0),
            brightness_shift=_scalar(values, 1) / 255.0,
            contrast_center=0.0,
        )


# Luma and the two chroma axes of RGB, as NTSC defines them and DALI rounds them.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])


@dataclass(frozen=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue: one linear map of each pixel.

    Saturation scales the two chroma axes of YIQ, hue turns them; contrast turns about mid grey,
    128. torchvision turns hue in HSV, which is not linear, and applies the four in random order.
    """

    p: float
    brightness_fraction: float
    contrast_fraction: float
    saturation_fraction: float
    hue_degrees: float
    draws = 4
    pointwise = True
    neutral = (1.0, 1.0, 1.0, 0.0)

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Return (B, 4): factors of brightness, contrast and saturation, hue in degrees."""
        fractions = (self.brightness_fraction, self.contrast_fraction, self.saturation_fraction)
        factors = [1 + symmetric(u[:, i], fraction) for i, fraction in enumerate(fractions)]
        return np.stack([*factors, symmetric(u[:, 3], self.hue_degrees)], axis=1).astype(np.float32)

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Apply by albumentations' linear map of the channels; grey, by its look-up table."""
        (matrix,) = _matrices(values[None].astype(np.float64))
        if image.shape[2] == 1:
            factor, offset = matrix[0, :3].sum(), matrix[0, 3]
            return by_kernel(self._grey_kernel, image, alpha=factor, beta=offset)
        from albumentations.augmentations.pixel.functional import linear_transformation_rgb

        mapped: NDArray[np.uint8] = linear_transformation_rgb(image, matrix)
        return mapped

    @cached_property
    def _grey_kernel(self) -> Any:
        from albumentations import RandomBrightnessContrast

        return RandomBrightnessContrast(p=1)

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Apply by one matrix product."""
        matrices = torch.from_numpy(_matrices(values.cpu().double().numpy())).to(images)
        if images.shape[1] == 1:
            matrices = torch.stack([matrices[:, :1, :3].sum(dim=2), matrices[:, :1, 3]], dim=2)
        by_pixel = images.permute(0, 2, 3, 1)  # (B, H, W, C), as it lies in memory
        offset, colour = matrices[:, None, :, -1], matrices[:, :, :-1].mT
        mapped = torch.baddbmm(offset, by_pixel.flatten(1, 2), colour)
        return mapped.view_as(by_pixel).permute(0, 3, 1, 2)

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Apply by color_twist; grey, by brightness_contrast."""
        from nvidia.dali import fn

        brightness, contrast, saturation, hue = (_scalar(values, i) for i in range(4))
        light = {"brightness": brightness, "contrast": contrast}
        if channels == 1:
            return fn.brightness_contrast(images, contrast_center=128.0, **light)
        return fn.color_twist(images, saturation=saturation, hue=hue, **light)


def _matrices(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (B, 3, 4): for each row of ColorJitter's values, the map of (R, G, B, 1).

    Source: NVIDIA DALI, operator color_twist, whose arithmetic this is.
    """
    brightness, contrast, saturation, degrees = values.T
    cos, sin = saturation * np.cos(np.deg2rad(degrees)), saturation * np.sin(np.deg2rad(degrees))
    chroma = np.zeros((len(values), 3, 3))
    chroma[:, 0, 0] = 1
    chroma[:, 1, 1] = chroma[:, 2, 2] = cos
    chroma[:, 1, 2], chroma[:, 2, 1] = sin, -sin
    colour = (brightness * contrast)[:, None, None] * (np.linalg.inv(_YIQ) @ chroma @ _YIQ)
    offset = 128 * (1 - contrast) * brightness
    return np.concatenate([colour, np.repeat(offset[:, None, None], 3, axis=1)], axis=2)


def _scalar(values: Node, position: int) -> Node:
    """Return one of an image's parameters, as DALI's arguments want it."""
    from nvidia.dali import fn

    return fn.reshape(fn.slice(values, start=position, shape=1, axes=[0]), shape=[])


def _like(images: Node, values: Node) -> Node:
    """Return values where the images are: arithmetic does not cross from CPU to GPU."""
    return values.gpu() if images.device == "gpu" else values


def _rounded(images: Node) -> Node:
    """Return float images as uint8, saturated."""
    from nvidia.dali import fn, types

    return fn.cast(images, dtype=types.UINT8)
