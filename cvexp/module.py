"""The LightningModule: one network, its loss and its counts.

Shapes: B images, K classes. Images come as (B, 3, H, W) uint8 and are normalised here, once a
batch.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from cvexp.accumulation import Accumulation, window_weight
from cvexp.augmentation.operation import spread
from cvexp.console import warn
from cvexp.ema import Average, too_slow
from cvexp.freeze import Plan
from cvexp.loader import Batch, Order
from cvexp.loss import Loss
from cvexp.metric import Evaluation, at_least_float32, means
from cvexp.mix import Draw, Mix, keep
from cvexp.optimizer import Optimization, base_lr
from cvexp.randomness import Stream, seed_generator, torch_seed
from cvexp.scheduler import Horizon, Plateau
from cvexp.window import Counts, Diverged, Fault, Reading, Window, dtype_name, total_norm


class Classifier(LightningModule):
    """Train and evaluate a classifier; what it did is counted here and read by the record.

    Args:
        plan: what trains of a network whose head was replaced.
        make_optimizer: from that plan to an optimizer, and how its gradients are clipped.
        make_scheduler: from an optimizer and the horizon to a schedule by optimizer step.
        horizon: the steps that will run.
        accumulation: the batches of a step, by epoch.
        loss: what training minimises, image by image.
        mix: of two images and their labels.
        seed: moves mixing, dropout and the like, by (seed, epoch, batch).
        order: the training batches', for the images in an accumulation window.
        names: of the training images, for people.
        classes: (K,) names, kept in every checkpoint.
        class_weights: (K,) factors on the training loss, or None.
        ema_decay: of an average of the weights that is evaluated beside them, or None.
    """

    def __init__(
        self,
        plan: Plan,
        make_optimizer: Callable[[Plan], Optimization | Optimizer],
        make_scheduler: Callable[[Optimizer, Horizon], LRScheduler],
        horizon: Horizon,
        accumulation: Accumulation,
        loss: Loss,
        mix: Mix,
        seed: int,
        order: Order,
        names: Sequence[str],
        classes: Sequence[str],
        class_weights: Sequence[float] | None,
        ema_decay: float | None,
    ) -> None:
        super().__init__()
        self.classes = list(classes)
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)
        network = plan.network
        self.plan, self.network = plan, network.module
        self._head = network.head[-1]
        self.takes_features = False  # of the trunk, cached: then the head alone runs
        self._make_optimizer, self._make_scheduler = make_optimizer, make_scheduler
        self._loss, self._mix = loss, mix
        self._seed, self.order, self._names = seed, order, names
        self.horizon, self._accumulation = horizon, accumulation
        mean, std = torch.tensor(network.mean), torch.tensor(network.std)
        # (1, C), and no buffers: they stay float32.
        self._scale, self._shift = 1 / (255 * std)[None], (-mean / std)[None]
        self.channels_last = network.channels_last
        self._ema_decay, self.average = ema_decay, None
        if ema_decay is not None:
            self.average = Average(network.module, plan.trainable, ema_decay)
        self._averaged: dict[str, torch.Tensor] = {}  # as they are in one evaluation
        self._window = Window()
        self._grad_clip_norm: float | None = None
        self._plateau: Plateau | None = None
        self._epoch_is_over = False  # but for its validation
        self._evaluations = {"": Evaluation()}
        if self.average:
            self._evaluations["ema_"] = Evaluation()
        self.recall: dict[str, list[float | None]] = {}  # split -> the recall of each class
        self._epoch_sums = (0.0, 0.0, 0.0)
        self.results: dict[str, float] = {}  # the last value of each metric
        self.evaluated_at: dict[str, int] = {}  # split -> the optimizer step of its weights
        self.tested_epoch = 0  # after the fit: of the weights that are evaluated, from 1
        self.counts = Counts()
        self.goes_on = False  # with an epoch that a checkpoint was written in
        self._taken_up: dict[str, Any] = {}

    def follow(
        self,
        make_scheduler: Callable[[Optimizer, Horizon], LRScheduler],
        horizon: Horizon,
        accumulation: Accumulation,
    ) -> None:
        """Train by another schedule than the config's."""
        self._make_scheduler, self.horizon = make_scheduler, horizon
        self._accumulation = accumulation

    def train(self, mode: bool = True) -> "Classifier":
        """Set the mode; frozen parts stay in eval, so their running statistics and dropout rest."""
        super().train(mode)
        if mode:
            self.plan.hold()
        return self

    @property
    def head(self) -> nn.Module:
        """Return the part of the network that gives the logits."""
        return self.network.get_submodule(self._head)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (B, K) logits of (B, C, H, W) uint8 images."""
        return self._logits(self.normalise(images))

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Return uint8 images as the network's weights want them, in float32.

        Features pass as they are.
        """
        if self.takes_features:
            return images
        self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        scale, shift = spread(self._scale, images), spread(self._shift, images)
        return torch.addcmul(shift, images.float(), scale)

    def mixed(
        self, images: torch.Tensor, labels: torch.Tensor, epoch: int, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return normalised images as a step of an epoch sees them, and their targets."""
        if self._mix is keep:
            return images, labels
        return self._mix(images, labels, len(self.classes), Draw.at(self._seed, epoch, step))

    def _logits(self, normalised: torch.Tensor) -> torch.Tensor:
        if self.takes_features:
            return self.head(normalised)  # type: ignore[no-any-return]  # nn.Module returns Any
        dtype = next(self.network.parameters()).dtype
        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        return self.network(normalised.to(dtype=dtype, memory_format=memory_format))  # type: ignore[no-any-return]  # nn.Module returns Any

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build the optimizer over what trains, and its schedule over the steps that will run."""
        if self._ema_decay is not None:
            if slow := too_slow(self._ema_decay, self.horizon.total_steps):
                warn(slow)
        (optimizer, self._grad_clip_norm), scheduler = self.make_optimizer()
        optimizer.register_step_post_hook(self._count_step)
        schedule: dict[str, Any] = {"scheduler": scheduler, "interval": "step"}
        if isinstance(scheduler, Plateau):  # Lightning keeps its state, validation's end moves it
            self._plateau = scheduler
            schedule |= {"interval": "epoch", "frequency": sys.maxsize, "monitor": scheduler.metric}
        return {"optimizer": optimizer, "lr_scheduler": schedule}  # type: ignore[return-value]  # a plain dict serves

    def make_optimizer(self) -> tuple[Optimization, LRScheduler]:
        """Return an optimizer over what trains, and its schedule over the steps that will run."""
        optimization = self._make_optimizer(self.plan)
        if isinstance(optimization, Optimizer):  # as a user's own function may return it
            optimization = Optimization(optimization, None)
        return optimization, self._make_scheduler(optimization.optimizer, self.horizon)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Keep the norm of a step's gradients, unscaled by now, and clip them if asked for."""
        gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
        norm = total_norm(gradients)
        self._window.add_norm(norm)
        if self._grad_clip_norm is not None:
            clip_grads_with_norm_(_parameters(optimizer), self._grad_clip_norm, norm)

    def _count_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.counts.steps += 1
        self._window.stepped(self.counts.steps)
        self.counts.learning_rates.append(base_lr(optimizer))
        if self.average:
            self.average.update()

    def on_train_start(self) -> None:
        """Set the mode: since 2.2 Lightning trains in whatever mode it finds."""
        self.train()
        if not self._taken_up:
            return
        self._window.load(self._taken_up["window"], self.device)
        # More epochs than the checkpoint knew of have another schedule; else this changes nothing.
        for scheduler in (config.scheduler for config in self.trainer.lr_scheduler_configs):
            if isinstance(scheduler, LambdaLR):
                factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
                groups = scheduler.optimizer.param_groups
                for group, base, factor in zip(groups, scheduler.base_lrs, factors, strict=True):
                    group["lr"] = base * factor

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Make dropout and the like a function of (seed, epoch, batch)."""
        seed = torch_seed(self._seed, Stream.STEP, self.current_epoch, batch_idx)
        seed_generator(self.device, seed)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the loss, weighted so that a step is the mean over the images of its window."""
        images, targets = self.normalise(batch.images), batch.labels
        count, k = len(batch.labels), self.trainer.accumulate_grad_batches
        images, targets = self.mixed(images, targets, self.current_epoch, batch_idx // k)
        logits = self._logits(images)
        if self._class_weights is not None:
            self._class_weights = self._class_weights.to(logits.device)
        # Weighted, it is the mean of weight x loss over images. torch's own weighted mean divides
        # by the batch's weights, so that an image would count more in one batch than in another.
        loss = self._loss(at_least_float32(logits), targets, self._class_weights).mean()
        mixes = targets.dim() == 2  # then an answer is right if it is the larger share's class
        labels = targets.argmax(dim=1) if mixes else targets
        self._window.add(self.counts.steps + 1, loss, logits, labels, batch.indices)
        self.counts.compute_dtype = dtype_name(logits)
        counts = self.counts
        counts.images_seen += count
        counts.step_images = count if batch_idx % k == 0 else counts.step_images + count
        counts.largest_step_images = max(counts.largest_step_images, counts.step_images)
        start = batch_idx - batch_idx % k
        stop = min(start + k, int(self.trainer.num_training_batches))
        weight = window_weight(count, self.order.images_in(start, stop), k)
        return loss if weight == 1 else loss * weight

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Log the mean since the last line, every trainer.log_every_n_steps optimizer steps."""
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set in Trainer.__init__
        batches, k = int(self.trainer.num_training_batches), self.trainer.accumulate_grad_batches
        is_step = (batch_idx + 1) % k == 0 or batch_idx + 1 == batches
        if is_step and self.counts.learning_rates and self.global_step % every == 0:
            self._write_window()
        if batch_idx + 1 == batches:  # not at the epoch's end hook: callbacks see that one first
            self.finish_epoch()
            self._epoch_is_over = True

    def _write_window(self) -> None:
        """Log the mean loss since the last line, and what the step was made with."""
        window = self._read_window()
        line = {
            "train/loss_step": window.loss / window.images,
            "lr": self.counts.learning_rates[-1],
        }
        if window.grad_norm is not None:
            line["train/grad_norm"] = window.grad_norm
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            line["scale"] = scaler.get_scale()
        self._write(line)

    def on_train_epoch_start(self) -> None:
        """Let train what begins to in this epoch, and begin the epoch's sums."""
        self.trainer.accumulate_grad_batches = self._accumulation.at(self.current_epoch)
        for group in self.plan.apply(self.current_epoch):
            self.counts.began_at.setdefault(group.name, self.counts.steps)
            self.train()
        if self.goes_on:
            self.goes_on = False
            return
        self._epoch_is_over = False
        self._epoch_sums = (0.0, 0.0, 0.0)
        self.results.clear()  # so that no metric of an epoch before passes for this one's

    def finish_epoch(self) -> None:
        """Log the epoch's means over training images, as they were when each was trained on.

        A second call does nothing: the last batch calls it, and the epoch's end for an epoch that
        trainer.max_steps or max_time cut short.
        """
        self._read_window()
        if not self._epoch_sums[2]:
            return
        self._publish(means("train", self._epoch_sums))
        self._epoch_sums = (0.0, 0.0, 0.0)

    def on_validation_epoch_start(self) -> None:
        """Begin the evaluation's sums."""
        for evaluation in self._evaluations.values():
            evaluation.reset()
        # Of the weights as they are now: computed once, not once a batch.
        self._averaged = self.average.tensors("network.") if self.average else {}

    on_test_epoch_start = on_validation_epoch_start

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count one batch; its loss is plain cross-entropy, so that runs compare."""
        self._evaluations[""].add(self(batch.images), batch.labels)
        if self.average:
            logits = torch.func.functional_call(self, self._averaged, (batch.images,))
            self._evaluations["ema_"].add(logits, batch.labels)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log validation's means."""
        if not self.trainer.sanity_checking:
            self._publish_evaluation("val")
            fits = self.trainer.state.fn == TrainerFn.FITTING
            if self._plateau and self._epoch_is_over and fits:
                self._plateau.step(self.results[self._plateau.metric])

    def on_test_epoch_end(self) -> None:
        """Log the test's means."""
        self._publish_evaluation("test")

    def running_loss(self) -> float | None:
        """Return the mean loss since the last line of the log; waits for the device."""
        return self._window.loss()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the label space beside the weights: without it they answer numbers."""
        checkpoint["classes"] = self.classes
        if self.average:
            checkpoint["ema"] = self.average.state()
        checkpoint["progress"] = {
            "counts": asdict(self.counts),
            "epoch_sums": list(self._epoch_sums),
            "epoch_is_over": self._epoch_is_over,
            "results": dict(self.results),
            "evaluated_at": dict(self.evaluated_at),
            "recall": dict(self.recall),
            "window": self._window.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up where a checkpoint was; Lightning loads the weights."""
        if self.average:
            self.average.load(checkpoint["ema"])
        self.plan.apply(checkpoint["epoch"])  # also where no epoch is left to train
        self._taken_up = progress = checkpoint["progress"]
        self.counts = Counts(**progress["counts"])
        loss, correct, images = progress["epoch_sums"]
        self._epoch_sums = (loss, correct, images)
        self._epoch_is_over = progress["epoch_is_over"]
        self.results = dict(progress["results"])
        self.evaluated_at = dict(progress["evaluated_at"])
        self.recall = dict(progress["recall"])

    def load_weights(self, checkpoint: dict[str, Any]) -> None:
        """Take a checkpoint's weights and their average, and nothing else."""
        self.load_state_dict(checkpoint["state_dict"])
        if self.average:
            self.average.load(checkpoint["ema"])

    def _read_window(self) -> Reading:
        """Move the sums since the last line into the epoch's; the place where divergence is seen.

        Raises:
            Diverged: a loss, a gradient norm or a weight among them was not finite.
        """
        reading = self._window.read(self.plan.trainable.values())
        if reading.fault:
            raise self._diverged(reading.fault)
        a, b, c = self._epoch_sums
        self._epoch_sums = (a + reading.loss, b + reading.correct, c + reading.images)
        return reading

    def _diverged(self, fault: Fault) -> Diverged:
        rates = self.counts.learning_rates
        return Diverged(fault, self.current_epoch + 1, rates, self._names)

    def check_weights(self) -> None:
        """Refuse what must not be kept.

        Raises:
            Diverged: a weight or a running statistic is not finite.
        """
        if not math.isfinite(float(total_norm(self.network.state_dict().values()))):
            raise self._diverged(Fault("norm of the weights", self.counts.steps, []))

    def _publish_evaluation(self, split: str) -> None:
        """Publish an evaluation's metrics, named for their averaging.

        Raises:
            Diverged: the loss is not finite: the last step may have destroyed the weights.
        """
        metrics: dict[str, float] = {}
        for kind, evaluation in self._evaluations.items():
            found = evaluation.read()
            if not math.isfinite(found["loss"]):
                raise self._diverged(Fault(f"{split} loss", self.counts.steps, []))
            metrics |= {f"{split}/{kind}{name}": value for name, value in found.items()}
        self.evaluated_at[split] = self.counts.steps
        self.recall[split] = self._evaluations[""].recall()
        self._publish(metrics)

    def _publish(self, metrics: dict[str, float]) -> None:
        """Keep, log, and show Lightning's callbacks an epoch's metrics."""
        self.results.update(metrics)
        self.trainer.callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})
        self._write(metrics)

    def _write(self, metrics: dict[str, float]) -> None:
        epoch = self.tested_epoch or self.current_epoch + 1
        for logger in self.loggers:
            logger.log_metrics({**metrics, "epoch": epoch}, step=self.counts.steps)


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
