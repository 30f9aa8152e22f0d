"""Stage trainer: the arguments of Lightning's Trainer that no other group decides."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from pydantic import StrictBool, StringConstraints

from cvexp.accumulation import Accumulation
from cvexp.config import UsageError
from cvexp.scheduler import Horizon, planned

# What users may type as trainer.KEY and another group decides: what to type instead.
ELSEWHERE = {
    "precision": "type precision=bf16-mixed",
    "accumulate_grad_batches": "type accumulation=x4",
    "gradient_clip_val": "type optimizer.grad_clip_norm=1.0",
    "gradient_clip_algorithm": "type optimizer.grad_clip_norm=1.0",
    "logger": "type tracker=tensorboard or tracker=none",
    "model_registry": "type tracker=tensorboard or tracker=none",
    "profiler": "type debug=profile",
    "overfit_batches": "type debug=overfit",
    "default_root_dir": "type hydra.run.dir=FOLDER",
    "strategy": "type trainer=OPTION",
    "num_nodes": "type trainer=OPTION",
    "sync_batchnorm": "type trainer=OPTION",
    "use_distributed_sampler": "the loader's order is already a function of seed and epoch",
    "reload_dataloaders_every_n_epochs": (
        "the loader's order is already a function of seed and epoch"
    ),
    "callbacks": "cvexp brings its own",
    "plugins": "cvexp brings its own",
    "enable_checkpointing": "last and best checkpoints are always kept",
    "enable_progress_bar": "cvexp brings its own",
    "enable_model_summary": "the freeze line says what trains",
    "enable_autolog_hparams": "the config is in .hydra",
    "barebones": "type trainer.fast_dev_run=true tracker=none",
    "limit_predict_batches": "a run does not predict",
}
Count = Annotated[int, Ge(0)]
Limit = Count | Annotated[float, Ge(0), Le(1)]


def single(
    *,
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"],
    devices: Literal[1],
    max_epochs: Annotated[int, Ge(1)],
    min_epochs: Count | None,
    max_steps: Annotated[int, Ge(-1)],
    min_steps: Count | None,
    max_time: Annotated[str, StringConstraints(pattern=r"^\d\d:\d\d:\d\d:\d\d$")] | None,
    limit_train_batches: Limit,
    limit_val_batches: Limit,
    limit_test_batches: Limit,
    fast_dev_run: StrictBool | Count,
    val_check_interval: Annotated[int, Ge(1)] | Annotated[float, Gt(0), Le(1)],
    check_val_every_n_epoch: Annotated[int, Ge(1)],
    num_sanity_val_steps: Annotated[int, Ge(-1)],
    log_every_n_steps: Annotated[int, Ge(1)],
    deterministic: StrictBool | Literal["warn"],
    benchmark: bool,
    inference_mode: bool,
    detect_anomaly: bool,
) -> dict[str, Any]:
    """Return Trainer arguments for one device.

    Raises:
        UsageError: a limit that leaves nothing to train on, or an accelerator that is not there.
    """
    arguments = dict(locals())
    for key in ("limit_train_batches", "max_steps"):
        if arguments[key] == 0:
            raise UsageError(f"trainer.{key}=0 leaves no training batch; try trainer.max_epochs=1")
    if accelerator in ("gpu", "cuda", "mps"):
        root_device(accelerator)
    return arguments


def root_device(accelerator: str) -> torch.device:
    """Return the device that one process of this accelerator computes on.

    Raises:
        UsageError: this machine has no such accelerator.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if accelerator == "cpu" or (accelerator == "auto" and not (cuda or mps)):
        return torch.device("cpu")
    if cuda and accelerator in ("auto", "gpu", "cuda"):
        return torch.device("cuda", 0)
    if mps and accelerator in ("auto", "gpu", "mps"):
        return torch.device("mps")
    raise UsageError(
        f"trainer.accelerator={accelerator}: this machine has none; try trainer.accelerator=cpu"
    )


def limited(batches: int, limit: int | float) -> int:
    """Return how many of an epoch's batches a Lightning limit (number or fraction) lets through."""
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def horizon(arguments: Mapping[str, Any], batches: int, accumulation: Accumulation) -> Horizon:
    """Return the optimizer steps that a Trainer of these arguments makes of an epoch's batches."""
    if debugged := int(arguments["fast_dev_run"]):
        return planned(min(debugged, batches), accumulation.at, 1, debugged)
    trained = limited(batches, arguments["limit_train_batches"])
    return planned(trained, accumulation.at, arguments["max_epochs"], arguments["max_steps"])


def check_validated(arguments: Mapping[str, Any], batches: int, asking: str) -> None:
    """Say before the first step that what follows validation would have none to follow.

    Raises:
        UsageError: no validation in any epoch.
    """
    every = arguments["check_val_every_n_epoch"]
    if not batches:
        raise UsageError(f"{asking} follows validation, which has no images; try another split")
    if not arguments["limit_val_batches"]:
        raise UsageError(f"{asking} follows validation; type trainer.limit_val_batches=1.0")
    if every > arguments["max_epochs"]:
        raise UsageError(f"{asking} follows validation; type trainer.check_val_every_n_epoch=1")


def check_limits(arguments: Mapping[str, Any], batches: Mapping[str, int]) -> None:
    """Say before the first step that a limit leaves nothing of a split's batches.

    Raises:
        UsageError: a fraction that rounds to no batch, or validation that would never run.
    """
    for split, count in batches.items():
        key = f"limit_{split}_batches"
        if arguments[key] and count and not limited(count, arguments[key]):
            raise UsageError(
                f"trainer.{key}={arguments[key]} leaves none of the {count} batches; "
                f"try trainer.{key}=1"
            )
    train = limited(batches["train"], arguments["limit_train_batches"])
    every = arguments["val_check_interval"]
    if (every > train) if isinstance(every, int) else (int(train * every) < 1):
        raise UsageError(
            f"trainer.val_check_interval={every} does not fit the {train} batches of an epoch; "
            "try trainer.val_check_interval=1.0"
        )
