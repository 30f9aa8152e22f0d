"""Which sample belongs to which split: as the source gives it, or drawn by class from a seed."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cvexp.config import UsageError
from cvexp.data.labels import SPLITS, show


def draw_splits(
    labels: Sequence[str],
    given: Sequence[str | None],
    fractions: tuple[float, float],
    split_seed: int,
) -> dict[str, NDArray[np.int64]]:
    """Return sorted positions by split: as given, with what is lacking drawn from train, by class.

    Nothing given: val and test are drawn. Train given without val: val is drawn. A test split that
    the source lacks stays empty: what validates must not also test.

    Raises:
        UsageError: a class is too small to be split, or a split has nothing left.
    """
    parts = {
        split: np.array([i for i, g in enumerate(given) if g == split], np.int64)
        for split in SPLITS
    }
    pool = np.array([i for i, g in enumerate(given) if g is None], np.int64)
    val_fraction, test_fraction = fractions
    if len(pool):
        if val_fraction + test_fraction >= 1:
            raise UsageError(
                f"data.val_fraction={val_fraction} and data.test_fraction={test_fraction} leave "
                "nothing to train on; their sum must be below 1"
            )
        pool, parts["test"] = _stratified(labels, pool, test_fraction, split_seed, "test")
        inner = val_fraction / (1 - test_fraction)
        parts["train"], parts["val"] = _stratified(labels, pool, inner, split_seed, "val")
    elif not len(parts["val"]) and len(parts["train"]):
        parts["train"], parts["val"] = _stratified(
            labels, parts["train"], val_fraction, split_seed, "val"
        )
    for split in ("train", "val"):
        if not len(parts[split]):
            raise UsageError(
                f"the {split} split has no image left; add some, or name another split"
            )
    return parts


def _stratified(
    labels: Sequence[str], pool: NDArray[np.int64], fraction: float, split_seed: int, split: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted positions of the rest and of a part that holds `fraction` of every class."""
    from sklearn.model_selection import train_test_split

    counts = Counter(labels[i] for i in pool)
    small = sorted(show(name) for name, count in counts.items() if count < 2)
    if small:
        raise UsageError(
            f"the {split} split cannot be drawn: one image is left in {', '.join(small[:10])}; add "
            "images there, or give the splits as folders train, val and test"
        )
    least = len(counts) / len(pool)  # one image of each class, here and in what is left
    if not len(counts) <= math.ceil(fraction * len(pool)) <= len(pool) - len(counts):
        raise UsageError(
            f"data.{split}_fraction leaves a class without an image: {len(pool)} images of "
            f"{len(counts)} classes are to be split; try data.{split}_fraction={least + 0.05:.2f}"
        )
    rest, part = train_test_split(
        pool, test_size=fraction, random_state=split_seed, stratify=[labels[i] for i in pool]
    )
    return np.sort(rest), np.sort(part)
