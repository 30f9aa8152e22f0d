"""Low-rank updates train beside a base that rests, and can be merged into it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cvexp.freeze import lora
from cvexp.freeze.lora import merge
from cvexp.model import Network
from tests.conftest import TOY, Outcome, command
from tests.test_freeze import TOYS
from tests.test_model import timm

SETTINGS: dict[str, Any] = {
    "rank": 4,
    "alpha": 8.0,
    "dropout": 0.0,
    "targets": None,
    "norm": "eval",
}


def plain(name: str) -> str:
    """Return a parameter's name as it was before a layer was put around it."""
    return name.replace(".base_layer", "")


@pytest.mark.parametrize("name", TOYS)
def test_the_base_rests_and_the_updates_merge(
    name: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Trained through the command line; then the checkpoint's updates against their merger."""
    torch.manual_seed(0)
    start = timm(name).module.state_dict()
    for key, tensor in start.items():
        if key.endswith("weight") and not tensor.any():
            tensor.fill_(1)  # a residual branch that starts at zero and is frozen stays there
    torch.save(start, tmp_path / "start.pth")
    outcome = cvexp(
        *TOY,
        f"model.name={name}",
        "model.weights=start.pth",
        "freeze=lora",
        "freeze.rank=4",
        "freeze.alpha=8.0",
        "optimizer.weight_decay=0.5",
        "optimizer.lr=0.02",
        "ema=weights",
        "trainer.limit_train_batches=5",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    effective = outcome.record(tmp_path)["effective"]
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    end = {k.removeprefix("network."): v for k, v in checkpoint["state_dict"].items()}

    network = timm(name)
    network.replace_head(10)
    plan = lora(network, **SETTINGS)
    assert set(end) == set(network.module.state_dict())
    base = {k: v for k, v in end.items() if ".lora_" not in k and not network.in_head(k)}
    assert all(torch.equal(start[plain(k)], v) for k, v in base.items())
    updates = [k for k in end if ".lora_B" in k]
    assert updates
    assert all(end[k].any() for k in updates)  # they begin at zero
    assert effective["trainable_parameters"] == sum(p.numel() for p in plan.trainable.values())
    assert effective["trainable_parameters"] < 0.2 * effective["total_parameters"]
    assert len(checkpoint["optimizer_states"][0]["state"]) == len(plan.trainable)

    network.module.load_state_dict(end)
    images = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        before = network.module.eval()(images)
        merge(network.module)
        assert torch.allclose(network.module(images), before, atol=1e-5)


@pytest.mark.parametrize("name", TOYS)
def test_a_new_adapter_changes_nothing_yet(name: str) -> None:
    network = timm(name)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        before = network.module.eval()(images)
        stages = [stage.name for stage in network.stages]
        lora(network, **SETTINGS)
        assert torch.equal(network.module.eval()(images), before)
    assert [stage.name for stage in network.stages] == stages


def targets(network: Network, pattern: str | None) -> set[str]:
    lora(network, **{**SETTINGS, "targets": pattern})
    names = [n for n, _ in network.module.named_parameters() if ".lora_A" in n]
    return {name.partition(".lora_A")[0] for name in names}


def test_targets_are_the_users_or_fit_the_family() -> None:
    assert targets(timm("test_vit"), "qkv") == {f"blocks.{i}.attn.qkv" for i in range(6)}
    linear = targets(timm("test_vit"), None)
    assert {"blocks.0.attn.proj", "blocks.0.mlp.fc1"} <= linear
    assert "head" not in linear
    network = timm("test_efficientnet")
    grouped = {n for n, m in network.module.named_modules() if getattr(m, "groups", 1) > 1}
    assert grouped
    assert not targets(network, None) & grouped


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nowhere", "finds no layer of test_efficientnet; could be: conv_stem"),
        ("conv_dw", "a grouped convolution, whose update cannot be merged; could be: conv_stem"),
        ("'(('", "no regular expression"),
    ],
)
def test_targets_that_cannot_be_are_one_line(
    pattern: str, message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*TOY, "freeze=lora", f"freeze.targets={pattern}")
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_process_of_its_own_says_nothing_on_stderr(tmp_path: Path) -> None:
    """Whatever peft and what it imports would have to say."""
    outcome = command(*TOY, "freeze=lora", "trainer.limit_train_batches=1", cwd=tmp_path)
    assert outcome.code == 0
    assert outcome.err == ""
