"""Metrics as sums on the device, read when somebody asks: a metric object costs 2 ms a step.

Shapes: B images, K classes.
"""

import torch
from torch import nn


class Tally:
    """Sums over images, kept on the device until read: loss, correct answers, images."""

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count one batch: its mean loss, (B, K) logits, (B,) labels."""
        correct = (logits.argmax(dim=1) == labels).sum()
        sums = torch.stack([loss.detach().float() * len(labels), correct.float()])
        images = sums.new_full((1,), float(len(labels)))
        sums = torch.cat([sums, images])
        self._sums = sums if self._sums is None else self._sums + sums

    def read(self) -> tuple[float, float, float]:
        """Return the sums of loss, correct answers and images; only this waits for the device."""
        if self._sums is None:
            return 0.0, 0.0, 0.0
        loss, correct, images = self._sums.tolist()
        return loss, correct, images

    def reset(self) -> None:
        """Begin anew."""
        self._sums = None


class Confusion:
    """How often class i was answered as class j, kept on the device until read."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count one batch: (B, K) logits, (B,) labels."""
        classes = logits.shape[1]
        truth = nn.functional.one_hot(labels, classes).float()
        answer = nn.functional.one_hot(logits.argmax(dim=1), classes).float()
        with torch.autocast(labels.device.type, enabled=False):  # it would round counts to bfloat16
            counts = (truth.T @ answer).double()  # deterministic, unlike bincount
        self._counts = counts if self._counts is None else self._counts + counts

    def read(self) -> torch.Tensor:
        """Return (K, K) counts, truth by answer; only this waits for the device."""
        assert self._counts is not None
        return self._counts.cpu()

    def reset(self) -> None:
        """Begin anew."""
        self._counts = None


class Evaluation:
    """What one pass over a split comes to: plain cross-entropy and counts by class."""

    def __init__(self) -> None:
        self._tally, self._confusion = Tally(), Confusion()

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count one batch: (B, K) logits, (B,) labels."""
        loss = nn.functional.cross_entropy(at_least_float32(logits), labels)
        self._tally.add(loss, logits, labels)
        self._confusion.add(logits, labels)

    def read(self) -> dict[str, float]:
        """Return the metrics by their names within a split; this waits for the device."""
        loss, correct, images = self._tally.read()
        by_name = {"loss": loss / images, "accuracy": correct / images}
        return {**by_name, **by_class(self._confusion.read())}

    def recall(self) -> list[float | None]:
        """Return the recall of each class."""
        return recall(self._confusion.read())

    def reset(self) -> None:
        """Begin anew."""
        self._tally.reset()
        self._confusion.reset()


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return what losses and averages are computed of: half precision is not enough for them."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def means(prefix: str, sums: tuple[float, float, float]) -> dict[str, float]:
    """Return mean loss and accuracy (micro: correct / images) under their names."""
    loss, correct, images = sums
    return {f"{prefix}/loss": loss / images, f"{prefix}/accuracy": correct / images}


def by_class(counts: torch.Tensor) -> dict[str, float]:
    """Return balanced accuracy and macro F1 under their names, as scikit-learn defines them.

    Balanced accuracy is the mean recall over the classes that have images; macro F1 the mean over
    those that have images or were answered.
    """
    hits, truth, answers = counts.diag(), counts.sum(dim=1), counts.sum(dim=0)
    f1 = 2 * hits / (truth + answers)
    return {
        "balanced_accuracy": float((hits / truth)[truth > 0].mean()),
        "macro_f1": float(f1[truth + answers > 0].mean()),
    }


def recall(counts: torch.Tensor) -> list[float | None]:
    """Return the recall of each of K classes; None (not applicable) where it has no image."""
    hits, truth = counts.diag().tolist(), counts.sum(dim=1).tolist()
    return [hit / true if true else None for hit, true in zip(hits, truth, strict=True)]
