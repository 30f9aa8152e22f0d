"""Where images come from."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from cvexp.config import UsageError
from cvexp.data.images import Data, Split

Size = Annotated[int, Ge(1)]
Fraction = Annotated[float, Gt(0), Lt(1)]
SplitSeed = Annotated[int, Ge(0), Lt(2**32)]


def digits(
    *, size: Size, val_fraction: Fraction, test_fraction: Fraction, split_seed: SplitSeed
) -> Data:
    """Return scikit-learn's 1,797 digits, split by class into train, val and test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # 0..16 as stored
    images = np.repeat(grey[..., None], 3, axis=-1)
    labels = bunch.target.astype(np.int64)
    rest, test = _stratified(labels, test_fraction, split_seed, "data.test_fraction")
    inner = val_fraction / (1 - test_fraction)
    if inner >= 1:
        raise UsageError(
            f"data.val_fraction={val_fraction} and data.test_fraction={test_fraction} leave "
            "nothing to train on; their sum must be below 1, try data.val_fraction=0.1"
        )
    train, val = _stratified(labels[rest], inner, split_seed, "data.val_fraction")
    parts = {"train": rest[train], "val": rest[val], "test": test}
    return Data(
        "digits",
        tuple(str(name) for name in bunch.target_names),
        **{name: Split(images[part], labels[part], size) for name, part in parts.items()},
    )


def cifar10(*, root: str, size: Size, val_fraction: Fraction, split_seed: SplitSeed) -> Data:
    """Return CIFAR-10, its validation split taken from the training half."""
    from torchvision.datasets import CIFAR10

    return _cifar("cifar10", CIFAR10, root, size, val_fraction, split_seed)


def cifar100(*, root: str, size: Size, val_fraction: Fraction, split_seed: SplitSeed) -> Data:
    """Return CIFAR-100, its validation split taken from the training half."""
    from torchvision.datasets import CIFAR100

    return _cifar("cifar100", CIFAR100, root, size, val_fraction, split_seed)


def _cifar(
    name: str, dataset: Any, root: str, size: int, val_fraction: float, split_seed: int
) -> Data:
    try:
        train_half, test_half = (
            dataset(root, train=train, download=True) for train in (True, False)
        )
    except (
        OSError,
        RuntimeError,
    ) as error:  # URLError is an OSError; a damaged archive a RuntimeError
        raise UsageError(
            f"data={name}: could not be downloaded to data.root={root} ({error}); "
            f"without a network, put {dataset.filename} into that folder, "
            "or type data.root=FOLDER that has it"
        ) from error
    labels = np.asarray(train_half.targets, np.int64)
    train, val = _stratified(labels, val_fraction, split_seed, "data.val_fraction")
    return Data(
        name,
        tuple(train_half.classes),
        train=Split(train_half.data[train], labels[train], size),
        val=Split(train_half.data[val], labels[val], size),
        test=Split(test_half.data, np.asarray(test_half.targets, np.int64), size),
    )


def _stratified(
    labels: NDArray[np.int64], fraction: float, split_seed: int, key: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted positions of the rest and of a part that holds `fraction` of every class."""
    from sklearn.model_selection import train_test_split

    try:
        rest, part = train_test_split(
            np.arange(len(labels)), test_size=fraction, random_state=split_seed, stratify=labels
        )
    except ValueError as error:
        raise UsageError(f"{key} cannot be met: {error}") from error
    return np.sort(rest), np.sort(part)
