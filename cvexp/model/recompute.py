"""Gradient checkpointing: keep a stage's input alone, and compute the stage again for its gradient.

Memory falls, time rises, and nothing else changes: a BatchNorm that sees a batch a second time must
not move its statistics a second time, which torch's and timm's own would let it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cvexp.config import UsageError
from cvexp.model.network import Network


def checkpoint_gradients(network: Network) -> None:
    """Switch it on: by timm's own support, else block by block.

    Raises:
        UsageError: the network cannot do it.
    """
    module: Any = network.module
    if hasattr(module, "set_grad_checkpointing"):
        try:
            module.set_grad_checkpointing(True)
        except (AssertionError, NotImplementedError, TypeError) as error:
            raise _unable(network) from error
    else:
        for inner in _units(network):
            inner.forward = _recomputed(inner)
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.track_running_stats:
            still = _Still()
            norm.register_forward_pre_hook(still.begin)
            norm.register_forward_hook(still.end, always_call=True)  # torch may stop it half way


def _units(network: Network) -> list[nn.Module]:
    """Return the largest blocks within a stage; the first stage's recomputation would not pay.

    Raises:
        UsageError: there are none, only bare layers.
    """
    within = [{*stage.parameters} for stage in network.stages[1:]]
    found: list[nn.Module] = []

    def visit(prefix: str, module: nn.Module) -> None:
        inside = {f"{prefix}.{name}".lstrip(".") for name, _ in module.named_parameters()}
        children = list(module.named_children())
        if inside and children and any(inside <= names for names in within):
            found.append(module)
            return
        for name, child in children:
            visit(f"{prefix}.{name}".lstrip("."), child)

    visit("", network.module)
    if not found:
        raise _unable(network)
    return found


def _recomputed(module: nn.Module) -> Callable[..., Any]:
    """Return a forward that keeps no activations within the module while it trains."""
    forward = module.forward

    def run(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs)
        return checkpoint(forward, *inputs, use_reentrant=False)

    return run


class _Still:
    """Hooks around a BatchNorm: in a backward pass its statistics and their counter stay."""

    def __init__(self) -> None:
        self._momentum: float | None = None
        self._recomputes = False

    def begin(self, norm: Any, inputs: Any) -> None:
        """Give what this batch adds no weight."""
        self._recomputes = norm.training and torch._C._current_graph_task_id() != -1
        if self._recomputes:
            self._momentum, norm.momentum = norm.momentum, 0.0

    def end(self, norm: Any, inputs: Any, output: Any) -> None:
        """Undo that, and the count."""
        if self._recomputes:
            norm.momentum = self._momentum
            norm.num_batches_tracked.sub_(1)
            self._recomputes = False


def _unable(network: Network) -> UsageError:
    return UsageError(
        f"model.grad_checkpointing=true: {network.name} cannot do it; "
        "type model.grad_checkpointing=false"
    )
