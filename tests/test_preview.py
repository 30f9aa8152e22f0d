"""The page shows what a run would do, and does nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cvexp.prepare import prepare
from cvexp.preview import COLUMNS, ROWS, first_batch, learning_rates, page
from tests.conftest import TOY, Outcome
from tests.test_contract import composed


def test_preview_leaves_one_page_and_no_run(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp("preview", *TOY, "freeze=last", "augmentation=strong", "mix=mixup")
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.rglob("*.png")
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]
    assert path.name in outcome.out
    with Image.open(path) as image:
        assert image.size == (1240, 1753)  # A4 at 150 dpi
        assert len(np.unique(np.asarray(image.convert("L")))) > 100


@pytest.mark.parametrize("loader", ["albumentations", "device", "dali"])
def test_the_images_are_those_of_the_run(loader: str) -> None:
    """Un-normalised they are the pixels that the loader gave, and those of the split."""
    config = composed(*TOY, f"loader={loader}", "augmentation=strong")
    ready = prepare(config)
    (seen, names), (plain, own) = first_batch(ready)
    batch = next(iter(ready.loaders.train))
    count = ROWS * COLUMNS
    given = batch.images[:count].permute(0, 2, 3, 1).numpy()
    stored = np.stack([ready.data.train.read(int(i)) for i in batch.indices[:count]])
    assert np.array_equal(seen, given)
    assert np.array_equal(plain, stored)
    assert not np.array_equal(seen, plain)
    assert names == own == [ready.data.classes[int(label)] for label in batch.labels[:count]]
    ready.loaders.close()


def test_a_mixed_image_is_named_for_both() -> None:
    ready = prepare(composed(*TOY, "mix=mixup", "mix.alpha=5.0", "augmentation=none"))
    (_, names), (_, own) = first_batch(ready)
    mixed = [name for name in names if " + " in name]
    assert len(mixed) > len(names) / 2
    assert all(any(part in name for name in names) for part in own)


@pytest.mark.parametrize(
    "overrides",
    [
        ["scheduler=cosine", "accumulation=x4"],
        ["trainer.max_epochs=3", "trainer.limit_train_batches=0.5"],
        ["trainer.max_epochs=3", "trainer.max_steps=7"],
        ["trainer.max_epochs=3", "scheduler=one-cycle", "accumulation=ramp"],
    ],
)
def test_the_learning_rates_are_those_of_the_run(
    overrides: list[str], cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    ready = prepare(composed(*TOY, *overrides))
    rates = learning_rates(ready.module)
    outcome = cvexp(*TOY, *overrides, "tracker=none")
    assert outcome.code == 0, outcome.err
    effective = outcome.record(tmp_path)["effective"]
    assert len(rates) == effective["optimizer_steps"]
    ends = (effective["lr_first"], effective["lr_peak"], effective["lr_last"])
    assert ends == pytest.approx((rates[0], max(rates), rates[-1]))


def test_the_table_says_what_trains() -> None:
    ready = prepare(composed(*TOY, "freeze=most", "freeze.stages=1"))
    (table,) = page(ready, "x").axes[3].tables
    texts = [cell.get_text().get_text() for cell in table.get_celld().values()]
    assert texts.count("frozen") == len(ready.network.stages) - 1
    assert texts.count("trains") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preview", "-m", "seed=0,1"], "preview takes one configuration"),
        (["preview", "optimizer=sgdd"], "optimizer takes: "),
        (["preview", "trainer.max_epochs=0"], "trainer.max_epochs=0"),
    ],
)
def test_a_bad_request_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_what_was_typed_is_shown_as_it_was_typed(cvexp: Callable[..., Outcome]) -> None:
    """Dollars and braces are no formula."""
    outcome = cvexp("preview", *TOY, "name='$x_{$'", "tags=['a^b$']")
    assert outcome.code == 0, outcome.err


def test_a_picture_that_is_there_is_kept(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "preview.png").write_text("mine")
    outcome = cvexp("preview", *TOY, "hydra.run.dir=.")
    assert outcome.code == 2
    assert "preview.png exists" in outcome.err
    assert (tmp_path / "preview.png").read_text() == "mine"
