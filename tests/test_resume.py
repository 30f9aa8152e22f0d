"""A run that was cut goes on, and ends as if it never had been: bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from cvexp.checkpoint import read_checkpoint
from tests.conftest import TOY, in_child
from tests.test_loop import assert_same

BATCH = ("cvexp.module", "Classifier.on_train_batch_end")
RECIPES = {
    # 6 batches and 3 steps an epoch
    "gradual": (
        "freeze=gradual freeze.unfreeze_epochs=[1] ema=weights mix=mixup scheduler=one-cycle "
        "accumulation=x2 checkpoint.every_steps=2 trainer.limit_train_batches=6 "
        "trainer.max_epochs=3 trainer.log_every_n_steps=4 model.dropout=0.2"
    ),
    # 8 batches, validation within the epoch
    "plateau": (
        "scheduler=plateau scheduler.patience_epochs=0 early_stopping=plateau optimizer=sgd "
        "early_stopping.patience_validations=5 mix=cutmix trainer.val_check_interval=0.5 "
        "optimizer.lr=0.05 loader.num_workers=2 checkpoint.every_steps=3 "
        "trainer.limit_train_batches=8 trainer.max_epochs=4"
    ),
}


def recipe(name: str) -> list[str]:
    return [*TOY, "tracker=none", "hydra.run.dir=run", *RECIPES[name].split()]


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that a run leaves, but for times."""
    run = folder / "run"
    kept = {
        name: read_checkpoint(run / "checkpoints" / f"{name}.ckpt") for name in ("last", "best")
    }
    for checkpoint in kept.values():
        del checkpoint["callbacks"]["Meter"]
    record = json.loads((run / "run.json").read_text())
    fields = "status metrics metrics_best recall_per_class effective data".split()
    return {
        **kept,
        "metrics.jsonl": (run / "metrics.jsonl").read_text(),
        **{key: record[key] for key in fields},
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what each recipe comes to where nothing cuts it."""
    found = {}
    for name in RECIPES:
        folder = tmp_path_factory.mktemp(name)
        assert in_child(folder, *recipe(name)) == 0
        found[name] = outcome(folder)
        assert found[name]["status"] == "completed"
    return found


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        ("gradual", [(*BATCH, 1)]),  # the first batch
        ("gradual", [(*BATCH, 5)]),  # in the middle of an accumulation window
        ("gradual", [(*BATCH, 6)]),  # an epoch's last batch
        ("gradual", [("cvexp.module", "Classifier.on_validation_epoch_end", 2)]),
        ("gradual", [("cvexp.checkpoint", "LastAndBest.on_train_epoch_end", 2)]),
        ("gradual", [("cvexp.module", "Classifier.on_test_epoch_end", 1)]),
        ("gradual", [(*BATCH, 9), (*BATCH, 3), (*BATCH, 7)]),  # three times
        ("plateau", [(*BATCH, 4)]),  # with a validation due
        ("plateau", [(*BATCH, 7), (*BATCH, 11)]),
        ("plateau", [("cvexp.module", "Classifier.on_validation_epoch_end", 3)]),
        ("plateau", [("cvexp.checkpoint", "LastAndBest.on_train_epoch_end", 4)]),
    ],
)
def test_a_killed_run_ends_as_one_that_was_not(
    name: str,
    cuts: list[tuple[str, str, int]],
    tmp_path: Path,
    uninterrupted: dict[str, dict[str, Any]],
) -> None:
    for cut in cuts:
        assert in_child(tmp_path, *recipe(name), die=cut) == -9
        assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    assert in_child(tmp_path, "resume", "run") == 0
    assert_same(outcome(tmp_path), uninterrupted[name])
