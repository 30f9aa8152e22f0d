"""What runs, what ran and what is lost is told from records and locks alone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cvexp.status import age, find
from tests.conftest import ROOT, TOY, Outcome, command, until

LONG = ["trainer.max_epochs=1000", "trainer.limit_train_batches=2", "tracker=none"]


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    """Start a long run in a process of its own, and return once it has metrics."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cvexp", *TOY, *LONG, f"hydra.run.dir=multirun/{name}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = folder / "multirun" / name / "metrics.jsonl"
    until(lambda: metrics.exists() and "val/loss" in metrics.read_text(), process)
    return process


def test_runs_are_listed_by_what_became_of_them(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """One completed, one failed, one that runs, and then the same one killed."""
    assert cvexp(*TOY, "tracker=none", "hydra.run.dir=multirun/sweep/done").code == 0
    assert cvexp(*TOY, "data.split_seed=-1", "hydra.run.dir=multirun/sweep/refused").code == 2
    process = start(tmp_path, "going")
    try:
        found = {run.name: run for run in find(tmp_path / "multirun")}
        assert {name: run.status for name, run in found.items()} == {
            "sweep/done": "completed",
            "sweep/refused": "failed",
            "going": "running",
        }
        assert found["going"].epoch
        assert 0 <= found["going"].age_s < 60
        assert "val/accuracy" in found["going"].metrics
        assert "test/accuracy" in found["sweep/done"].metrics
        outcome = cvexp("status")
    finally:
        process.kill()
        process.communicate()
    assert outcome.code == 0, outcome.err
    assert "1 running, 1 failed, 1 completed" in outcome.out
    assert "sweep/refused: data.split_seed=-1" in outcome.out
    (lost,) = [run for run in find(tmp_path / "multirun") if run.name == "going"]
    assert lost.status == "lost"
    assert "1 lost" in cvexp("status", "multirun").out


def test_a_line_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"status": "running", "metrics": {}}))
    lines = ['{"epoch": 3, "val/loss": 0.5}', '{"epoch": 2, "test/loss": 0.4}', '{"epoch": 4, "va']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    os.utime(tmp_path / "run.json", (0, time.time() - 7200))
    (run,) = find(tmp_path)
    assert (run.status, run.epoch, run.metrics["val/loss"]) == ("lost", 3, 0.5)
    assert run.age_s < 60


def test_a_record_that_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"status"')
    (run,) = find(tmp_path)
    assert run.status == "failed"
    assert run.reason is not None
    assert "cannot be read" in run.reason


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (86400, "24 h ago"),
        (1e6, "12 d ago"),
    ],
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_it_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"status": "completed", "metrics": {}}))
    outcome = command("status", ".", cwd=tmp_path, path=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "1 completed" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "status nowhere: no such folder"),
        (["."], "status .: no run below it"),
        ([".", "."], "unrecognized arguments: .; usage: python -m cvexp status [DIR]"),
    ],
)
def test_a_bad_request_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp("status", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
