"""Stage optimizer: torch's own, over what trains; torch picks foreach or fused by device.

What trains comes in groups: each with its factor on the learning rate, and with or without weight
decay. What begins to train later in the run is among them from the start: without a gradient torch
neither steps it nor decays it, and keeps no state for it.
"""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Len, Lt
from torch import optim

from cvexp.freeze import Plan

Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0)]
Momentum = Annotated[float, Ge(0), Lt(1)]
Betas = Annotated[list[Momentum], Len(2, 2)]
LayerDecay = Annotated[float, Gt(0), Le(1)]
Factor = Annotated[float, Gt(0)]


def adamw(
    plan: Plan,
    /,
    *,
    lr: Rate,
    weight_decay: Decay,
    betas: Betas,
    eps: Rate,
    layer_decay: LayerDecay,
    head_lr_factor: Factor,
    decay_norm_and_bias: bool,
) -> optim.Optimizer:
    """Return Adam with decoupled weight decay."""
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    first, second = betas
    return optim.AdamW(groups, lr=lr, weight_decay=weight_decay, betas=(first, second), eps=eps)


def adam(
    plan: Plan,
    /,
    *,
    lr: Rate,
    weight_decay: Decay,
    betas: Betas,
    eps: Rate,
    layer_decay: LayerDecay,
    head_lr_factor: Factor,
    decay_norm_and_bias: bool,
) -> optim.Optimizer:
    """Return Adam; weight decay is added to the gradient."""
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    first, second = betas
    return optim.Adam(groups, lr=lr, weight_decay=weight_decay, betas=(first, second), eps=eps)


def sgd(
    plan: Plan,
    /,
    *,
    lr: Rate,
    weight_decay: Decay,
    momentum: Momentum,
    nesterov: bool,
    layer_decay: LayerDecay,
    head_lr_factor: Factor,
    decay_norm_and_bias: bool,
) -> optim.Optimizer:
    """Return stochastic gradient descent with momentum."""
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    return optim.SGD(groups, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov)


def grouped(
    plan: Plan,
    lr: float,
    weight_decay: float,
    layer_decay: float,
    head_lr_factor: float,
    decay_norm_and_bias: bool,
) -> list[dict[str, Any]]:
    """Return torch's parameter groups; each keeps its factor on the base rate as `lr_factor`.

    The last stage has layer_decay times the base rate, the one before it layer_decay squared, and
    so on, whichever of them train; the head has head_lr_factor times it.
    """
    network, module = plan.network, plan.module
    depth = {
        name: distance
        for distance, stage in enumerate(reversed(network.stages), 1)
        for name in stage.parameters
    }
    later = {name: group.lr_factor for group in plan.groups for name in group.parameters}
    asks: Any = getattr(module, "no_weight_decay", set)  # timm's: position embeddings, class tokens
    spared = set(asks())
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in plan.trainable.items():
        factor = head_lr_factor if network.in_head(name) else layer_decay ** depth[name]
        factor *= later[name]
        decays = decay_norm_and_bias or (parameter.dim() > 1 and name not in spared)
        group = groups.setdefault(
            (factor, decays),
            {
                "params": [],
                "lr": lr * factor,
                "weight_decay": weight_decay if decays else 0.0,
                "lr_factor": factor,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def base_lr(optimizer: optim.Optimizer) -> float:
    """Return the learning rate that the groups' factors act on, as it is now."""
    group = optimizer.param_groups[0]
    return float(group["lr"]) / float(group.get("lr_factor", 1.0))
