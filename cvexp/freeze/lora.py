"""freeze=lora: low-rank updates beside frozen weights, through Hugging Face's peft.

Source: Hu et al. 2021, arXiv 2106.09685.
"""

import re
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt
from torch import nn

from cvexp.config import UsageError, needs
from cvexp.freeze.plan import Group, Norm, Plan, head_and
from cvexp.model import Network

_ADAPTER = "default"


@needs("peft", extra="lora")
def lora(
    network: Network,
    /,
    *,
    rank: Annotated[int, Ge(1)],
    alpha: Annotated[float, Gt(0)],
    dropout: Annotated[float, Ge(0), Lt(1)],
    targets: str | None,
    norm: Norm,
) -> Plan:
    """Train the head, and low-rank updates of the layers that `targets` finds.

    Raises:
        UsageError: targets that find nothing, or what has no low-rank update that can be merged.
    """
    names = _targets(network, targets)
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # a float serves: it is divided by the rank
        lora_dropout=dropout,
        target_modules="|".join(re.escape(name) for name in names),
    )
    inject_adapter_in_model(config, network.module, _ADAPTER)
    network.find_stages()
    updates = [n for n, _ in network.module.named_parameters() if ".lora_" in n]
    return Plan(network, (Group("head and updates", head_and(network, updates)),), norm)


def merge(module: nn.Module) -> int:
    """Add every update into the weights that it stands beside, leave those alone, and count."""
    merged = 0
    for name, inner in list(module.named_modules()):
        if hasattr(inner, "lora_A") and hasattr(inner, "merge"):
            layer: Any = inner
            layer.merge()
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, layer.get_base_layer())
            merged += 1
    return merged


def _targets(network: Network, pattern: str | None) -> list[str]:
    """Return the layers that get an update: the user's, else linear ones, else convolutions."""
    layers = {
        name: layer
        for name, layer in network.module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and not network.in_head(f"{name}.")
    }
    depthwise = [n for n, layer in layers.items() if getattr(layer, "groups", 1) > 1]
    fit = [name for name in layers if name not in depthwise]
    linear = [name for name in fit if isinstance(layers[name], nn.Linear)]
    if pattern is None:
        return linear or fit
    try:
        found = [name for name in layers if re.search(pattern, name)]
    except re.error as error:
        raise UsageError(f"freeze.targets={pattern}: no regular expression: {error}") from error
    could = f"could be: {', '.join(fit[:6])}{' ...' if len(fit) > 6 else ''}"
    if not found:
        raise UsageError(f"freeze.targets={pattern} finds no layer of {network.name}; {could}")
    if grouped := [name for name in found if name in depthwise]:
        raise UsageError(
            f"freeze.targets={pattern} finds {grouped[0]}, a grouped convolution, whose update "
            f"cannot be merged; {could}"
        )
    return found
