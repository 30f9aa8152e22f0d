"""The range test trains at rates that rise by a constant factor, and leaves nothing behind."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cvexp.lr_find import FIRST, LAST, STEPS, _Watch, smooth, suggestions
from tests.conftest import TOY, Outcome

RATES = np.geomspace(FIRST, LAST, STEPS)


def test_a_curve_and_two_rules(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp("lr-find", *TOY, "accumulation=x2", "optimizer.head_lr_factor=3.0")
    assert outcome.code == 0, outcome.err
    (folder,) = tmp_path.glob("multirun/*")
    assert {path.name for path in folder.iterdir()} == {"lr-find.png", "lr-find.json"}
    found = json.loads((folder / "lr-find.json").read_text())
    rates, losses = found["learning_rate"], found["loss"]
    assert 40 < len(rates) == len(losses) <= STEPS
    assert rates == pytest.approx(RATES[: len(rates)])
    assert set(found["suggestions"]) == {"steepest", "minimum / 10"}
    for rule, rate in found["suggestions"].items():
        assert FIRST < rate < LAST
        assert f"{rule}: optimizer.lr={rate:.2g}" in outcome.out


def test_nothing_is_left_behind(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    """A run after it, in one process, is the run without it; the same test again is the same."""
    weights, curves = [], []
    recipe = [*TOY, "tracker=none", "trainer.limit_train_batches=2"]
    for name in ("before", "after"):
        assert cvexp(*recipe, f"hydra.run.dir={name}").code == 0
        path = tmp_path / name / "checkpoints" / "last.ckpt"
        weights.append(torch.load(path, weights_only=True)["state_dict"])
        assert cvexp("lr-find", *TOY, f"hydra.run.dir=find-{name}").code == 0
        curves.append((tmp_path / f"find-{name}" / "lr-find.json").read_text())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert curves[0] == curves[1]


def test_what_begins_to_train_later_has_no_part(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Of gradual the head is left, which is freeze=last, though the test passes several epochs."""
    recipe = [*TOY, "trainer.max_epochs=3", "loader.batch_size=500"]
    found = []
    for option in ("gradual", "last"):
        assert cvexp("lr-find", *recipe, f"freeze={option}", f"hydra.run.dir={option}").code == 0
        found.append(json.loads((tmp_path / option / "lr-find.json").read_text()))
    assert len(found[0]["loss"]) > 40
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "recipe",
    [
        "scheduler=plateau early_stopping=plateau",
        "scheduler=multi-step trainer.max_epochs=4 loader.batch_size=7",
        "scheduler.warmup_steps=200 trainer.max_epochs=4 loader.batch_size=7",
    ],
)
def test_the_runs_own_schedule_has_no_part(
    recipe: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """What follows validation, or begins after the test's hundred steps, does not stop it."""
    outcome = cvexp("lr-find", *TOY, "data.size=16", *recipe.split())
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("multirun/*/lr-find.json")
    found = json.loads(path.read_text())["learning_rate"]
    assert found == pytest.approx(RATES[: len(found)])


def test_a_short_window_counts_its_images_once() -> None:
    """An epoch's last step may hold fewer batches; a batch's loss comes weighed for all k."""
    watch = _Watch()
    trainer = SimpleNamespace(accumulate_grad_batches=4, global_step=0)
    for step, losses in ((1, (1.0, 1.0, 1.0, 1.0)), (2, (2.0, 2.0))):  # 2.0: twice its share
        for loss in losses:
            last = loss is losses[-1] and len(watch._batches) == len(losses) - 1
            trainer.global_step = step if last else step - 1
            watch.on_train_batch_end(trainer, None, {"loss": torch.tensor(loss)}, None, 0)
    assert watch.read() == pytest.approx([1.0, 1.0])


def test_rules_on_a_curve_that_is_known() -> None:
    """Falls about 1e-4, least at 1e-2, explodes after."""
    log = np.log10(RATES)
    curve = 2 - 1 / (1 + np.exp(-4 * (log + 4))) + np.exp(6 * (log + 0.5))
    rules = suggestions(RATES, curve)
    assert rules["steepest"] == pytest.approx(1e-4, rel=0.25)
    assert rules["minimum / 10"] == pytest.approx(RATES[curve.argmin()] / 10)
    assert suggestions(RATES, np.linspace(1, 2, STEPS)) == {}
    assert suggestions(RATES[:0], curve[:0]) == {}


def test_smoothing_lags_neither_behind_nor_ahead() -> None:
    assert smooth(np.full(30, 3.0)) == pytest.approx(np.full(30, 3.0))
    line = np.linspace(0, 1, 60)
    assert smooth(line)[10:-10] == pytest.approx(line[10:-10])
    assert smooth(np.abs(line - 0.5)).argmin() == np.abs(line - 0.5).argmin()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["freeze=last", "freeze.cache_features=true", "augmentation=none"], "trains on images"),
        (["-m", "seed=0,1"], "lr-find takes one configuration; leave -m out"),
        (["optimizer.lr=0"], "optimizer.lr=0"),
        (["hydra.run.dir=."], "lr-find.json exists"),
    ],
)
def test_a_bad_request_is_one_line(
    overrides: list[str], message: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "lr-find.json").write_text("mine")
    outcome = cvexp("lr-find", *TOY, *overrides)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "lr-find.json").read_text() == "mine"
