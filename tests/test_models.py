"""Networks are found by name, with their size and where their weights are."""

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from timm import create_model

from cvexp.models import find
from tests.conftest import Outcome


def test_a_pattern_finds_both_libraries() -> None:
    found = {(network.option, network.name): network for network in find("*resnet18*")}
    assert ("timm", "resnet18") in found
    assert ("torchvision", "resnet18") in found
    for network in found.values():
        assert "resnet18" in network.name
    built = sum(p.numel() for p in create_model("resnet18").parameters())
    assert found["timm", "resnet18"].parameters == built
    assert found["torchvision", "resnet18"].parameters == built
    assert "a1_in1k" in found["timm", "resnet18"].weights


def test_weights_on_disk_are_told_from_those_that_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    before = torch.hub.get_dir()
    torch.hub.set_dir(str(tmp_path / "torch"))
    try:
        assert all(network.here == [] for network in find("resnet18"))
        (tmp_path / "torch" / "checkpoints").mkdir(parents=True)
        (tmp_path / "torch" / "checkpoints" / "resnet18-f37072fd.pth").touch()
        repository = tmp_path / "hub" / "models--timm--resnet18.a2_in1k"
        (repository / "snapshots" / "c0ffee").mkdir(parents=True)
        (repository / "snapshots" / "c0ffee" / "model.safetensors").touch()
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("c0ffee")
        here = {network.option: network.here for network in find("resnet18")}
    finally:
        torch.hub.set_dir(before)
    assert here == {"timm": ["a2_in1k"], "torchvision": ["IMAGENET1K_V1"]}


def test_the_verb_prints_a_table(cvexp: Callable[..., Outcome]) -> None:
    outcome = cvexp("models", "convnext_att*")
    assert outcome.code == 0
    assert "convnext_atto" in outcome.out
    assert "3,695,520" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["resnet181"], "did you mean resnet18"), (["a", "b"], "takes one pattern")],
)
def test_what_is_not_there_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp("models", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
