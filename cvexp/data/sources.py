"""Where images come from."""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from cvexp.config import UsageError, did_you_mean
from cvexp.data.assemble import Choices, OnError, Weights, from_listing, from_samples
from cvexp.data.decode import Resize
from cvexp.data.images import Data, Sampler
from cvexp.data.inspect import Cache
from cvexp.data.listing import Listing, Sample, list_folder, list_table
from cvexp.data.store import Arrays, Form
from cvexp.data.torchvision_sets import class_names, files_of, in_memory, open_splits

Size = Annotated[int, Ge(1)]
Channels = Literal[1, 3]
Fraction = Annotated[float, Gt(0), Lt(1)]
SplitSeed = Annotated[int, Ge(0), Lt(2**32)]
MaxPixels = Annotated[int, Ge(1)]


def digits(
    *,
    size: Size,
    channels: Channels,
    val_fraction: Fraction,
    test_fraction: Fraction,
    split_seed: SplitSeed,
    class_weights: Weights,
    sampler: Sampler,
) -> Data:
    """Return scikit-learn's 1,797 digits, split by class into train, val and test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # 0..16 as stored
    return _from_arrays(
        "digits",
        {None: (images, bunch.target)},
        [str(name) for name in bunch.target_names],
        Choices(
            Form(size, "squash", channels, images[0].size),
            (val_fraction, test_fraction),
            split_seed,
            class_weights,
            sampler,
        ),
    )


def cifar10(
    *,
    root: str,
    size: Size,
    channels: Channels,
    val_fraction: Fraction,
    split_seed: SplitSeed,
    class_weights: Weights,
    sampler: Sampler,
) -> Data:
    """Return CIFAR-10, its validation split taken from the training half."""
    form = Form(size, "squash", channels, 32 * 32)
    choices = Choices(form, (val_fraction, 0.0), split_seed, class_weights, sampler)
    return _cifar("CIFAR10", root, choices)


def cifar100(
    *,
    root: str,
    size: Size,
    channels: Channels,
    val_fraction: Fraction,
    split_seed: SplitSeed,
    class_weights: Weights,
    sampler: Sampler,
) -> Data:
    """Return CIFAR-100, its validation split taken from the training half."""
    form = Form(size, "squash", channels, 32 * 32)
    choices = Choices(form, (val_fraction, 0.0), split_seed, class_weights, sampler)
    return _cifar("CIFAR100", root, choices)


def folder(
    *,
    root: str,
    classes: str | None,
    size: Size,
    resize: Resize,
    channels: Channels,
    val_fraction: Fraction,
    test_fraction: Fraction,
    split_seed: SplitSeed,
    on_error: OnError,
    max_pixels: MaxPixels,
    class_weights: Weights,
    sampler: Sampler,
    cache: Cache,
    cache_dir: str,
) -> Data:
    """Return the images below a folder: root/<class>/**, or root/{train,val,test}/<class>/**."""
    return from_listing(
        f"folder {Path(root).name}",
        Path(root),
        list_folder(root),
        Choices(
            Form(size, resize, channels, max_pixels),
            (val_fraction, test_fraction),
            split_seed,
            class_weights,
            sampler,
            classes,
        ),
        on_error=on_error,
        cache=cache,
        cache_dir=cache_dir,
    )


def table(
    *,
    path: str,
    path_column: str,
    label_column: str,
    split_column: str | None,
    classes: str | None,
    size: Size,
    resize: Resize,
    channels: Channels,
    val_fraction: Fraction,
    test_fraction: Fraction,
    split_seed: SplitSeed,
    on_error: OnError,
    max_pixels: MaxPixels,
    class_weights: Weights,
    sampler: Sampler,
    cache: Cache,
    cache_dir: str,
) -> Data:
    """Return the images that the rows of a CSV, TSV or Parquet file name, relative to it."""
    return from_listing(
        f"table {Path(path).name}",
        Path(path).parent,
        list_table(path, path_column, label_column, split_column, classes),
        Choices(
            Form(size, resize, channels, max_pixels),
            (val_fraction, test_fraction),
            split_seed,
            class_weights,
            sampler,
            classes,
        ),
        on_error=on_error,
        cache=cache,
        cache_dir=cache_dir,
    )


def torchvision(
    *,
    name: str,
    root: str,
    size: Size,
    resize: Resize,
    channels: Channels,
    val_fraction: Fraction,
    test_fraction: Fraction,
    split_seed: SplitSeed,
    on_error: OnError,
    max_pixels: MaxPixels,
    class_weights: Weights,
    sampler: Sampler,
    cache: Cache,
    cache_dir: str,
) -> Data:
    """Return any classification set of torchvision by name, with the splits that it has.

    A set of files is read like a folder; one that torchvision keeps in memory is taken as it is.

    Raises:
        UsageError: an unknown name, or a set that is neither on disk nor to be downloaded.
    """
    from torchvision import datasets

    kind = getattr(datasets, name, None)
    if not isinstance(kind, type) or name not in datasets.__all__:
        hint = did_you_mean(name, datasets.__all__)
        raise UsageError(f"data.name={name}: torchvision has no such set{hint}")
    parts = open_splits(kind, name, root)
    form = Form(size, resize, channels, max_pixels)
    choices = Choices(form, (val_fraction, test_fraction), split_seed, class_weights, sampler)
    files = {split: files_of(dataset) for split, dataset in parts.items()}
    names = class_names(name, parts, files)
    if all(files.values()):
        samples = [
            Sample(path, names[label], split)
            for split, pairs in files.items()
            for path, label in pairs
        ]
        return from_listing(
            f"torchvision {name}",
            Path(root),
            Listing(samples),
            choices,
            on_error=on_error,
            cache=cache,
            cache_dir=cache_dir,
        )
    arrays = {
        split: in_memory(f"data.name={name}, split {split}", dataset, form)
        for split, dataset in parts.items()
    }
    return _from_arrays(f"torchvision {name}", arrays, names, choices)


def _cifar(name: str, root: str, choices: Choices) -> Data:
    from torchvision import datasets

    kind = getattr(datasets, name)
    try:
        halves = {
            split: kind(root, train=split == "train", download=True) for split in ("train", "test")
        }
    except (OSError, RuntimeError) as error:  # URLError is an OSError; a bad archive a RuntimeError
        raise UsageError(
            f"data={name.lower()}: could not be downloaded to data.root={root} ({error}); with no "
            f"network, put {kind.filename} into that folder, or type data.root=FOLDER"
        ) from error
    return _from_arrays(
        name.lower(),
        {split: (half.data, np.asarray(half.targets)) for split, half in halves.items()},
        list(halves["train"].classes),
        choices,
    )


def _from_arrays(
    source: str,
    parts: dict[Any, tuple[NDArray[np.uint8], NDArray[np.int64]]],
    classes: list[str],
    choices: Choices,
) -> Data:
    """Return Data of arrays: split (None: to be drawn) -> images and labels."""
    images = np.concatenate([part for part, _ in parts.values()])
    labels = [classes[int(label)] for _, part in parts.values() for label in part]
    given = [split for split, (part, _) in parts.items() for _ in part]
    names = [
        f"{split or source}[{i}]" for split, (part, _) in parts.items() for i in range(len(part))
    ]
    hashes = [hashlib.sha256(np.ascontiguousarray(image).data).hexdigest() for image in images]
    return from_samples(
        source,
        Arrays(images, choices.form),
        np.arange(len(images)),
        labels,
        given,
        names,
        hashes,
        choices,
        dropped=[],
        report={},
        order=classes,
    )
