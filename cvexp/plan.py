"""What a sweep has to do: which of its jobs are done, which go on, which are new.

A job is known by its identity, so neither the order of the grid nor a folder's name decides.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cvexp.config import UsageError, identity, kind
from cvexp.console import say
from cvexp.record_file import read_record
from cvexp.resume import differences, elsewhere

DONE = ("completed", "diverged")  # a divergence comes again


@dataclass
class Cell:
    """One job.

    Args:
        numbers: of the jobs that were asked for and are this one.
        config: composed, with Hydra's node.
        status: completed, diverged; resumed (a part is there); new; refused.
        estimate_s: from runs of the same kind, or None.
        passed_on: signals that its process was sent.
    """

    numbers: list[int]
    name: str
    config: DictConfig
    identity: str | None
    directory: Path
    status: str
    reason: str | None = None
    estimate_s: float | None = None
    passed_on: int = 0

    @property
    def number(self) -> int:
        """Return its number among the jobs."""
        return self.numbers[0]

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing left to do."""
        return self.status in DONE


def plan(folder: Path, configs: Sequence[DictConfig], first_number: int) -> list[Cell]:
    """Return the jobs of a sweep, each once, those that its folder holds found again.

    Args:
        folder: the sweep's, which may hold runs already.

    Raises:
        UsageError: a job's folder would not lie below the sweep's.
    """
    held = {found[0]: found[1:] for found in _held(folder)}
    taken = {path.resolve(): key for key, (path, _) in held.items()}
    times = _times(folder.absolute().parent)
    cells: dict[str, Cell] = {}
    renamed = []
    for number, config in enumerate(configs, first_number):
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
            config.hydra.sweep.dir = str(folder)
        path = folder / config.hydra.sweep.subdir
        if not path.resolve().is_relative_to(folder.resolve()) or path == folder:
            raise UsageError(f"hydra.sweep.subdir={config.hydra.sweep.subdir} leaves {folder}")
        plain = config.copy()
        with open_dict(plain):
            del plain["hydra"]
        key, cost = _identity(plain), None
        cell = Cell([number], path.name, config, key, path, "new")
        if key is not None:
            cost = times.get(kind(plain))
            if key in held:
                cell.directory, record = held[key]
                ended = record.get("status")
                cell.status = ended if ended in DONE else "resumed"
                cell.reason = record.get("reason")
            elif path.resolve() in taken:
                cell.directory = path.with_name(f"{path.name}-{key[:8]}")
                renamed.append((cell, _other(path, plain)))
        if not cell.is_done and cost:
            cell.estimate_s = sorted(cost)[len(cost) // 2]
        with open_dict(config):
            config.hydra.sweep.subdir = str(cell.directory.relative_to(folder))
        cell.name = config.hydra.sweep.subdir
        known = cells.setdefault(key or f"refused {number}", cell)
        if known is not cell:
            known.numbers.append(number)
    if done := next((cell for cell in cells.values() if cell.is_done), None):
        moved = elsewhere(_kept(done.directory), OmegaConf.to_container(done.config))
        if moved:
            say("sweep", moved)
    for cell, other in renamed:
        say("sweep", f"{cell.name}: another config than the run there before: {other}")
    kept = len(held) - sum(key in cells for key in held)
    if kept and first_number == 0:  # later trials of a search are new by nature
        others = [path for key, (path, _) in held.items() if key not in cells]
        begins = next((cell for cell in cells.values() if cell.status == "new"), None)
        nearest = begins and min((_other(path, begins.config) for path in others[:20]), key=len)
        of = f"of other configs ({nearest})" if nearest else "that this grid does not have"
        say("sweep", f"{folder} holds {kept} more runs, {of}; they are left alone")
    if len(cells) < len(configs):
        say("sweep", f"{len(configs) - len(cells)} of {len(configs)} jobs were asked for twice")
    return list(cells.values())


def _identity(config: Any) -> str | None:
    """Return a job's identity, or None where its config cannot be resolved."""
    try:
        return identity(config)
    except OmegaConfBaseException:  # the job itself says it, in its own record
        return None


def _held(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Return identity, directory and record of the runs in a sweep's folder."""
    for path in sorted(folder.glob("*/run.json")):
        if path.parent.is_symlink():
            continue
        record: dict[str, Any] = {}
        with suppress(UsageError):  # the job itself says what is wrong with it
            record = read_record(path.parent) or {}
        key = record.get("identity")
        with suppress(Exception):  # one that was refused, or cut before it had any
            key = key or _identity(OmegaConf.load(path.parent / ".hydra" / "config.yaml"))
        if isinstance(key, str):
            yield key, path.parent, record


def _other(directory: Path, config: DictConfig) -> str:
    """Return in what a config differs from that of the run in a directory."""
    kept, here = _kept(directory), OmegaConf.to_container(config)
    if not kept:
        return "it cannot be read"
    assert isinstance(here, dict)
    changed = differences(kept, {key: value for key, value in here.items() if key != "hydra"})
    return ", ".join(f"{key}={old} there, {new} here" for key, (old, new) in changed.items())


def _kept(directory: Path) -> dict[Any, Any]:
    """Return the config of the run in a directory, unresolved; nothing where there is none."""
    try:
        kept = OmegaConf.to_container(OmegaConf.load(directory / ".hydra" / "config.yaml"))
    except Exception:  # whatever is in that file
        return {}
    return kept if isinstance(kept, dict) else {}


def _times(root: Path) -> dict[str, list[float]]:
    """Return the seconds that each kind of run took, of the completed ones below a folder."""
    found: dict[str, list[float]] = {}
    for path in [*root.glob("*/run.json"), *root.glob("*/*/run.json")]:
        try:
            record = read_record(path.parent) or {}
            found.setdefault(str(record.get("kind")), []).append(float(record["cost"]["wall_s"]))
        except (UsageError, KeyError, TypeError):
            continue
    return found
