"""Whether a run directory's run goes on, from which checkpoint, and the verb that asks for it.

A run goes on if its config, as composed now, defines the same result as the one that it keeps, but
for more epochs.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cvexp.config import NO_PART_OF_IDENTITY, UsageError
from cvexp.console import warn
from cvexp.record_file import read_record

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXTENDS = "trainer.max_epochs"
# What Hydra itself may be told again; whatever else a stranger's directory says to it is left out.
HYDRAS = (
    r"hydra/launcher=(isolated|basic)|hydra/sweeper=(grid|optuna|basic)|"
    r"hydra\.launcher\.jobs=(auto|\d+)|hydra\.sweeper\.(n_trials|n_jobs|seed)=\d+|"
    r"hydra\.sweeper\.metric=val/\w+|~hydra\.callbacks\.report"
)
# No flag, no package, no path: a key of ours with a value, or one that is left out.
PLAIN = r"(\+{1,2}|~)?(?!hydra|trusted_packages|sweep=)[A-Za-z_][\w.]*(=.*)?"


def command(typed: Sequence[str]) -> list[str]:
    """Return the command line that goes on with a run or a sweep: its own, and what is typed now.

    Args:
        typed: a folder and overrides.

    Raises:
        UsageError: nothing there to go on with.
    """
    named = [text for text in typed if "=" not in text or Path(text).is_dir()]
    if not named:
        raise UsageError("resume takes a folder: type resume RUN, or resume SWEEP")
    rest = list(typed)
    rest.remove(named[0])
    folder = Path(named[0])
    run, sweep = folder / ".hydra" / "overrides.yaml", folder / "multirun.yaml"
    if run.is_file():
        return [*_overrides(run, ()), *rest, f"hydra.run.dir={_quoted(folder)}"]
    if sweep.is_file():
        kept = [
            text for text in _overrides(sweep, ("hydra", "overrides")) if "_target_" not in text
        ]
        return ["-m", *kept, *rest, f"hydra.sweep.dir={_quoted(folder)}"]
    raise UsageError(f"resume {folder}: no run and no sweep to go on with; try status {folder}")


def _quoted(folder: Path) -> str:
    """Return a path as Hydra's grammar takes it, whatever is in it (hydra#1577)."""
    text = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _overrides(path: Path, keys: Sequence[str]) -> list[str]:
    """Return what was typed: of Hydra's own overrides, only what cannot name code."""
    import yaml

    try:
        node = yaml.safe_load(path.read_text("utf-8"))
        for key in keys:
            node = node[key]
        groups = node.values() if isinstance(node, dict) else [node]
        typed = [text for group in groups for text in group if isinstance(text, str)]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}".replace("\n", " ")) from error
    return [text for text in typed if re.fullmatch(f"{HYDRAS}|{PLAIN}", text, re.DOTALL)]


def extension(run_dir: Path, config: "DictConfig") -> tuple[int, int] | None:
    """Return the epochs that a run was to have and is to have now; None for as many.

    Raises:
        UsageError: the config would give another result than the one that the directory keeps.
    """
    from omegaconf import OmegaConf

    from cvexp.config import identity

    path = run_dir / ".hydra" / "config.yaml"
    try:
        kept = OmegaConf.load(path)
        if not OmegaConf.is_dict(kept):
            raise ValueError("it is no mapping")
        known = (read_record(run_dir) or {}).get("identity") or identity(kept)  # type: ignore[arg-type]  # is_dict
    except Exception as error:  # a stranger's file
        raise UsageError(f"{path} cannot be read: {error}".replace("\n", " ")) from error
    then, here = OmegaConf.to_container(kept), OmegaConf.to_container(config)
    if moved := elsewhere(then, here):
        warn(moved)
    changed = differences(then, here)
    epochs = changed.pop(EXTENDS, None)
    if changed:
        said = ", ".join(f"{key}={old} there, {new} here" for key, (old, new) in changed.items())
        held = [key for key in changed if key.startswith(("optimizer", "scheduler"))]
        why = f" (the state in its checkpoint would defeat {held[0]})" if held else ""
        raise UsageError(
            f"{run_dir} holds a run of another config: {said}{why}; leave them out to go on with "
            "it, or choose another folder"
        )
    if epochs is None:
        if known != identity(config):
            raise UsageError(f"{run_dir}: what its ${{...}} stand for has changed since it began")
        return None
    old, new = epochs
    if new < old:
        raise UsageError(
            f"{EXTENDS}={new}: the run in {run_dir} has {old}; it can go on with more, e.g. "
            f"{EXTENDS}={2 * old}"
        )
    return old, new


def elsewhere(old: Any, new: Any) -> str:
    """Return where data was and is, if that differs: it is no part of a run's identity."""
    parts = [c.get("data") if isinstance(c.get("data"), Mapping) else {} for c in (old, new)]
    places = [(f"data.{key}", *(part.get(key) for part in parts)) for key in ("root", "path")]
    said = [f"{key}={then} there, {now} here" for key, then, now in places if then != now]
    return f"{', '.join(said)}: taken for the same images" if said else ""


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Return key -> both values, of what defines a result; another option stands for all its keys.

    Args:
        old, new: unresolved configs as plain mappings.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for group in dict.fromkeys([*old, *new]):
        mine, theirs = _flat(old.get(group), str(group)), _flat(new.get(group), str(group))
        target = f"{group}._target_"
        if mine.get(target) != theirs.get(target):
            found[group] = tuple(_option(values.get(target)) for values in (mine, theirs))  # type: ignore[assignment]  # of two
            continue
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key):
                found[key] = (mine.get(key), theirs.get(key))
    return {
        key: both
        for key, both in found.items()
        if not any(key == left or key.startswith(f"{left}.") for left in NO_PART_OF_IDENTITY)
    }


def _flat(node: Any, path: str) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {path: node}
    return {k: v for key, value in node.items() for k, v in _flat(value, f"{path}.{key}").items()}


def _option(target: Any) -> str:
    return str(target).rpartition(".")[2].replace("_", "-")
