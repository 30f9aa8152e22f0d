"""How long the report on hundreds of runs takes, beside the imports that other tools pay first.

python benchmarks/report.py [--runs 300] [--repeats 5]

One real toy run is copied with other levels, seeds and values (20 cells). Each way is a process of
its own, the ways take turns; prints medians of the wall time. The report imports no torch.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOY = (
    "model=timm model.name=test_efficientnet model.pretrained=false data.size=32 "
    "trainer.max_epochs=5 tracker=none hydra.run.dir=run"
).split()
SHOWN = "from pathlib import Path; from cvexp.report import analysis, records, table; "
WAYS = {
    "import torch": ["-c", "import torch"],
    "read, analyse, show": [
        "-c",
        f"{SHOWN}table.show(analysis.analyse(records.find([Path('runs')]), ['runs']))",
    ],
    "cvexp report, with page, figures and files": ["-m", "cvexp", "report", "runs"],
}


def fill(folder: Path, runs: int) -> None:
    """Make one run, and copies of it."""
    subprocess.run(
        [sys.executable, "-m", "cvexp", *TOY], cwd=folder, check=True, capture_output=True
    )
    record = json.loads((folder / "run" / "run.json").read_text())
    draws = random.Random(0)
    for number in range(runs):
        lr, seed = 0.001 * (1 + number % 20), number // 20
        record["factors"] |= {"optimizer.lr": lr, "seed": seed}
        record["identity"] = str(number)
        record["metrics"]["test/accuracy"] = 0.9 + 2 * lr + draws.gauss(0, 0.01)
        copy = folder / "runs" / f"lr-{lr:g}_seed-{seed}"
        (copy / ".hydra").mkdir(parents=True)
        (copy / "run.json").write_text(json.dumps(record))
        for name in ("metrics.jsonl", ".hydra/config.yaml"):
            (copy / name).write_bytes((folder / "run" / name).read_bytes())


def main() -> None:
    """Time every way, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name), asked.runs)
        for repeat in range(asked.repeats + 1):
            for way, arguments in WAYS.items():
                began = time.perf_counter()
                done = subprocess.run([sys.executable, *arguments], cwd=name, capture_output=True)
                if done.returncode:
                    raise SystemExit(done.stderr.decode())
                if repeat:  # the first reads everything from the disk
                    times[way].append(time.perf_counter() - began)
    first = statistics.median(times["import torch"])
    print(f"| {asked.runs} runs | wall time, s | against import torch |\n|---|---|---|")
    for way, seconds in times.items():
        median = statistics.median(seconds)
        print(f"| {way} | {median:.2f} | {median / first:.2f} |")
    print(f"\nn={asked.repeats}, medians, interleaved")


if __name__ == "__main__":
    main()
