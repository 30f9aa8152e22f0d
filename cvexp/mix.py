"""Stage mix: two images of a batch become one, and so do their labels; drawn by step.

Shapes: B images, K classes. Images are (B, C, H, W) normalised floats. Each image of a batch is
mixed with the one `shift` places on, never with itself, so that odd batches are as good as even
ones; a batch of one is left alone. The share is one for the whole batch, as in both sources.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import nn

from cvexp.randomness import Stream, uniforms

Alpha = Annotated[float, Gt(0)]
Probability = Annotated[float, Ge(0), Le(1)]


class Draw(NamedTuple):
    """What a step draws: five numbers in (0, 1)."""

    applies: float
    share: float
    partner: float
    x: float
    y: float

    @classmethod
    def at(cls, seed: int, epoch: int, batch: int) -> "Draw":
        """Return the draw of one step: a pure function of its coordinates."""
        return cls(*uniforms(seed, Stream.MIX, epoch, np.array([batch]), 5)[0].tolist())


# Images, (B,) labels, K and the step's draw -> images, and (B,) labels or (B, K) shares.
Mix = Callable[[torch.Tensor, torch.Tensor, int, Draw], tuple[torch.Tensor, torch.Tensor]]


def none() -> Mix:
    """Mix nothing."""
    return keep


def keep(
    images: torch.Tensor, labels: torch.Tensor, classes: int, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels as they are."""
    return images, labels


def mixup(*, alpha: Alpha, p: Probability) -> Mix:
    """Average two images, in shares of Beta(alpha, alpha).

    Source: Zhang et al. 2017, arXiv 1710.09412.
    """

    def mix(
        images: torch.Tensor, labels: torch.Tensor, classes: int, draw: Draw
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if draw.applies >= p or len(images) == 1:
            return images, labels
        share, shift = _share(alpha, draw), _shift(len(images), draw)
        mixed = torch.lerp(images.roll(shift, 0), images, share)
        return mixed, _targets(labels, shift, classes, share)

    return mix


def cutmix(*, alpha: Alpha, p: Probability) -> Mix:
    """Paste a rectangle of one image into another; labels are shared by area as it came out.

    Source: Yun et al. 2019, arXiv 1905.04899: the area is drawn from Beta(alpha, alpha), its centre
    anywhere, and what lies outside the image is cut off.
    """

    def mix(
        images: torch.Tensor, labels: torch.Tensor, classes: int, draw: Draw
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if draw.applies >= p or len(images) == 1:
            return images, labels
        height, width = images.shape[-2:]
        side, shift = (1 - _share(alpha, draw)) ** 0.5, _shift(len(images), draw)
        top, bottom = _span(draw.y, side, height)
        left, right = _span(draw.x, side, width)
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images.roll(shift, 0)[..., top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed, _targets(labels, shift, classes, share)

    return mix


def _share(alpha: float, draw: Draw) -> float:
    """Return the share that an image keeps, from Beta(alpha, alpha)."""
    from scipy.special import betaincinv

    return float(betaincinv(alpha, alpha, draw.share))


def _shift(images: int, draw: Draw) -> int:
    """Return how far an image's partner is, from 1 to images - 1."""
    return 1 + int(draw.partner * (images - 1))


def _span(centre: float, side: float, length: int) -> tuple[int, int]:
    """Return the pixels that a side, as a fraction of length, covers about a centre, clipped."""
    middle, half = centre * length, side * length / 2
    return max(round(middle - half), 0), min(round(middle + half), length)


def _targets(labels: torch.Tensor, shift: int, classes: int, share: float) -> torch.Tensor:
    """Return (B, K): each class's share of an image."""
    own = nn.functional.one_hot(labels, classes).float()
    return torch.lerp(own.roll(shift, 0), own, share)
