"""Stage mix: two images of a batch become one, and so do their labels; drawn by optimizer step.

Shapes: B images, K classes. Images are (B, C, H, W) normalised floats. Neighbours are mixed with
each other (the order is shuffled, so they are a random pair); the last of an odd batch with the one
before it; a batch of one is left alone. The share is one for all images of a step, as in both
sources. So the batches of an accumulated step mix as one large batch would, if they are even.
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
    """What a step draws: four numbers in (0, 1)."""

    applies: float
    share: float
    x: float
    y: float

    @classmethod
    def at(cls, seed: int, epoch: int, step: int) -> "Draw":
        """Return the draw of one step of an epoch: a pure function of its coordinates."""
        return cls(*uniforms(seed, Stream.MIX, epoch, np.array([step]), 4)[0].tolist())


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
        share, partners = _share(alpha, draw), _partners(labels)
        mixed = torch.lerp(images[partners], images, share)
        return mixed, _targets(labels, partners, classes, share)

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
        side, partners = (1 - _share(alpha, draw)) ** 0.5, _partners(labels)
        top, bottom = _span(draw.y, side, height)
        left, right = _span(draw.x, side, width)
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images[partners, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed, _targets(labels, partners, classes, share)

    return mix


def _share(alpha: float, draw: Draw) -> float:
    """Return the share that an image keeps, from Beta(alpha, alpha)."""
    from scipy.special import betaincinv

    return float(betaincinv(alpha, alpha, draw.share))


def _partners(labels: torch.Tensor) -> torch.Tensor:
    """Return (B,) each image's partner, B at least 2."""
    partners = torch.arange(len(labels), device=labels.device) ^ 1
    if len(labels) % 2:
        partners[-1] = len(labels) - 2
    return partners


def _span(centre: float, side: float, length: int) -> tuple[int, int]:
    """Return the pixels that a side, as a fraction of length, covers about a centre, clipped."""
    middle, half = centre * length, side * length / 2
    return max(round(middle - half), 0), min(round(middle + half), length)


def _targets(
    labels: torch.Tensor, partners: torch.Tensor, classes: int, share: float
) -> torch.Tensor:
    """Return (B, K): each class's share of an image."""
    own = nn.functional.one_hot(labels, classes).float()
    return torch.lerp(own[partners], own, share)
