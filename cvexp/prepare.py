"""From a composed config to everything that trains; what a run, preview and the like share."""

from functools import partial
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from cvexp.augmentation import Policy
from cvexp.config import UsageError, build
from cvexp.console import freeze_table, show, stage, warn
from cvexp.data import Data
from cvexp.freeze import Caching, Plan
from cvexp.loader import Loaders
from cvexp.mix import Mix, keep
from cvexp.model import Network
from cvexp.model.compiler import check_compiler
from cvexp.module import Classifier
from cvexp.precision import Precision
from cvexp.randomness import Stream, torch_seed
from cvexp.trainer import check_limits, limited, root_device


class Prepared(NamedTuple):
    """What a config comes to, ready to train.

    Args:
        arguments: of Lightning's Trainer.
        plan: what trains when.
        accumulation: batches an optimizer step.
    """

    arguments: dict[str, Any]
    device: torch.device
    precision: Precision
    data: Data
    policy: Policy
    loaders: Loaders
    network: Network
    plan: Plan
    accumulation: int
    module: Classifier


def prepare(config: DictConfig) -> Prepared:
    """Tell the story up to training: model, data, loaders, freeze, module.

    Args:
        config: checked.

    Raises:
        UsageError: what cannot be done as asked.
    """
    seed = config.seed
    arguments = build(config, "trainer")
    if arguments["fast_dev_run"]:
        warn("trainer.fast_dev_run: a batch or a few of everything; the figures mean nothing")
    device = root_device(arguments["accelerator"])
    precision = build(config, "precision", device)
    stage("precision", f"{precision.trainer} on {device}")
    if precision.warning:
        warn(precision.warning)

    torch.manual_seed(torch_seed(seed, Stream.INIT))
    network = build(config, "model")
    network.check_size(config.data.size)
    stage("model", f"{network.name}, weights: {network.weights}")

    data = build(config, "data")
    stage("data", str(data))

    policy = build(config, "augmentation")
    loaders = build(config, "loader", data, policy, seed, device)
    mixing = build(config, "mix")
    stage("augmentation", str(policy))
    batch_size = loaders.train.order.batch_size
    stage("loader", f"{loaders.description}, {len(loaders.train)} batches of {batch_size} an epoch")

    network.replace_head(len(data.classes))
    plan = build(config, "freeze", network)
    _check_plan(plan, arguments["max_epochs"])
    _check_caching(plan.caching, policy, mixing, network)
    stage("freeze", plan.describe())
    show(freeze_table(plan.table()))

    if network.compiles:
        check_compiler(device)
        network.module.compile()  # at its first call; in place, so that no name changes
    check_limits(arguments, {split: len(getattr(loaders, split)) for split in data.splits})
    accumulation = build(config, "accumulation", len(loaders.train))
    batches = limited(len(loaders.train), arguments["limit_train_batches"])
    plan.check_batch(loaders.train.order.images_in(batches - 1, batches))
    if accumulation > batches:  # limits serve debugging, so this is no error
        warn(f"a step averages {batches} batches, not {accumulation}: the epoch is limited to them")
    module = Classifier(
        plan,
        partial(build, config, "optimizer"),
        partial(build, config, "scheduler"),
        build(config, "loss"),
        mixing,
        seed,
        loaders.train.order,
        data.classes,
        data.class_weights,
        build(config, "ema"),
    )
    return Prepared(
        arguments,
        device,
        precision,
        data,
        policy,
        loaders,
        network,
        plan,
        accumulation,
        module,
    )


def _check_plan(plan: Plan, max_epochs: int) -> None:
    """Refuse a plan whose end the run would not see.

    Raises:
        UsageError: something begins to train only after the last epoch.
    """
    if (last := plan.groups[-1].from_epoch) >= max_epochs:
        raise UsageError(
            f"freeze.unfreeze_epochs: what is to train after {last} epochs never would in "
            f"trainer.max_epochs={max_epochs}; try trainer.max_epochs={last + 1}"
        )


def _check_caching(caching: Caching | None, policy: Policy, mixing: Mix, network: Network) -> None:
    """Refuse what would change from epoch to epoch and a cache would hold still.

    Raises:
        UsageError: augmentation without views, mixed images, or a trunk compiled for one epoch.
    """
    if caching is None:
        return
    if policy.operations and not caching.augmented:
        raise UsageError(
            "freeze.cache_features=true would show the same augmented image in every epoch; "
            "type augmentation=none, or freeze.cached_views=K for K views of each"
        )
    if mixing is not keep:
        raise UsageError(
            "freeze.cache_features=true caches images one by one, and mix makes one of two; "
            "type mix=none"
        )
    if network.compiles:
        raise UsageError(
            "freeze.cache_features=true runs the trunk once, which would not pay for "
            "model.compile=true; leave one of them out"
        )
