"""The record of a run: written at every change, whole, and true to what ran."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cvexp import record
from cvexp.config import UsageError
from cvexp.record_file import lock
from cvexp.window import Diverged, Fault
from tests.conftest import ROOT, TOY, Outcome

SCHEMA_1 = (
    "schema status reason started ended factors identity effective data metrics metrics_best cost "
    "environment name tags"
).split()
EFFECTIVE = (
    "precision device devices strategy batch_size effective_batch_size optimizer_steps images_seen "
    "trainable_parameters total_parameters frozen_modules lr_first lr_peak lr_last skipped_steps"
).split()
COST = (
    "startup_s train_s validation_s wall_s images_per_s data_wait_fraction peak_host_bytes "
    "peak_device_bytes compile_s flops_per_image mfu energy_j contended"
).split()


def test_record_of_a_run(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(
        *TOY,
        "freeze=most",
        "precision=bf16-mixed",
        "tags=[a,b]",
        "name=first",
        "loader.batch_size=100",
    )
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)
    assert set(SCHEMA_1) <= set(found)
    assert set(EFFECTIVE) <= set(found["effective"])
    assert set(COST) == set(found["cost"])
    assert (found["schema"], found["status"], found["reason"]) == (1, "completed", None)
    assert (found["name"], found["tags"]) == ("first", ["a", "b"])
    assert found["factors"]["freeze"] == "most"
    assert found["factors"]["loader.batch_size"] == 100
    assert found["started"] <= found["ended"]

    effective = found["effective"]
    assert effective["precision"] == "bf16-mixed"
    assert effective["compute_dtype"] == "bfloat16"
    assert effective["parameter_dtype"] == "float32"  # master weights stay fp32
    assert (effective["optimizer_steps"], effective["skipped_steps"]) == (13, 0)
    assert effective["images_seen"] == found["data"]["splits"]["train"] == 1257
    assert effective["batch_size"] == effective["effective_batch_size"] == 100
    assert 0 < effective["trainable_parameters"] < effective["total_parameters"]
    assert effective["lr_first"] < effective["lr_peak"] == pytest.approx(0.002)
    assert effective["lr_last"] == pytest.approx(0)

    cost = found["cost"]
    assert cost["images_per_s"]["steps"] == 13 - 5  # the warm-up is discarded
    assert cost["images_per_s"]["median"] > 0
    assert cost["startup_s"] + cost["train_s"] + cost["validation_s"] <= cost["wall_s"]
    assert 0 < cost["data_wait_fraction"] < 1
    assert cost["peak_host_bytes"] > 50 * 2**20
    assert cost["peak_device_bytes"] is None
    assert {"train/loss", "val/accuracy", "test/accuracy"} <= set(found["metrics"])

    folder = next(tmp_path.glob("multirun/*"))
    assert {path.name for path in folder.iterdir()} >= {
        ".hydra", "run.json", "metrics.jsonl", "checkpoints", "tensorboard", "cvexp.log"
    }  # fmt: skip
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "lr" in line] == [10]
    assert all(line["epoch"] == 1 for line in lines)
    last = {key: value for line in lines for key, value in line.items()}
    assert last["val/accuracy"] == found["metrics"]["val/accuracy"]
    log = (folder / "cvexp.log").read_text()
    for stage in ("precision", "model", "data", "loader", "freeze", "epoch 1/1", "test/accuracy"):
        assert stage in log


@pytest.mark.parametrize(
    ("precision", "parameters", "computes"),
    [
        ("bf16-true", "bfloat16", "bfloat16"),
        ("bf16-mixed", "float32", "bfloat16"),  # master weights stay fp32
        ("64-true", "float64", "float64"),
    ],
)
def test_weights_and_arithmetic_are_what_the_precision_says(
    precision: str,
    parameters: str,
    computes: str,
    cvexp: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    outcome = cvexp(*TOY, f"precision={precision}", "trainer.limit_train_batches=2", "ema=weights")
    assert outcome.code == 0, outcome.err
    effective = outcome.record(tmp_path)["effective"]
    assert effective["precision"] == precision
    assert (effective["parameter_dtype"], effective["compute_dtype"]) == (parameters, computes)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (UsageError("x=1 is wrong"), "failed", "x=1 is wrong"),
        (
            Diverged(Fault("x", 3, []), 1, [], []),
            "diverged",
            "the x is not finite at optimizer step 3, epoch 1",
        ),
        (KeyError("k"), "failed", "KeyError: 'k'"),
        (KeyboardInterrupt(), "interrupted", None),
    ],
)
def test_how_a_run_ended(
    error: BaseException, status: str, reason: str | None, tmp_path: Path
) -> None:
    def body() -> None:
        with record.open_record(tmp_path, {"seed": 0}) as run:
            assert json.loads(run.path.read_text())["status"] == "running"
            raise error

    with pytest.raises(type(error)):
        body()
    found = json.loads((tmp_path / "run.json").read_text())
    assert (found["status"], found["reason"]) == (status, reason)
    assert found["ended"]


@pytest.mark.parametrize("batches", [1, 20])
def test_a_loss_that_is_no_number_ends_the_run(
    batches: int, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Lightning trains on with NaN weights and exits 0 (traps.md 13); also on a run's last step."""
    outcome = cvexp(
        *TOY,
        "optimizer=sgd",
        "optimizer.lr=1e30",
        "scheduler=constant",
        "tracker=none",
        f"trainer.limit_train_batches={batches}",
    )
    assert outcome.code == 1
    found = outcome.record(tmp_path)
    assert found["status"] == "diverged"
    assert "learning rate of 1e+30" in found["reason"]
    (run_dir,) = tmp_path.glob("multirun/*")
    assert not (run_dir / "checkpoints").exists()
    for path in (run_dir / "run.json", run_dir / "metrics.jsonl"):
        assert not path.exists() or "NaN" not in path.read_text()


