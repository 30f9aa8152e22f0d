"""The verb export: a run's weights as one file that other tools read, low-rank updates merged.

The file holds tensors by the network's own names, in float32, and what a user of them must know:
names of classes, normalisation, image size. `model.weights=FILE` takes it back.
"""

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from cvexp.arguments import Arguments
from cvexp.atomic import write_atomically
from cvexp.checkpoint import read_checkpoint
from cvexp.config import UsageError, build, check
from cvexp.console import say, size
from cvexp.freeze.lora import merge
from cvexp.model import Network

CONFIG = Path(".hydra") / "config.yaml"
TOLERANCE = 1e-5  # between the logits before and after a merger, as a share of the largest


class Restored(NamedTuple):
    """A run's network with its weights, in evaluation mode, and what its checkpoint says."""

    network: Network
    config: DictConfig
    checkpoint: dict[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Write the weights of a run to a file.

    Raises:
        UsageError: no run, a damaged checkpoint, a file that exists, or a merger that is not exact.
    """
    given = _parse(arguments)
    if not (given.run / CONFIG).is_file():
        raise UsageError(f"{given.run}: no run, for it has no {CONFIG}; type one below multirun/")
    target = given.out or given.run / "model.safetensors"
    if target.suffix not in (".safetensors", ".pth"):
        raise UsageError(f"--out={target}: type a name that ends in .safetensors or .pth")
    if target.exists():
        raise UsageError(f"{target} exists; type --out FILE, or move it")
    if not target.parent.is_dir():
        raise UsageError(f"--out={target}: no folder {target.parent}")
    restored = restore(given.run, given.checkpoint, given.weights, given.trust)
    network, config, checkpoint = restored
    merged, difference = merged_exactly(network, config.data.size)
    if merged:
        say("lora", f"{merged} updates merged; logits differ by at most {difference:.1e}")
    about = {
        "model": network.name,
        "classes": checkpoint["classes"],
        "mean": list(network.mean),
        "std": list(network.std),
        "image_size": config.data.size,
        "channels": network.channels,
        "checkpoint": given.checkpoint,
        "weights": given.weights,
        "optimizer_steps": checkpoint["global_step"],
    }
    content = serialized(network.module, about, target.suffix)
    write_atomically(target, content)
    classes = len(checkpoint["classes"])
    say("export", f"{target}: {network.name}, {classes} classes, {size(len(content))}")


def restore(run: Path, which: str, weights: str, trust: Sequence[str]) -> Restored:
    """Build a run's network again, from its config and a checkpoint.

    A run directory is data from a stranger: the packages that its config trusted count for nothing.

    Args:
        which: last or best.
        weights: own, or ema for the average of them.
        trust: trusted_packages=[...], as typed, or nothing.

    Raises:
        UsageError: it has no such checkpoint or average, or names code of others.
    """
    config = OmegaConf.load(run / CONFIG)
    assert isinstance(config, DictConfig)
    config.trusted_packages = OmegaConf.from_dotlist(list(trust)).get("trusted_packages", [])
    check(config, trust)
    checkpoint = read_checkpoint(run / "checkpoints" / f"{which}.ckpt")
    if weights == "ema" and "ema" not in checkpoint:
        raise UsageError(f"--weights=ema: {run} kept no average; type --weights=own")
    for key, nothing in (("pretrained", False), ("weights", None)):  # the checkpoint has them
        if key in config.model:
            config.model[key] = nothing
    network: Network = build(config, "model")
    network.replace_head(len(checkpoint["classes"]))
    build(config, "freeze", network)
    state = {k.removeprefix("network."): v for k, v in checkpoint["state_dict"].items()}
    if weights == "ema":
        state |= checkpoint["ema"]["tensors"]
    network.module.load_state_dict(state)
    network.module.eval()
    return Restored(network, config, checkpoint)


@torch.no_grad()
def merged_exactly(network: Network, image_size: int) -> tuple[int, float]:
    """Merge low-rank updates, and return how many there were and the largest change of a logit.

    In float64, so that what differs is the merged weights' rounding to float32 and nothing else.

    Raises:
        UsageError: the merged network answers otherwise.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (8, network.channels, image_size, image_size)
    images = torch.randn(shape, generator=generator, dtype=torch.float64)
    before = network.module.double()(images)
    merged = merge(network.module)
    difference = float((network.module.float().double()(images) - before).abs().max())
    network.module.float()
    if difference > TOLERANCE * max(1.0, float(before.abs().max())):
        raise UsageError(f"merging changes logits by up to {difference:.1e}, above {TOLERANCE}")
    return merged, difference


def serialized(module: nn.Module, about: Mapping[str, Any], suffix: str) -> bytes:
    """Return a module's tensors, and what is to be known of them, as a file's content."""
    state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    if suffix == ".pth":
        buffer = io.BytesIO()
        torch.save({"state_dict": state, **about}, buffer)
        return buffer.getvalue()
    from safetensors.torch import save

    return save(state, {"format": "pt", "cvexp": json.dumps(about)})


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Arguments("export RUN [--checkpoint last|best] [--weights own|ema] [--out FILE]")
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="best")
    parser.add_argument("--weights", choices=("own", "ema"), default="own")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("trust", nargs="*", default=[], metavar="trusted_packages=[NAME]")
    given = parser.parse_args(arguments)
    if other := [text for text in given.trust if not text.startswith("trusted_packages=")]:
        parser.error(f"{other[0]} is not for export")
    return given
