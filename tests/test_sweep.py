"""Sweeps: jobs apart, none lost, none run twice."""

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cvexp.record_file import lock
from tests.conftest import ROOT, TOY, Outcome, scontrol, until

SMALL = [*TOY, "tracker=none", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1"]
SMALL += ["~hydra.callbacks.report"]  # test_report.py makes them


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records below a folder by the name of their directory."""
    return {p.parent.name: json.loads(p.read_text()) for p in folder.glob("*/run.json")}


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return content and time of every file below a folder."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def faulty(tmp_path: Path) -> list[str]:
    """Return what makes loss=faulty an option."""
    option = tmp_path / "mine" / "loss" / "faulty.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(
        "_target_: tests.faults.faulty\nfault: none\nonce: null\nlabel_smoothing: 0.0\n"
    )
    return [f"--config-dir={tmp_path / 'mine'}", "trusted_packages=[tests]", "loss=faulty"]


def test_whatever_befalls_a_job_is_a_row_and_the_others_go_on(
    faulty: list[str], cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    reasons = {
        "raise": ("failed", "ZeroDivisionError: of the job's own"),
        "memory": ("failed", "out of memory: "),
        "diverge": ("diverged", "the training loss is not finite at optimizer step 1"),
        "kill": ("failed", "killed by SIGKILL (out of memory?)"),
        "exit": ("failed", "its process ended with exit code 7"),
        "quit": ("failed", "RuntimeError: it exited with code 3"),
        "none": ("completed", None),
    }
    outcome = cvexp("-m", *faulty, *SMALL, f"loss.fault={','.join(reasons)}", "sweep=s")
    assert outcome.code == 1
    assert "1 of 7 completed" in outcome.out
    found = records(tmp_path / "multirun" / "s")
    for fault, (status, reason) in reasons.items():
        record = found[f"loss.fault-{fault}"]
        assert record["status"] == status
        assert str(record["reason"]).startswith(str(reason))
        assert reason is None or f"loss.fault-{fault}: {reason}" in outcome.out
    logs = {path.parent.name: path.read_text() for path in tmp_path.rglob("cvexp.log")}
    assert "Traceback" in logs["loss.fault-raise"]
    assert [name for name, log in logs.items() if "of the job's own" in log] == ["loss.fault-raise"]
    peak = found["loss.fault-none"]["cost"]["peak_host_bytes"]
    assert 0 < peak < 1.5 * 2**30
    assert found["loss.fault-none"]["cost"]["contended"] is False
    assert not list(tmp_path.rglob("crash.txt"))

    # The same command again: what is done, or would diverge again, is not run.
    before = {name: files(tmp_path / "multirun" / "s" / f"loss.fault-{name}") for name in reasons}
    again = cvexp("-m", *faulty, *SMALL, f"loss.fault={','.join(reasons)}", "sweep=s")
    assert again.code == 1
    for name in reasons:
        after = files(tmp_path / "multirun" / "s" / f"loss.fault-{name}")
        assert (after == before[name]) == (name in ("none", "diverge"))


def test_a_crash_is_tried_again_and_a_result_is_not(
    faulty: list[str], cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    once = [f"loss.once={tmp_path}/${{loss.fault}}", "loss.fault=kill,raise,diverge"]
    outcome = cvexp("-m", *faulty, *SMALL, *once, "sweep.retries=1", "sweep=s")
    found = records(tmp_path / "multirun" / "s")
    assert {name.split("-")[-1]: record["status"] for name, record in found.items()} == {
        "kill": "completed",
        "raise": "completed",
        "diverge": "diverged",
    }
    assert outcome.code == 1


def test_a_sweep_may_stop_at_the_first_failure(
    faulty: list[str], cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    swept = ["loss.fault=none,raise,exit", "sweep=s"]
    outcome = cvexp("-m", *faulty, *SMALL, *swept, "sweep.on_error=stop")
    assert outcome.code == 1
    assert sorted(records(tmp_path / "multirun" / "s")) == ["loss.fault-none", "loss.fault-raise"]
    assert "loss.fault-exit: not begun: sweep.on_error=stop" in outcome.out


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the sweep s of freeze=last,full is done."""
    folder = tmp_path_factory.mktemp("swept")
    done = run(folder, "freeze=last,full", "seed=0", "sweep=s")
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cvexp", "-m", *SMALL, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied(swept: Path, tmp_path: Path) -> Path:
    """Return a copy of that sweep, moved to where the test runs."""
    shutil.copytree(swept / "multirun", tmp_path / "multirun")
    return tmp_path / "multirun" / "s"


def test_a_larger_grid_in_another_order_adds_what_is_missing(
    copied: Path, cvexp: Callable[..., Outcome]
) -> None:
    before = files(copied)
    grid = ["seed=1,0", "freeze=full,most,last", 'sweep.exclude=["freeze=most,seed=1"]']
    outcome = cvexp("-m", *SMALL, *grid, "sweep=s")
    assert outcome.code == 0, outcome.out
    assert "2 of 5 jobs are done and left as they are" in outcome.out
    found = records(copied)
    assert {(r["factors"]["freeze"], r["factors"]["seed"]) for r in found.values()} == {
        ("full", 0),
        ("last", 0),
        ("most", 0),
        ("full", 1),
        ("last", 1),
    }
    assert len({record["identity"] for record in found.values()}) == len(found) == 5
    after = files(copied)
    index = [copied / name for name in ("multirun.yaml", "sweep.json", ".lock")]
    assert all(after[path] == before[path] for path in before if path not in index)
    design = json.loads((copied / "sweep.json").read_text())
    assert {cell["directory"] for cell in design["cells"]} == set(found)


def test_another_base_config_is_another_run_and_is_said(
    copied: Path, cvexp: Callable[..., Outcome]
) -> None:
    before = records(copied)
    outcome = cvexp("-m", *SMALL, "freeze=last,full", "seed=0", "sweep=s", "optimizer.lr=0.01")
    assert outcome.code == 0, outcome.out
    assert "another config than the run there before: optimizer.lr=0.002 there, 0.01" in outcome.out
    assert "holds 2 more runs, of other configs (optimizer.lr=0.002 there, 0.01" in outcome.out
    after = records(copied)
    assert len(after) == 4
    assert all(after[name] == before[name] for name in before)


def test_a_dry_run_says_what_would_be_and_does_nothing(
    copied: Path, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    before = files(tmp_path)
    grid = ["freeze=last,most", "seed=0", "precision=32-true,16-mixed", "sweep=s", "dry_run=true"]
    outcome = cvexp("-m", *SMALL, *grid)
    assert outcome.code == 1
    assert "4 jobs, 1 done, 1 to run" in outcome.out
    assert "precision=16-mixed needs a CUDA device" in outcome.out
    identity = records(copied)["freeze-last"]["identity"]
    (row,) = [line for line in outcome.out.splitlines() if identity[:12] in line]
    assert "completed" in row
    assert files(tmp_path) == before
    late = cvexp("-m", *SMALL, "scheduler.warmup_steps=1,500", "dry_run=true")
    assert late.code == 1
    assert "scheduler.warmup_steps=500 (500 steps) must be below the 2 steps" in late.out
    alone = cvexp(*SMALL, "dry_run=true")
    assert alone.code == 0
    assert "it can run; its identity is" in alone.out
    assert files(tmp_path) == before


def test_the_time_of_a_dry_run_is_that_of_runs_of_the_kind(
    copied: Path, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp("-m", *SMALL, "freeze=last", "seed=0,1,2", "sweep=s", "dry_run=true")
    took = records(copied)["freeze-last"]["cost"]["wall_s"]
    assert f"about {2 * took:,.0f} s one after another" in outcome.out
    unknown = cvexp("-m", *SMALL, "freeze=most", "seed=0,1", "sweep=s", "dry_run=true")
    assert "2 to run; 2 of a kind that never ran" in unknown.out


def begun(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cvexp", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


LONG = ["checkpoint.every_steps=1", "trainer.max_epochs=3", "freeze=last,full", "seed=0,1"]


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_does_each_cell_once(tmp_path: Path) -> None:
    """At random moments, set-up included; each time the same command goes on."""
    moments = random.Random(0)
    command = ["-m", *SMALL, *LONG, "sweep=s"]
    for _ in range(int(os.environ.get("CVEXP_KILLS", "2"))):
        process = begun(tmp_path, *command)
        try:
            process.communicate(timeout=moments.uniform(6, 11))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    process = begun(tmp_path, *command)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert "4 of 4 completed" in out
    found = records(tmp_path / "multirun" / "s")
    assert len(found) == 4
    assert len({record["identity"] for record in found.values()}) == 4
    for name, record in found.items():
        assert record["status"] == "completed"
        assert record["effective"]["optimizer_steps"] == 6
        text = (tmp_path / "multirun" / "s" / name / "metrics.jsonl").read_text()
        epochs = [json.loads(line)["epoch"] for line in text.splitlines() if "train/loss" in line]
        assert sorted(set(epochs)) == [1, 2, 3]
        assert text.count('"train/accuracy"') == 3


@pytest.mark.parametrize("how", ["sweep", "all", "kill", "requeue"])
def test_what_ends_a_sweep_keeps_its_jobs(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM to it, or to all of its processes, or a kill: a job keeps what it has, and ends.

    SIGUSR1 of SLURM to all of them asks for one requeue, by the sweep.
    """
    monkeypatch.setattr("cvexp.record_file.LOCK_S", 60.0)
    path = f"{scontrol(tmp_path).parent}:{os.environ['PATH']}"
    long = [*SMALL, *LONG, "trainer.max_epochs=2000", "sweep=s"]
    process = begun(tmp_path, "-m", *long, SLURM_JOB_ID="17", PATH=path)
    run_dir = tmp_path / "multirun" / "s" / "freeze-last_seed-0"
    until((run_dir / "metrics.jsonl").exists, process)
    if how in ("all", "requeue"):
        os.killpg(process.pid, signal.SIGTERM if how == "all" else signal.SIGUSR1)
    else:
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    if how == "kill":
        with lock(run_dir):  # which it waits for
            pass
    else:
        assert (process.returncode, err) == (143, "interrupted\n")
        name = "SIGUSR1" if how == "requeue" else "SIGTERM"
        assert f"freeze-last_seed-0 interrupted: {name}" in out
        assert "python -m cvexp resume multirun/s goes on" in out
    (found,) = records(tmp_path / "multirun" / "s").values()
    assert found["status"] == "interrupted"
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == "requeue 17\n" * (how == "requeue")
    assert (run_dir / "checkpoints" / "last.ckpt").exists()


def test_a_sweep_goes_on_where_it_was_cut(
    copied: Path, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    shutil.rmtree(copied / "freeze-last")
    moved = tmp_path / "elsewhere"
    copied.rename(moved)
    before = files(moved / "freeze-full")
    outcome = cvexp("resume", "elsewhere")
    assert outcome.code == 0, outcome.err
    assert "2 of 2 completed" in outcome.out
    assert sorted(records(moved)) == ["freeze-full", "freeze-last"]
    assert files(moved / "freeze-full") == before


def test_jobs_side_by_side_share_the_cores_and_say_so(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    two = ["hydra.launcher.jobs=2", "sweep=s", "seed=0,1"]
    assert cvexp("-m", *SMALL, *two).code == 0
    for record in records(tmp_path / "multirun" / "s").values():
        assert record["cost"]["contended"] is True
        assert record["environment"]["threads"] == max((os.cpu_count() or 1) // 2, 1)


def test_each_job_has_an_accelerator_of_its_own(
    faulty: list[str],
    cvexp: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two at a time where there are two, as many jobs as there are."""
    monkeypatch.setattr("cvexp.launcher._devices", lambda: ["3", "GPU-5"])
    jobs = ",".join(f"tell{n}" for n in range(4))
    outcome = cvexp("-m", *faulty, *SMALL, f"loss.fault={jobs}", "sweep=s")
    assert outcome.code == 0, outcome.out
    told = [(tmp_path / f"tell{n}.txt").read_text() for n in range(4)]
    assert set(told[:2]) == set(told[2:]) == {"3", "GPU-5"}
    found = records(tmp_path / "multirun" / "s").values()
    assert not any(record["cost"]["contended"] for record in found)


@pytest.mark.gpu
def test_a_job_on_a_gpu_has_it_to_itself(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    assert cvexp("-m", *SMALL, "seed=0,1", "sweep=s").code == 0
    for record in records(tmp_path / "multirun" / "s").values():
        assert record["effective"]["device"] != "cpu"
        assert 0 < record["cost"]["peak_device_bytes"] < 2**30


def test_a_secret_of_a_sweep_is_in_no_file(
    cvexp: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2hunter2")
    secret = ["name=${oc.env:SECRET}", "tags=['${oc.env:SECRET}']", "tracker=tensorboard"]
    assert cvexp("-m", *SMALL, *secret, "seed=0,1", "sweep=s").code == 0
    assert cvexp("resume", "multirun/s").code == 0
    swept = ['model.name="${oc.env:SECRET}",test_efficientnet']
    refused = cvexp("-m", *SMALL, *swept, "sweep=t")
    assert refused.code == 1
    assert "hunter2" not in refused.out + refused.err
    named = json.loads(next((tmp_path / "multirun" / "t").glob("*oc.env*/run.json")).read_text())
    assert "${oc.env:SECRET}" in named["reason"]
    everything = [path for path in (tmp_path / "multirun").rglob("*") if path.is_file()]
    assert len(everything) > 20
    for path in everything:
        assert b"hunter2" not in path.read_bytes()
        assert "hunter2" not in str(path)


def test_a_terminal_shows_a_table_that_lives(tmp_path: Path) -> None:
    """In a real terminal: what is done, what runs and what it last said, and the time left."""
    ours, theirs = pty.openpty()
    command = ["-m", *SMALL, "seed=0,1", "trainer.max_epochs=12", "name='[red]x[/red]'"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cvexp", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "140", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the terminal's end
        while piece := os.read(ours, 65536):
            shown += piece
    assert process.wait() == 0
    os.close(ours)
    text = shown.decode()
    assert "0 of 2 done, 1 running, 1 waiting" in text
    assert "1 of 2 done, 1 running" in text
    assert "s left" in text
    assert "epoch 1" in text
    assert "2 of 2 completed" in text


def test_a_job_has_what_the_same_run_alone_has(copied: Path, cvexp: Callable[..., Outcome]) -> None:
    assert cvexp(*SMALL, "freeze=last", "hydra.run.dir=alone").code == 0
    alone = json.loads(Path("alone/run.json").read_text())
    assert records(copied)["freeze-last"]["metrics"] == alone["metrics"]
    assert records(copied)["freeze-last"]["identity"] == alone["identity"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep=../x"], "sweep=../x: a name below multirun/"),
        (["sweep=a/b"], "sweep=a/b: a name below multirun/"),
        (["hydra.sweep.dir=../x"], "leave .. out"),
        (["hydra.sweep.subdir=../../x"], "leave .. out"),
        (["hydra.sweep.subdir=/tmp/x"], "leaves"),
        (["hydra.sweep.subdir=${name}", "name=../x"], "leaves"),
        (["hydra.launcher.jobs=0"], "hydra.launcher.jobs=0: type auto"),
        (["sweep.pair=[seed,model]"], "model is not swept over"),
        (["sweep.pair=[seed,freeze]", "freeze=last,most,full"], "seed has 2 values"),
        (["sweep.exclude=['seed=7']"], "no job has seed=7; they have:"),
        (["sweep.exclude=['seed=1','seed=2']"], "leaves no job"),
        (["sweep.on_error=ignore"], "sweep.on_error='ignore'"),
        (["sweep=held"], "multirun/held is in use by"),
        (["sweep=other"], "multirun/other/sweep.json is no design of a sweep"),
    ],
)
def test_a_bad_sweep_is_one_line_and_no_job(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    for name in ("held", "other"):
        (tmp_path / "multirun" / name).mkdir(parents=True)
    (tmp_path / "multirun" / "other" / "sweep.json").write_text("[1]")
    with lock(tmp_path / "multirun" / "held"):
        outcome = cvexp("-m", "seed=1,2", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.rglob("run.json"))


def test_time_is_left(tmp_path: Path) -> None:
    """From the jobs that ended; a table in a terminal."""
    from cvexp.plan import Cell
    from cvexp.sweep import Outcome as Ended
    from cvexp.sweep import Progress

    cells = [Cell([n], f"job-{n}", None, str(n), tmp_path, "new", None, 10.0) for n in range(3)]  # type: ignore[arg-type]  # no config
    with Progress(cells) as progress:
        assert progress._left() == ", 30 s left"
        progress.begun(cells[0])
        progress.said(cells[0], "epoch 1/2  [red]loss[/red]")
        progress._running[0] = ("job-0", time.monotonic() - 4, "")
        progress.ended(cells[0], Ended(tmp_path, "completed", None, 0))
        assert progress._left() == ", 8 s left"