def test_a_directory_in_use_is_locked(tmp_path: Path) -> None:
    """The lock is another process's; it names it, and dies with it."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from cvexp.record_file import lock\n"
            "with lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(UsageError, match=f"in use by .* process {holder.pid}"):
        with lock(tmp_path):
            pass
    holder.kill()
    holder.communicate()
    with lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_a_directory_that_holds_a_run_is_left_as_it_was(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Every byte of it: Hydra alone would write its config and its log over the old ones."""
    quick = [*TOY, "trainer.fast_dev_run=true", "hydra.run.dir=once"]
    assert cvexp(*quick, "optimizer.lr=0.005").code == 0
    before = {p: p.read_bytes() for p in (tmp_path / "once").rglob("*") if p.is_file()}
    assert b"lr: 0.005" in before[tmp_path / "once" / ".hydra" / "config.yaml"]
    outcome = cvexp(*quick, "optimizer.lr=0.009")
    assert outcome.code == 2
    assert "once holds a run of another config: optimizer.lr=0.005 there, 0.009" in outcome.err
    after = {p: p.read_bytes() for p in (tmp_path / "once").rglob("*") if p.is_file()}
    ours = tmp_path / "once" / ".lock"
    assert {**before, ours: b""} == {**after, ours: b""}


def test_a_secret_appears_in_no_file(
    cvexp: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    hidden = ["name=${oc.env:SECRET}", "tags=['${oc.env:SECRET}']", "show_config=true"]
    assert cvexp(*TOY, "trainer.limit_train_batches=2", *hidden).code == 0
    wrong = cvexp(*TOY, "optimizer.lr=${oc.env:SECRET}")
    assert wrong.code == 2
    assert "hunter2" not in wrong.out + wrong.err
    assert "optimizer.lr=${oc.env:SECRET}" in wrong.err
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_metrics_belong_to_the_weights_they_stand_beside(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Validation every second epoch, and a last epoch without one (traps.md 27b)."""
    outcome = cvexp(
        *TOY,
        "trainer.max_epochs=3",
        "trainer.limit_train_batches=4",
        "trainer.check_val_every_n_epoch=2",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    third = next(line for line in outcome.out.splitlines() if line.startswith("epoch 3/3"))
    assert "val/accuracy" not in third
    (log,) = tmp_path.glob("multirun/*/metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    validated = [(line["epoch"], line["step"]) for line in lines if "val/loss" in line]
    assert validated == [(2, 8), (3, 12)]
    found = outcome.record(tmp_path)
    assert found["metrics"]["val/loss"] == [x["val/loss"] for x in lines if "val/loss" in x][-1]
    assert found["metrics_best"]["epoch"] == 2
    assert found["metrics_best"]["test/loss"] != found["metrics"]["test/loss"]


def test_max_steps_cuts_an_epoch_short(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(*TOY, "trainer.max_epochs=5", "trainer.max_steps=25", "tracker=none")
    assert outcome.code == 0, outcome.err
    assert "epoch 2/2     train/loss" in outcome.out
    assert "s left" not in outcome.out.splitlines()[-9]
    found = outcome.record(tmp_path)
    assert found["effective"]["optimizer_steps"] == 25
    assert found["effective"]["lr_last"] == pytest.approx(0)


def test_best_within_an_epoch_is_tested_as_such(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Steps too small to change an answer: the first of equals is in mid-epoch, and is tested."""
    recipe = ["trainer.limit_train_batches=6", "trainer.val_check_interval=3", "freeze=last"]
    assert cvexp(*TOY, *recipe, "optimizer.lr=3e-5").code == 0
    found = Outcome(0, "", "").record(tmp_path)
    assert found["metrics_best"]["step"] == 3
    assert found["metrics_best"]["test/loss"] != found["metrics"]["test/loss"]
