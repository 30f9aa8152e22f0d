"""The record of a run: written at every change, whole, and true to what ran."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cvexp import record
from cvexp.config import UsageError
from cvexp.module import Diverged
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
    "peak_device_bytes flops_per_image mfu energy_j contended"
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


def test_bf16_true_holds_its_weights_in_bf16(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    assert cvexp(*TOY, "precision=bf16-true", "trainer.limit_train_batches=2").code == 0
    effective = Outcome(0, "", "").record(tmp_path)["effective"]
    assert effective["precision"] == "bf16-true"
    assert effective["parameter_dtype"] == effective["compute_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (UsageError("x=1 is wrong"), "failed", "x=1 is wrong"),
        (Diverged("at step 3"), "diverged", "at step 3"),
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


def test_a_loss_that_is_no_number_ends_the_run(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Lightning trains on to the end with NaN weights and exits 0 (traps.md 13)."""
    outcome = cvexp(
        *TOY, "optimizer=sgd", "optimizer.lr=1e30", "scheduler=constant", "tracker=none"
    )
    assert outcome.code == 1
    found = outcome.record(tmp_path)
    assert found["status"] == "diverged"
    assert "learning rate of 1e+30" in found["reason"]
    checkpoints = next(tmp_path.glob("multirun/*")) / "checkpoints"
    assert not checkpoints.exists()
    lines = next(tmp_path.glob("multirun/*/metrics.jsonl"), None)
    assert lines is None or not any(math.isnan(x) for x in _numbers(lines))


def _numbers(path: Path) -> list[float]:
    return [v for line in path.read_text().splitlines() for v in json.loads(line).values()]


def test_a_directory_in_use_is_locked(tmp_path: Path) -> None:
    """The lock is another process's; it names it, and dies with it."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from cvexp import record\n"
            "with record._lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(UsageError, match=f"in use by .* process {holder.pid}"):
        with record.open_record(tmp_path, {}):
            pass
    holder.kill()
    holder.communicate()
    with record.open_record(tmp_path, {}):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    with record.open_record(tmp_path, {}) as run:
        run.end("completed")
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UsageError, match="already holds a run"), record.open_record(tmp_path, {}):
        pass
    assert (tmp_path / "run.json").read_bytes() == before
