"""A policy draws parameters; the types that conf/augmentation may give it."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from cvexp.augmentation.operation import Node, Operation, Parameters
from cvexp.randomness import Stream, uniforms

Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Area = Annotated[float, Gt(0), Le(1)]
Aspect = Annotated[float, Ge(1), Le(20)]


class _Options(TypedDict):
    p: Probability


class AffineOptions(_Options):
    """Translation and zoom as image fractions, rotation in degrees; each from +- its value."""

    translate_fraction: Fraction
    scale_fraction: Fraction
    rotate_degrees: Annotated[float, Ge(0), Le(180)]


class RgbShiftOptions(_Options):
    """One shift a channel, drawn from +- limit, in 1/255."""

    limit: Annotated[float, Ge(0), Le(255)]


class BrightnessContrastOptions(_Options):
    """Contrast multiplies by 1 +- its fraction, brightness then adds +- its fraction of 255."""

    brightness_fraction: Fraction
    contrast_fraction: Fraction


class FlipOptions(_Options):
    """A mirror image, left to right."""


class CropOptions(_Options):
    """Black padding on each side as a fraction of the image, then a crop to the image's size."""

    padding_fraction: Fraction


class ResizedCropOptions(_Options):
    """The window's area as a fraction of the image, up to all of it; width : height up to a : 1."""

    min_area_fraction: Area
    max_aspect_ratio: Aspect


class ColorJitterOptions(_Options):
    """Factors of 1 +- each fraction; hue turns by +- degrees."""

    brightness_fraction: Fraction
    contrast_fraction: Fraction
    saturation_fraction: Fraction
    hue_degrees: Annotated[float, Ge(0), Le(180)]


class ErasingOptions(_Options):
    """The rectangle's area as a fraction of the image, its shape, and what fills it, in 1/255."""

    min_area_fraction: Area
    max_area_fraction: Area
    max_aspect_ratio: Aspect
    fill: Annotated[float, Ge(0), Le(255)]


class Policy:
    """Operations in order, with their parameters as a pure function of (seed, epoch, index)."""

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations

    def __str__(self) -> str:
        named = [f"{type(operation).__name__} (p={operation.p:g})" for operation in self.operations]
        return ", ".join(named) or "none"

    def draw(
        self, seed: int, epoch: int, indices: NDArray[np.int64], size: int
    ) -> list[Parameters]:
        """Return, for each operation, its parameters for B images of (size, size) pixels."""
        drawn, start = [], 0
        count = sum(operation.draws + 1 for operation in self.operations)
        u = uniforms(seed, Stream.AUGMENTATION, epoch, indices, count)
        for operation in self.operations:
            stop = start + 1 + operation.draws  # one number says whether, the others how much
            values = operation.draw(u[:, start + 1 : stop], size)
            drawn.append(Parameters(u[:, start] < operation.p, values))
            start = stop
        return drawn

    def on_image(
        self, image: NDArray[np.uint8], drawn: Sequence[Parameters], position: int
    ) -> NDArray[np.uint8]:
        """Augment one (H, W, 3) image by albumentations' kernels, with parameter row `position`."""
        for operation, parameters in zip(self.operations, drawn, strict=True):
            if parameters.applied[position]:
                image = operation.on_image(image, parameters.values[position])
        return image

    def on_batch(self, images: torch.Tensor, drawn: Sequence[Parameters]) -> torch.Tensor:
        """Augment (B, 3, H, W) uint8 images in torch, each by its row; round once, at the end."""
        if not self.operations:
            return images
        out = images.float()
        for operation, (applied, values), everywhere in zip(
            self.operations, drawn, self.settings(drawn), strict=True
        ):
            if operation.pointwise:
                out = operation.on_batch(out, torch.from_numpy(everywhere).to(out.device))
                out.clamp_(0, 255)
            elif applied.any():
                chosen = torch.from_numpy(np.flatnonzero(applied)).to(out.device)
                cut = torch.from_numpy(values[applied]).to(out.device)
                out[chosen] = operation.on_batch(out[chosen], cut).clamp_(0, 255)
        return out.round_().to(torch.int16).to(torch.uint8)  # in two steps: a third of the time

    def in_dali(self, images: Node, values: Sequence[Node], channels: int) -> Node:
        """Add the operators to a DALI pipeline; each takes what `settings` gives for it."""
        for operation, node in zip(self.operations, values, strict=True):
            images = operation.in_dali(images, node, channels)
        return images

    def settings(self, drawn: Sequence[Parameters]) -> list[NDArray[np.float32]]:
        """Return (B, K) for each operation: what was drawn, or what leaves an image as it is."""
        return [
            np.where(applied[:, None], values, np.array(operation.neutral, np.float32)).copy("C")
            for operation, (applied, values) in zip(self.operations, drawn, strict=True)
        ]
