"""Records as the report reads them: from folders to one row a run, and what was to be run.

It imports no torch, and reads hundreds of runs in about a second.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from cvexp.config import NO_PART_OF_IDENTITY, UsageError, options
from cvexp.record_file import is_held, read_record
from cvexp.resume import differences

STATUSES = (
    "ok",
    "running",
    "lost",
    "failed",
    "out of memory",
    "diverged",
    "interrupted",
    "missing",
    "duplicate",
)
# Labels and paths; how many workers fetch images is a factor of a speed.
NO_FACTOR = [key for key in NO_PART_OF_IDENTITY if not key.startswith("loader.")]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is built


@dataclass(eq=False)
class Run:
    """One run, or one that a sweep was to have and does not have yet.

    Args:
        directory: as people would type it.
        status: one of STATUSES.
        factors: group -> option and key -> value, of what the command line set.
        record: what run.json holds; empty for a missing one.
        is_planned: by a sweep, which says which seeds each cell is to have.
        others: of its sweep, which have the levels that its plan leaves to the config.
    """

    directory: Path
    status: str
    reason: str | None = None
    factors: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    is_planned: bool = False
    others: Sequence["Run"] = ()

    @property
    def seed(self) -> Any:
        """Return the seed, typed or composed."""
        return self.level("seed")

    def level(self, key: str) -> Any:
        """Return a group's option or a key's value: as typed, else as composed.

        Of a run that left no config it is that of another of its sweep, else "unknown".
        """
        if key in self.factors:
            return plain(self.factors[key])
        if option := (self.record.get("choices") or {}).get(key):
            return option
        if not self.config:
            known = (run.level(key) for run in self.others if run.config and key not in run.factors)
            return next(known, "unknown")
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict):  # a group of a record from before there were choices
            return str(node.get("_target_")).rpartition(".")[2].replace("_", "-")
        return plain(node)

    def part(self, name: str) -> Mapping[str, Any]:
        """Return a part of the record, such as its cost, or nothing."""
        return self.record.get(name) or {}

    def value(self, metric: str, select: str) -> float | None:
        """Return a completed run's metric at its last or its best epoch; None where it has none."""
        if self.status != "ok":
            return None
        metrics = self.part("metrics" if select == "last" else "metrics_best")
        value = metrics.get(metric)
        if value is None and "/ema_" in metric and self.level("ema") == "none":
            value = metrics.get(metric.replace("/ema_", "/"))  # there is nothing to average
        return None if value is None else float(value)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the composed config, unresolved; nothing where it cannot be read."""
        try:
            text = (self.directory / ".hydra" / "config.yaml").read_text("utf-8")
        except (OSError, ValueError):
            return {}
        # Runs of a cell differ in no more than these lines: most are parsed once.
        lines = re.findall(r"^(?:seed|name): .*$", text, re.MULTILINE)
        rest = re.sub(r"^(?:seed|name): .*$", "", text, flags=re.MULTILINE)
        return {**_parsed(rest), **_parsed("\n".join(lines))}

    def differs(self, other: "Run") -> dict[str, list[Any]]:
        """Return key -> both values of what defines a result, another's first."""
        if not (self.config and other.config):
            return {}
        changed = differences(other.config, self.config)
        for group in set(changed) & set(options()):
            changed[group] = (other.level(group), self.level(group))
        return {key: [plain(old), plain(new)] for key, (old, new) in changed.items()}

    @cached_property
    def curves(self) -> dict[str, list[list[float]]]:
        """Return metric -> [epoch, value] of each epoch, of train and validation."""
        found: dict[str, dict[float, float]] = {}
        try:
            text = (self.directory / "metrics.jsonl").read_text("utf-8")
        except (OSError, ValueError):
            return {}
        for row in text.splitlines():
            if '"val/' in row or '"train/loss":' in row:
                try:
                    line = json.loads(row)
                    epoch = line["epoch"]
                except (ValueError, TypeError, KeyError):  # being written just now
                    continue
                for name, value in line.items():
                    if name.startswith(("val/", "train/")) and _is_number(value, epoch):
                        found.setdefault(name, {})[epoch] = value
        return {name: [list(point) for point in points.items()] for name, points in found.items()}


