"""Stage freeze: which parameters train.

What is frozen is derived from the config at every start; it is never read back from a checkpoint.
"""

from typing import Annotated

from annotated_types import Ge
from torch import nn

from cvexp.config import UsageError
from cvexp.model import Network


def full(network: Network, /) -> None:
    """Train everything."""
    _train_stages(network, len(network.stages))


def last(network: Network, /) -> None:
    """Train the head alone."""
    _train_stages(network, 0)


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


def describe(network: Network) -> str:
    """Return what trains and what is frozen as one line."""
    trainable, total = count_parameters(network.module)
    frozen = ", ".join(frozen_modules(network.module)) or "nothing"
    return (
        f"{trainable:,} of {total:,} parameters train ({trainable / total:.1%}); frozen: {frozen}"
    )
