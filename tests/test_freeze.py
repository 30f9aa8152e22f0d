"""What is frozen does not move, whatever trains around it; what trains does."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from cvexp import freeze
from cvexp.config import UsageError
from cvexp.model import Network
from tests.conftest import TOY, Outcome
from tests.test_model import timm, torchvision

LAST = partial(freeze.last, cache_features=False, cached_views=None)
TOYS = ("test_resnet", "test_efficientnet", "test_vit", "test_convnext")


def trains(network: Network) -> set[str]:
    return {name for name, p in network.module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", TOYS)
def test_last_is_within_most_is_within_full(name: str) -> None:
    network = timm(name)
    network.replace_head(10)
    found = []
    for apply in (LAST, partial(freeze.most, stages=2), freeze.full):
        apply(network)
        found.append(trains(network))
    last, most, full = found
    assert last == {name for name in full if network.in_head(name)}
    assert last < most < full
    assert full == {name for name, _ in network.module.named_parameters()}


@pytest.mark.parametrize("make", [timm, torchvision], ids=["timm", "torchvision"])
def test_most_of_resnet18_is_layer3_layer4_and_fc(make: Callable[[str], Network]) -> None:
    network = make("resnet18")
    freeze.most(network, stages=2)
    assert {name.partition(".")[0] for name in trains(network)} == {"layer3", "layer4", "fc"}
    assert freeze.frozen_modules(network.module) == ["conv1", "bn1", "layer1", "layer2"]
    assert "frozen: conv1, bn1, layer1, layer2" in freeze.describe(network)


def test_most_that_would_freeze_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"freeze\.stages=5 would freeze nothing.*freeze=full"):
        freeze.most(timm("test_resnet"), stages=5)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("option", ["last", "most"])
def test_a_frozen_tensor_is_bit_identical_after_training(
    name: str, option: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Running statistics and counters included, under weight decay (traps.md 11)."""
    torch.manual_seed(0)
    start = timm(name).module.state_dict()
    torch.save(start, tmp_path / "start.pth")
    outcome = cvexp(
        *TOY,
        f"model.name={name}",
        "model.weights=start.pth",
        f"freeze={option}",
        "optimizer.weight_decay=0.5",
        "trainer.limit_train_batches=5",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    record = outcome.record(tmp_path)
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    end = {k.removeprefix("network."): v for k, v in checkpoint["state_dict"].items()}

    frozen = tuple(f"{module}." for module in record["effective"]["frozen_modules"])
    assert frozen
    still = [key for key in start if key.startswith(frozen)]
    assert all(torch.equal(start[key], end[key]) for key in still)
    network = timm(name)
    (partial(freeze.most, stages=2) if option == "most" else LAST)(network)
    moving = [key for key in trains(network) if key in start and start[key].shape == end[key].shape]
    assert all(not torch.equal(start[key], end[key]) for key in moving)
    state = checkpoint["optimizer_states"][0]["state"]
    assert len(state) == len(trains(network))


def test_running_statistics_of_what_trains_do_move(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert cvexp(*TOY, "freeze=full", "trainer.limit_train_batches=3", "tracker=none").code == 0
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    state = torch.load(path, weights_only=True)["state_dict"]
    counters = [value for key, value in state.items() if key.endswith("num_batches_tracked")]
    assert counters
    assert all(int(counter) == 3 for counter in counters)
