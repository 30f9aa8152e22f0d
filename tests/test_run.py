"""Whole runs and sweeps through the command line."""

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import TOY, Outcome, command

SMALL = [*TOY, "tracker=none", "trainer.limit_train_batches=6"]


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def identical(left: Path, right: Path) -> bool:
    a, b = weights(left), weights(right)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_the_same_command_twice_gives_the_same_weights(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Bit for bit, with dropout and augmentation: again, with workers, in its own process."""
    recipe = [*SMALL, "model.dropout=0.3", "model.drop_path=0.1", "trainer.max_epochs=2"]
    for name, workers in (("first", 0), ("again", 0), ("workers", 2)):
        outcome = cvexp(*recipe, f"loader.num_workers={workers}", f"hydra.run.dir={name}")
        assert outcome.code == 0, outcome.err
    assert not multiprocessing.active_children()  # no worker outlives its run
    assert cvexp(*recipe, "seed=1", "hydra.run.dir=other").code == 0
    assert command(*recipe, "hydra.run.dir=process", cwd=tmp_path).code == 0
    first = tmp_path / "first"
    for name in ("again", "workers", "process"):
        assert identical(first, tmp_path / name), name
    assert not identical(first, tmp_path / "other")
    identities = [
        json.loads((tmp_path / n / "run.json").read_text())["identity"]
        for n in ("first", "workers", "other")
    ]
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize("accumulation", ["x1", "x4"])
@pytest.mark.parametrize("loader", ["albumentations", "device", "dali"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_fast_dev_run_works_with_any_combination(
    accumulation: str, loader: str, precision: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = cvexp(
        *TOY[:4],
        "trainer.fast_dev_run=true",
        f"accumulation={accumulation}",
        f"loader={loader}",
        f"precision={precision}",
        "augmentation=flip-crop",
        "freeze=most",
        "optimizer=sgd",
        "scheduler=cosine",
    )
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)
    assert (found["status"], found["effective"]["optimizer_steps"]) == ("completed", 1)
    assert found["cost"]["images_per_s"] is None  # no step after the warm-up: not measured
    assert not list(tmp_path.glob("multirun/*/checkpoints"))


@pytest.mark.parametrize("loader", ["albumentations", "device", "dali"])
def test_a_loader_trains_what_it_says(
    loader: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """As many steps and images as planned, those that drop_last leaves out counted apart."""
    outcome = cvexp(
        *TOY,
        f"loader={loader}",
        "loader.drop_last=true",
        "augmentation=strong",
        "trainer.max_epochs=3",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    effective = outcome.record(tmp_path)["effective"]
    assert effective["optimizer_steps"] == 3 * 19
    assert effective["images_seen"] == 3 * 19 * 64
    assert effective["images_not_seen_per_epoch"] == 1257 - 19 * 64


def test_loaders_without_augmentation_train_to_the_same_weights(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """What differs is the engine alone."""
    for loader in ("albumentations", "device", "dali"):
        outcome = cvexp(*SMALL, "augmentation=none", f"loader={loader}", f"hydra.run.dir={loader}")
        assert outcome.code == 0, outcome.err
    assert identical(tmp_path / "albumentations", tmp_path / "device")
    assert identical(tmp_path / "albumentations", tmp_path / "dali")


def test_a_sweep_goes_on_after_a_failure_and_tables_every_job(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    grid = ["freeze=last,full", "precision=32-true,16-mixed", "~hydra.callbacks.report"]
    outcome = cvexp("-m", *SMALL, *grid)
    assert outcome.code == 1
    (sweep,) = (tmp_path / "multirun").iterdir()
    records = [json.loads(path.read_text()) for path in sorted(sweep.glob("*/run.json"))]
    assert len(records) == 4
    for found in records:
        failed = found["factors"]["precision"] == "16-mixed"
        assert found["status"] == ("failed" if failed else "completed")
        assert bool(found["reason"]) == failed
    table = outcome.out[outcome.out.rindex("test/accuracy") :]
    assert table.count("completed") == 2 + 1  # two rows, and the line below the table
    assert table.count("_precision-16-mixed") == 4  # two rows, two reasons
    assert table.count(": precision=16-mixed needs a CUDA device") == 2
    assert "2 of 4 completed" in table
    folders = {path.name for path in sweep.iterdir() if path.is_dir()}
    assert folders == {
        f"freeze-{freeze}_precision-{precision}"
        for freeze in ("last", "full")
        for precision in ("32-true", "16-mixed")
    }


def test_a_job_that_is_there_already_is_shown_and_not_run(cvexp: Callable[..., Outcome]) -> None:
    quick = ["-m", *TOY, "trainer.fast_dev_run=true", "hydra.sweep.dir=s"]
    assert cvexp(*quick, "seed=0,1").code == 0
    again = cvexp(*quick, "seed=1,2")
    assert again.code == 0
    assert "1 of 2 jobs are done and left as they are" in again.out
    assert "2 of 2 completed" in again.out


def test_the_three_way_sweep_completes(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp("-m", *SMALL, "freeze=last,most,full")
    assert outcome.code == 0, outcome.err
    assert "3 of 3 completed" in outcome.out
    trained = {}
    for path in tmp_path.glob("multirun/*/*/run.json"):
        found = json.loads(path.read_text())
        trained[found["factors"]["freeze"]] = found["effective"]["trainable_parameters"]
    assert trained["last"] < trained["most"] < trained["full"]


def test_show_config_marks_what_was_overridden(
    cvexp: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    outcome = cvexp(
        *SMALL, "show_config=true", "optimizer.lr=0.003", "name=${oc.env:SECRET}", "freeze=last"
    )
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert any("lr: 0.003" in line and "(overridden)" in line for line in lines)
    assert any("freeze" in line and "(overridden)" in line for line in lines)
    assert any("weight_decay: 0.01" in line and "overridden" not in line for line in lines)
    (kept,) = tmp_path.glob("multirun/*/.hydra/config.yaml")
    assert "lr: 0.003" in kept.read_text()


def test_overfit_says_whether_it_got_there(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(*TOY[:4], "debug=overfit", "optimizer.lr=0.01", "debug.max_steps=100")
    assert outcome.code == 0, outcome.err
    assert "one batch reached a loss below 0.01" in outcome.out
    steps = outcome.record(tmp_path)["effective"]["optimizer_steps"]
    assert steps < 100
    gave_up = cvexp(*TOY[:4], "debug=overfit", "optimizer.lr=1e-6", "debug.max_steps=3")
    assert gave_up.code == 0
    assert "one batch did NOT reach a loss below 0.01" in gave_up.out


def test_profile_shows_operators_and_keeps_a_trace(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = cvexp(*SMALL, "debug=profile", "debug.skip_batches=2", "debug.active_batches=2")
    assert outcome.code == 0, outcome.err
    assert "Self CPU time total" in outcome.out
    assert "conv" in outcome.out
    (trace,) = tmp_path.glob("multirun/*/trace.json")
    assert json.loads(trace.read_text())["traceEvents"]


def test_debug_fast_is_two_batches_of_everything(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = cvexp(*TOY[:4], "debug=fast", "accumulation=x4", "tracker=none")
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)["effective"]
    assert (found["optimizer_steps"], found["images_seen"]) == (2, 256)
    assert found["effective_batch_size"] == 128  # the truth, not 4 x 64
    assert "a step averages 2 batches, not 4" in outcome.out
    assert list(tmp_path.glob("multirun/*/checkpoints/last.ckpt"))


def test_tensorboard_gets_the_metrics(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert cvexp(*TOY).code == 0
    (folder,) = tmp_path.glob("multirun/*/tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/loss_step", "lr", "val/accuracy", "test/accuracy"} <= tags


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["albumentations", "device", "dali"])
@pytest.mark.parametrize("precision", ["32-true", "tf32", "bf16-mixed", "16-mixed", "bf16-true"])
def test_every_precision_runs_on_a_gpu_as_labelled(
    precision: str, loader: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = cvexp(*TOY, f"precision={precision}", f"loader={loader}")
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)
    assert found["effective"]["precision"] == precision
    half = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "bf16-true": "bfloat16"}
    assert found["effective"]["compute_dtype"] == half.get(precision, "float32")
    steps = found["effective"]["optimizer_steps"] + found["effective"]["skipped_steps"]
    assert steps == 20
    assert found["cost"]["peak_device_bytes"] > 0
    assert found["cost"]["images_per_s"]["median"] > 0


@pytest.mark.slow
def test_the_main_job(tmp_path: Path) -> None:
    """Python -m cvexp, as in the README: real weights, real digits, no network."""
    outcome = command(cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)
    assert found["metrics"]["test/accuracy"] >= 0.97
    assert outcome.err == ""
    assert "val/accuracy" in outcome.out
    assert "trainable parameters" in outcome.out
    assert outcome.out.strip().splitlines()[-1].split()[-1].startswith("multirun/")
