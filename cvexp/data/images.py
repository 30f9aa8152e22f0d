"""Decoded images, their labels and their splits."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True)
class Split:
    """One split: images as stored, read at one size.

    Args:
        images: (N, H, W, 3) uint8.
        labels: (N,) int64, positions in Data.classes.
        size: pixels; what `read` returns is (size, size, 3).
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    size: int

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return image `index` as (size, size, 3) uint8."""
        image: NDArray[np.uint8] = self.images[index]
        if image.shape[:2] == (self.size, self.size):
            return image
        resized = Image.fromarray(image).resize((self.size, self.size), Image.Resampling.BICUBIC)
        return np.asarray(resized)

    @property
    def read_bytes(self) -> int:
        """Return how many bytes the whole split takes at its size."""
        return len(self) * self.size * self.size * 3


@dataclass(frozen=True)
class Data:
    """Three splits over one label space."""

    source: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split

    @property
    def splits(self) -> dict[str, Split]:
        """Return the splits by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def sha256(self) -> str:
        """Return a hash of every image and label, split by split."""
        digest = hashlib.sha256()
        for name, split in self.splits.items():
            digest.update(f"{name} {split.images.shape} {self.classes}".encode())
            digest.update(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()

    def record(self) -> dict[str, object]:
        """Return what run.json keeps of the data."""
        return {
            "source": self.source,
            "sha256": self.sha256(),
            "splits": {name: len(split) for name, split in self.splits.items()},
            "classes": list(self.classes),
            "dropped": [],
        }
