"""A search by optuna: trials are a sweep's jobs, chosen by the validation metrics of those before.

Source: Akiba et al. 2019, arXiv 1907.10902; the sampler is its TPE.
"""

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig

from cvexp.config import UsageError, did_you_mean
from cvexp.console import say
from cvexp.record_file import read_record

if TYPE_CHECKING:
    import optuna

METRICS = ("val/loss", "val/accuracy", "val/balanced_accuracy", "val/macro_f1")


class Space(NamedTuple):
    """What every trial has, and what is chosen for each: key -> how it is drawn."""

    fixed: list[str]
    chosen: dict[str, Callable[["optuna.Trial"], Any]]


def space(typed: Sequence[str], config_loader: Any) -> Space:
    """Return the search space that overrides describe.

    Raises:
        UsageError: nothing to choose.
    """
    found = Space([], {})
    for override in OverridesParser.create(config_loader=config_loader).parse_overrides(
        list(typed)
    ):
        key = override.get_key_element()
        if override.is_sweep_override():
            found.chosen[key] = _draw(key, override)
        else:
            found.fixed.append(f"{key}={override.get_value_element_as_str()}")
    if not found.chosen:
        raise UsageError("hydra/sweeper=optuna has nothing to choose; type e.g. freeze=most,full")
    return found


def _draw(key: str, override: Override) -> Callable[["optuna.Trial"], Any]:
    value = override.value()
    if isinstance(value, IntervalSweep):
        low, high, log = value.start, value.end, "log" in value.tags
        assert low is not None
        assert high is not None
        if isinstance(low, int) and isinstance(high, int):
            return lambda trial: trial.suggest_int(key, low, high, log=log)
        return lambda trial: trial.suggest_float(key, low, high, log=log)
    if isinstance(value, RangeSweep) and isinstance(value.step, int):
        assert isinstance(value.start, int | float)
        assert isinstance(value.stop, int | float)
        first, last, step = int(value.start), math.ceil(value.stop) - 1, value.step
        return lambda trial: trial.suggest_int(key, first, last, step=step)
    choices = [str(choice) for choice in override.sweep_string_iterator()]
    return lambda trial: trial.suggest_categorical(key, choices)


def run(
    asked: Space,
    config: DictConfig,
    launch: Callable[..., Sequence[Any]],
    metric: str,
    n_trials: int,
    n_jobs: int,
    seed: int,
) -> list[Any]:
    """Ask for trials, run them, and tell how good they were, until there are enough.

    Trials that a kill cut are run first: their jobs go on where they were.

    Raises:
        UsageError: no optuna, a metric that is not validation's, or a dry run.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError(
            "hydra/sweeper=optuna needs optuna, which is not installed; "
            "type pip install 'cvexp[optuna]'"
        )
    if metric.replace("/ema_", "/") not in METRICS:
        raise UsageError(
            f"hydra.sweeper.metric={metric}: a search may see validation alone"
            f"{did_you_mean(metric, METRICS)}; known: {', '.join(METRICS)}"
        )
    if config.dry_run:
        raise UsageError("dry_run=true lists a grid; a search chooses as it goes")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{folder.absolute() / 'study.db'}",
        study_name="cvexp",
        direction="minimize" if metric.endswith("loss") else "maximize",
        load_if_exists=True,
    )
    # Else a search that goes on would draw what it drew when it began.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    state = optuna.trial.TrialState
    cut = []
    for trial in study.get_trials(states=[state.RUNNING]):
        if "overrides" in trial.user_attrs:
            cut.append(trial.number)
        else:  # cut before it was chosen
            study.tell(trial.number, state=state.FAIL)
    returned: list[Any] = []
    while cut or len(study.trials) < n_trials:
        numbers = [cut.pop(0)] if cut else []
        while not numbers or (len(numbers) < n_jobs and len(study.trials) < n_trials):
            numbers.append(_ask(study, asked))
        chosen = [study.trials[number].user_attrs["overrides"] for number in numbers]
        jobs = launch([[*asked.fixed, *own] for own in chosen], initial_job_idx=numbers[0])
        for number, job in zip(numbers, jobs, strict=True):
            _tell(study, number, job.return_value, metric)
        returned += jobs
        if config.sweep.on_error == "stop" and any(job.return_value.code for job in jobs):
            break
    best = "none completed"
    if study.get_trials(states=[state.COMPLETE]):
        own = " ".join(study.best_trial.user_attrs["overrides"])
        best = f"best {metric} {study.best_value:.4f} by {own}"
    say("search", f"{len(study.trials)} trials; {best}")
    return [returned]


def _ask(study: "optuna.Study", asked: Space) -> int:
    """Return the number of a new trial, whose overrides are in the study before it begins."""
    trial = study.ask()
    values = {key: draw(trial) for key, draw in asked.chosen.items()}
    trial.set_user_attr("overrides", [f"{key}={value}" for key, value in values.items()])
    return trial.number


def _tell(study: "optuna.Study", number: int, outcome: Any, metric: str) -> None:
    import optuna

    record = read_record(outcome.directory) or {}
    value = record.get("metrics", {}).get(metric) if outcome.code == 0 else None
    if value is None:
        study.tell(number, state=optuna.trial.TrialState.FAIL)
    else:
        study.tell(number, value)
