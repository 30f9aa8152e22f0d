"""What is computed again comes out the same, and nothing but memory and time changes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from cvexp.model import Network
from cvexp.model.recompute import checkpoint_gradients
from tests.conftest import TOY, Outcome
from tests.test_model import timm, torchvision

NETWORKS = [
    *((timm, name) for name in ("test_resnet", "test_efficientnet", "test_vit", "test_convnext")),
    *((torchvision, name) for name in ("resnet18", "densenet121", "swin_t")),
    *((torchvision, name) for name in ("mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5")),
]


def step(network: Network) -> tuple[dict[str, torch.Tensor], int]:
    """Return gradients and state after one backward pass, and the bytes that were kept for it."""
    module = network.module.train()
    for inner in module.modules():
        if isinstance(inner, nn.Dropout):
            inner.p = 0.0
        if hasattr(inner, "p") and type(inner).__name__ == "StochasticDepth":
            inner.p = 0.0
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(images).square().sum()
    loss.backward()
    gradients = {f"grad of {n}": p.grad for n, p in module.named_parameters()}
    return {**gradients, **module.state_dict()}, sum(kept.values())


@pytest.mark.parametrize(("make", "name"), NETWORKS)
def test_gradients_and_statistics_are_the_same_and_less_is_kept(
    make: Callable[[str], Network], name: str
) -> None:
    """Running statistics too: torch's and timm's own would move them twice."""
    results = []
    for recomputes in (False, True):
        torch.manual_seed(0)
        network = make(name)
        network.replace_head(10)
        if recomputes:
            checkpoint_gradients(network)
        results.append(step(network))
    (plain, much), (again, less) = results
    assert all(torch.equal(tensor, again[key]) for key, tensor in plain.items())
    assert less < 0.9 * much


def test_a_run_trains_to_the_same_weights(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    states = []
    for option in ("false", "true"):
        outcome = cvexp(
            *TOY,
            f"model.grad_checkpointing={option}",
            "trainer.limit_train_batches=4",
            "tracker=none",
            f"hydra.run.dir=multirun/{option}",
        )
        assert outcome.code == 0, outcome.err
        path = tmp_path / "multirun" / option / "checkpoints" / "last.ckpt"
        states.append(torch.load(path, weights_only=True)["state_dict"])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", ["alexnet", "vgg11_bn"])
def test_a_network_that_cannot_is_one_line(name: str, cvexp: Callable[..., Outcome]) -> None:
    outcome = cvexp(
        "model=torchvision",
        f"model.name={name}",
        "model.pretrained=false",
        "model.grad_checkpointing=true",
    )
    assert outcome.code == 2
    assert f"{name} cannot do it; type model.grad_checkpointing=false" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
def test_what_is_compiled_trains_alike_and_its_compiling_is_timed_apart(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    states, records = [], []
    for option in ("false", "true"):
        outcome = cvexp(
            *TOY,
            "model.name=test_vit",
            f"model.compile={option}",
            "freeze=last",
            "ema=weights",
            "loader.drop_last=true",
            *(f"trainer.limit_{split}_batches=1" for split in ("val", "test")),
            "trainer.log_every_n_steps=1",
            "tracker=none",
            f"hydra.run.dir=multirun/{option}",
        )
        assert outcome.code == 0, outcome.err
        assert outcome.err == ""
        records.append(outcome.record(tmp_path, option))
        path = tmp_path / "multirun" / option / "checkpoints" / "last.ckpt"
        states.append(torch.load(path, weights_only=True)["state_dict"])
    assert list(states[0]) == list(states[1])
    assert all(torch.allclose(states[0][k], states[1][k], atol=1e-4) for k in states[0])
    assert [record["effective"]["compiled"] for record in records] == [False, True]
    plain, compiled = (record["cost"] for record in records)
    assert plain["compile_s"] is None
    apart = compiled["train_s"] + compiled["validation_s"] + compiled["compile_s"]
    assert compiled["train_s"] < 0.5 * compiled["compile_s"]
    assert compiled["validation_s"] < 0.5 * compiled["compile_s"]
    assert apart < compiled["wall_s"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.grad_checkpointing=true"], "do not go together"),
        (["freeze=last", "freeze.cache_features=true", "augmentation=none"], "runs the trunk once"),
    ],
)
def test_what_cannot_be_compiled_is_one_line(
    overrides: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*TOY, "model.compile=true", *overrides)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_missing_compiler_is_known_before_the_first_step(
    cvexp: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))  # as CXX= would, before an import
    outcome = cvexp(*TOY, "model.compile=true")
    assert outcome.code == 2
    assert "model.compile=true needs a C++ compiler" in outcome.err


@pytest.mark.parametrize(("name", "chosen"), [("test_resnet", True), ("test_vit", False)])
def test_auto_memory_format_is_recorded(
    name: str, chosen: bool, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    limit = "trainer.limit_train_batches=1"
    outcome = cvexp(*TOY, f"model.name={name}", limit, "tracker=none")
    assert outcome.code == 0, outcome.err
    assert outcome.record(tmp_path)["effective"]["channels_last"] is chosen
