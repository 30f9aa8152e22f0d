"""What a person sees: stage lines, tables, a config tree; one console, so no bar is overwritten."""

import io
import logging
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console.width = 160  # a pipe or a file has no edge to fold tables at
log = logging.getLogger("cvexp")


class Handler(logging.Handler):
    """A handler that prints through the console; a file gets the traceback, a person does not."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        if record.name != "py.warnings":
            if record.levelno >= logging.ERROR:
                print(record.getMessage(), file=sys.stderr)
            else:
                warns = record.levelno >= logging.WARNING
                console.print(Text(record.getMessage(), style="yellow" if warns else ""))


def quieten_lightning() -> None:
    """Leave Lightning only its warnings; our stage lines already say what it would remark.

    Called once it is imported: its import sets its loggers' levels and adds handlers of its own.
    """
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
        logger.propagate = True
    # A run of few batches logs its epochs all the same.
    warnings.filterwarnings("ignore", message=r"The number of training batches .* is smaller than")
    # Schedules count the steps that a GradScaler skips too, the very first among them.
    warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler.step\(\)` before")
    # Lightning 2.6 on torch 2.14 meets a deprecation in torch's pytree only Lightning can mend.
    warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated")


def stage(name: str, decided: str) -> None:
    """Say in one line what a stage decided."""
    log.info("%-12s  %s", name, decided)


def say(name: str, decided: str) -> None:
    """Print such a line outside a job, where nothing logs."""
    console.print(f"{name:<12}  {decided}", markup=False)


def warn(text: str) -> None:
    """Say in one line what a person should know."""
    log.warning("%-12s  %s", "warning", text)


def show(renderable: Any) -> None:
    """Print a table or a tree, and log it as plain text."""
    console.print(renderable)
    plain = Console(width=160, no_color=True, file=io.StringIO(), record=True)
    plain.print(renderable)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            message = "\n" + plain.export_text()
            handler.emit(logging.LogRecord("cvexp", logging.INFO, "", 0, message, None, None))


def config_tree(config: Mapping[str, Any], overridden: Sequence[str]) -> Tree:
    """Return a config as a tree, with what the command line set marked."""
    tree = Tree("config")

    def grow(branch: Tree, node: Mapping[str, Any], path: str) -> None:
        for key, value in node.items():
            here = f"{path}.{key}".lstrip(".")
            label = Text(str(key))
            if not isinstance(value, Mapping):
                label.append(f": {value}")
            if here in overridden:
                label.append("  (overridden)")
                label.stylize("bold yellow")
            twig = branch.add(label)
            if isinstance(value, Mapping):
                grow(twig, value, here)

    grow(tree, config, "")
    return tree


def size(number: float | None) -> str:
    """Return bytes as MiB."""
    return "-" if number is None else f"{number / 2**20:,.0f} MiB"


def _cells(record: Mapping[str, Any]) -> list[str]:
    """Return the figures of one record, in the order of _FIGURES."""
    metrics, cost = record.get("metrics") or {}, record.get("cost") or {}
    rate, effective = cost.get("images_per_s"), record.get("effective") or {}

    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        figure(metrics.get("val/accuracy"), ".4f"),
        figure(metrics.get("test/accuracy"), ".4f"),
        figure(cost.get("train_s"), ",.1f"),
        figure(rate and rate["median"], ",.0f"),
        size(cost.get("peak_device_bytes") or cost.get("peak_host_bytes")),
        figure(effective.get("trainable_parameters"), ","),
    ]


_FIGURES = (
    "val/accuracy",
    "test/accuracy",
    "train s",
    "images/s",
    "peak memory",
    "trainable parameters",
)


def run_table(record: Mapping[str, Any]) -> Table:
    """Return one run's figures as a small table."""
    table = Table(show_header=False)
    for name, value in zip(_FIGURES, _cells(record), strict=True):
        table.add_row(name, value)
    return table


def counts_table(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """Return, for each split, its images and how many a class has, as a table."""
    table = Table("split", "images", "classes", "fewest a class", "median", "most")
    for split, by_class in counts.items():
        n = [count for count in by_class.values() if count] or [0]
        spread = (min(n), statistics.median(n), max(n))
        table.add_row(split, f"{sum(n):,}", f"{len(n):,}", *(f"{x:,.0f}" for x in spread))
    return table


def freeze_table(rows: Sequence[tuple[str, int, str, str | None]]) -> Table:
    """Return what becomes of each stage: parameters, whether they train, mode of its BatchNorms."""
    table = Table("stage", Column("parameters", justify="right"), "", "BatchNorms")
    for name, parameters, trains, norms in rows:
        table.add_row(name, f"{parameters:,}", trains, norms or "-")
    return table


def jobs_table(jobs: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Table:
    """Return one row a job: its folder, its status, its figures (those of its record)."""
    table = Table(Column("job", overflow="fold"), "status", *_FIGURES[:5])
    for name, status, record in jobs:
        style = "" if status == "completed" else "red"
        table.add_row(Text(name), Text(status, style=style), *_cells(record)[:5])
    return table
