"""From a composed config to everything that trains; what a run, preview and the like share."""

from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback
from omegaconf import DictConfig, OmegaConf

from cvexp.accumulation import Accumulation
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
from cvexp.scheduler import Plateau
from cvexp.trainer import check_limits, check_validated, horizon, limited, root_device


class Prepared(NamedTuple):
    """What a config comes to, ready to train.

    Args:
        arguments: of Lightning's Trainer.
        plan: what trains when.
        accumulation: batches an optimizer step, by epoch.
    """

    arguments: dict[str, Any]
    device: torch.device
    precision: Precision
    data: Data
    policy: Policy
    loaders: Loaders
    network: Network
    plan: Plan
    accumulation: Accumulation
    module: Classifier
    early_stopping: list[Callback]


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
    accumulation = build(config, "accumulation")
    loaders = build(_split(config, accumulation), "loader", data, policy, seed, device)
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
    accumulation.check(len(loaders.train), arguments["max_epochs"])
    batches = limited(len(loaders.train), arguments["limit_train_batches"])
    plan.check_batch(loaders.train.order.images_in(batches - 1, batches))
    if (most := max(k for _, k in accumulation.counts)) > batches:  # limits serve debugging
        warn(f"a step averages {batches} batches, not {most}: the epoch is limited to them")
    # A smoke test makes the run's first steps, at the rates of the run.
    whole = horizon({**arguments, "fast_dev_run": False}, len(loaders.train), accumulation)
    module = Classifier(
        plan,
        partial(build, config, "optimizer"),
        lambda optimizer, _: build(config, "scheduler", optimizer, whole),
        horizon(arguments, len(loaders.train), accumulation),
        accumulation,
        build(config, "loss"),
        mixing,
        seed,
        loaders.train.order,
        data.train.names,
        data.classes,
        data.class_weights,
        build(config, "ema"),
    )
    _, scheduler = module.make_optimizer()  # what is wrong with them is known before epoch 0
    if isinstance(scheduler, Plateau):
        check_validated(arguments, len(loaders.val), "scheduler=plateau")
    if early_stopping := build(config, "early_stopping"):
        check_validated(arguments, len(loaders.val), "early_stopping=plateau")
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
        early_stopping,
    )


def _split(config: DictConfig, accumulation: Accumulation) -> DictConfig:
    """Return the config with the batches that the loader is to make."""
    loader = config.loader
    if accumulation.parts == 1 or "batch_size" not in loader:
        return config
    parts = accumulation.batch_size(loader.batch_size, bool(loader.get("drop_last")))
    return OmegaConf.merge(config, {"loader": {"batch_size": parts}})  # type: ignore[return-value]  # of a DictConfig it is one


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
