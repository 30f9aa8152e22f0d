"""The verb lr-find: the learning-rate range test, on the run's own batches, network and optimizer.

The rate rises from step to step, by a constant factor, until the loss explodes; what was trained is
thrown away. Two rules read a rate off the curve; both are rules of thumb.

Source: Smith 2015, arXiv 1506.01186, section 3.3 (the test); fastai's lr_find (the rules).
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from cvexp.accumulation import Accumulation
from cvexp.atomic import write_atomically
from cvexp.config import UsageError, check
from cvexp.console import quieten_lightning, stage, warn
from cvexp.optimizer import base_lr
from cvexp.prepare import prepare
from cvexp.run import make_trainer
from cvexp.scheduler import Horizon
from cvexp.window import Diverged

STEPS = 100
FIRST, LAST = 1e-7, 10.0  # learning rates
EXPLODED = 4.0  # times the least smoothed loss
READ_EVERY_STEPS = 5
SPREAD = 2.0  # standard deviation of the smoothing, in steps


def main(config: DictConfig, began: float) -> None:
    """Draw lr-find.png, and write lr-find.json, in the directory that Hydra made.

    Raises:
        UsageError: what a run would refuse, cached features, or a result that is there already.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if found := [path for path in folder.glob("lr-find.*") if path.suffix in (".png", ".json")]:
        raise UsageError(f"{found[0]} exists; choose another hydra.run.dir, or leave it out")
    typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    check(config, typed)
    quieten_lightning()
    rates, losses = curve(config, folder)
    smoothed = smooth(losses)
    rules = suggestions(rates, smoothed)
    result = {"learning_rate": rates.tolist(), "loss": losses.tolist(), "suggestions": rules}
    write_atomically(folder / "lr-find.json", json.dumps(result, indent=2).encode())
    draw(rates, losses, smoothed, rules).savefig(folder / "lr-find.png", dpi=150)
    for rule, rate in rules.items():
        stage("lr-find", f"{rule}: optimizer.lr={rate:.2g}")
    if not rules:
        warn("the loss did not fall at any rate; try another model or optimizer")
    stage("lr-find", os.path.relpath(folder / "lr-find.png"))


def curve(config: DictConfig, folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Train at rising rates; return the rate and the loss of each step that was made."""
    limits = {"max_steps": STEPS, "max_epochs": STEPS, "limit_val_batches": 0}
    quiet = {"log_every_n_steps": STEPS, "fast_dev_run": False}
    merged: Any = OmegaConf.merge(config, {"trainer": {**limits, **quiet}})
    # The run's own schedule, and its end, need not fit the test's steps.
    merged.scheduler = {"_target_": "cvexp.scheduler.constant"}
    merged.early_stopping = {"_target_": "cvexp.early_stopping.none"}
    ready = prepare(merged)
    if ready.plan.caching is not None:
        raise UsageError("lr-find trains on images; type freeze.cache_features=false")
    module = ready.module
    # What begins later in a run has no part in the test, which may pass its epochs.
    ready.plan.groups = tuple(group for group in ready.plan.groups if group.from_epoch == 0)
    module.follow(
        rising,
        Horizon(STEPS, [STEPS]),
        Accumulation(((0, ready.accumulation.at(0)),)),
    )
    watch = _Watch()
    trainer = make_trainer(ready, folder, [], [watch])
    try:
        trainer.fit(module, ready.loaders.train, ready.loaders.val)
    except Diverged:
        pass  # as it should, in the end
    finally:
        ready.loaders.close()
    losses = watch.read()
    rates = np.array(module.counts.learning_rates[: len(losses)])
    finite = np.isfinite(losses[: len(rates)])
    stop = len(rates) if finite.all() else int(np.argmin(finite))
    return rates[:stop], losses[:stop]


def rising(optimizer: Optimizer, horizon: Horizon) -> LambdaLR:
    """Return the schedule from FIRST to LAST by a constant factor."""
    base, last = base_lr(optimizer), max(horizon.total_steps - 1, 1)
    return LambdaLR(optimizer, lambda step: FIRST / base * (LAST / FIRST) ** (step / last))


class _Watch(Callback):
    """Keep each step's loss, and stop once it explodes."""

    def __init__(self) -> None:
        self._batches: list[torch.Tensor] = []  # of the step that is being made
        self._steps: list[torch.Tensor] = []
        self._made = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take up a loss."""
        self._batches.append(outputs["loss"])
        if trainer.global_step == self._made:
            return
        self._made = trainer.global_step
        # Each is weighed so that k of them are averaged, a short window's fewer ones too.
        self._steps.append(torch.stack(self._batches).sum() / trainer.accumulate_grad_batches)
        self._batches = []
        if self._made % READ_EVERY_STEPS == 0:
            losses = self.read()
            last = losses[-READ_EVERY_STEPS:].mean()
            trainer.should_stop = not last < EXPLODED * smooth(losses).min()  # no number is not

    def read(self) -> NDArray[np.float64]:
        """Return the losses so far; waits for the device."""
        return np.array([float(loss) for loss in self._steps])


def smooth(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the losses about each step, weighed by a Gaussian of SPREAD steps.

    A running mean would lag behind, and every rate read off it would be too high.
    """
    steps = np.arange(len(losses))
    weights = np.exp(-0.5 * ((steps[:, None] - steps) / SPREAD) ** 2)
    return np.asarray(weights @ losses / weights.sum(axis=1))


def suggestions(rates: NDArray[np.float64], smoothed: NDArray[np.float64]) -> dict[str, float]:
    """Return each rule's rate: where the loss falls steepest, and a tenth of where it is least."""
    least = int(smoothed.argmin()) if len(smoothed) else 0
    if least < 2:
        return {}
    slopes = np.gradient(smoothed[: least + 1], np.log(rates[: least + 1]))
    steepest = int(slopes.argmin())
    return {"steepest": float(rates[steepest]), "minimum / 10": float(rates[least] / 10)}


def draw(
    rates: Sequence[float] | NDArray[np.float64],
    losses: NDArray[np.float64],
    smoothed: NDArray[np.float64],
    rules: dict[str, float],
) -> Figure:
    """Return the curve as a figure, with each rule's rate."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates, losses, color="0.75", linewidth=1, label="loss of a step")
    axes.plot(rates, smoothed, label="smoothed")
    for colour, (rule, rate) in zip(("C1", "C2"), rules.items(), strict=False):
        axes.axvline(rate, color=colour, linestyle="--", label=f"{rule}: {rate:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss")
    if len(losses):  # the explosion may leave the picture
        axes.set_ylim(0.9 * losses.min(), 1.1 * losses[: len(losses) // 2 + 1].max())
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure
