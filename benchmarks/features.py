"""An epoch of head-only training on cached features against the same epoch on images.

python benchmarks/features.py [--images 4096] [--epochs 6] [--repeats 3]

ResNet-18 (torchvision, random weights: they change no time) at 32 px, freeze=last,
augmentation=none, loader=device, through the command line; CIFAR-shaped images that are made.
The time of an epoch is that of its training batches, from the run's own record: images seen over
the median images/s. Runs with and without the cache take turns. Prints medians, and the median of
each repeat's ratio; what the cache cost once stands beside it, in epochs of images.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cvexp import cli


def write_images(root: Path, count: int) -> None:
    """Write PNG files of 32 x 32 pixels in ten classes."""
    rng = np.random.default_rng(0)
    for i in range(count):
        place = root / f"class{i % 10}" / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place)


def run(root: Path, folder: Path, batch_size: int, epochs: int, cached: bool) -> dict[str, Any]:
    """Train, and return the record."""
    overrides = [
        "data=folder",
        f"data.root={root}",
        "data.size=32",
        "data.val_fraction=0.05",
        "data.test_fraction=0.05",
        f"data.cache_dir={folder.parent / 'cache'}",
        "model=torchvision",
        "model.name=resnet18",
        "model.pretrained=false",
        "freeze=last",
        "augmentation=none",
        "loader=device",
        "tracker=none",
        f"loader.batch_size={batch_size}",
        f"trainer.max_epochs={epochs if cached else 1}",
        f"freeze.cache_features={str(cached).lower()}",
        f"hydra.run.dir={folder}",
    ]
    sys.argv = ["cvexp"]
    if cli.main(overrides):
        raise SystemExit("the run failed")
    record: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return record


def main() -> None:
    """Measure, interleaved, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "images"
        write_images(root, asked.images)
        for batch_size in (64, 256):
            rates: dict[bool, list[float]] = {False: [], True: []}
            costs = []
            for repeat in range(asked.repeats):
                for cached in (False, True):
                    folder = Path(temporary) / f"{batch_size}-{repeat}-{cached}"
                    record = run(root, folder, batch_size, asked.epochs, cached)
                    rates[cached].append(record["cost"]["images_per_s"]["median"])
                report = record["effective"]["cached_features"]
                costs.append(
                    report["seconds"] * rates[False][-1] / record["data"]["splits"]["train"]
                )
            ratio = statistics.median(b / a for a, b in zip(*rates.values(), strict=True))
            images, features = (statistics.median(rates[cached]) for cached in (False, True))
            cost = statistics.median(costs)
            rows.append(
                f"| {batch_size} | {images:,.0f} | {features:,.0f} | {ratio:.0f} | {cost:.2f} |"
            )
    print(f"ResNet-18, 32 px, {asked.images} images, n={asked.repeats}, medians")
    print("| batch | images/s | with cached features | ratio | cost of the cache, epochs |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
