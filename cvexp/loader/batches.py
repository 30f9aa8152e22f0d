"""What all engines share: the order of images, and the iterable that Lightning walks."""

import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple, Protocol

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import distributed

from cvexp.config import UsageError
from cvexp.data import Data
from cvexp.randomness import balanced, permutation

BatchSize = Annotated[int, Ge(1)]
Prefetch = Annotated[int, Ge(1)]


class Batch(NamedTuple):
    """B images: (B, 3, H, W) uint8, (B,) int64 labels, (B,) int64 positions in the split."""

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


class Key(NamedTuple):
    """What a batch is made of.

    Args:
        epoch: for the augmentation.
        indices: (B,) the images' positions in the split.
        draws: (B,) what stands for the image in the augmentation's draws: its position and, where
            the sampler shows it again in one epoch, another number, so that it looks different.
    """

    epoch: int
    indices: NDArray[np.int64]
    draws: NDArray[np.int64]


class Order:
    """The batches of a split: shuffled by (seed, epoch) for training, as stored for evaluation.

    Of R ranks, each takes its own part of every R * batch_size images. In training all have equally
    many batches: what is left at the end for fewer images than ranks is not seen. In evaluation
    every image is seen once.

    Args:
        batch_size: of one rank.
        labels: (N,) where each class is to be drawn equally often, with replacement; else None.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        labels: NDArray[np.int64] | None = None,
    ) -> None:
        self.length, self.batch_size = length, batch_size
        self._seed, self._drop_last, self._labels = seed, drop_last, labels
        self._epoch, self._pinned = 0, False
        self._start = 0

    def __len__(self) -> int:
        rank, ranks = _rank()
        whole, rest = divmod(self.length, ranks * self.batch_size)
        if self._seed is None:
            return whole + (_share(rest, rank + 1, ranks) > _share(rest, rank, ranks))
        return whole + (rest >= ranks and not self._drop_last)

    def __iter__(self) -> Iterator[Key]:
        epoch = self._epoch
        if self._seed is None:
            order = draws = np.arange(self.length)
        elif self._labels is None:
            order = draws = permutation(self._seed, epoch, self.length)
        else:
            order = balanced(self._seed, epoch, self._labels)
            draws = order + self.length * _occurrence(order)
        for number in range(self._start, len(self)):
            part = self._part(number)
            yield Key(epoch, order[part], draws[part])

    def _part(self, number: int) -> slice:
        """Return which positions of the epoch's order are this rank's batch `number`."""
        rank, ranks = _rank()
        start = number * ranks * self.batch_size
        count = min(self.length - start, ranks * self.batch_size)
        return slice(start + _share(count, rank, ranks), start + _share(count, rank + 1, ranks))

    def set_epoch(self, epoch: int) -> None:
        """Move to an epoch's first batch; Lightning calls it before each."""
        self._start = 0
        if not self._pinned:
            self._epoch = epoch

    def start_at(self, number: int) -> None:
        """Begin this epoch with batch `number`: those before it were trained on already."""
        self._start = number

    def pin(self) -> None:
        """Repeat the present epoch from now on: the same order, the same augmentation."""
        self._pinned = True

    def images_in(self, start: int, stop: int) -> int:
        """Return how many images batches start..stop of this rank hold."""
        if start >= stop:
            return 0
        last = len(range(self.length)[self._part(stop - 1)])
        return (stop - 1 - start) * self.batch_size + last

    @property
    def not_seen(self) -> int | None:
        """Return how many images of the split no batch of an epoch holds, on any rank.

        None where they are drawn with replacement: then chance decides, not a count.
        """
        if self._labels is not None:
            return None
        covered = len(self) * self.batch_size * _rank()[1]
        return max(self.length - covered, 0)


def _rank() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, once torch.distributed knows them."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _share(count: int, rank: int, ranks: int) -> int:
    """Return how many of count images go to the ranks before this one."""
    return count * rank // ranks


def _occurrence(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each position, how often its image came before it."""
    by_image = np.argsort(order, kind="stable")
    ordered = order[by_image]
    times = np.empty_like(order)
    times[by_image] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return times


class Engine(Protocol):
    """From an order to its batches."""

    def __call__(self, order: Order) -> Iterator[Batch]:
        """Walk one epoch."""

    def close(self) -> None:
        """Give back what the engine holds: worker processes, memory."""


class Batches:
    """An iterable over one split that Lightning takes as a loader, and that times its own waits.

    Args:
        order: which images make up each batch.
        engine: what makes them.
    """

    def __init__(self, order: Order, engine: Engine) -> None:
        self.order, self.engine = order, engine
        self.wait_s = 0.0  # seconds that the consumer waited for batches

    @property
    def batch_sampler(self) -> "_BatchSampler":
        """Return what Lightning calls .sampler.set_epoch on; a `sampler` here it would inspect."""
        return _BatchSampler(self.order)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: the engine starts at the first batch, after set_epoch, not at iter().
        begun = time.perf_counter()
        for batch in self.engine(self.order):
            self.wait_s += time.perf_counter() - begun
            yield batch
            begun = time.perf_counter()
        self.wait_s += time.perf_counter() - begun

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()


class _BatchSampler(NamedTuple):
    sampler: Order


class Loaders(NamedTuple):
    """The three splits as batches, and what they are as one line."""

    train: Batches
    val: Batches
    test: Batches
    description: str

    def close(self) -> None:
        """Give back worker processes and memory, now and not when they are collected."""
        for batches in (self.train, self.val, self.test):
            batches.close()


def orders(data: Data, seed: int, batch_size: int, drop_last: bool) -> dict[str, Order]:
    """Return the order of each split.

    Raises:
        UsageError: training would have no batch.
    """
    labels = data.train.labels if data.sampler == "balanced" else None
    train = Order(len(data.train), batch_size, seed=seed, drop_last=drop_last, labels=labels)
    if not len(train):
        raise UsageError(
            f"loader.batch_size={batch_size} with loader.drop_last=true leaves no batch of the "
            f"{len(data.train)} training images; try loader.drop_last=false"
        )
    evaluation = {name: Order(len(data.splits[name]), batch_size) for name in ("val", "test")}
    return {"train": train, **evaluation}
