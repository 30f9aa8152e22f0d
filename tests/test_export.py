"""An exported file answers as the run's network did, and runs nobody's code."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open

from cvexp.export import restore
from tests.conftest import TOY, Outcome
from tests.test_model import timm

QUICK = ["trainer.limit_train_batches=3", "tracker=none", "hydra.run.dir=multirun/run"]
RUN = Path("multirun/run")


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def answers(name: str, state: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Return a plain timm network's logits with these weights."""
    network = timm(name)
    network.replace_head(10)
    network.module.load_state_dict(state)
    with torch.no_grad():
        return network.module.eval()(images)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet"])
def test_low_rank_updates_are_merged(
    name: str, suffix: str, images: torch.Tensor, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    recipe = [*TOY, f"model.name={name}", "freeze=lora", "optimizer.lr=0.02", *QUICK]
    assert cvexp(*recipe).code == 0
    outcome = cvexp("export", str(RUN), "--checkpoint", "last", f"--out=merged.{suffix}")
    assert outcome.code == 0, outcome.err
    assert "updates merged" in outcome.out

    file = tmp_path / f"merged.{suffix}"
    about: dict[str, Any]
    if suffix == "pth":
        about = torch.load(file, weights_only=True)
        state = about["state_dict"]
    else:
        with safe_open(file, "pt") as opened:
            about = json.loads(opened.metadata()["cvexp"])
            state = {key: opened.get_tensor(key) for key in opened.keys()}
    assert about["classes"] == [str(digit) for digit in range(10)]
    assert (about["model"], about["image_size"], about["channels"]) == (name, 32, 3)

    network = restore(RUN, "last", "own", []).network
    assert any(".lora_" in key for key in network.module.state_dict())
    with torch.no_grad():
        unmerged = network.module(images)
    assert torch.allclose(answers(name, state, images), unmerged, atol=1e-5)
    again = cvexp(*TOY, f"model.name={name}", f"model.weights=merged.{suffix}", *QUICK[:2])
    assert again.code == 0, again.err


def test_the_average_of_the_weights_can_be_had(
    images: torch.Tensor, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert cvexp(*TOY, "ema=weights", "ema.decay=0.5", *QUICK).code == 0
    checkpoint = torch.load(RUN / "checkpoints" / "last.ckpt", weights_only=True)
    own = {k.removeprefix("network."): v for k, v in checkpoint["state_dict"].items()}
    expected = {"own": own, "ema": own | checkpoint["ema"]["tensors"]}
    for weights, state in expected.items():
        outcome = cvexp(
            "export", str(RUN), "--checkpoint=last", f"--weights={weights}", f"--out={weights}.pth"
        )
        assert outcome.code == 0, outcome.err
        exported = torch.load(tmp_path / f"{weights}.pth", weights_only=True)["state_dict"]
        assert all(torch.equal(exported[key], tensor) for key, tensor in state.items())
    assert any(not torch.equal(own[key], expected["ema"][key]) for key in own)


def test_a_file_that_is_there_is_kept(cvexp: Callable[..., Outcome]) -> None:
    assert cvexp(*TOY, *QUICK).code == 0
    (RUN / "model.safetensors").write_text("mine")
    outcome = cvexp("export", str(RUN))
    assert outcome.code == 2
    assert "exists; type --out FILE" in outcome.err
    assert (RUN / "model.safetensors").read_text() == "mine"


class Payload:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def test_a_strangers_run_is_refused_and_runs_nothing(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Its config's own trusted_packages count for nothing, nor does code in its checkpoint."""
    assert cvexp(*TOY, *QUICK).code == 0
    config_file, checkpoint = RUN / ".hydra" / "config.yaml", RUN / "checkpoints" / "last.ckpt"
    config = OmegaConf.load(config_file)
    export = ("export", str(RUN), "--checkpoint=last")

    def refused(message: str) -> None:
        outcome = cvexp(*export)
        assert outcome.code == 2
        assert message in outcome.err
        assert outcome.err.count("\n") == 1
        assert not (tmp_path / "ran").exists()

    config.trusted_packages = ["pathlib"]
    target, config.model._target_ = config.model._target_, "pathlib.Path.touch"
    OmegaConf.save(config, config_file)
    refused("type trusted_packages=[pathlib]")
    config.model._target_ = target
    OmegaConf.save(config, config_file)

    sound = checkpoint.read_bytes()
    checkpoint.write_bytes(sound[:-1])
    refused("is damaged: its sha256")
    torch.save({"state_dict": Payload()}, checkpoint)
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    checkpoint.with_name("last.ckpt.sha256").write_text(f"{digest}  last.ckpt\n")
    refused("not plain types and tensors")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: RUN; usage"),
        (["nowhere"], "nowhere: no run"),
        (["nowhere", "freeze=last"], "freeze=last is not for export"),
        (["nowhere", "--checkpoint=first"], "invalid choice: 'first'"),
    ],
)
def test_a_bad_request_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp("export", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
