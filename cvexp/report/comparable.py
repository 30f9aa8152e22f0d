"""What makes two runs differ in more than their factors, and what a reader should know of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cvexp.report import words
from cvexp.report.cells import Cell, is_whole
from cvexp.report.records import Run

# What each factor changes by its nature; whatever else differs is said beside the numbers.
_BY_LENGTH = "optimizer_steps images_seen lr_first lr_last"
OWN = {
    "accumulation": "effective_batch_size lr_first lr_last",
    "data": "data",
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
    "trainer": f"{_BY_LENGTH} device devices strategy deterministic effective_batch_size",
    "trainer.max_epochs": _BY_LENGTH,
    "trainer.max_steps": _BY_LENGTH,
    "trainer.limit_train_batches": _BY_LENGTH,
    "trainer.accelerator": "device strategy",
    "trainer.devices": "devices strategy effective_batch_size optimizer_steps lr_first lr_last",
    "trainer.deterministic": "deterministic",
}
_ENVIRONMENT = ("git_commit", "git_dirty", "threads")
_HARDWARE = ("cpu", "cores", "gpus")


def compare(
    cells: Sequence[Cell], base: Cell, factors: Mapping[str, Any]
) -> dict[Run, dict[str, str]]:
    """Flag what differs from the baseline's runs, and within a cell, and is no factor's own doing.

    Returns:
        For each run, key -> both values, the baseline's first.
    """
    reference: dict[Any, Run] = base["chosen"] or next(
        (cell["chosen"] for cell in cells if cell["chosen"]), {}
    )
    first = next(iter(reference.values()), None)
    every: dict[Run, dict[str, str]] = {}
    for cell in cells:
        runs: dict[Any, Run] = cell["chosen"]
        one = next(iter(runs.values()), None)
        from_base = [_differences(run, reference.get(s, first), factors) for s, run in runs.items()]
        within = [_differences(run, one, factors) for run in runs.values()]
        cell["flags"] += [f"differs also in {said}" for said in _told(from_base)]
        cell["flags"] += [f"runs differ in {said}" for said in _told(within)]
        every |= {
            run: {**among, **apart}
            for run, apart, among in zip(runs.values(), from_base, within, strict=True)
        }
    return every


def _told(found: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what runs differ in, with how many of them do."""
    ways: dict[str, Counter[str]] = {}
    for differences in found:
        for key, said in differences.items():
            ways.setdefault(key, Counter())[said] += 1
    lines = []
    for key, pairs in ways.items():
        more = f", and {len(pairs) - 1} more ways" if len(pairs) > 1 else ""
        some = pairs.total() < len(found)
        of = f" ({pairs.total()} of {len(found)} runs)" if some else ""
        lines.append(f"{key}: {next(iter(pairs))}{more}{of}")
    return lines


def _differences(run: Run, other: Run | None, factors: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> both values, another run's first, of what no factor explains."""
    if other is None or run is other:
        return {}
    moved = [key for key in factors if run.level(key) != other.level(key)]
    own = {key for of in moved for key in _own(of).split()}
    if run.seed != other.seed and run.level("early_stopping") != "none":
        own |= set(OWN["early_stopping"].split())
    found = {}
    here, there = _comparable(run), _comparable(other)
    for key in dict.fromkeys([*there, *here]):
        old, new = there.get(key), here.get(key)
        if old != new and key not in own:
            found[key] = f"{words.short(old)} / {words.short(new)}"
    if not {"experiment", "debug"} & set(moved):
        for key, (old, new) in run.differs(other).items():
            parts = key.split(".")
            heads = {".".join(parts[: end + 1]) for end in range(len(parts))}
            if key != "seed" and not heads & set(moved):
                found[key] = f"{words.short(old)} / {words.short(new)}"
    return found


def _own(factor: str) -> str:
    head = factor.partition(".")[0]
    return OWN.get(factor) or ("" if head == "trainer" else OWN.get(head, ""))


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
    broken = [run for run in runs if not (run.record or run.is_planned)]
    notes += [f"{run.directory}: {run.reason}; it is in no cell" for run in broken]
    if "ema" in cells[0]["levels"] and "/ema_" not in metric:
        other = metric.replace("/", "/ema_")
        notes.append(f"{metric} is of the weights themselves; --metric {other} is of their average")
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
    """Return which runs of equal identity (and so of equal seed) ended in other ways."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        if run.status in ("ok", "diverged") and run.record.get("identity"):
            groups.setdefault(run.record["identity"], []).append(run)
    found = []
    for first, *others in groups.values():
        for run in others:
            if (run.status, run.part("metrics")) == (first.status, first.part("metrics")):
                continue
            same = f"{first.directory} and {run.directory} are the same run of the same seed"
            if apart := _apart(first, run):
                found.append(f"{same}, and their results differ; so do {apart}")
            else:
                found.append(f"non-determinism: {same}, and their results differ")
    return found


def _apart(run: Run, other: Run) -> str:
    """Return which code, data or hardware two equal runs do not share."""
    here, there = _comparable(run), _comparable(other)
    keys = [key for key in here if key not in run.part("effective") and here[key] != there.get(key)]
    return ", ".join(
        f"{key} ({words.short(here[key])} / {words.short(there.get(key))})" for key in keys
    )
