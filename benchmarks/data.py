"""Two epochs over a folder of JPEG files: cvexp against torchvision's ImageFolder with PIL.

python benchmarks/data.py [--images 2000] [--workers 2] [--repeats 5]

Same files, same workers, the same resizing (shorter side to 224, bicubic, centre cut), uint8
batches of 64, no augmentation. Each repeat starts with an empty cache and takes both in turn, so
that a slow minute slows both. An epoch of cvexp's begins with nothing but the folder's name: the
first opens, checks and hashes every file, the second starts anew over what the first kept. Prints
medians over the repeats, and the median of each repeat's ratio.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from cvexp import loader
from cvexp.augmentation import none
from cvexp.data import folder

SIZE, BATCH = 224, 64


def write_images(root: Path, count: int) -> None:
    """Write JPEG files of 320 x 256 pixels, about as hard to decode as photographs."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:256, 0:320]
    for i in range(count):
        waves = [np.sin(x / rng.uniform(3, 40) + y / rng.uniform(3, 40)) for _ in range(3)]
        pixels = 127 + 90 * np.stack(waves, axis=-1) + rng.normal(0, 12, (256, 320, 3))
        place = root / f"class{i % 10}" / f"{i}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place, quality=90)


def ours(root: Path, cache: Path, workers: int) -> float:
    """Return images/s of one epoch over the training split, from nothing but the folder's name."""
    begun = time.perf_counter()
    data = folder(
        root=str(root),
        classes=None,
        size=SIZE,
        resize="crop",
        channels=3,
        val_fraction=0.01,
        test_fraction=0.01,
        split_seed=0,
        on_error="raise",
        max_pixels=10**8,
        class_weights="none",
        sampler="uniform",
        cache="disk",
        cache_dir=str(cache),
    )
    cpu = torch.device("cpu")
    loaders = loader.albumentations(
        data,
        none(),
        0,
        cpu,
        batch_size=BATCH,
        num_workers=workers,
        prefetch_batches=2,
        timeout_s=60.0,
        drop_last=False,
    )
    seen = sum(len(batch.labels) for batch in loaders.train)
    elapsed = time.perf_counter() - begun
    loaders.close()
    return seen / elapsed


class Theirs:
    """ImageFolder and a DataLoader whose workers live on."""

    def __init__(self, root: Path, workers: int) -> None:
        resize = v2.Resize(SIZE, interpolation=v2.InterpolationMode.BICUBIC)
        transform = v2.Compose([resize, v2.CenterCrop(SIZE), v2.PILToTensor()])
        self._loader = DataLoader(
            ImageFolder(str(root), transform),
            batch_size=BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def epoch(self) -> float:
        """Return images/s of one epoch."""
        begun = time.perf_counter()
        seen = sum(len(labels) for _, labels in self._loader)
        return seen / (time.perf_counter() - begun)


def main() -> None:
    """Measure, interleaved, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    rows: dict[str, list[float]] = {f"{who} {n}": [] for n in (1, 2) for who in ("theirs", "ours")}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "images"
        write_images(root, asked.images)
        for repeat in range(asked.repeats):
            theirs, cache = Theirs(root, asked.workers), Path(temporary) / f"cache{repeat}"
            for n in (1, 2):
                rows[f"theirs {n}"].append(theirs.epoch())
                rows[f"ours {n}"].append(ours(root, cache, asked.workers))
    print(f"{asked.images} JPEG files, {asked.workers} workers, n={asked.repeats}")
    print("| epoch | ImageFolder, images/s | cvexp, images/s | ratio |\n|---|---|---|---|")
    for n in (1, 2):
        a, b = rows[f"theirs {n}"], rows[f"ours {n}"]
        ratio = statistics.median(y / x for x, y in zip(a, b, strict=True))
        medians = f"{statistics.median(a):,.0f} | {statistics.median(b):,.0f}"
        print(f"| {n} | {medians} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
