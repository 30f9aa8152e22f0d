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
    """Return loaders over uint8 tensors on the device, or in host memory beside a full one.

    From there each batch goes by way of pinned memory.

    Raises:
        UsageError: the set takes more than memory_fraction of the free memory of either.
    """
    needed = sum(split.read_bytes for split in data.splits.values())
    allowed = {
        home: memory_fraction * free_bytes(home)
        for home in dict.fromkeys([device, torch.device("cpu")])
    }
    home = next((place for place, room in allowed.items() if needed <= room), None)
    if home is None:
        room = " and ".join(f"{mib(room)} on {place}" for place, room in allowed.items())
        raise UsageError(
            f"loader=device needs {mib(needed)} for the set, and loader.memory_fraction="
            f"{memory_fraction} of the free memory allows {room}; try loader=albumentations"
        )
    batches = {
        name: Batches(
            order,
            _Engine(data.splits[name], policy if name == "train" else none(), seed, home, device),
        )
        for name, order in orders(data, seed, batch_size, drop_last).items()
    }
    where = (
        f"on {device}"
        if home == device
        else f"in host memory, each batch pinned on its way to {device}"
    )
    return Loaders(**batches, description=f"{mib(needed)} of images {where}")


def mib(size: float) -> str:
    """Return a size in bytes for people."""
    return f"{size / 2**20:,.0f} MiB"


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a CUDA device or, for the CPU, of the host."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_host_bytes()


class _Engine:
    """Cut batches from tensors at home, augment on the device; they are made at the first batch."""

    def __init__(
        self, split: Split, policy: Policy, seed: int, home: torch.device, device: torch.device
    ) -> None:
        self._split, self._policy, self._seed = split, policy, seed
        self._home, self._device = home, device
        self._images: torch.Tensor | None = None

    def __call__(self, order: Order) -> Iterator[Batch]:
        if not len(self._split):
            return
        if self._images is None:
            stacked = np.stack([self._split.read(i) for i in range(len(self._split))])
            self._images = torch.from_numpy(stacked).to(self._home)
            self._labels = torch.from_numpy(self._split.labels).to(self._device)
        for epoch, positions, numbers in order:
            indices = torch.from_numpy(positions).to(self._device)
            drawn = self._policy.draw(self._seed, epoch, numbers, self._split.size)
            cut = self._images[indices.to(self._home)]
            if self._home != self._device:  # pinned, the copy goes on while the host does
                cut = cut.pin_memory().to(self._device, non_blocking=True)
            images = self._policy.on_batch(cut.permute(0, 3, 1, 2), drawn)
            yield Batch(images, self._labels[indices], indices)

    def close(self) -> None:
        """Free the images."""
        self._images = None
