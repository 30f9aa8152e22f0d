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
Smoothing = Annotated[float, Ge(0), Lt(1)]


def cross_entropy(*, label_smoothing: Smoothing) -> Loss:
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


def bce(*, label_smoothing: Smoothing) -> Loss:
    """Return the binary cross-entropy of each class against its target, averaged over classes.

    Source: Wightman et al. 2021, arXiv 2110.00476, section 2.3 (targets may exceed 1 in sum).
    """

    def loss(
        logits: torch.Tensor, targets: torch.Tensor, class_weights: torch.Tensor | None
    ) -> torch.Tensor:
        shares = _shares(targets, logits, label_smoothing)
        by_class = nn.functional.binary_cross_entropy_with_logits(logits, shares, reduction="none")
        losses = by_class.mean(dim=1)
        if class_weights is None:
            return losses
        # Of an image's class, or of its classes by share: a class weighs where it is right.
        return losses * (class_weights[targets] if targets.dim() == 1 else targets @ class_weights)

    return loss


def focal(*, gamma: Annotated[float, Ge(0)], label_smoothing: Smoothing) -> Loss:
    """Return the cross-entropy with what is already answered well weighed down.

    Each class's term counts (1 - p) to the power of gamma, p the probability that it was given.

    Source: Lin et al. 2017, arXiv 1708.02002, section 3.2, with the softmax over all classes.
    """

    def loss(
        logits: torch.Tensor, targets: torch.Tensor, class_weights: torch.Tensor | None
    ) -> torch.Tensor:
        shares = _shares(targets, logits, label_smoothing)
        logs = logits.log_softmax(dim=1)
        missed = (-torch.expm1(logs)).clamp(min=torch.finfo(logs.dtype).eps)  # 1 - p, above 0
        terms = -shares * missed**gamma * logs
        return (terms if class_weights is None else terms * class_weights).sum(dim=1)

    return loss


def _shares(targets: torch.Tensor, logits: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Return (B, K) shares, of which every class gets a small, equal part."""
    classes = logits.shape[1]
    shares = nn.functional.one_hot(targets, classes) if targets.dim() == 1 else targets
    return shares.to(logits.dtype) * (1 - label_smoothing) + label_smoothing / classes
