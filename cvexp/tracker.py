"""Stage tracker: where metrics go besides metrics.jsonl."""

from pathlib import Path
from typing import Annotated

from annotated_types import Gt
from lightning.pytorch.loggers import Logger


def none(run_dir: Path, /) -> list[Logger]:
    """Track nothing more."""
    return []


def tensorboard(run_dir: Path, /, *, flush_s: Annotated[int, Gt(0)]) -> list[Logger]:
    """Write TensorBoard event files to run_dir/tensorboard."""
    from lightning.pytorch.loggers import TensorBoardLogger

    return [TensorBoardLogger(run_dir, name="", version="tensorboard", flush_secs=flush_s)]
