"""A run may end before its end, and says so."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TOY, Outcome

QUICK = [*TOY, "trainer.max_epochs=6", "trainer.limit_train_batches=2", "tracker=none"]


@pytest.mark.parametrize(
    ("recipe", "steps"),
    [
        ("", 12),
        ("early_stopping=plateau early_stopping.min_delta=100.0", 8),
        ("early_stopping=plateau early_stopping.min_delta=100.0 trainer.val_check_interval=1", 4),
        (
            "early_stopping=plateau early_stopping.metric=val/accuracy "
            "early_stopping.min_delta=2.0 early_stopping.patience_validations=1",
            4,
        ),
        ("trainer.max_steps=5", 5),
    ],
)
def test_a_run_stops_after_validations_that_bring_nothing(
    recipe: str, steps: int, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """The first validation is the best so far; the checkpoints are kept."""
    outcome = cvexp(*QUICK, *recipe.split())
    assert outcome.code == 0, outcome.err
    record = outcome.record(tmp_path)
    assert record["effective"]["optimizer_steps"] == steps
    early = "early_stopping" in recipe
    assert record["effective"]["stopped_early"] is early
    assert (f"stopped early, after {steps} of at most 12" in outcome.out) is early
    (folder,) = tmp_path.glob("multirun/*/checkpoints")
    kept = {path.name for path in folder.glob("*.ckpt")}
    assert kept == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert "test/accuracy" in record["metrics"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("trainer.limit_val_batches=0", "type trainer.limit_val_batches=1.0"),
        ("trainer.check_val_every_n_epoch=9", "type trainer.check_val_every_n_epoch=1"),
        ("early_stopping.metric=val/acc", "early_stopping.metric='val/acc'"),
    ],
)
def test_what_cannot_be_followed_is_one_line(
    overrides: str, message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*QUICK, "early_stopping=plateau", overrides)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
