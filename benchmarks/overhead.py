"""What a framework adds to a training step, on a network so small that it shows.

python benchmarks/overhead.py [--steps 200] [--repeats 7]

One step of a CNN of three layers on eight images of 16 pixels, three ways in one process, in turn:

- by hand: the loop as one would write it, with cvexp's own network, loader, normalisation, loss,
  optimizer and schedule, and sums of loss and correct answers on the device;
- cvexp: the run as `python -m cvexp` makes it, every callback included, without checkpoints;
- Lightning with its usual logging: log_dict(on_step=True, on_epoch=True) of the loss and of
  torchmetrics' accuracy, the same network, loader, optimizer and schedule.

Each measurement is an epoch of --steps steps; its time is the median step's, on the host's clock.
Prints medians over repeats, and the median of each repeat's difference to the loop by hand.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from cvexp import config as configuration
from cvexp.console import console, log, quieten_lightning
from cvexp.loader import Batch, Batches, Order
from cvexp.meter import Meter
from cvexp.model import Network
from cvexp.prepare import Prepared, prepare
from cvexp.progress import Bar
from cvexp.record import MetricsLog
from cvexp.run import make_trainer

RECIPE = [
    "data.size=16",
    "augmentation=none",
    "loader=device",
    "loader.batch_size=8",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=0",
    "tracker=none",
]


def tiny() -> Network:
    """Return a network in which a step takes next to nothing."""
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(144, 1000)),
    )
    half = (0.5, 0.5, 0.5)
    return Network("tiny", module, ("5",), half, half, "random", channels_last=False)


class Steps(Callback):
    """Mark the end of each step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Take the time."""
        self.marks.append(time.perf_counter())


def ready(steps: int) -> Prepared:
    """Return a run of so many steps, its images cut to them."""
    with initialize_config_dir(str(configuration.CONF), version_base="1.3"):
        composed = compose("config", [*RECIPE, f"trainer.limit_train_batches={steps}"])
    composed.model = {"_target_": "overhead.tiny"}
    composed.trusted_packages = ["overhead"]
    return prepare(composed)


def batches(made: Prepared, steps: int) -> Batches:
    """Return a loader that gives its first batch again and again: loading is not measured."""
    first = next(iter(made.loaders.train))

    def engine(order: Order) -> Any:
        for _ in range(steps):
            yield first

    return Batches(Order(steps * len(first.labels), len(first.labels), seed=0), engine)


def by_hand(made: Prepared, steps: int) -> list[float]:
    """Return the marks of a loop that one would write."""
    module = made.module.train()
    (optimizer, _), scheduler = module.make_optimizer()
    sums = torch.zeros(3)
    marks = []
    for images, labels, _ in batches(made, steps):
        logits = module.network(module.normalise(images))
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach() * len(labels), correct, torch.tensor(len(labels))])
        marks.append(time.perf_counter())
    return marks


def by_cvexp(made: Prepared, steps: int) -> list[float]:
    """Return the marks of a run."""
    taken = Steps()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        loggers = [MetricsLog(folder / "metrics.jsonl")]
        meter = Meter(time.perf_counter())
        trainer = make_trainer(made, folder, loggers, [meter, Bar(), taken])
        loader = batches(made, steps)
        made.module.order = loader.order
        trainer.fit(made.module, loader, made.loaders.val)
    return taken.marks


class Usual(LightningModule):
    """A module as Lightning's own examples have it."""

    def __init__(self, made: Prepared) -> None:
        super().__init__()
        self.made, self.network = made, made.network.module
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Log the loss and the accuracy, by step and by epoch."""
        logits = self.network(self.made.module.normalise(batch.images))
        loss = nn.functional.cross_entropy(logits, batch.labels)
        self.accuracy(logits, batch.labels)
        values = {"train/loss": loss, "train/accuracy": self.accuracy}
        self.log_dict(values, on_step=True, on_epoch=True, batch_size=len(batch.labels))
        return loss

    def configure_optimizers(self) -> Any:
        """Use the run's own."""
        (optimizer, _), scheduler = self.made.module.make_optimizer()
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def by_lightning(made: Prepared, steps: int) -> list[float]:
    """Return the marks of Lightning with its usual logging."""
    taken = Steps()
    with tempfile.TemporaryDirectory() as temporary:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=[MetricsLog(Path(temporary) / "metrics.jsonl")],
            callbacks=[taken],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            log_every_n_steps=10,
        )
        trainer.fit(Usual(made), batches(made, steps))
    return taken.marks


def main() -> None:
    """Measure, interleaved, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    configuration.register_resolvers()
    log.setLevel("ERROR")
    console.quiet = True
    quieten_lightning()
    ways = {"by hand": by_hand, "cvexp": by_cvexp, "Lightning, usual logging": by_lightning}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(-1, asked.repeats):
        for name, way in ways.items():
            torch.manual_seed(0)
            marks = way(ready(asked.steps), asked.steps)
            if repeat >= 0:  # the first is a warm-up
                found[name].append(float(np.median(np.diff(marks[10:]))) * 1000)
    hand = found["by hand"]
    print(f"{asked.steps} steps, n={asked.repeats}, medians")
    print("| loop | ms a step | above the loop by hand, ms |")
    print("|---|---|---|")
    for name, times in found.items():
        above = statistics.median(t - h for t, h in zip(times, hand, strict=True))
        print(f"| {name} | {statistics.median(times):.2f} | {above:.2f} |")


if __name__ == "__main__":
    main()
