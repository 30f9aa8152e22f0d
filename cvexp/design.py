"""Which jobs a sweep is made of: its axes crossed or walked together, less what is left out."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from cvexp.atomic import write_atomically
from cvexp.config import UsageError, did_you_mean, unresolved

if TYPE_CHECKING:
    from cvexp.plan import Cell


def combinations(typed: Sequence[str], sweep: DictConfig, config_loader: Any) -> list[list[str]]:
    """Return the overrides of each job.

    Args:
        typed: the sweep's overrides; later ones win.
        sweep: its pair and exclude.

    Raises:
        UsageError: a pair of axes of different lengths, or of what is no axis; no job is left.
    """
    parser = OverridesParser.create(config_loader=config_loader)
    axes: dict[str, list[str]] = {}
    for override in parser.parse_overrides(list(typed)):
        axes[override.get_key_element()] = _values(override)
    pair = list(sweep.pair)
    for key in pair:
        if len(axes.get(key, [])) < 2:
            swept = [axis for axis, values in axes.items() if len(values) > 1]
            raise UsageError(
                f"sweep.pair={pair}: {key} is not swept over{did_you_mean(key, swept)}; "
                f"swept over: {', '.join(swept) or 'nothing'}"
            )
    lengths = {key: len(axes[key]) for key in pair}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {n} values" for key, n in lengths.items())
        raise UsageError(f"sweep.pair={pair} walks axes together: {counts}; type as many of each")
    excluded = [_cell(text, axes) for text in sweep.exclude]
    jobs = []
    for positions in itertools.product(*(range(len(values)) for values in axes.values())):
        at = dict(zip(axes, positions, strict=True))
        chosen = {key: axes[key][position] for key, position in at.items()}
        together = len({at[key] for key in pair}) <= 1
        if together and not any(cell.items() <= chosen.items() for cell in excluded):
            jobs.append([f"{key}={value}" for key, value in chosen.items()])
    if not jobs:
        raise UsageError(f"sweep.exclude={list(sweep.exclude)} leaves no job")
    return jobs


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise UsageError(f"{override.input_line}: a grid needs values one by one; type A,B,C")
    return [str(value) for value in override.sweep_string_iterator()]


def _cell(text: str, axes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return a cell that is left out as axis -> value.

    Raises:
        UsageError: it names no axis, or no value of it.
    """
    cell = dict(part.strip().partition("=")[::2] for part in text.split(","))
    for key, value in cell.items():
        if value not in axes.get(key, []):
            known = ", ".join(f"{k}={v}" for k, values in axes.items() for v in values)
            raise UsageError(f"sweep.exclude={text}: no job has {key}={value}; they have: {known}")
    return cell


def keep(config: DictConfig, cells: Sequence["Cell"]) -> None:
    """Write what a sweep goes on from, and which cells it is to have: multirun.yaml, sweep.json.

    Unresolved: a secret stays a reference. Cells of an earlier, smaller grid stay in the list.
    """
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    typed = OmegaConf.create({"hydra": {"overrides": config.hydra.overrides}})
    content = OmegaConf.to_yaml(typed).encode("utf-8", "surrogateescape")
    write_atomically(folder / "multirun.yaml", content)
    path = folder / "sweep.json"
    known = _cells(path) if path.exists() else []
    now = [
        {
            "directory": cell.name,
            "identity": cell.identity,
            "overrides": unresolved(cell.config, "hydra.overrides.task"),
        }
        for cell in cells
    ]
    names = {cell["directory"] for cell in now}
    every = [*(cell for cell in known if cell["directory"] not in names), *now]
    design = {"schema": 1, "cells": every, "pair": list(config.sweep.pair)}
    write_atomically(path, json.dumps(design, indent=1).encode("utf-8", "backslashreplace"))


def _cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of an earlier design.

    Raises:
        UsageError: the file is none.
    """
    try:
        cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
        assert all(isinstance(cell["directory"], str) for cell in cells)
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        raise UsageError(f"{path} is no design of a sweep; remove it to go on") from error
    return cells
