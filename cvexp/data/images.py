"""What a source comes to: three splits over one label space, and the report on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cvexp.data.store import Form, Store

Sampler = Literal["uniform", "balanced"]


@dataclass(frozen=True)
class Split:
    """One split: where its pixels are, and what they show.

    Args:
        store: pixels by row.
        rows: (N,) rows of the store.
        labels: (N,) int64, positions in Data.classes.
        names: (N,) file names, relative to the source, for people.
        form: what `read` returns: (size, size, channels) uint8.
    """

    store: Store
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    names: Sequence[str]
    form: Form

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> int:
        """Return the side of an image in pixels."""
        return self.form.size

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return image `index` as (size, size, channels) uint8."""
        return self.store.read(int(self.rows[index]))

    @property
    def read_bytes(self) -> int:
        """Return how many bytes the whole split takes in its form."""
        return len(self) * self.form.image_bytes


@dataclass(frozen=True)
class Data:
    """Three splits over one label space; val and test may be mapped by name alone.

    Args:
        source: what it came from, for people.
        sha256: of the content and the labels, split by split.
        class_weights: (K,) factors on the loss, or None.
        sampler: how training images are drawn.
        dropped: samples that were left out, each with path, split, class and reason.
        report: counts, sizes, modes, duplicates, what was passed over; data.json.
    """

    source: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split
    sha256: str
    class_weights: tuple[float, ...] | None = None
    sampler: Sampler = "uniform"
    dropped: list[dict[str, str]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def splits(self) -> dict[str, Split]:
        """Return the splits by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def __str__(self) -> str:
        sizes = ", ".join(f"{len(split):,} {name}" for name, split in self.splits.items())
        form = self.train.form
        return f"{self.source}: {sizes} images, {len(self.classes)} classes, {form.size} px"

    def record(self) -> dict[str, object]:
        """Return what run.json keeps of the data."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "splits": {name: len(split) for name, split in self.splits.items()},
            "classes": list(self.classes),
            "transform": str(self.train.form),
            "dropped": self.dropped,
        }
