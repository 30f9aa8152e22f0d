"""Stage tracker: where metrics go besides metrics.jsonl.

Each function takes the run directory and, where a run goes on, the optimizer steps that it goes on
from; None where it begins.
"""

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
