"""Every engine gives the same batches."""

import numpy as np
import pytest
import torch

from cvexp import loader
from cvexp.augmentation import Policy, none
from cvexp.config import UsageError
from cvexp.data import Data
from cvexp.loader import Batch, Batches, Loaders, Order
from tests.test_augmentation import LIGHT

CPU = torch.device("cpu")
WORKERS = {"prefetch_batches": 2, "timeout_s": 60.0}


def make(engine: str, data: Data, policy: Policy, *, drop_last: bool = False) -> Loaders:
    """Build a loader by its engine: device, or albumentations with some number of workers."""
    if engine == "device":
        return loader.device(
            data, policy, 0, CPU, batch_size=50, drop_last=drop_last, memory_fraction=0.5
        )
    return loader.albumentations(
        data, policy, 0, CPU, batch_size=50, num_workers=int(engine), drop_last=drop_last, **WORKERS
    )


def epoch(batches: Batches, number: int) -> list[Batch]:
    batches.batch_sampler.sampler.set_epoch(number)
    return list(batches)


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(x, y)
        for a, b in zip(left, right, strict=True)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("engine", ["1", "2"])
def test_workers_change_nothing(engine: str, data: Data) -> None:
    main, workers = make("0", data, LIGHT), make(engine, data, LIGHT)
    for number in (0, 1, 3):
        assert same(epoch(main.train, number), epoch(workers.train, number))
    assert same(list(main.val), list(workers.val))


def test_engines_show_the_same_images(data: Data) -> None:
    by_image, by_batch = make("0", data, none()), make("device", data, none())
    for number in (0, 2):
        assert same(epoch(by_image.train, number), epoch(by_batch.train, number))
    assert same(list(by_image.test), list(by_batch.test))


def test_engines_augment_alike(data: Data) -> None:
    pairs = zip(
        epoch(make("0", data, LIGHT).train, 1),
        epoch(make("device", data, LIGHT).train, 1),
        strict=True,
    )
    for left, right in pairs:
        assert torch.equal(left.indices, right.indices)
        assert (left.images.float() - right.images.float()).abs().mean() < 1


@pytest.mark.parametrize("engine", ["0", "2", "device"])
def test_an_image_looks_different_in_each_epoch(engine: str, data: Data) -> None:
    """The epoch reaches the draws through workers that outlive it (traps.md 1)."""
    train = make(engine, data, LIGHT).train
    by_epoch = []
    for number in (0, 1):
        batches = epoch(train, number)
        order = torch.cat([batch.indices for batch in batches]).argsort()
        by_epoch.append(torch.cat([batch.images for batch in batches])[order])
    changed = (by_epoch[0] != by_epoch[1]).flatten(1).any(dim=1)
    assert changed.float().mean() > 0.9  # all but those that no operation was drawn for, twice


@pytest.mark.parametrize("engine", ["0", "2", "device"])
def test_each_image_once_an_epoch_in_a_new_order(engine: str, data: Data) -> None:
    train = make(engine, data, LIGHT).train
    orders = [torch.cat([batch.indices for batch in epoch(train, n)]).tolist() for n in (0, 1)]
    assert all(sorted(order) == list(range(1257)) for order in orders)
    assert orders[0] != orders[1]
    assert len(train) == len(epoch(train, 0)) == 26


@pytest.mark.parametrize("engine", ["0", "2", "device"])
def test_an_abandoned_epoch_leaves_nothing_behind(engine: str, data: Data) -> None:
    """trainer.limit_train_batches stops in mid-epoch; the next epoch begins at its beginning."""
    train, fresh = make(engine, data, LIGHT).train, make(engine, data, LIGHT).train
    train.batch_sampler.sampler.set_epoch(0)
    for _, _batch in zip(range(3), train, strict=False):
        pass
    assert same(epoch(train, 1), epoch(fresh, 1))


@pytest.mark.parametrize("batch_size", range(1, 10))
def test_evaluation_shows_every_image_exactly_once(batch_size: int) -> None:
    keys = list(Order(7, batch_size))
    assert np.concatenate([key.indices for key in keys]).tolist() == list(range(7))
    assert len(keys) == len(Order(7, batch_size))


def test_drop_last_drops_the_short_batch_alone(data: Data) -> None:
    train = make("0", data, none(), drop_last=True).train
    assert [len(batch.labels) for batch in train] == [50] * 25
    assert len(train) == 25


def test_images_in_counts_what_batches_hold() -> None:
    order = Order(103, 10, seed=0)
    sizes = [len(key.indices) for key in order]
    for start in range(len(order)):
        for stop in range(start + 1, len(order) + 1):
            assert order.images_in(start, stop) == sum(sizes[start:stop])


def test_a_balanced_sampler_shows_each_class_as_often() -> None:
    """With replacement, by (seed, epoch) alone; what it shows twice is augmented twice."""
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    order = Order(1000, 64, seed=0, labels=labels)
    keys = list(order)
    indices = np.concatenate([key.indices for key in keys])
    draws = np.concatenate([key.draws for key in keys])
    assert np.abs(np.bincount(labels[indices]) / 1000 - 1 / 3).max() < 0.05
    assert len(np.unique(draws)) == 1000
    assert np.array_equal(draws % 1000, indices)
    assert np.array_equal(np.concatenate([key.indices for key in order]), indices)
    order.set_epoch(1)
    assert not np.array_equal(np.concatenate([key.indices for key in order]), indices)


def test_no_batch_at_all_is_an_error(data: Data) -> None:
    with pytest.raises(UsageError, match=r"loader\.batch_size=5000"):
        loader.albumentations(
            data, none(), 0, CPU, batch_size=5000, num_workers=0, drop_last=True, **WORKERS
        )


def test_a_set_that_does_not_fit_names_the_other_loader(data: Data) -> None:
    with pytest.raises(UsageError, match="loader=albumentations"):
        loader.device(data, none(), 0, CPU, batch_size=8, drop_last=False, memory_fraction=1e-9)


def test_images_are_channels_last_uint8(data: Data) -> None:
    for engine in ("0", "device"):
        batch = next(iter(make(engine, data, LIGHT).train))
        assert batch.images.shape == (50, 3, 32, 32)
        assert batch.images.dtype == torch.uint8


def test_waiting_is_timed(data: Data) -> None:
    train = make("0", data, LIGHT).train
    list(train)
    assert train.wait_s > 0
