"""What an operation is, to a policy and to the engines.

Shapes: B images, H = W = size, C = 1 or 3 channels, K parameters. Images in torch are (B, C, H, W)
float32 in [0, 255]; in numpy (H, W, C) uint8; in DALI batches of (H, W, C) uint8. Coordinates are
continuous pixels: the centre of pixel i lies at i + 0.5. OpenCV puts it at i, torch's
grid_sample(align_corners=False) and DALI at i + 0.5; each kernel converts.
"""

import os
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or its import asks the network

Node = Any  # nvidia.dali.pipeline.DataNode, in a pipeline that is being defined


class Parameters(NamedTuple):
    """What was drawn for one operation: (B,) whether it applies, (B, K) its values."""

    applied: NDArray[np.bool_]
    values: NDArray[np.float32]


class Operation(Protocol):
    """One operation of a policy: how its parameters are drawn, and its kernel in each engine."""

    @property
    def p(self) -> float:
        """Return the probability that an image gets it."""

    @property
    def draws(self) -> int:
        """Return how many uniform numbers an image needs."""

    @property
    def pointwise(self) -> bool:
        """Return whether a batch gets it whole, neutral where it is not drawn."""

    @property
    def neutral(self) -> tuple[float, ...]:
        """Return the K parameters that leave an image as it is."""

    def draw(self, u: NDArray[np.float64], size: int) -> NDArray[np.float32]:
        """Turn (B, draws) uniform numbers into (B, K) parameters."""

    def on_image(self, image: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Apply (K,) parameters to one image by albumentations."""

    def on_batch(self, images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Apply (B, K) parameters to B images in torch, in place or not."""

    def in_dali(self, images: Node, values: Node, channels: int) -> Node:
        """Add DALI's operator, with K parameters an image, to a pipeline."""


def by_kernel(kernel: Any, image: NDArray[np.uint8], **parameters: Any) -> NDArray[np.uint8]:
    """Apply one of albumentations' transforms, which are untyped, with explicit parameters."""
    result: NDArray[np.uint8] = kernel.apply(image, **parameters)
    return result


def spread(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return (B, C) values as (B, C, 1, W), to be broadcast over images.

    Images lie channels last: an inner loop over a row of W * C numbers is three times faster on a
    CPU than one over C.
    """
    wide = values[:, :, None, None].expand(-1, -1, 1, images.shape[-1])
    return wide.contiguous(memory_format=torch.channels_last)


def symmetric(u: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Spread (0, 1) over (-limit, limit)."""
    return (2 * u - 1) * limit


def log_symmetric(u: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Spread (0, 1) over (1 / limit, limit), evenly in the logarithm."""
    return np.asarray(limit ** (2 * u - 1), np.float64)
