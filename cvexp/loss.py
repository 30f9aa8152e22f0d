"""Stage loss: what training minimises, one number an image.

Shapes: B images, K classes. Targets are (B,) int64 classes, or (B, K) float shares of an image that
is mixed from two. Evaluation has its own, plain cross-entropy, so that runs compare.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import nn

# (B, K) float32 logits, targets, (K,) class weights or None -> (B,) losses.
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def cross_entropy(*, label_smoothing: Annotated[float, Ge(0), Lt(1)]) -> Loss:
    """Return the cross-entropy against targets of which every class gets a small, equal share.

    Source: Szegedy et al. 2015, arXiv 1512.00567, section 7 (label smoothing).
    """

    def loss(
        logits: torch.Tensor, targets: torch.Tensor, class_weights: torch.Tensor | None
    ) -> torch.Tensor:
        return nn.functional.cross_entropy(
            logits, targets, class_weights, reduction="none", label_smoothing=label_smoothing
        )

    return loss
