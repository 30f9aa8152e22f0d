"""loader=device: the whole set on the device, cut and augmented there a batch at a time."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Le

from cvexp.augmentation import Policy, none
from cvexp.config import UsageError
from cvexp.data import Data, Split
from cvexp.data.store import free_host_bytes
from cvexp.loader.batches import Batch, Batches, BatchSize, Loaders, Order, orders


def device(
    data: Data,
    policy: Policy,
    seed: int,
    device: torch.device,
    /,
    *,
    batch_size: BatchSize,
    drop_last: bool,
    memory_fraction: Annotated[float, Gt(0), Le(1)],
) -> Loaders:
    """Return loaders over uint8 tensors that live on the device.

    Raises:
        UsageError: the set takes more than memory_fraction of the device's free memory.
    """
    needed = sum(split.read_bytes for split in data.splits.values())
    free = free_bytes(device)
    if needed > memory_fraction * free:
        raise UsageError(
            f"loader=device needs {needed / 2**20:,.0f} MiB for the set, loader.memory_fraction="
            f"{memory_fraction} allows {memory_fraction * free / 2**20:,.0f} MiB of the device's "
            "free memory; try loader=albumentations"
        )
    batches = {
        name: Batches(
            order,
            _Engine(data.splits[name], policy if name == "train" else none(), seed, device),
        )
        for name, order in orders(data, seed, batch_size, drop_last).items()
    }
    return Loaders(**batches, description=f"{needed / 2**20:,.0f} MiB of images on {device}")


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a CUDA device or, for the CPU, of the host."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_host_bytes()


class _Engine:
    """Cut batches from tensors on the device; the tensors are made at the first batch."""

    def __init__(self, split: Split, policy: Policy, seed: int, device: torch.device) -> None:
        self._split, self._policy, self._seed, self._device = split, policy, seed, device
        self._images: torch.Tensor | None = None

    def __call__(self, order: Order) -> Iterator[Batch]:
        if self._images is None:
            stacked = np.stack([self._split.read(i) for i in range(len(self._split))])
            self._images = torch.from_numpy(stacked).to(self._device)
            self._labels = torch.from_numpy(self._split.labels).to(self._device)
        for epoch, positions, numbers in order:
            indices = torch.from_numpy(positions).to(self._device)
            drawn = self._policy.draw(self._seed, epoch, numbers, self._split.size)
            images = self._images[indices].permute(0, 3, 1, 2)
            yield Batch(self._policy.on_batch(images, drawn), self._labels[indices], indices)

    def close(self) -> None:
        """Free the images."""
        self._images = None
