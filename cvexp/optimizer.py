"""Stage optimizer: torch's own, over what trains; torch picks foreach or fused by device."""

from collections.abc import Iterable
from typing import Annotated

from annotated_types import Ge, Gt, Len, Lt
from torch import nn, optim

Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0)]
Momentum = Annotated[float, Ge(0), Lt(1)]
Betas = Annotated[list[Momentum], Len(2, 2)]
Parameters = Iterable[nn.Parameter]


def adamw(
    parameters: Parameters, /, *, lr: Rate, weight_decay: Decay, betas: Betas, eps: Rate
) -> optim.Optimizer:
    """Return Adam with decoupled weight decay."""
    first, second = betas
    return optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, betas=(first, second), eps=eps)


def adam(
    parameters: Parameters, /, *, lr: Rate, weight_decay: Decay, betas: Betas, eps: Rate
) -> optim.Optimizer:
    """Return Adam; weight decay is added to the gradient."""
    first, second = betas
    return optim.Adam(parameters, lr=lr, weight_decay=weight_decay, betas=(first, second), eps=eps)


def sgd(
    parameters: Parameters,
    /,
    *,
    lr: Rate,
    weight_decay: Decay,
    momentum: Momentum,
    nesterov: bool,
) -> optim.Optimizer:
    """Return stochastic gradient descent with momentum."""
    return optim.SGD(
        parameters, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov
    )
