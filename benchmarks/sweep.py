"""What isolation costs: nine one-epoch jobs on digits, by three ways to run them.

python benchmarks/sweep.py [--repeats 3] [OVERRIDES]

A sweep by cvexp's launcher (a fresh process a job), one by Hydra's basic launcher (all jobs in one
process, which share its memory and its state), and nine commands one after another. The ways take
turns; prints medians of the wall time. A toy network, so that what is compared shows.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOY = (
    "model=timm model.name=test_efficientnet model.pretrained=false data.size=32 "
    "trainer.max_epochs=1 tracker=none"
).split()
GRID = {"freeze": ("last", "most", "full"), "seed": ("0", "1", "2")}


def commands(way: str, overrides: list[str]) -> list[list[str]]:
    """Return the command lines of a way to run the jobs."""
    base = [sys.executable, "-m", "cvexp"]
    if way == "nine commands":
        cells = itertools.product(*([f"{k}={v}" for v in values] for k, values in GRID.items()))
        return [[*base, *TOY, *overrides, *cell] for cell in cells]
    grid = [f"{key}={','.join(values)}" for key, values in GRID.items()]
    plain = [f"hydra/launcher={way}", "~hydra.callbacks.report"]  # launching is what is compared
    return [[*base, "-m", *TOY, *overrides, *grid, *plain]]


def seconds(way: str, overrides: list[str]) -> float:
    """Return how long the nine jobs take."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        for command in commands(way, overrides):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
        elapsed = time.perf_counter() - began
        ran = len(list(Path(folder).rglob("last.ckpt")))
        assert ran == 9, f"{way}: {ran} jobs"
    return elapsed


def main() -> None:
    """Run everything, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    ways = ("isolated", "basic", "nine commands")
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(asked.repeats):
        for way in ways:
            times[way].append(seconds(way, asked.overrides))
            print(f"{way}: {times[way][-1]:.1f} s", file=sys.stderr)
    isolated = statistics.median(times["isolated"])
    print("| nine jobs of one epoch | wall time, s | against isolated |\n|---|---|---|")
    for way in ways:
        median = statistics.median(times[way])
        print(f"| {way} | {median:.1f} | {median / isolated:.2f} |")
    print(f"n={asked.repeats}, medians")


if __name__ == "__main__":
    main()
