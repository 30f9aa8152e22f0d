"""A network whose parts have names: stages of its trunk, and its head."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from cvexp.config import UsageError


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
        compiles: whether torch.compile is to run it.
    """

    name: str
    module: nn.Module
    head: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: str
    channels_last: bool
    channels: int = 3
    compiles: bool = False
    stages: list[Stage] = field(init=False)
    lonely_norms: list[str] = field(init=False, default_factory=list)  # see one value an image

    def __post_init__(self) -> None:
        self.find_stages()
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)

    def find_stages(self) -> None:
        """Find the stages; again where layers were put around others, which renames parameters."""
        self.stages = _stages(self)

    def replace_head(self, num_classes: int) -> None:
        """Replace each old classifier by a new, randomly initialised one of num_classes outputs."""
        if hasattr(self.module, "reset_classifier"):  # timm's own way, for heads of any kind
            self.module.reset_classifier(num_classes)  # type: ignore[operator]
            return
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

    def take_channels(self, channels: int) -> None:
        """Let the network see grey images: its first convolution summed over its three channels.

        The answer on a grey image is that on its three equal channels, but for the weights' own
        normalisation, which is averaged over them (timm does the same).
        """
        if channels == 3:
            return
        first = next(m for m in self.module.modules() if isinstance(m, nn.Conv2d))
        first.weight = nn.Parameter(first.weight.detach().sum(dim=1, keepdim=True))
        first.in_channels = channels
        self.channels = channels
        self.mean, self.std = (sum(self.mean) / 3,), (sum(self.std) / 3,)
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)

    def check_size(self, size: int) -> None:
        """Run one black image of (size, size) pixels through the network.

        Raises:
            UsageError: it cannot take images of this size.
        """
        was_training = self.module.training
        self.lonely_norms = []
        hooks = [
            module.register_forward_pre_hook(partial(self._see_norm, name))
            for name, module in self.module.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        try:
            with torch.no_grad():
                self.module.eval()(torch.zeros(1, self.channels, size, size))
        except (AssertionError, RuntimeError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UsageError(
                f"data.size={size}: {self.name} cannot take images of this size ({reason}); "
                "try data.size=224, or model.image_size where the model has that key"
            ) from error
        finally:
            self.module.train(was_training)
            for hook in hooks:
                hook.remove()

    def _see_norm(self, name: str, module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if inputs[0][0, 0].numel() == 1:
            self.lonely_norms.append(name)

    def in_head(self, parameter: str) -> bool:
        """Return whether a parameter of this dotted name belongs to the head."""
        return parameter.startswith(tuple(f"{name}." for name in self.head))


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
    groups = _timm_groups(module, parameters) or _tree_groups(module, parameters)
    merged: list[list[str]] = []
    for group in filter(None, groups):
        if merged and all(parameters[name].dim() <= 1 for name in group):
            merged[-1].extend(group)
        else:
            merged.append(group)
    return [Stage(_name(group, merged), group) for group in merged]


def _timm_groups(module: Any, parameters: Iterable[str]) -> list[list[str]] | None:
    """Return timm's own coarse grouping, or None for a network that has none."""
    if not hasattr(module, "group_matcher"):
        return None
    from timm.models import group_parameters

    try:
        ordinal = group_parameters(module, module.group_matcher(coarse=True), reverse=True)
    except (AssertionError, NotImplementedError):  # it has a fine grouping alone
        return None
    groups: list[list[str]] = [[] for _ in range(max(ordinal.values()) + 1)]
    for name in parameters:
        groups[ordinal[name]].append(name)
    return groups


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
