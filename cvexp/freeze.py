"""Stage freeze: which parameters train.

What is frozen is derived from the config at every start; it is never read back from a checkpoint.
"""

from typing import Annotated, NamedTuple

from annotated_types import Ge
from torch import nn

from cvexp.config import UsageError
from cvexp.model import Network


class Caching(NamedTuple):
    """How the features of a frozen trunk are cached: so many views an image, augmented or not."""

    views: int
    augmented: bool


def full(network: Network, /) -> None:
    """Train everything."""
    _train_stages(network, len(network.stages))


def last(
    network: Network, /, *, cache_features: bool, cached_views: Annotated[int, Ge(1)] | None
) -> Caching | None:
    """Train the head alone, on features that the trunk computes once if that is asked for.

    Raises:
        UsageError: cached views without a cache.
    """
    _train_stages(network, 0)
    if not cache_features:
        if cached_views is not None:
            raise UsageError(
                f"freeze.cached_views={cached_views} has no effect without a cache; "
                "type freeze.cache_features=true"
            )
        return None
    return Caching(cached_views or 1, augmented=cached_views is not None)


def most(network: Network, /, *, stages: Annotated[int, Ge(1)]) -> None:
    """Train the head and the last stages before it.

    Raises:
        UsageError: the network has no more stages than that.
    """
    if stages >= len(network.stages):
        names = ", ".join(stage.name for stage in network.stages)
        raise UsageError(
            f"freeze.stages={stages} would freeze nothing of the {len(network.stages)} stages "
            f"({names}); type freeze=full, or freeze.stages=K below {len(network.stages)}"
        )
    _train_stages(network, stages)


def _train_stages(network: Network, count: int) -> None:
    """Let the head and the last `count` stages train, and nothing else."""
    chosen = network.stages[len(network.stages) - count :]
    trains = {name for stage in chosen for name in stage.parameters}
    for name, parameter in network.module.named_parameters():
        parameter.requires_grad_(network.in_head(name) or name in trains)


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


class Row(NamedTuple):
    """What becomes of one stage; its norms are None where it has none."""

    stage: str
    parameters: int
    trainable: int
    norms: str | None


def table(network: Network) -> list[Row]:
    """Return a row for each stage in forward order, then for the head."""
    parameters = dict(network.module.named_parameters())
    frozen = tuple(f"{name}." for name in frozen_modules(network.module))
    norms = {
        f"{name}.{parameter}": "eval" if f"{name}.".startswith(frozen) else "train"
        for name, module in network.module.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for parameter, _ in module.named_parameters(recurse=False)
    }
    stages = [(stage.name, stage.parameters) for stage in network.stages]
    stages.append(("head", [name for name in parameters if network.in_head(name)]))

    def row(stage: str, names: list[str]) -> Row:
        sizes = [(parameters[n].numel(), parameters[n].requires_grad) for n in names]
        modes = sorted({norms[n] for n in names if n in norms})
        trains = sum(size for size, requires in sizes if requires)
        return Row(stage, sum(size for size, _ in sizes), trains, ", ".join(modes) or None)

    return [row(*stage) for stage in stages]


def describe(network: Network) -> str:
    """Return what trains and what is frozen as one line."""
    trainable, total = count_parameters(network.module)
    frozen = ", ".join(frozen_modules(network.module)) or "nothing"
    return (
        f"{trainable:,} of {total:,} parameters train ({trainable / total:.1%}); frozen: {frozen}"
    )
