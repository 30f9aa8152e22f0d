"""The verb preview: one page of what a run would see and do, drawn without training.

Shapes: B images of a batch, C channels, H = W = size.
"""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from cvexp.config import UsageError, check
from cvexp.console import quieten_lightning, stage
from cvexp.freeze import Row
from cvexp.module import Classifier
from cvexp.optimizer import base_lr
from cvexp.prepare import Prepared, prepare
from cvexp.scheduler import Plateau

PAGE_INCHES = (8.27, 11.69)  # A4
COLUMNS, ROWS = 8, 3  # of images, in each of the two panels


def main(config: DictConfig, began: float) -> None:
    """Draw preview.png in the directory that Hydra made.

    Raises:
        UsageError: what the run would refuse, or a preview.png that is there already.
    """
    hydra = HydraConfig.get()
    path = Path(hydra.runtime.output_dir) / "preview.png"
    if path.exists():
        raise UsageError(f"{path} exists; choose another hydra.run.dir, or leave it out")
    quieten_lightning()
    typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    check(config, typed)
    ready = prepare(config)
    try:
        page(ready, " ".join(typed)).savefig(path, dpi=150)
    finally:
        ready.loaders.close()
    stage("preview", os.path.relpath(path))


def page(ready: Prepared, title: str) -> Figure:
    """Return the page as a figure."""
    figure = Figure(figsize=PAGE_INCHES, layout="constrained")
    # matplotlib's own wrapping reads a dollar as the start of a formula, whatever parse_math says.
    command = textwrap.fill(f"python -m cvexp {title}", 105, break_on_hyphens=False)
    figure.suptitle(command, fontsize=9, family="monospace", parse_math=False)
    rows = ready.plan.table()
    axes = figure.subplots(4, 1, height_ratios=[3, 3, 2, 0.6 + 0.17 * len(rows)])
    augmented, plain = first_batch(ready)
    _images(axes[0], *augmented, f"training sees (augmentation: {ready.policy})")
    _images(axes[1], *plain, "the same images as validation sees them")
    _rates(axes[2], ready)
    _table(axes[3], ready, rows)
    return figure


Panel = tuple[NDArray[np.uint8], list[str]]


def first_batch(ready: Prepared) -> tuple[Panel, Panel]:
    """Return the first training batch as the network sees it, and as validation would.

    Both go through the run's own normalisation, which is undone for display: (B, H, W, C) uint8.
    """
    module, device = ready.module.to(ready.device), ready.device
    batch = next(iter(ready.loaders.train))
    count = min(len(batch.labels), ROWS * COLUMNS)
    labels = batch.labels.to(device)
    seen, targets = module.mixed(module.normalise(batch.images.to(device)), labels, 0, 0)
    names = [_name(module.classes, target) for target in targets[:count].cpu()]
    stored = np.stack([ready.data.train.read(int(index)) for index in batch.indices[:count]])
    plain = module.normalise(torch.from_numpy(stored).permute(0, 3, 1, 2).to(device))
    own = [module.classes[int(label)] for label in batch.labels[:count]]
    return (_display(ready, seen[:count]), names), (_display(ready, plain), own)


def _name(classes: Sequence[str], target: torch.Tensor) -> str:
    """Return a target's class, or the two classes of a mixed one with the larger share."""
    if target.dim() == 0:
        return classes[int(target)]
    shares, indices = target.topk(min(2, len(target)))
    names = [classes[int(i)] for i, share in zip(indices, shares, strict=True) if share > 0]
    return f"{' + '.join(names)} ({float(shares[0]):.1%})" if len(names) > 1 else names[0]


def _display(ready: Prepared, images: torch.Tensor) -> NDArray[np.uint8]:
    """Undo the normalisation: (B, C, H, W) floats -> (B, H, W, C) uint8."""
    mean, std = (torch.tensor(x)[:, None, None] for x in (ready.network.mean, ready.network.std))
    pixels = (images.float().cpu() * std + mean) * 255
    return pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def _images(axes: Axes, images: NDArray[np.uint8], names: Sequence[str], title: str) -> None:
    """Draw a panel of images, each with its name below."""
    axes.set_title(title, fontsize=9, loc="left", wrap=True)
    axes.set_axis_off()
    for place, (image, name) in enumerate(zip(images, names, strict=True)):
        row, column = divmod(place, COLUMNS)
        box = axes.inset_axes(
            (column / COLUMNS, 1 - (row + 0.82) / ROWS, 0.9 / COLUMNS, 0.82 / ROWS)
        )
        box.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        box.set_xticks([])
        box.set_yticks([])
        shown = name if len(name) <= 18 else f"{name[:17]}…"
        box.set_xlabel(shown, fontsize=6, labelpad=1, parse_math=False)


def learning_rates(module: Classifier) -> list[float]:
    """Return the learning rate of every optimizer step of the run; a plateau's before any drop."""
    (optimizer, _), scheduler = module.make_optimizer()
    rates = []
    for _ in range(module.horizon.total_steps):
        rates.append(base_lr(optimizer))
        optimizer.step()  # without gradients it changes nothing
        if not isinstance(scheduler, Plateau):
            scheduler.step()
    return rates


def _rates(axes: Axes, ready: Prepared) -> None:
    """Draw the learning rate by optimizer step."""
    rates = learning_rates(ready.module)
    axes.plot(range(len(rates)), rates, marker="." if len(rates) < 100 else "", linewidth=1)
    epochs = ready.arguments["max_epochs"]
    axes.set_title(
        f"learning rate by optimizer step: {len(rates):,} steps in {epochs} epochs, "
        f"from {rates[0]:.3g} over {max(rates):.3g} to {rates[-1]:.3g}",
        fontsize=9,
        loc="left",
    )
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)


def _table(axes: Axes, ready: Prepared, rows: Sequence[Row]) -> None:
    """Draw what trains, stage by stage."""
    axes.set_axis_off()
    axes.set_title(
        f"{ready.network.name}: {ready.plan.describe()}",
        fontsize=9,
        loc="left",
        parse_math=False,
    )
    cells = [[row.stage, f"{row.parameters:,}", row.trains, row.norms or "-"] for row in rows]
    table = axes.table(
        cells,
        colLabels=["stage", "parameters", "", "mode of its BatchNorms"],
        bbox=Bbox.from_bounds(0, 0, 1, 1),
        cellLoc="left",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7)
