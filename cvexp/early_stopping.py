"""Stage early stopping: whether a run may end before the trainer's own end."""

from typing import Annotated

from annotated_types import Ge
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from cvexp.scheduler import Metric, direction


def none() -> list[Callback]:
    """Never stop early."""
    return []


def plateau(
    *,
    metric: Metric,
    patience_validations: Annotated[int, Ge(1)],
    min_delta: Annotated[float, Ge(0)],
) -> list[Callback]:
    """Stop after so many validations without a better one."""
    return [
        EarlyStopping(
            metric,
            min_delta=min_delta,
            patience=patience_validations,
            mode=direction(metric),
            check_on_train_epoch_end=False,  # at each validation
        )
    ]
