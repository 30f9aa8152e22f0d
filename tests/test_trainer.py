"""trainer.<any Trainer argument> works, or says where it is decided."""

import inspect

import pytest
from lightning.pytorch import Trainer

from cvexp.config import UsageError, keyword_only
from cvexp.trainer import ELSEWHERE, limited, root_device, single
from tests.test_contract import composed


def test_every_trainer_argument_is_a_key_or_said_elsewhere() -> None:
    theirs = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    ours = set(keyword_only(single))
    assert ours | set(ELSEWHERE) == theirs
    assert not ours & set(ELSEWHERE)


@pytest.mark.parametrize("key", ["limit_train_batches", "max_steps"])
def test_zero_training_batches_are_an_error(key: str) -> None:
    """Lightning calls it finished and exits 0 (traps.md 13)."""
    arguments = dict(composed().trainer)
    del arguments["_target_"]
    with pytest.raises(UsageError, match=rf"trainer\.{key}=0 leaves no training batch"):
        single(**{**arguments, key: 0})


@pytest.mark.parametrize(
    ("batches", "limit", "left"),
    [(20, 1.0, 20), (20, 1, 1), (20, 0.5, 10), (20, 50, 20), (3, 2, 2)],
)
def test_limits_are_lightnings(batches: int, limit: float, left: int) -> None:
    assert limited(batches, limit) == left


def test_an_accelerator_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"trainer\.accelerator=mps.*try trainer\.accelerator=cpu"):
        root_device("mps")
