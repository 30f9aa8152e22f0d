"""A search chooses by validation, and its study survives a kill."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome, until
from tests.test_sweep import SMALL, begun, records

SEARCH = [
    "-m",
    "hydra/sweeper=optuna",
    "optimizer.lr=tag(log,interval(1e-3,1e-1))",
    "freeze=most,full",
    "loader.batch_size=range(32,97,32)",
    "sweep=s",
]


def test_a_search_that_was_killed_goes_on_with_its_study(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = tmp_path / "multirun" / "s"
    process = begun(tmp_path, *SMALL, *SEARCH, "hydra.sweeper.n_trials=3")
    until(lambda: len(list(folder.glob("*/metrics.jsonl"))) > 1, process)  # the second trial
    process.kill()
    process.communicate()
    outcome = cvexp(*SMALL, *SEARCH, "hydra.sweeper.n_trials=3")
    assert outcome.code == 0, outcome.out
    found = records(folder)
    assert len(found) == 3
    assert {record["status"] for record in found.values()} == {"completed"}
    assert len({record["factors"]["optimizer.lr"] for record in found.values()}) == 3
    assert {record["factors"]["loader.batch_size"] for record in found.values()} <= {32, 64, 96}
    best = max(record["metrics"]["val/accuracy"] for record in found.values())
    assert f"3 trials; best val/accuracy {best:.4f} by " in outcome.out
    with sqlite3.connect(folder / "study.db") as study:
        values = [value for (value,) in study.execute("select value from trial_values")]
    assert sorted(values) == sorted(r["metrics"]["val/accuracy"] for r in found.values())
    assert str(tmp_path) not in (folder / "sweep.json").read_text()


def test_a_trial_that_fails_has_no_value(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(
        "-m",
        *SMALL,
        "hydra/sweeper=optuna",
        "optimizer=sgd",
        "optimizer.lr=choice(1e30)",
        "hydra.sweeper.n_trials=1",
        "sweep=s",
    )
    assert outcome.code == 1
    assert "1 trials; none completed" in outcome.out
    (record,) = records(tmp_path / "multirun" / "s").values()
    assert record["status"] == "diverged"


def test_equal_trials_are_one_run_and_a_failure_may_end_the_search(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    three = ["hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=3"]
    swept = ["-m", *SMALL, "hydra/sweeper=optuna", "seed=choice(0)", "sweep=s"]
    outcome = cvexp(*swept, *three)
    assert outcome.code == 0, outcome.err
    assert "3 trials; best" in outcome.out
    assert len(records(tmp_path / "multirun" / "s")) == 1
    fails = [*SMALL, "hydra/sweeper=optuna", "model.name=nonesuch", "seed=choice(0,1,2)"]
    stopped = cvexp("-m", *fails, "hydra.sweeper.n_trials=3", "sweep.on_error=stop", "sweep=t")
    assert stopped.code == 1
    assert "1 trials; none completed" in stopped.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hydra.sweeper.metric=test/accuracy", "seed=0,1"], "may see validation alone"),
        (["hydra.sweeper.metric=val/acuracy", "seed=0,1"], "did you mean val/accuracy"),
        (["seed=0"], "nothing to choose"),
        (["seed=0,1", "dry_run=true"], "a search chooses as it goes"),
    ],
)
def test_a_bad_search_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = cvexp("-m", "hydra/sweeper=optuna", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.db"))


@pytest.mark.parametrize("name", ["freeze", "precision", "accumulation", "scheduler", "loader"])
def test_a_preset_is_a_whole_sweep_in_one_word(
    name: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Its jobs can run, as they are."""
    few = "sweep.exclude=['seed=0','seed=1']"
    outcome = cvexp(f"experiment=ablate-{name}", *SMALL[:-2], few, "dry_run=true")
    assert outcome.code == 0, outcome.out + outcome.err
    rows = [line for line in outcome.out.splitlines() if f"{name}-" in line]
    assert len(rows) >= 2
    assert all("seed-2" in row for row in rows)
    assert not list(tmp_path.iterdir())


def test_a_preset_runs_and_is_kept(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(
        "experiment=ablate-freeze", *SMALL, "sweep=s", "sweep.exclude=['seed=1','seed=2']"
    )
    assert outcome.code == 0, outcome.out
    assert sorted(records(tmp_path / "multirun" / "s")) == [
        "freeze-full_seed-0",
        "freeze-last_seed-0",
        "freeze-most_seed-0",
    ]
    design = json.loads((tmp_path / "multirun" / "s" / "sweep.json").read_text())
    assert len(design["cells"]) == 3
    assert cvexp("resume", "multirun/s").code == 0
