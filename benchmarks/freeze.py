"""What to train: the freeze options side by side, on digits.

python benchmarks/freeze.py [--seeds 3] [OVERRIDES]

EfficientNet-Lite0 from its ImageNet weights, everything else as it is by default. Each run is a
command of its own, so that its peak memory is its own; options take turns within a seed. Prints
mean and sample standard deviation of the test accuracy, and medians of what the runs cost. Time is
that of training, without start-up and validation; the peak holds the interpreter and the libraries
too, and on a GPU is the device's. Add overrides to repeat it with your own images.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OPTIONS = ("last", "most", "full", "gradual", "lora")


def run(folder: Path, option: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Train in a process of its own, and return the record."""
    command = [sys.executable, "-m", "cvexp", f"freeze={option}", f"seed={seed}", *overrides]
    command += ["tracker=none", f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record: dict[str, Any] = json.loads((folder / "run.json").read_text("utf-8"))
    return record


def row(option: str, records: list[dict[str, Any]]) -> str:
    """Return an option's row of the table."""
    scores = [record["metrics"]["test/accuracy"] for record in records]
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    costs = [record["cost"] for record in records]
    seconds = statistics.median(cost["train_s"] for cost in costs)
    peak = statistics.median(c["peak_device_bytes"] or c["peak_host_bytes"] for c in costs)
    share = records[0]["effective"]["trainable_fraction"]
    return (
        f"| {option} | {statistics.mean(scores):.4f}{spread} | {seconds:.1f} | "
        f"{peak / 2**20:,.0f} | {share:.1%} |"
    )


def main() -> None:
    """Run everything, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    records: dict[str, list[dict[str, Any]]] = {option: [] for option in OPTIONS}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(asked.seeds):
            for option in OPTIONS:
                folder = Path(temporary) / f"{option}-{seed}"
                records[option].append(run(folder, option, seed, asked.overrides))
    print(f"n={asked.seeds} seeds")
    print("| freeze | test accuracy, mean ± sd | training, s | peak memory, MiB | trains |")
    print("|---|---|---|---|---|")
    for option, found in records.items():
        print(row(option, found))


if __name__ == "__main__":
    main()
