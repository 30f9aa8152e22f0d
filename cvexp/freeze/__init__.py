"""Stage freeze: which parameters train, and from when on.

What is frozen is derived from the config at every start; it is never read back from a checkpoint.
"""

import re
from itertools import pairwise
from typing import Annotated

from annotated_types import Ge, Gt, Le, Len

from cvexp.config import UsageError
from cvexp.freeze.lora import lora
from cvexp.freeze.plan import Caching, Group, Norm, Plan, Row, count_parameters, head_and
from cvexp.model import Network

__all__ = [
    "Caching",
    "Group",
    "Plan",
    "Row",
    "count_parameters",
    "full",
    "gradual",
    "last",
    "lora",
    "most",
    "pattern",
]


def full(network: Network, /) -> Plan:
    """Train everything."""
    return Plan(network, (Group("all", frozenset(dict(network.module.named_parameters()))),))


def last(
    network: Network,
    /,
    *,
    norm: Norm,
    cache_features: bool,
    cached_views: Annotated[int, Ge(1)] | None,
) -> Plan:
    """Train the head alone, on features that the trunk computes once if that is asked for.

    Raises:
        UsageError: cached views without a cache, or a cache of what moves.
    """
    if cached_views is not None and not cache_features:
        raise UsageError(
            f"freeze.cached_views={cached_views} has no effect without a cache; "
            "type freeze.cache_features=true"
        )
    if cache_features and norm == "train":
        raise UsageError(
            "freeze.cache_features=true needs a trunk that rests; type freeze.norm=eval"
        )
    caching = Caching(cached_views or 1, cached_views is not None) if cache_features else None
    return Plan(network, (Group("head", head_and(network, ())),), norm, caching)


def most(network: Network, /, *, stages: Annotated[int, Ge(1)], norm: Norm) -> Plan:
    """Train the head and the last stages before it.

    Raises:
        UsageError: the network has no more stages than that.
    """
    if stages >= len(network.stages):
        raise UsageError(
            f"freeze.stages={stages} would freeze nothing of the {_stages(network)}; "
            f"type freeze=full, or freeze.stages=K below {len(network.stages)}"
        )
    names = [name for stage in network.stages[-stages:] for name in stage.parameters]
    return Plan(network, (Group("head and last stages", head_and(network, names)),), norm)


def pattern(network: Network, /, *, pattern: str, norm: Norm) -> Plan:
    """Train the head, and each parameter in whose dotted name a regular expression is found.

    Raises:
        UsageError: no regular expression, or one that no parameter matches.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"freeze.pattern={pattern}: no regular expression: {error}") from error
    names = [name for name, _ in network.module.named_parameters() if found.search(name)]
    if not names:
        raise UsageError(f"freeze.pattern={pattern} matches nothing of the {_stages(network)}")
    return Plan(network, (Group(pattern, head_and(network, names)),), norm)


def gradual(
    network: Network,
    /,
    *,
    unfreeze_epochs: Annotated[list[Annotated[int, Ge(1)]], Len(1)],
    lr_factor: Annotated[float, Gt(0), Le(1)],
    norm: Norm,
) -> Plan:
    """Train the head first, and one stage more, from the head backwards, after so many epochs.

    Source: Howard & Ruder 2018, arXiv 1801.06146, section 3.3 (gradual unfreezing).

    Raises:
        UsageError: epochs that do not rise, or more of them than there are stages.
    """
    if any(later <= earlier for earlier, later in pairwise(unfreeze_epochs)):
        raise UsageError(
            f"freeze.unfreeze_epochs={unfreeze_epochs} must rise; "
            f"try freeze.unfreeze_epochs={sorted(set(unfreeze_epochs))}"
        )
    if len(unfreeze_epochs) > len(network.stages):
        raise UsageError(
            f"freeze.unfreeze_epochs={unfreeze_epochs} names {len(unfreeze_epochs)} of the "
            f"{_stages(network)}; name {len(network.stages)} epochs at most"
        )
    groups = [Group("head", head_and(network, ()))]
    for depth, epoch in enumerate(unfreeze_epochs, 1):
        stage = network.stages[-depth]
        groups.append(Group(stage.name, frozenset(stage.parameters), epoch, lr_factor**depth))
    return Plan(network, tuple(groups), norm)


def _stages(network: Network) -> str:
    names = ", ".join(stage.name for stage in network.stages)
    return f"{len(network.stages)} stages ({names})"
