"""Where weights come from: a download that is made once, or the user's own file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cvexp.config import UsageError
from cvexp.console import stage
from cvexp.model.network import Network

_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def download(network: Network, source: str, fetch: Callable[[], dict[str, torch.Tensor]]) -> None:
    """Load weights that `fetch` brings, or say what to do without a network."""
    try:
        state = fetch()
    except Exception as error:  # urllib, huggingface_hub and hash checks each raise their own
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(
            f"model.pretrained=true: {source} weights could not be downloaded ({first}); without a "
            "network, name a file of weights, model.weights=FILE, or type model.pretrained=false"
        ) from error
    network.module.load_state_dict(state)
    network.weights = source


def hub_file(repository: str, source: str) -> str:
    """Return weights from the Hugging Face cache, downloaded first where they are not in it.

    The first request is made without the hub's own retries, which take a minute to find no network.
    """
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
    )
    from huggingface_hub.errors import EntryNotFoundError

    if cached := on_disk(repository):
        return cached
    stage("", f"fetching {source} weights, once")
    try:
        get_hf_file_metadata(hf_hub_url(repository, _HUB_FILES[0]))
    except EntryNotFoundError:
        return str(hf_hub_download(repository, _HUB_FILES[1]))
    return str(hf_hub_download(repository, _HUB_FILES[0]))


def on_disk(repository: str) -> str | None:
    """Return where the Hugging Face cache keeps a repository's weights, if it does."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(repository, file) for file in _HUB_FILES)
    return next((path for path in found if isinstance(path, str)), None)


def load_file(network: Network, path: str) -> None:
    """Load a weights file; a head of another size is left out, any other difference is an error."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"model.weights={path}: no such file")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file as load_safetensors

            state: Any = load_safetensors(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"model.weights={path}: not a file of weights (.pth or .safetensors): {reason}"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # a Lightning checkpoint, ours among them
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise UsageError(f"model.weights={path}: not a mapping from names to tensors")
    state = {key.removeprefix("network."): value for key, value in state.items()}
    ours = network.module.state_dict()
    kept = {
        key: value
        for key, value in state.items()
        if not (network.in_head(key) and key in ours and ours[key].shape != value.shape)
    }
    missing = [key for key in ours if key not in kept and not network.in_head(key)]
    unexpected = [key for key in kept if key not in ours]
    shapes = [key for key in kept if key in ours and kept[key].shape != ours[key].shape]
    for problem, keys in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("of another shape", shapes),
    ):
        if keys:
            shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            raise UsageError(f"model.weights={path}: {len(keys)} tensors {problem}: {shown}")
    network.module.load_state_dict(kept, strict=False)
    network.weights = f"file {file.name}"
