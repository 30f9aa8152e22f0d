"""Every engine gives the same batches."""

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import cvexp.loader.batches as batches_module
import cvexp.loader.resident as resident_module
from cvexp import loader
from cvexp.augmentation import Policy, none
from cvexp.augmentation.colour import RgbShift
from cvexp.augmentation.geometry import Flip
from cvexp.config import UsageError
from cvexp.data import Data, folder
from cvexp.loader import Batch, Batches, Loaders, Order
from cvexp.loader.batches import Key
from tests.conftest import ROOT, made, photograph
from tests.test_augmentation import LIGHT, POLICIES, STRONG

CPU = torch.device("cpu")
SHIFTS = Policy(RgbShift(1.0, 100.0))
# albumentations in the main process, in one and two workers; the two that make a batch at once
ENGINES = ("0", "2", "device", "dali")


OPEN: list[Loaders] = []


def make(*arguments: Any, **options: Any) -> Loaders:
    """Build a loader that is closed after the test."""
    OPEN.append(build(*arguments, **options))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def build(
    engine: str,
    data: Data,
    policy: Policy,
    *,
    seed: int = 0,
    batch_size: int = 50,
    drop_last: bool = False,
    prefetch_batches: int = 2,
    timeout_s: float = 60.0,
    device: torch.device = CPU,
) -> Loaders:
    """Build a loader by its engine: device, dali, or albumentations with a number of workers."""
    if engine == "device":
        return loader.device(
            data,
            policy,
            seed,
            device,
            batch_size=batch_size,
            drop_last=drop_last,
            memory_fraction=0.5,
        )
    if engine == "dali":
        return loader.dali(
            data,
            policy,
            seed,
            device,
            batch_size=batch_size,
            drop_last=drop_last,
            num_threads=2,
            prefetch_batches=prefetch_batches,
        )
    return loader.albumentations(
        data,
        policy,
        seed,
        CPU,
        batch_size=batch_size,
        num_workers=int(engine),
        prefetch_batches=prefetch_batches,
        timeout_s=timeout_s,
        drop_last=drop_last,
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


@pytest.mark.parametrize(("engine", "prefetch_batches"), [("1", 1), ("2", 2), ("2", 5)])
def test_workers_and_prefetching_change_nothing(
    engine: str, prefetch_batches: int, data: Data
) -> None:
    main = make("0", data, LIGHT)
    workers = make(engine, data, LIGHT, prefetch_batches=prefetch_batches)
    for number in (0, 1, 3):
        assert same(epoch(main.train, number), epoch(workers.train, number))
    assert same(list(main.val), list(workers.val))


@pytest.mark.parametrize("prefetch_batches", [1, 4])
def test_dalis_prefetching_changes_nothing(prefetch_batches: int, data: Data) -> None:
    two = make("dali", data, STRONG)
    other = make("dali", data, STRONG, prefetch_batches=prefetch_batches)
    for number in (0, 3):
        assert same(epoch(two.train, number), epoch(other.train, number))


@pytest.mark.parametrize("engine", ["device", "dali"])
def test_engines_show_the_same_images(engine: str, data: Data) -> None:
    by_image, by_batch = make("0", data, none()), make(engine, data, none())
    for number in (0, 2):
        assert same(epoch(by_image.train, number), epoch(by_batch.train, number))
    assert same(list(by_image.test), list(by_batch.test))


@pytest.mark.parametrize("engine", ["device", "dali"])
@pytest.mark.parametrize("policy", ["light", "flip-crop", "strong"])
def test_engines_augment_alike(policy: str, engine: str, data: Data) -> None:
    pairs = zip(
        epoch(make("0", data, POLICIES[policy]).train, 1),
        epoch(make(engine, data, POLICIES[policy]).train, 1),
        strict=True,
    )
    for left, right in pairs:
        assert torch.equal(left.indices, right.indices)
        assert torch.equal(left.labels, right.labels)
        assert (left.images.float() - right.images.float()).abs().mean() < 1


@pytest.mark.parametrize("engine", ENGINES)
def test_no_worker_epoch_or_seed_repeats_an_augmentation(engine: str) -> None:
    """One image 40 times over in batches of 5: what differs is the augmentation alone."""
    images = np.repeat(photograph()[None], 40, axis=0)
    seen: list[bytes] = []
    for seed, number in ((0, 0), (0, 1), (7, 0)):
        loaders = make(engine, made(images), SHIFTS, seed=seed, batch_size=5)
        seen += [
            image.numpy().tobytes() for b in epoch(loaders.train, number) for image in b.images
        ]
    assert len(set(seen)) == len(seen) == 120


@pytest.mark.parametrize("engine", ENGINES)
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


@pytest.mark.parametrize("engine", ENGINES)
def test_each_image_once_an_epoch_in_a_new_order(engine: str, data: Data) -> None:
    train = make(engine, data, LIGHT).train
    orders = [torch.cat([batch.indices for batch in epoch(train, n)]).tolist() for n in (0, 1)]
    assert all(sorted(order) == list(range(1257)) for order in orders)
    assert orders[0] != orders[1]
    assert len(train) == len(epoch(train, 0)) == 26


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stop", [1, 3, 26])
def test_an_epoch_that_is_left_leaves_nothing_behind(engine: str, stop: int, data: Data) -> None:
    """trainer.limit_train_batches stops in mid-epoch, Lightning itself at the last batch.

    The next epoch begins at its beginning: DALI's took the end that nobody had asked for as its own
    and had no batches, every second time (traps.md 27m).
    """
    train, fresh = make(engine, data, LIGHT).train, make(engine, data, LIGHT).train
    train.batch_sampler.sampler.set_epoch(0)
    for _, _batch in zip(range(stop), train, strict=False):
        pass
    assert same(epoch(train, 1), epoch(fresh, 1))


@pytest.mark.parametrize("batch_size", range(1, 10))
@pytest.mark.parametrize("engine", ["0", "device", "dali"])
def test_evaluation_shows_every_image_exactly_once(engine: str, batch_size: int) -> None:
    """And again, in the same order, with as many batches as it says (traps.md 27m)."""
    images = np.arange(7, dtype=np.uint8).repeat(8 * 8 * 3).reshape(7, 8, 8, 3)
    loaders = make(engine, made(images), LIGHT, batch_size=batch_size)
    for _ in range(3):
        batches = list(loaders.val)
        assert len(batches) == len(loaders.val) == -(-7 // batch_size)
        assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(7))
        shown = torch.cat([batch.images[:, 0, 0, 0] for batch in batches])
        assert shown.tolist() == list(range(7))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("length", [7, 12, 13, 14])
def test_ranks_share_the_images(ranks: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image on one rank; in training as many batches on each, or the ranks would wait."""

    def keys(seed: int | None, drop_last: bool = False) -> list[list[Key]]:
        found = []
        for rank in range(ranks):
            monkeypatch.setattr(batches_module, "_rank", lambda rank=rank: (rank, ranks))
            order = Order(length, 4, seed=seed, drop_last=drop_last)
            found.append(list(order))
            sizes = [len(key.indices) for key in order]
            assert len(order) == len(sizes)
            assert all(0 < size <= 4 for size in sizes)
            assert [order.images_in(0, n) for n in range(len(sizes) + 1)] == [
                sum(sizes[:n]) for n in range(len(sizes) + 1)
            ]
            if seed is not None:
                unseen = order.not_seen
        if seed is not None:
            assert len({len(own) for own in found}) == 1
            assert sum(len(key.indices) for own in found for key in own) == length - unseen
        return found

    evaluated = [i for own in keys(None) for key in own for i in key.indices.tolist()]
    assert sorted(evaluated) == list(range(length))
    for drop_last in (False, True):
        trained = [i for own in keys(3, drop_last) for key in own for i in key.indices.tolist()]
        assert len(set(trained)) == len(trained)
        assert len(trained) > length - (4 * ranks if drop_last else ranks)


def test_ranks_are_those_of_torch_distributed(tmp_path: Path) -> None:
    """Two real processes; what they show between them is every image once, from every loader."""
    script = """
import sys, torch
from torch import distributed
from tests.test_loader import epoch, made, make, LIGHT, photograph
import numpy as np
rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
images = np.repeat(photograph()[None], 14, axis=0)
for engine in ("0", "device", "dali"):
    loaders = make(engine, made(images), LIGHT, batch_size=3)
    for batches in (epoch(loaders.train, 0), list(loaders.val)):
        print(torch.cat([batch.indices for batch in batches]).tolist())
"""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [process.communicate()[0].splitlines() for process in both]
    shown = [[json.loads(line) for line in lines] for lines in printed]
    assert len(shown[0]) == len(shown[1]) == 6
    for left, right in zip(*shown, strict=True):
        assert sorted(left + right) == list(range(14))


@pytest.mark.parametrize("engine", ENGINES)
def test_drop_last_drops_the_short_batch_alone(engine: str, data: Data) -> None:
    loaders = make(engine, data, none(), drop_last=True)
    assert [len(batch.labels) for batch in loaders.train] == [50] * 25
    assert len(loaders.train) == 25
    assert loaders.train.order.not_seen == 7
    assert sum(len(batch.labels) for batch in loaders.val) == 180


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
    assert order.not_seen is None  # by chance, not by count
    order.set_epoch(1)
    assert not np.array_equal(np.concatenate([key.indices for key in order]), indices)


@pytest.mark.parametrize("engine", ["0", "device", "dali"])
def test_no_batch_at_all_is_an_error(engine: str, data: Data) -> None:
    with pytest.raises(UsageError, match=r"loader\.batch_size=5000"):
        make(engine, data, none(), batch_size=5000, drop_last=True)


def test_a_dead_worker_fails_the_run_and_says_how_it_died(data: Data) -> None:
    others = children()
    loaders = make("2", data, LIGHT, batch_size=10)
    batches = iter(loaders.train)
    next(batches)
    worker = (children() - others).pop()

    def kill_and_go_on() -> None:
        os.kill(worker, signal.SIGKILL)
        list(batches)

    # Ours, or torch's where the signal of its death came outside the loader.
    died = r"a worker process died \(SIGKILL\)|killed by signal: Killed"
    with pytest.raises(RuntimeError, match=died):
        kill_and_go_on()
    OPEN.pop().close()  # here, not between two tests: until then torch goes on raising


def test_a_hung_worker_fails_the_run_within_timeout_s(data: Data) -> None:
    """And is gone afterwards: a stopped process would outlive an ordinary end."""
    others = children()
    loaders = make("2", data, LIGHT, batch_size=10, timeout_s=1.0)
    batches = iter(loaders.train)
    next(batches)
    workers = children() - others
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"no batch within loader\.timeout_s=1 seconds"):
        list(batches)
    assert time.monotonic() - begun < 30
    loaders.close()
    for worker in workers:
        with suppress(ChildProcessError):
            os.waitpid(worker, 0)
        assert not Path(f"/proc/{worker}").exists()


def children() -> set[int]:
    """Return the processes that this one has started and that live."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


@pytest.mark.parametrize("engine", ["0", "2", "dali"])
def test_a_file_that_vanishes_in_mid_run_is_named(engine: str, tmp_path: Path) -> None:
    loaders = make(engine, jpegs(tmp_path), none(), batch_size=2)
    list(loaders.train)
    for path in tmp_path.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(RuntimeError, match=r"^[^\n]*\.jpg changed during the run[^\n]*$"):
        epoch(loaders.train, 1)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
def test_dali_decodes_as_pillow_does(resize: str, channels: int, tmp_path: Path) -> None:
    """Colour, grey, turned by EXIF; and by our own rule what DALI would read otherwise."""
    data = jpegs(tmp_path, resize=resize, channels=channels)
    by_pillow, by_dali = make("0", data, none()), make("dali", data, none())
    shown = []
    for left, right in zip(list(by_pillow.train), list(by_dali.train), strict=True):
        assert torch.equal(left.indices, right.indices)
        shown.append((left.images.float() - right.images.float()).abs().flatten(1).mean(dim=1))
    assert torch.cat(shown).max() < 1.0


def jpegs(root: Path, *, resize: str = "crop", channels: int = 3) -> Data:
    """Write a folder of ten images whose modes and shapes differ; nothing of it is cached."""
    photo = Image.fromarray(photograph(96))
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        photo.crop((0, 0, 96, 64)).save(root / name / "wide.jpg", quality=90)
        photo.crop((0, 0, 51, 96)).save(root / name / "tall.jpg", quality=90)
        photo.crop((0, 0, 96, 64)).save(root / name / "turned.jpg", quality=90, exif=turned)
        photo.convert("L").save(root / name / "grey.jpg", quality=90)
        photo.convert("CMYK").save(root / name / "cmyk.jpg", quality=90)
        photo.resize((20, 30)).save(root / name / "small.jpg", quality=90)
        clear = photo.convert("RGBA")
        clear.putalpha(100)
        clear.save(root / name / "clear.png")
        Image.fromarray(np.full((40, 40), 40000, np.uint16)).save(root / name / "deep.png")
    return folder(
        root=str(root),
        classes=None,
        size=48,
        resize=resize,
        channels=channels,
        val_fraction=0.1,
        test_fraction=0.1,
        split_seed=0,
        on_error="raise",
        max_pixels=10**6,
        class_weights="none",
        sampler="uniform",
        cache="none",
        cache_dir=str(root.parent / "cache"),
    )


def test_a_set_that_does_not_fit_names_the_other_loader(data: Data) -> None:
    with pytest.raises(UsageError, match="loader=albumentations"):
        loader.device(data, none(), 0, CPU, batch_size=8, drop_last=False, memory_fraction=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("engine", ["0", "device", "dali"])
def test_images_are_channels_last_uint8(engine: str, policy: str, data: Data) -> None:
    """Whatever was done to them: the network would have to lay them out again."""
    batch = next(iter(make(engine, data, POLICIES[policy]).train))
    assert batch.images.shape == (50, 3, 32, 32)
    assert batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("engine", ["0", "2", "device", "dali"])
def test_a_split_without_images_has_no_batch(engine: str, data: Data) -> None:
    empty = dataclasses.replace(data.test, rows=data.test.rows[:0], labels=data.test.labels[:0])
    loaders = make(engine, dataclasses.replace(data, test=empty), none())
    assert len(loaders.test) == 0
    assert list(loaders.test) == list(loaders.test) == []


class Tattle:
    """Garbage, once dropped, that writes down a process other than its own that collects it."""

    def __init__(self, path: Path) -> None:
        self._path, self._owner, self._cycle = path, os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self._owner:
            self._path.touch()


class Collect(Flip):
    """An operation in which a worker collects its garbage."""

    def on_image(self, image: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Leave the image alone."""
        gc.collect()
        return image


def test_a_worker_does_not_collect_what_it_inherited(data: Data, tmp_path: Path) -> None:
    """A DALI pipeline would wait there for threads that it does not have, or crash."""
    gc.disable()
    try:
        Tattle(tmp_path / "collected")
        few = dataclasses.replace(
            data.train, rows=data.train.rows[:8], labels=data.train.labels[:8]
        )
        loaders = make(
            "1", dataclasses.replace(data, train=few), Policy(Collect(1.0)), batch_size=4
        )
        assert len(list(loaders.train)) == 2
    finally:
        gc.enable()
    assert not (tmp_path / "collected").exists()


def test_waiting_is_timed(data: Data) -> None:
    train = make("0", data, LIGHT).train
    list(train)
    assert train.wait_s > 0


@pytest.mark.gpu
@pytest.mark.parametrize("policy", POLICIES)
def test_engines_augment_alike_on_a_gpu(policy: str, data: Data) -> None:
    gpu = torch.device("cuda", 0)
    reference = epoch(make("0", data, POLICIES[policy]).train, 1)
    for engine in ("device", "dali"):
        for left, right in zip(
            reference, epoch(make(engine, data, POLICIES[policy], device=gpu).train, 1), strict=True
        ):
            assert right.images.device == gpu
            assert torch.equal(left.indices, right.indices.cpu())
            assert (left.images.float() - right.images.cpu().float()).abs().mean() < 1


@pytest.mark.gpu
@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
def test_dali_decodes_on_a_gpu_as_pillow_does(resize: str, tmp_path: Path) -> None:
    data = jpegs(tmp_path, resize=resize)
    on_gpu = make("dali", data, none(), device=torch.device("cuda", 0))
    for left, right in zip(list(make("0", data, none()).train), list(on_gpu.train), strict=True):
        assert torch.equal(left.indices, right.indices.cpu())
        assert (left.images.float() - right.images.cpu().float()).abs().mean() < 2


@pytest.mark.gpu
def test_a_set_too_large_for_the_device_stays_in_host_memory(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(resident_module, "free_bytes", lambda device: 1 if device == gpu else 2**33)
    pinned = make("device", data, LIGHT, device=gpu)
    assert "in host memory, each batch pinned" in pinned.description
    on_device = epoch(pinned.train, 1)
    monkeypatch.undo()
    assert same(on_device, epoch(make("device", data, LIGHT, device=gpu).train, 1))
