"""Stage ema: an exponential moving average of the weights, evaluated beside them.

The decay warms up: after n optimizer steps it is at most (1 + n) / (10 + n), so that a short run's
average forgets its start.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import nn

from cvexp.metric import at_least_float32

Decay = Annotated[float, Ge(0), Lt(1)]


def none() -> None:
    """Average nothing."""


def weights(*, decay: Decay) -> float:
    """Return the decay of an average over what trains and over float buffers, by optimizer step."""
    return decay


class Average:
    """The average of a module's tensors, in float32 or, of double ones, float64.

    Integer buffers are not averaged: an evaluation uses the module's own.

    Args:
        names: dotted names of the parameters that train in some epoch.
    """

    def __init__(self, module: nn.Module, names: Iterable[str], decay: float) -> None:
        buffers = [name for name, b in module.named_buffers() if b.is_floating_point()]
        self._module, self._names, self._decay = module, [*names, *buffers], decay
        self.steps = 0
        self._tensors: list[torch.Tensor] = []
        self._own: list[torch.Tensor] = []  # found once: a walk over a large network takes a while

    @torch.no_grad()
    def update(self) -> None:
        """Take up the weights that an optimizer step has just made."""
        live = self._live()
        if not self._tensors:
            self._tensors = [at_least_float32(tensor.detach()).clone() for tensor in live]
        self.steps += 1
        decay = min(self._decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self._tensors, [at_least_float32(t) for t in live], 1 - decay)

    def tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the averages by name, as the module's own dtypes; the module's before any step."""
        pairs = zip(self._names, self._tensors or self._live(), self._live(), strict=True)
        return {f"{prefix}{name}": average.to(own.dtype) for name, average, own in pairs}

    def _live(self) -> list[torch.Tensor]:
        if not self._own:
            own = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
            self._own = [own[name] for name in self._names]
        return self._own

    def state(self) -> dict[str, Any]:
        """Return plain tensors and numbers for a checkpoint."""
        return {"steps": self.steps, "tensors": dict(zip(self._names, self._tensors, strict=False))}

    def load(self, state: dict[str, Any]) -> None:
        """Take up where a checkpoint was."""
        self.steps = int(state["steps"])
        kept, live = state["tensors"], self._live()
        self._tensors = [
            kept[name].to(own.device) for name, own in zip(self._names, live, strict=True) if kept
        ]


def too_slow(decay: float, total_steps: int) -> str | None:
    """Return what to type where the average reaches back further than the run is long."""
    window = 1 / (1 - decay)
    if window <= total_steps:
        return None
    fits = 1 - 1 / max(total_steps / 10, min(total_steps, 2))  # a tenth of the run, or two steps
    return (
        f"ema.decay={decay} averages over some {window:,.0f} steps and this run has {total_steps}; "
        f"its warm-up decides then; try ema.decay={fits:.12g}"
    )
