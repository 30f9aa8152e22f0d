"""loader=albumentations: one image at a time, in the main process or in workers."""

from collections.abc import Iterator
from typing import Annotated, Any

import cv2
import numpy as np
import torch
from annotated_types import Ge, Gt
from torch.utils.data import DataLoader, Dataset

from cvexp.augmentation import Policy, none
from cvexp.data import Data, Split
from cvexp.loader.batches import Batch, Batches, BatchSize, Key, Loaders, Order, Prefetch, orders


def albumentations(
    data: Data,
    policy: Policy,
    seed: int,
    device: torch.device,
    /,
    *,
    batch_size: BatchSize,
    num_workers: Annotated[int, Ge(0)],
    prefetch_batches: Prefetch,
    timeout_s: Annotated[float, Gt(0)],
    drop_last: bool,
) -> Loaders:
    """Return loaders that augment each image on its own with albumentations' kernels."""
    _one_thread()
    batches = {
        name: Batches(
            order,
            _Engine(
                _Images(data.splits[name], policy if name == "train" else none(), seed),
                num_workers,
                prefetch_batches,
                timeout_s,
                pin_memory=device.type == "cuda",
            ),
        )
        for name, order in orders(data, seed, batch_size, drop_last).items()
    }
    where = f"{num_workers} workers" if num_workers else "the main process"
    return Loaders(**batches, description=f"albumentations in {where}")


def _one_thread(worker: int = 0) -> None:
    """Switch off OpenCV's own thread pool: it burns a second core for no gain."""
    cv2.setNumThreads(0)


class _Images(Dataset[Batch]):
    """A split whose items are whole batches: one draw of parameters for all of a batch's images."""

    def __init__(self, split: Split, policy: Policy, seed: int) -> None:
        self._split, self._policy, self._seed = split, policy, seed

    def __getitem__(self, key: Key) -> Batch:
        drawn = self._policy.draw(self._seed, key.epoch, key.draws, self._split.size)
        images = np.stack(
            [
                self._policy.on_image(self._split.read(int(index)), drawn, position)
                for position, index in enumerate(key.indices)
            ]
        )
        return Batch(
            torch.from_numpy(images).permute(0, 3, 1, 2),  # channels_last in memory
            torch.from_numpy(self._split.labels[key.indices]),
            torch.from_numpy(key.indices),
        )


class _Engine:
    """Walk an order with torch's DataLoader; its workers, once started, serve every epoch."""

    def __init__(
        self,
        images: _Images,
        num_workers: int,
        prefetch_batches: int,
        timeout_s: float,
        *,
        pin_memory: bool,
    ) -> None:
        self._images, self._num_workers, self._pin_memory = images, num_workers, pin_memory
        self._prefetch_batches, self._timeout_s = prefetch_batches, timeout_s
        self._loader: DataLoader[Batch] | None = None

    def __call__(self, order: Order) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = DataLoader(
                self._images,
                sampler=order,
                batch_size=None,
                num_workers=self._num_workers,
                persistent_workers=self._num_workers > 0,
                prefetch_factor=self._prefetch_batches if self._num_workers else None,
                timeout=self._timeout_s if self._num_workers else 0,
                pin_memory=self._pin_memory,
                worker_init_fn=_one_thread,
                generator=torch.Generator(),  # or each epoch would draw from the global one
            )
        try:
            yield from self._loader
        except RuntimeError as error:
            raise RuntimeError(self._cause(str(error))) from error

    def _cause(self, reason: str) -> str:
        """Return what befell the workers as one line; torch says it in many."""
        if "timed out" in reason:
            return (
                f"the workers gave no batch within loader.timeout_s={self._timeout_s:g} seconds: "
                "one hangs, or is slower than that"
            )
        if "worker (pid" in reason:
            fewer = f"if memory ran out, take less than loader.num_workers={self._num_workers}"
            return f"{reason.strip()} {fewer}"
        return reason.strip().splitlines()[-1]  # of a traceback: the error itself

    def close(self) -> None:
        """Stop the workers: left to the garbage collector, each takes five seconds to notice."""
        iterator: Any = self._loader and self._loader._iterator  # torch has no public way
        if iterator is not None and self._num_workers:
            iterator._shutdown_workers()
            for worker in iterator._workers:  # one that hangs outlives that, and the run with it
                worker.kill()
        self._loader = None
