"""Stage tracker: where metrics go besides metrics.jsonl.

Each function takes the run directory and, where a run goes on, the optimizer steps that it goes on
from; None where it begins.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt
from lightning.pytorch.loggers import Logger


def none(run_dir: Path, steps: int | None, /) -> list[Logger]:
    """Track nothing more."""
    return []


def tensorboard(
    run_dir: Path, steps: int | None, /, *, flush_s: Annotated[int, Gt(0)]
) -> list[Logger]:
    """Write TensorBoard event files to run_dir/tensorboard; what is after `steps` there is void."""
    from lightning.pytorch.loggers import TensorBoardLogger

    options: dict[str, Any] = {"flush_secs": flush_s}
    if steps is not None:
        options["purge_step"] = steps + 1 if steps else 0
    return [TensorBoardLogger(run_dir, name="", version="tensorboard", **options)]


def show_factors(
    loggers: Sequence[Logger], factors: Mapping[str, Any], metrics: Mapping[str, float]
) -> None:
    """Give TensorBoard's HParams view what a run's factors were, beside the metrics it has."""
    from lightning.pytorch.loggers import TensorBoardLogger
    from torch.utils.tensorboard.summary import hparams

    plain = {
        k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in factors.items()
    }
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            writer = logger.experiment._get_file_writer()
            # Without the first, which would be the one list of factors for all runs of the view.
            for summary in hparams(plain, dict(metrics))[1:]:  # type: ignore[no-untyped-call]
                writer.add_summary(summary)
