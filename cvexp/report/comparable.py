"""What makes two runs differ in more than their factors, and what a reader should know of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cvexp.report import words
from cvexp.report.cells import Cell, is_whole
from cvexp.report.records import Run

# What each factor changes by its nature; whatever else differs is said beside the numbers.
OWN = {
    "accumulation": "effective_batch_size lr_first lr_last",
    "data": "sha256",
    "early_stopping": "optimizer_steps images_seen lr_last stopped_early",
    "freeze": (
        "trainable_parameters total_parameters trainable_fraction frozen_modules "
        "began_to_train_at_step cached_features channels_last"
    ),
    "loader": "batch_size effective_batch_size images_not_seen_per_epoch lr_first lr_last",
    "model": (
        "trainable_parameters total_parameters trainable_fraction frozen_modules channels_last "
        "compiled began_to_train_at_step"
    ),
    "optimizer": "lr_first lr_peak lr_last",
    "precision": "precision parameter_dtype compute_dtype",
    "scheduler": "lr_first lr_peak lr_last",
    "trainer": (
        "optimizer_steps images_seen lr_first lr_last device devices strategy deterministic "
        "effective_batch_size"
    ),
}
_ENVIRONMENT = ("git_commit", "threads")
_HARDWARE = ("cpu", "cores", "gpus")


def compare(
    cells: Sequence[Cell], base: Cell, factors: Mapping[str, Any]
) -> dict[Run, dict[str, str]]:
    """Flag what differs from the baseline's runs and is not a factor's own doing.

    Returns:
        For each run, key -> both values, the baseline's first.
    """
    own = {key for factor in factors for key in OWN.get(factor.partition(".")[0], "").split()}
    reference: dict[Any, Run] = base["chosen"] or next(
        (cell["chosen"] for cell in cells if cell["chosen"]), {}
    )
    if not reference:
        return {}
    every = {}
    first = next(iter(reference.values()))
    for cell in cells:
        found: dict[str, Counter[str]] = {}
        for seed, run in cell["chosen"].items():
            other = reference.get(seed, first)
            every[run] = _differences(run, other, own, factors)
            for key, said in every[run].items():
                found.setdefault(key, Counter())[said] += 1
        for key, pairs in found.items():
            ways = list(pairs)
            more = f" (and {len(ways) - 1} more ways)" if len(ways) > 1 else ""
            cell["flags"].append(f"differs also in {key}: {ways[0]}{more}")
    return every


def _differences(run: Run, other: Run, own: set[str], factors: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> both values, another run's first, of what no factor explains."""
    found = {}
    here, there = _comparable(run), _comparable(other)
    for key in dict.fromkeys([*there, *here]):
        old, new = there.get(key), here.get(key)
        if old != new and key not in own:
            found[key] = f"{words.short(old)} / {words.short(new)}"
    if not any(factor in ("experiment", "debug") for factor in factors):
        for key, (old, new) in run.differs(other).items():
            parts = key.split(".")
            heads = {".".join(parts[: end + 1]) for end in range(len(parts))}
            if key != "seed" and not heads & set(factors):
                found[key] = f"{words.short(old)} / {words.short(new)}"
    return found


def _comparable(run: Run) -> dict[str, Any]:
    """Return what must be equal for two runs to differ in their factors alone."""
    environment, data = run.part("environment"), run.part("data")
    hardware = environment.get("hardware") or {}
    return {
        **run.part("effective"),
        "data": data.get("sha256"),
        **{f"versions.{k}": v for k, v in (environment.get("versions") or {}).items()},
        **{key: environment.get(key) for key in _ENVIRONMENT},
        **{key: hardware.get(key) for key in _HARDWARE},
    }


def notes_of(runs: Sequence[Run], cells: Sequence[Cell], metric: str) -> list[str]:
    """Return what a reader should know of the runs themselves."""
    notes = _not_deterministic(runs)
    broken = [run for run in runs if not run.record and run.status != "missing"]
    notes += [f"{run.directory}: {run.reason}; it is in no cell" for run in broken]
    valueless = sum(cell["counts"].get("ok", 0) - cell["n"] for cell in cells)
    if valueless:
        notes.append(f"{words.count(valueless, 'completed run')} without {metric}")
    tried = [run for cell in cells for run in list(cell["chosen"].values())[:1]]
    if any(run.level("trainer.fast_dev_run") for run in tried):
        notes.append("smoke tests (trainer.fast_dev_run): their numbers mean nothing")
    contended = sum(cell["contended"] for cell in cells)
    if contended:
        notes.append(
            f"{words.count(contended, 'run')} shared a device (contended): their times, rates and "
            "energy are left out"
        )
    parts = sum(
        not is_whole(run) and not run.part("cost").get("contended")
        for cell in cells
        for run in cell["chosen"].values()
    )
    if parts:
        notes.append(
            f"{words.count(parts, 'run')} went on after a cut: times cover the last part alone and "
            "are left out"
        )
    return notes


def _not_deterministic(runs: Sequence[Run]) -> list[str]:
    """Return which runs of equal identity (and so of equal seed) have other results."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        if run.status == "ok" and run.record.get("identity"):
            groups.setdefault(run.record["identity"], []).append(run)
    found = []
    for group in groups.values():
        for run in group[1:]:
            if run.part("metrics") != group[0].part("metrics"):
                found.append(
                    f"non-determinism: {group[0].directory} and {run.directory} are the same run "
                    "of the same seed, and their results differ"
                )
    return found
