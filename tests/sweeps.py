"""Sweeps as files: a real run's record and config, copied with other levels and values."""

import contextlib
import copy
import functools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cvexp import cli
from cvexp.report.records import Run
from tests.conftest import TOY

Values = Mapping[str, Sequence[float | None]]


@functools.cache
def recorded() -> tuple[dict[str, Any], str, str]:
    """Return record, config and metrics of a real toy run, which is made once."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder, argv = Path(name), sys.argv
        assert cli.main([*TOY, "tracker=none", "trainer.max_epochs=2", "seed=0"]) == 0
        sys.argv = argv
        (path,) = folder.glob("multirun/*/run.json")
        record = json.loads(path.read_text())
        config = (path.parent / ".hydra" / "config.yaml").read_text()
        return record, config, (path.parent / "metrics.jsonl").read_text()


def made(
    levels: Mapping[str, Any], seed: int | None, value: float | None, status: str = "completed"
) -> dict[str, Any]:
    """Return the record of a run that came to a value, with costs that each machine agrees on."""
    record = copy.deepcopy(recorded()[0])
    record["factors"] = {**levels, "seed": seed} if seed is not None else dict(levels)
    record["choices"] = {**record["choices"], **{k: v for k, v in levels.items() if "." not in k}}
    record["identity"] = json.dumps([dict(levels), seed])
    record["status"], record["reason"] = status, None if status == "completed" else f"was {status}"
    for part in ("metrics", "metrics_best"):
        record[part] |= {"test/accuracy": value, "test/loss": value and 1 - value}
    if status != "completed":
        record["metrics"], record["metrics_best"], record["cost"] = {}, {}, {}
        return record
    slow = 1 + sum(map(ord, json.dumps(list(levels.values())))) % 7
    record["cost"] |= {
        "startup_s": 1.0,
        "train_s": 10.0 * slow,
        "validation_s": 2.0,
        "data_wait_fraction": 0.25,
        "images_per_s": {"median": 1000.0 / slow, "iqr": 1.0, "steps": 9},
        "peak_host_bytes": 2**29,
        "contended": False,
    }
    first = str(next(iter(levels.values()), ""))
    record["effective"] |= {"trainable_parameters": 1000 * len(first)}
    return record


def runs(
    factors: Mapping[str, Sequence[Any]], values: Mapping[tuple[Any, ...], Sequence[float | None]]
) -> list[Run]:
    """Return runs in memory: levels -> the value of each seed, None for one that diverged."""
    found = []
    for at in product(*factors.values()):
        for seed, value in enumerate(values.get(at, [])):
            levels = dict(zip(factors, at, strict=True))
            status = "diverged" if value is None else "ok"
            record = _lean(levels, seed, value)
            found.append(Run(Path(f"{at}-{seed}"), status, None, record["factors"], record))
    return found


def _lean(levels: Mapping[str, Any], seed: int, value: float | None) -> dict[str, Any]:
    metrics = {} if value is None else {"test/accuracy": value, "test/loss": value}
    cost = {"train_s": 10.0}
    return {"factors": {**levels, "seed": seed}, "metrics": metrics, "cost": cost, "started": "1"}


def write(folder: Path, records: Sequence[Mapping[str, Any]], missing: Sequence[Any] = ()) -> Path:
    """Write records as the run directories of a sweep, and its design; return its folder.

    Args:
        missing: (levels, seed) of runs that were planned.
    """
    cells = []
    for record in records:
        name = _name(record["factors"])
        cells.append({"directory": name, "overrides": _overrides(record["factors"])})
        write_run(folder / name, record)
    for levels, seed in missing:
        factors = {**levels, "seed": seed}
        cells.append({"directory": _name(factors), "overrides": _overrides(factors)})
    design = {"schema": 1, "cells": cells, "pair": []}
    (folder / "sweep.json").write_text(json.dumps(design))
    return folder


def write_run(directory: Path, record: Mapping[str, Any]) -> Path:
    """Write one run directory."""
    (directory / ".hydra").mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(record))
    config = yaml.safe_load(recorded()[1])
    for key, value in record["factors"].items():
        node, *rest = key.split(".")
        if node in record["choices"] and not rest:
            config[node]["_target_"] = f"cvexp.{node}.{value}"
        elif rest:
            config[node][rest[0]] = value
        else:
            config[node] = value
    (directory / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    (directory / "metrics.jsonl").write_text(recorded()[2])
    return directory


def _name(factors: Mapping[str, Any]) -> str:
    return "_".join(f"{key}-{value}" for key, value in factors.items())


def _overrides(factors: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={json.dumps(value) if not isinstance(value, str) else value}"
        for key, value in factors.items()
    ]


def grid(
    factors: Mapping[str, Sequence[Any]], seeds: int = 5, noise: float = 0.01
) -> Iterator[tuple[dict[str, Any], int, float]]:
    """Return levels, seed and value of each run of a grid whose cells really differ."""
    draws = np.random.default_rng(0)
    for place, at in enumerate(product(*factors.values())):
        for seed in range(seeds):
            value = 0.8 + 0.03 * place + noise * draws.standard_normal()
            yield dict(zip(factors, at, strict=True)), seed, round(float(value), 4)
