"""Randomness as a pure function: no generator carries state from step to step.

Whatever is random in a run is looked up by its coordinates (seed, stream, epoch, index), so the
number of workers, prefetching and resuming cannot change it. The function is Philox4x32-10,
vectorised over indices.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; the known answers of
Random123.
"""

import hashlib
import struct
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Stream(IntEnum):
    """What the numbers are for; two streams share none."""

    INIT = 0
    ORDER = 1
    AUGMENTATION = 2
    STEP = 3
    MIX = 4


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return 10 rounds of Philox on (4, N) 32-bit words held in uint64."""
    c0, c1, c2, c3 = counter
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


def words(
    seed: int, stream: Stream, epoch: int, indices: NDArray[np.int64], count: int
) -> NDArray[np.uint64]:
    """Return (N, count) 32-bit words for N indices of one epoch; count <= 1024 words an index.

    Args:
        seed: 0 <= seed < 2**64.
        epoch: 0 <= epoch < 2**32.
        indices: (N,), each below 2**32.
    """
    blocks = -(-count // 4)
    n = len(indices)
    counter = np.empty((4, n, blocks), np.uint64)
    counter[0] = np.arange(blocks, dtype=np.uint64)
    counter[1] = np.asarray(indices, np.uint64)[:, None]
    counter[2] = np.uint64(epoch)
    counter[3] = np.uint64(stream)
    out = philox4x32(counter.reshape(4, -1), (seed & 0xFFFFFFFF, seed >> 32))
    return out.reshape(4, n, blocks).transpose(1, 2, 0).reshape(n, 4 * blocks)[:, :count]


def uniforms(
    seed: int, stream: Stream, epoch: int, indices: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Return (N, count) numbers in (0, 1): the middles of 2**32 equal bins."""
    return np.asarray((words(seed, stream, epoch, indices, count) + 0.5) / 2.0**32, np.float64)


def permutation(seed: int, epoch: int, length: int) -> NDArray[np.int64]:
    """Return an order of range(length): the ranks of one random 64-bit word an index."""
    high, low = words(seed, Stream.ORDER, epoch, np.arange(length), 2).T
    return np.argsort((high << _SHIFT) | low, kind="stable")


def balanced(seed: int, epoch: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return as many positions as there are labels, each class equally likely, with replacement."""
    which, where = uniforms(seed, Stream.ORDER, epoch, np.arange(len(labels)), 2).T
    by_class = np.argsort(labels, kind="stable")
    classes, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    chosen = (which * len(classes)).astype(np.int64)
    positions = starts[chosen] + (where * counts[chosen]).astype(np.int64)
    return np.asarray(by_class[positions], np.int64)


def torch_seed(seed: int, stream: Stream, epoch: int = 0, index: int = 0) -> int:
    """Return a 63-bit seed for torch.manual_seed at these coordinates.

    One hash instead of Philox: a microsecond, where it is needed at every step.
    """
    coordinates = struct.pack("<4Q", seed, stream, epoch, index)
    digest = hashlib.blake2b(coordinates, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_generator(device: torch.device, seed: int) -> None:
    """Seed the generators that a step on this device draws from.

    torch.manual_seed seeds every backend, and formats the stack for each that is not in use: half
    a millisecond, where it is needed at every step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
