"""From a listing to Data: bad files dropped, one label space, splits drawn, the report written."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cvexp.config import UsageError
from cvexp.console import warn
from cvexp.data.images import Data, Sampler, Split
from cvexp.data.inspect import Cache, Finding, inspect
from cvexp.data.labels import SPLITS, label_space, show
from cvexp.data.listing import Listing
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
            **_shapes([findings[row] for row in good]),
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
        "imbalance": _ratio(counts["train"]),
        "dropped": dropped,
        **report,
        "duplicates_across_splits": _duplicates(parts, names, hashes),
        "duplicates_across_classes": _duplicates(
            {name: np.flatnonzero(numbers == i) for name, i in position.items()}, names, hashes
        ),
    }
    _warn(report, counts, classes)
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


def _shapes(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the sizes and modes of the files."""
    sides = np.array([(f.width, f.height) for f in findings])
    return {
        "width": {"min": int(sides[:, 0].min()), "max": int(sides[:, 0].max())},
        "height": {"min": int(sides[:, 1].min()), "max": int(sides[:, 1].max())},
        "modes": dict(Counter(finding.mode for finding in findings)),
    }


def _duplicates(
    parts: dict[str, NDArray[np.int64]], names: Sequence[str], hashes: Sequence[str]
) -> list[list[str]]:
    """Return groups of files with one content in more than one part, as part:name."""
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, part in parts.items():
        for i in part:
            places[hashes[i]][name].append(f"{name}:{names[i]}")
    return [
        [place for group in found.values() for place in group]
        for found in places.values()
        if len(found) > 1
    ]


def _ratio(counts: NDArray[np.int64]) -> float | None:
    """Return how many times larger the largest class is than the smallest."""
    present = counts[counts > 0]
    return float(present.max() / present.min()) if len(present) else None


def _warn(
    report: dict[str, Any], counts: dict[str, NDArray[np.int64]], classes: Sequence[str]
) -> None:
    """Say what a person should know before epoch 0."""
    for split in SPLITS:
        lacking = [name for name, n in zip(classes, counts[split], strict=True) if not n]
        if lacking and counts[split].sum():
            shown = ", ".join(map(show, lacking[:10]))
            warn(f"{split} has no image of {shown}: their recall there is n/a")
    if not counts["test"].sum():
        warn("there is no test split: test metrics are n/a")
    for kind, where in (("splits", "split"), ("classes", "class")):
        if groups := report[f"duplicates_across_{kind}"]:
            shown = "; ".join(" = ".join(map(show, group)) for group in groups[:5])
            warn(f"{len(groups)} images lie in more than one {where}: {shown} (all in data.json)")
    if report["dropped"]:
        warn(f"{len(report['dropped'])} files were dropped: listed with their reasons in data.json")
    if names := report.get("empty_classes"):
        warn(f"no image in {', '.join(names[:10])}: not a class of this run")
    ratio = report["imbalance"]
    if ratio is not None and ratio >= 5:
        warn(
            f"the largest class has {ratio:.0f} times the images of the smallest: read "
            "balanced_accuracy, and see data.class_weights=balanced, data.sampler=balanced"
        )


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
