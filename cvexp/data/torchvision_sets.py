"""torchvision's sets by one reading: which splits a set has, its files, its labels' names."""

import inspect
import operator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cvexp.config import UsageError
from cvexp.data.store import Form


def files_of(dataset: Any) -> list[tuple[Path, int]]:
    """Return the files and labels of a set that is made of files, or nothing."""
    pairs = getattr(dataset, "samples", None) or getattr(dataset, "_samples", None)
    if pairs is None and hasattr(dataset, "_image_files") and hasattr(dataset, "_labels"):
        pairs = list(zip(dataset._image_files, dataset._labels, strict=True))
    if not isinstance(pairs, list) or not all(
        len(pair) == 2 and isinstance(pair[0], str | Path) and isinstance(pair[1], int)
        for pair in pairs
    ):
        return []
    return [(Path(path), label) for path, label in pairs]


def in_memory(what: str, dataset: Any, form: Form) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all images of a set in form, and its labels."""
    images, labels = [], []
    for i in range(len(dataset)):
        try:
            image, label = dataset[i]
            images.append(form.of_image(image))
            labels.append(operator.index(label))
        except Exception as error:  # whatever the set's own reader raises
            raise UsageError(f"{what}: item {i} is no image with a label ({error})") from error
    return np.stack(images), np.array(labels)


def class_names(name: str, parts: dict[Any, Any], files: dict[Any, Any]) -> list[str]:
    """Return a name for each label: the set's own, made unique, or the number."""
    known = getattr(next(iter(parts.values())), "classes", None)
    if known is None:
        labels = [label for pairs in files.values() for _, label in pairs]
        for dataset in parts.values():
            labels += list(map(int, getattr(dataset, "targets", getattr(dataset, "labels", []))))
        if not labels:
            raise UsageError(f"data.name={name}: not a classification set: it names no labels")
        return [str(i) for i in range(max(labels) + 1)]
    shown = [", ".join(c) if isinstance(c, tuple) else str(c) for c in known]
    return [f"{c} ({i})" if shown.count(c) > 1 else c for i, c in enumerate(shown)]


def open_splits(kind: Any, name: str, root: str) -> dict[str | None, Any]:
    """Return the splits that a torchvision set has by our names; None for a set that has none."""
    accepted = inspect.signature(kind).parameters
    wanted: list[tuple[str | None, dict[str, Any]]] = [(None, {})]
    if "train" in accepted:
        wanted = [("train", {"train": True}), ("test", {"train": False})]
    elif "split" in accepted:
        theirs = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}
        wanted = [(ours, {"split": word}) for ours, words in theirs.items() for word in words]
    found: dict[str | None, Any] = {}
    refused = ""
    for split, choice in wanted:
        if split in found:
            continue
        try:
            found[split] = _open(kind, root, choice)
        except (ValueError, TypeError) as error:  # it has no split of this name, or asks for more
            refused = str(error)
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"data.name={name}: neither in data.root={root} nor to be downloaded ({error}); "
                "without a network, put the set there as torchvision lays it out"
            ) from error
    if not found or found.keys() == {"test"}:
        raise UsageError(f"data.name={name} cannot be opened with a train split alone: {refused}")
    return found


def _open(kind: Any, root: str, choice: dict[str, Any]) -> Any:
    """Open a set that is on disk, or else download it."""
    try:
        return kind(root, **choice)
    except (OSError, RuntimeError):
        try:
            return kind(root, **choice, download=True)
        except TypeError:  # it cannot be downloaded, and its first word stands
            return kind(root, **choice)
