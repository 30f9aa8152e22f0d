"""Stage optimizer: torch's or timm's, over what trains, and the clipping of its gradients.

What trains comes in groups: each with its factor on the learning rate, and with or without weight
decay. What begins to train later in the run is among them from the start: without a gradient torch
neither steps it nor decays it, and keeps no state for it.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le, Len, Lt
from torch import optim

from cvexp.config import UsageError, did_you_mean
from cvexp.freeze import Plan

Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0)]
Momentum = Annotated[float, Ge(0), Lt(1)]
Betas = Annotated[list[Momentum], Len(2, 2)]
LayerDecay = Annotated[float, Gt(0), Le(1)]
Factor = Annotated[float, Gt(0)]
Norm = Annotated[float, Gt(0)] | None
Arguments = dict[str, Any]


class Optimization(NamedTuple):
    """An optimizer, and the norm to which the gradients of a step are clipped, if they are."""

    optimizer: optim.Optimizer
    grad_clip_norm: float | None


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
    grad_clip_norm: Norm,
) -> Optimization:
    """Return Adam with decoupled weight decay."""
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    first, second = betas
    made = optim.AdamW(groups, lr=lr, weight_decay=weight_decay, betas=(first, second), eps=eps)
    return Optimization(fused(made), grad_clip_norm)


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
    grad_clip_norm: Norm,
) -> Optimization:
    """Return Adam; weight decay is added to the gradient."""
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    first, second = betas
    made = optim.Adam(groups, lr=lr, weight_decay=weight_decay, betas=(first, second), eps=eps)
    return Optimization(fused(made), grad_clip_norm)


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
    grad_clip_norm: Norm,
) -> Optimization:
    """Return stochastic gradient descent with momentum.

    Raises:
        UsageError: Nesterov's momentum without momentum.
    """
    if nesterov and not momentum:
        raise UsageError(
            "optimizer.nesterov=true has no effect without momentum; try optimizer.momentum=0.9"
        )
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    made = optim.SGD(groups, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov)
    return Optimization(fused(made), grad_clip_norm)


def torch(
    plan: Plan,
    /,
    *,
    name: str,
    lr: Rate,
    weight_decay: Decay,
    arguments: Arguments,
    layer_decay: LayerDecay,
    head_lr_factor: Factor,
    decay_norm_and_bias: bool,
    grad_clip_norm: Norm,
) -> Optimization:
    """Return an optimizer of torch.optim by name, with further arguments of its own.

    Raises:
        UsageError: an unknown name, or arguments that it does not take.
    """
    known = [
        key
        for key, value in vars(optim).items()
        if isinstance(value, type) and issubclass(value, optim.Optimizer) and key != "Optimizer"
    ]
    if name not in known:
        raise UsageError(
            f"optimizer.name={name}: torch.optim has none{did_you_mean(name, known)}; "
            f"it has {', '.join(known)}"
        )
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    made = _made(getattr(optim, name), name, groups, {"lr": lr, **arguments})
    return Optimization(fused(made), grad_clip_norm)


def timm(
    plan: Plan,
    /,
    *,
    name: str,
    lr: Rate,
    weight_decay: Decay,
    arguments: Arguments,
    layer_decay: LayerDecay,
    head_lr_factor: Factor,
    decay_norm_and_bias: bool,
    grad_clip_norm: Norm,
) -> Optimization:
    """Return an optimizer of timm by name, with further arguments of its own.

    Raises:
        UsageError: an unknown name, or arguments that it does not take.
    """
    from timm.optim._optim_factory import get_optimizer_class, list_optimizers

    known = [str(key) for key in list_optimizers()]
    if name not in known:
        raise UsageError(f"optimizer.name={name}: timm has none{did_you_mean(name, known)}")
    groups = grouped(plan, lr, weight_decay, layer_decay, head_lr_factor, decay_norm_and_bias)
    made = _made(get_optimizer_class(name), name, groups, {"lr": lr, **arguments})
    return Optimization(fused(made), grad_clip_norm)


def _made(
    kind: Callable[..., Any], name: str, groups: list[dict[str, Any]], settings: Arguments
) -> optim.Optimizer:
    """Return an optimizer that one forward and backward pass a step can serve.

    Raises:
        UsageError: it takes other arguments, other parameters, or steps otherwise.
    """
    if name.lower() in ("lbfgs", "sparseadam", "adahessian"):
        raise UsageError(
            f"optimizer.name={name} needs more than a gradient a step, which cvexp does not give it"
        )
    accepted = [key for key in inspect.signature(kind).parameters if key not in ("params", "lr")]
    if "weight_decay" not in accepted and any(group["weight_decay"] for group in groups):
        raise UsageError(
            f"optimizer.name={name} has no weight decay; type optimizer.weight_decay=0.0"
        )
    try:
        return kind(groups, **settings)  # type: ignore[no-any-return]  # timm is untyped
    except (AssertionError, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(
            f"optimizer.name={name}: {reason}; optimizer.arguments may name: {', '.join(accepted)}"
        ) from error


def fused(optimizer: optim.Optimizer) -> optim.Optimizer:
    """Let one kernel update all parameters of a group, where torch has such a kernel.

    By device: torch's own choice is foreach on CUDA and a loop over parameters on a CPU. Set by
    group, not at the start: a GradScaler then unscales and skips as for any other optimizer, so
    that clipping sees unscaled gradients.
    """
    for group in optimizer.param_groups:
        on = {parameter.device.type for parameter in group["params"]}
        if isinstance(optimizer, optim.Adam | optim.SGD) and on <= {"cpu", "cuda"}:
            group["fused"], group["foreach"] = True, False
    return optimizer


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
