"""Images/s of every loader on CIFAR-shaped data, against the course notebook's loader.

python benchmarks/loaders.py [--images 10000] [--workers 2] [--repeats 7]

Each gives normalised float32 batches of 32 x 32 images under the policy `light`: the notebook's
from PIL images by albumentations' own random draws, normalised one by one in batches of 32; ours in
uint8 batches of 256, normalised once a batch. "index and normalise" is the limit: no augmentation.
Every loader walks one epoch unmeasured, then one epoch in each repeat, all in turn, so that a slow
minute slows all. Prints medians over the repeats; a ratio is the median of each repeat's ratio.
A CPU-second is counted over this process and its workers.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

import albumentations
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from cvexp import loader
from cvexp.augmentation import Policy, light
from cvexp.data import Data
from cvexp.data.images import Split
from cvexp.data.store import Form, Pixels

SIZE, BATCH = 32, 256
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CPU = torch.device("cpu")
Epoch = Callable[[], int]


class PilImages(Dataset[tuple[torch.Tensor, int]]):
    """What the notebook iterates: PIL images, as torchvision's CIFAR10 gives them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images, labels
        a = albumentations
        self._transform = a.Compose(
            [
                a.ShiftScaleRotate(shift_limit=0.05, scale_limit=0.05, rotate_limit=15, p=0.5),
                a.RGBShift(15, 15, 15, p=0.5),
                a.RandomBrightnessContrast(p=0.5),
                a.Normalize(MEAN, STD),
                a.ToTensorV2(),
            ]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self._images[index])
        return self._transform(image=np.array(image))["image"], int(self._labels[index])


def notebook(images: np.ndarray, labels: np.ndarray, workers: int) -> Epoch:
    """Return the notebook's epoch."""
    batches = DataLoader(
        PilImages(images, labels),
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: sum(len(labels) for _, labels in batches)


def ours(loaders: loader.Loaders) -> Epoch:
    """Return an epoch of ours; each has its own number, so its own order and draws."""
    scale, shift = _normalisation()
    epochs = iter(range(1000))

    def epoch() -> int:
        loaders.train.batch_sampler.sampler.set_epoch(next(epochs))
        seen = 0
        for batch in loaders.train:
            torch.addcmul(shift, batch.images.float(), scale)
            seen += len(batch.labels)
        return seen

    return epoch


def limit(images: np.ndarray) -> Epoch:
    """Return the least that can be done: index, normalise."""
    whole = torch.from_numpy(images).permute(0, 3, 1, 2)
    scale, shift = _normalisation()

    def epoch() -> int:
        for rows in torch.randperm(len(whole)).split(BATCH):
            torch.addcmul(shift, whole[rows].float(), scale)
        return len(whole)

    return epoch


def _normalisation() -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    return 1 / (255 * std), -mean / std


def cpu_seconds() -> float:
    """Return what this process and its living workers have used."""
    used = 0.0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used + time.process_time()


def policy() -> Policy:
    """Return `light`, as conf/augmentation/light.yaml has it."""
    return light(
        affine={
            "p": 0.5,
            "translate_fraction": 0.05,
            "scale_fraction": 0.05,
            "rotate_degrees": 15.0,
        },
        rgb_shift={"p": 0.5, "limit": 15.0},
        brightness_contrast={"p": 0.5, "brightness_fraction": 0.2, "contrast_fraction": 0.2},
    )


def engines(count: int, workers: int) -> dict[str, Epoch]:
    """Return what is compared, by name."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    images = np.stack([np.asarray(Image.fromarray(c).resize((SIZE, SIZE))) for c in coarse])
    labels = rng.integers(0, 10, count)
    form = Form(SIZE, "squash", 3, SIZE * SIZE)
    names = [str(row) for row in range(count)]
    split = Split(Pixels(images), np.arange(count), labels, names, form)
    empty = Split(Pixels(images), np.arange(0), labels[:0], [], form)
    data = Data("made", tuple("0123456789"), split, empty, empty, "")
    settings = {"batch_size": BATCH, "drop_last": False}
    by_image = loader.albumentations(
        data,
        policy(),
        0,
        CPU,
        num_workers=workers,
        prefetch_batches=2,
        timeout_s=60.0,
        **settings,
    )
    by_dali = loader.dali(
        data, policy(), 0, CPU, num_threads=workers, prefetch_batches=2, **settings
    )
    resident = loader.device(data, policy(), 0, CPU, memory_fraction=0.5, **settings)
    return {
        f"notebook (PIL, albumentations, batch 32, {workers} workers)": notebook(
            images, labels, workers
        ),
        f"loader=albumentations, {workers} workers": ours(by_image),
        f"loader=dali, {workers} threads": ours(by_dali),
        "loader=device": ours(resident),
        "index and normalise": limit(images),
    }


def main() -> None:
    """Measure, interleaved, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    epochs = engines(asked.images, asked.workers)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in epochs}
    for repeat in range(-1, asked.repeats):
        for name, epoch in epochs.items():
            begun, used = time.perf_counter(), cpu_seconds()
            seen = epoch()
            wall, cpu = time.perf_counter() - begun, cpu_seconds() - used
            if repeat >= 0:
                rates[name].append((seen / wall, seen / cpu))
    print(f"{asked.images} images of {SIZE} x {SIZE}, n={asked.repeats}, medians")
    print("| loader | images/s | ratio | images per CPU-second | ratio |\n|---|---|---|---|---|")
    baseline = next(iter(rates.values()))
    for name, measured in rates.items():
        cells = []
        for kind in (0, 1):
            rate = statistics.median(pair[kind] for pair in measured)
            ratios = [a[kind] / b[kind] for a, b in zip(measured, baseline, strict=True)]
            cells.append(f"{rate:,.0f} | {statistics.median(ratios):.1f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
