"""Features of a frozen trunk, computed once: what is left to train is the head.

Shapes: N images of a split, V views of each, F features.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from cvexp.config import UsageError
from cvexp.freeze import Caching
from cvexp.loader import Batch, Batches, Loaders, Order
from cvexp.loader.resident import free_bytes, mib
from cvexp.module import Classifier


def cache(
    loaders: Loaders,
    module: Classifier,
    caching: Caching,
    context: AbstractContextManager[Any],
) -> tuple[Loaders, dict[str, Any]]:
    """Run the trunk once over each split, and return loaders over what it gave.

    View v of a training image is its augmentation in epoch v; epoch e shows view e modulo V. So the
    first V epochs see what they would see without a cache. The loaders given are closed.

    Args:
        module: on its device, in its precision.
        context: what the precision wraps around a forward pass.

    Returns:
        The loaders, and for the record what was cached, its bytes and its seconds.

    Raises:
        UsageError: the trunk is random in training, what follows the head is not the logits, or
            the features do not fit into memory.
    """
    begun = time.perf_counter()
    splits = {"train": loaders.train, "val": loaders.val, "test": loaders.test}
    views = {split: caching.views if split == "train" else 1 for split in splits}
    with context, torch.no_grad():
        first = next(iter(_batches(loaders.train, 0)))
        _check(module, first, sum(views[name] * splits[name].order.length for name in splits))
        cached = {
            split: _Features(
                torch.stack([_walk(module, batches, view) for view in range(views[split])]),
                torch.cat([batch.labels for batch in _batches(batches, 0)]),
            )
            for split, batches in splits.items()
            if batches.order.length
        }
    loaders.close()
    module.takes_features = True
    nn.Module.train(module)  # all of it, as Lightning expects a module before the fit
    size = sum(features.bytes for features in cached.values())
    report = {
        "splits": {split: list(features.features.shape) for split, features in cached.items()},
        "dtype": str(cached["train"].features.dtype).removeprefix("torch."),
        "bytes": size,
        "seconds": time.perf_counter() - begun,
    }
    swapped = {
        split: Batches(batches.order, cached[split]) if split in cached else batches
        for split, batches in splits.items()
    }
    description = f"{mib(size)} of features on {module.device}"
    return Loaders(**swapped, description=description), report


class _Features:
    """An engine over cached features, in place of images."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self.features, self._labels = features, labels  # (V, N, F), (N,)

    def __call__(self, order: Order) -> Iterator[Batch]:
        views, length = self.features.shape[:2]
        for epoch, positions, draws in order:
            indices = torch.from_numpy(positions).to(self.features.device)
            # What a sampler shows again in one epoch is the next view.
            view = torch.from_numpy((epoch + draws // length) % views).to(indices.device)
            yield Batch(self.features[view, indices], self._labels[indices], indices)

    @property
    def bytes(self) -> int:
        return self.features.numel() * self.features.element_size()

    def close(self) -> None:
        """Hold on: the features serve validation and test after the fit."""


def _batches(batches: Batches, view: int) -> Batches:
    """Return a split's images as stored, under the augmentation of one epoch."""
    order = Order(batches.order.length, batches.order.batch_size)
    order.set_epoch(view)
    return Batches(order, batches.engine)


def _walk(module: Classifier, batches: Batches, view: int) -> torch.Tensor:
    """Return (N, F): what the head would see of each image."""
    found = []
    for batch in _batches(batches, view):
        found.append(_tap(module, batch.images.to(module.device))[0])
    return torch.cat(found)


def _tap(module: Classifier, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the head sees of images, and the logits."""
    seen: list[torch.Tensor] = []

    def look(_: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        seen.append(inputs[0])

    handle = module.head.register_forward_pre_hook(look)
    try:
        logits = module(images)
    finally:
        handle.remove()
    return seen[-1], logits


def _check(module: Classifier, batch: Batch, needed_images: int) -> None:
    """Hold the network to what a cache takes for granted."""
    images = batch.images.to(module.device)
    features, logits = _tap(module.eval(), images)
    if not torch.equal(module.head(features), logits):
        raise UsageError(
            "freeze.cache_features=true: this network does more after its head than give logits; "
            "type freeze.cache_features=false"
        )
    module.train()  # what is frozen stays in eval mode
    for seed in (0, 1):
        torch.manual_seed(seed)
        if not torch.equal(_tap(module, images)[0], features):
            raise UsageError(
                "freeze.cache_features=true: in training, what the head sees is random (dropout); "
                "type model.dropout=0.0 where the model has that key, or "
                "freeze.cache_features=false"
            )
    module.eval()
    needed = needed_images * features[0].numel() * features.element_size()
    if needed > (free := free_bytes(module.device)) / 2:
        raise UsageError(
            f"freeze.cache_features=true needs {mib(needed)} for the features, more than half of "
            f"the {mib(free)} that are free on {module.device}; type freeze.cache_features=false"
        )
