"""What trains from which epoch on; derived from the config at every start, never read back.

A parameter that is frozen has requires_grad off, and the modules around it stay in eval mode.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import nn

from cvexp.config import UsageError
from cvexp.model import Network

Norm = Literal["eval", "train"]
_Norms = (nn.modules.batchnorm._BatchNorm,)  # those that keep running statistics


class Caching(NamedTuple):
    """How the features of a frozen trunk are cached: so many views an image, augmented or not."""

    views: int
    augmented: bool


class Group(NamedTuple):
    """Parameters that begin to train together.

    Args:
        parameters: dotted names.
        from_epoch: of the run, from 0.
        lr_factor: on the learning rate.
    """

    name: str
    parameters: frozenset[str]
    from_epoch: int = 0
    lr_factor: float = 1.0


class Row(NamedTuple):
    """What becomes of one stage; its norms are None where it has none that keep statistics."""

    stage: str
    parameters: int
    trains: str
    norms: str | None


@dataclass
class Plan:
    """What trains when; what no group holds never trains.

    Args:
        norm: mode of the frozen BatchNorms in training; train lets their statistics move.
    """

    network: Network
    groups: tuple[Group, ...]
    norm: Norm = "eval"
    caching: Caching | None = None
    frozen: list[str] = field(init=False)  # the largest modules in which nothing trains

    def __post_init__(self) -> None:
        self.apply(0)

    @property
    def module(self) -> nn.Module:
        """Return the network's module."""
        return self.network.module

    def apply(self, epoch: int) -> list[Group]:
        """Let train what trains in this epoch, and return the groups for which that is new."""
        active = [group for group in self.groups if group.from_epoch <= epoch]
        parameters = dict(self.module.named_parameters())
        began = [g for g in active if not all(parameters[n].requires_grad for n in g.parameters)]
        trains = frozenset[str]().union(*(group.parameters for group in active))
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trains)
        self.frozen = frozen_modules(self.module)
        return began

    def hold(self) -> None:
        """Put what is frozen in eval mode, its BatchNorms in the mode that `norm` says."""
        for name in self.frozen:
            module = self.module.get_submodule(name)
            module.eval()
            for inner in module.modules():
                if self.norm == "train" and isinstance(inner, _Norms):
                    inner.train()

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Return by name what trains in some epoch of the run."""
        names = frozenset[str]().union(*(group.parameters for group in self.groups))
        return {name: p for name, p in self.module.named_parameters() if name in names}

    def check_batch(self, images: int) -> None:
        """Say before epoch 0 that a batch of one image would fail in a BatchNorm that takes it in.

        Raises:
            UsageError: a norm that trains in some epoch, or whose statistics move, sees one value a
                channel, which has no variance.
        """
        trained = self.trainable
        failing = [
            name
            for name in self.network.lonely_norms
            if images == 1
            and (self.norm == "train" or any(p.startswith(f"{name}.") for p in trained))
        ]
        if failing:
            raise UsageError(
                f"a batch of each epoch has one image, and {failing[0]} sees a single value a "
                "channel in it; type loader.drop_last=true, or another loader.batch_size"
            )

    def table(self) -> list[Row]:
        """Return a row for each stage in forward order, then for the head."""
        network, parameters = self.network, dict(self.module.named_parameters())
        begins = {name: group.from_epoch for group in self.groups for name in group.parameters}
        frozen = tuple(f"{name}." for name in self.frozen)
        norms = {
            f"{name}.{own}": self.norm if f"{name}.".startswith(frozen) else "train"
            for name, module in self.module.named_modules()
            if isinstance(module, _Norms)
            for own, _ in module.named_parameters(recurse=False)
        }
        stages = [(stage.name, stage.parameters) for stage in network.stages]
        stages.append(("head", [name for name in parameters if network.in_head(name)]))

        def row(stage: str, names: list[str]) -> Row:
            sizes = {name: parameters[name].numel() for name in names}
            trained = sum(size for name, size in sizes.items() if name in begins)
            total = sum(sizes.values())
            word = "frozen" if not trained else "trains"
            if 0 < trained < total:
                word = f"{trained:,} train"
            if first := min((begins[name] for name in names if name in begins), default=0):
                word += f" from epoch {first + 1}"
            modes = sorted({norms[name] for name in names if name in norms})
            return Row(stage, total, word, ", ".join(modes) or None)

        return [row(*stage) for stage in stages]

    def describe(self) -> str:
        """Return how much trains as one line."""
        total = sum(p.numel() for p in self.module.parameters())
        trainable = sum(p.numel() for p in self.trainable.values())
        later = [group for group in self.groups if group.from_epoch > 0]
        said = f"{trainable:,} of {total:,} parameters train ({trainable / total:.1%})"
        if later:
            said += f", in {len(later) + 1} steps until epoch {later[-1].from_epoch + 1}"
        return said


def frozen_modules(module: nn.Module) -> list[str]:
    """Return the dotted names of the largest modules that hold parameters and train none."""
    found: list[str] = []

    def visit(prefix: str, inner: nn.Module) -> None:
        parameters = list(inner.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            found.append(prefix)
        elif parameters:
            for name, child in inner.named_children():
                visit(f"{prefix}.{name}".lstrip("."), child)

    visit("", module)
    return found


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return how many parameters train, and how many there are."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, trains in sizes if trains), sum(n for n, _ in sizes)


def head_and(network: Network, names: Iterable[str]) -> frozenset[str]:
    """Return the head's parameters and others."""
    head = (name for name, _ in network.module.named_parameters() if network.in_head(name))
    return frozenset((*head, *names))
