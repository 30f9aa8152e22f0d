"""From a listing to Data: bad files dropped, one label space, splits drawn, the report written."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cvexp.config import UsageError
from cvexp.data.images import Data, Sampler, Split
from cvexp.data.inspect import Cache, inspect
from cvexp.data.labels import label_space, show
from cvexp.data.listing import Listing
from cvexp.data.report import duplicates, imbalance, shapes, warn_of
from cvexp.data.splits import draw_splits
from cvexp.data.store import Form, Store

Weights = Literal["none", "balanced"] | list[float]
OnError = Literal["raise", "skip"]


class Choices(NamedTuple):
    """What every source lets its user choose."""

    form: Form
    fractions: tuple[
        float, float
    ]  # val and test, of all images, where the source has no such split
    split_seed: int
    class_weights: Weights
    sampler: Sampler
    classes_file: str | None = None


def from_listing(
    source: str,
    root: Path,
    listing: Listing,
    choices: Choices,
    *,
    on_error: OnError,
    cache: Cache,
    cache_dir: str,
) -> Data:
    """Open every file, drop or refuse the bad ones, and return what is left as Data.

    Raises:
        UsageError: a bad file under on_error=raise, and what `from_samples` raises.
    """
    paths = [sample.path for sample in listing.samples]
    findings, store = inspect(paths, choices.form, cache, Path(cache_dir).expanduser())
    names = [_relative(path, root) for path in paths]
    dropped = [
        {
            "path": name,
            "split": sample.split or "none yet",
            "class": sample.name,
            "reason": finding.error,
        }
        for name, sample, finding in zip(names, listing.samples, findings, strict=True)
        if finding.error is not None
    ]
    if dropped and on_error == "raise":
        lines = [
            f"{show(d['path'])} (split {d['split']}, class {show(d['class'])}): {d['reason']}"
            for d in dropped[:20]
        ]
        more = [f"and {len(dropped) - 20} more"] * (len(dropped) > 20)
        raise UsageError(
            f"{len(dropped)} of {len(paths)} files cannot be used; mend them or type "
            "data.on_error=skip\n  " + "\n  ".join(lines + more)
        )
    good = [row for row, finding in enumerate(findings) if finding.error is None]
    if not good:
        raise UsageError(f"{source}: none of {len(paths)} files can be used")
    samples = [listing.samples[row] for row in good]
    return from_samples(
        source,
        store,
        np.array(good),
        [sample.name for sample in samples],
        [sample.split for sample in samples],
        [names[row] for row in good],
        [findings[row].sha256 for row in good],
        choices,
        dropped=dropped,
        report={
            "ignored": dict(listing.ignored),
            "empty_classes": [show(name) for name in listing.empty],
            **shapes([findings[row] for row in good]),
        },
    )


def from_samples(
    source: str,
    store: Store,
    rows: NDArray[np.int64],
    labels: Sequence[str],
    given: Sequence[str | None],
    names: Sequence[str],
    hashes: Sequence[str],
    choices: Choices,
    *,
    dropped: list[dict[str, str]],
    report: dict[str, Any],
    order: Sequence[str] | None = None,
) -> Data:
    """Return Data of N samples that are known to be good.

    Args:
        labels, given, names, hashes: (N,) class name, split or None, file name, content hash.
        order: the source's own order of classes, where it has one.

    Raises:
        UsageError: the label space, the splits or the weights cannot be made.
    """
    form = choices.form
    parts = draw_splits(labels, given, choices.fractions, choices.split_seed)
    named = {split: [labels[i] for i in part] for split, part in parts.items()}
    classes = label_space(named, choices.classes_file, order)
    position = {name: i for i, name in enumerate(classes)}
    numbers = np.array([position[name] for name in labels], np.int64)
    digest = hashlib.sha256(repr(classes).encode("utf-8", "backslashreplace"))
    for split, part in parts.items():
        lines = [f"{names[i]} {hashes[i]} {numbers[i]}" for i in part]
        digest.update("\n".join([split, *lines]).encode("utf-8", "backslashreplace"))
    splits = {
        split: Split(store, rows[part], numbers[part], [names[i] for i in part], form)
        for split, part in parts.items()
    }
    counts = {
        split: np.bincount(numbers[part], minlength=len(classes)) for split, part in parts.items()
    }
    report = {
        "source": source,
        "transform": str(form),
        "classes": list(classes),
        "counts": {
            split: dict(zip(classes, map(int, count), strict=True))
            for split, count in counts.items()
        },
        "imbalance": imbalance(counts["train"]),
        "dropped": dropped,
        **report,
        "duplicates_across_splits": duplicates(parts, names, hashes),
        "duplicates_across_classes": duplicates(
            {name: np.flatnonzero(numbers == i) for name, i in position.items()}, names, hashes
        ),
    }
    warn_of(report, counts, classes)
    return Data(
        source,
        classes,
        **splits,
        sha256=digest.hexdigest(),
        class_weights=_weights(choices.class_weights, counts["train"]),
        sampler=choices.sampler,
        dropped=dropped,
        report=report,
    )


def _weights(asked: Weights, counts: NDArray[np.int64]) -> tuple[float, ...] | None:
    """Return factors on the loss by class; balanced ones average 1 over the training images."""
    if asked == "none":
        return None
    if asked == "balanced":
        present = np.maximum(counts, 1)
        return tuple(float(w) for w in counts.sum() / (np.count_nonzero(counts) * present))
    assert isinstance(asked, list)
    finite = all(math.isfinite(weight) for weight in asked)
    if len(asked) != len(counts) or not finite or min(asked) < 0 or max(asked) <= 0:
        raise UsageError(
            f"data.class_weights={asked} must be {len(counts)} numbers, one a class, none below 0"
        )
    return tuple(float(weight) for weight in asked)


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