def find(sources: Sequence[Path]) -> list[Run]:
    """Return the runs in folders and below them, each once, those of a sweep in its own order.

    Args:
        sources: sweeps, run directories, or folders of such.

    Raises:
        UsageError: a folder that is none, or no run in any.
    """
    runs: dict[Path, Run] = {}
    for source in sources:
        if not source.is_dir():
            raise UsageError(f"report {source}: no such folder; try one below multirun/")
        for design in sorted(source.rglob("sweep.json")):
            for run in _designed(design):
                runs.setdefault(run.directory.resolve(), run)
        for path in sorted(source.rglob("run.json")):
            runs.setdefault(path.parent.resolve(), read(path.parent))
    if not runs:
        said = " ".join(map(str, sources))
        raise UsageError(f"report {said}: no run there, for there is no run.json; try status")
    return list(runs.values())


def read(directory: Path) -> Run:
    """Return the run of one directory."""
    try:
        record = read_record(directory) or {}
    except UsageError as error:
        return Run(directory, "failed", str(error))
    said, reason = str(record.get("status")), record.get("reason")
    status = {"completed": "ok"}.get(said, said if said in STATUSES else "failed")
    if status == "running" and not is_held(directory / ".lock"):
        status = "lost"
    if status == "failed" and "out of memory" in str(reason):
        status = "out of memory"
    return Run(directory, status, reason, _factors(record.get("factors") or {}), record)


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row a run: directory, status, factors, seed, metrics, costs."""
    keys = dict.fromkeys(key for run in runs for key in run.factors if key != "seed")
    found = []
    for run in runs:
        cost, metrics = run.part("cost"), run.part("metrics")
        best = {k: v for k, v in run.part("metrics_best").items() if "/" in k}
        found.append(
            {
                "directory": str(run.directory),
                "status": run.status,
                "reason": run.reason,
                **{key: run.level(key) for key in keys},
                "seed": run.seed,
                **metrics,
                **{f"best/{name}": value for name, value in best.items()},
                **{key: value for key, value in cost.items() if not isinstance(value, dict)},
                "images_per_s": (cost.get("images_per_s") or {}).get("median"),
                "optimizer_steps": run.part("effective").get("optimizer_steps"),
                "trainable_parameters": run.part("effective").get("trainable_parameters"),
                "identity": run.record.get("identity"),
                "started": run.record.get("started"),
            }
        )
    return found


def _designed(path: Path) -> list[Run]:
    """Return the runs of a sweep as it was planned, whether they are there or not."""
    try:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        planned = [(path.parent / cell["directory"], list(cell["overrides"])) for cell in cells]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is no design of a sweep: {error}".replace("\n", " ")) from error
    found: list[Run] = []
    for directory, overrides in planned:
        there = (directory / "run.json").is_file()
        run = read(directory) if there else Run(directory, "missing")
        run.is_planned = True
        if not run.record:
            run.factors, run.others = _factors(_typed(path, overrides)), found
        found.append(run)
    return found


def _typed(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what overrides set, as a record would have it.

    Raises:
        UsageError: it is none, in the file that names it.
    """
    try:
        return typed(overrides)
    except (HydraException, TypeError) as error:
        raise UsageError(f"{path} is no design of a sweep: {error}".replace("\n", " ")) from error


def typed(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what overrides set: group -> option, key -> value.

    Raises:
        HydraException: it is none.
    """
    found: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.key_or_group in options():
            found[override.key_or_group] = override.get_value_element_as_str()
        elif not override.is_delete():
            found[override.key_or_group] = plain(override.value())
    return found


def _factors(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return what may be a factor of what was typed."""
    left = tuple(f"{key}." for key in NO_FACTOR)
    return {k: v for k, v in overrides.items() if k not in NO_FACTOR and not k.startswith(left)}


def plain(value: Any) -> Any:
    """Return a value that can be compared and counted: a list or a mapping as JSON."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    return value if isinstance(value, str | bool | int | None) or _is_number(value) else str(value)


def _is_number(*values: Any) -> bool:
    return all(isinstance(of, int | float) and math.isfinite(of) for of in values)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> dict[str, Any]:
    try:
        node = yaml.load(text, _LOADER)  # a safe one
    except yaml.YAMLError:
        return {}
    return {str(key): value for key, value in node.items()} if isinstance(node, dict) else {}
