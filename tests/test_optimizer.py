"""Groups: each parameter once, at its own rate, decayed or not; frozen ones in none."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from cvexp import freeze
from cvexp.optimizer import adamw, base_lr, fused, grouped
from tests.conftest import TOY, Outcome
from tests.test_freeze import LAST, MOST, TOYS
from tests.test_model import timm

PLANS = {
    "full": freeze.full,
    "most": MOST,
    "last": LAST,
    "gradual": partial(freeze.gradual, unfreeze_epochs=[1, 2], lr_factor=0.5, norm="eval"),
}
ADAMW = partial(adamw, weight_decay=0.1, betas=[0.9, 0.999], eps=1e-8)


def named(plan: freeze.Plan, groups: list[dict]) -> dict[str, tuple[float, float]]:
    """Return by name: factor on the learning rate, weight decay."""
    names = {id(p): name for name, p in plan.module.named_parameters()}
    found = [
        (names[id(p)], (group["lr"] / 0.01, group["weight_decay"]))
        for group in groups
        for p in group["params"]
    ]
    assert len(dict(found)) == len(found)  # in one group, once
    return dict(found)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("option", PLANS)
def test_what_trains_is_in_a_group_and_nothing_else(option: str, name: str) -> None:
    network = timm(name)
    network.replace_head(10)
    plan = PLANS[option](network)
    found = named(plan, grouped(plan, 0.01, 0.1, 1.0, 1.0, False))
    assert set(found) == set(plan.trainable)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("option", ["full", "most"])
def test_each_stage_has_its_rate(option: str, name: str) -> None:
    """Counted from the head, whether or not the stages before are frozen."""
    network = timm(name)
    network.replace_head(10)
    plan = PLANS[option](network)
    found = named(plan, grouped(plan, 0.01, 0.1, 0.5, 10.0, False))
    for distance, stage in enumerate(reversed(network.stages), 1):
        for parameter in stage.parameters:
            if parameter in found:
                assert found[parameter][0] == pytest.approx(0.5**distance)
    heads = [factor for parameter, (factor, _) in found.items() if network.in_head(parameter)]
    assert heads
    assert heads == pytest.approx([10.0] * len(heads))


@pytest.mark.parametrize("name", TOYS)
def test_norms_and_biases_are_not_decayed(name: str) -> None:
    network = timm(name)
    network.replace_head(10)
    plan = freeze.full(network)
    sizes = {key: p.dim() for key, p in network.module.named_parameters()}
    found = named(plan, grouped(plan, 0.01, 0.1, 1.0, 1.0, False))
    spared = {key for key, (_, decay) in found.items() if decay == 0}
    assert {key for key, dim in sizes.items() if dim <= 1} <= spared
    if name == "test_vit":
        assert {"pos_embed", "cls_token"} & set(sizes) <= spared  # timm's own list
    everything = named(plan, grouped(plan, 0.01, 0.1, 1.0, 1.0, True))
    assert all(decay == 0.1 for _, decay in everything.values())


def test_gradual_multiplies_its_factor() -> None:
    network = timm("test_resnet")
    network.replace_head(10)
    plan = PLANS["gradual"](network)
    found = named(plan, grouped(plan, 0.01, 0.0, 0.5, 1.0, False))
    assert found["fc.weight"][0] == pytest.approx(1.0)
    assert found["layer4.0.conv1.weight"][0] == pytest.approx(0.5 * 0.5)
    assert found["layer3.0.conv1.weight"][0] == pytest.approx(0.25 * 0.25)


def test_the_base_rate_is_read_back_without_factors() -> None:
    network = timm("test_resnet")
    plan = freeze.full(network)
    settings = {"layer_decay": 0.5, "head_lr_factor": 3.0, "decay_norm_and_bias": False}
    optimizer, _ = ADAMW(plan, lr=0.01, **settings, grad_clip_norm=None)
    assert base_lr(optimizer) == pytest.approx(0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.25)
    del schedule
    assert base_lr(optimizer) == pytest.approx(0.0025)


def test_a_run_logs_the_base_rate(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = cvexp(
        *TOY,
        "optimizer.layer_decay=0.7",
        "optimizer.head_lr_factor=5.0",
        "optimizer.lr=0.004",
        "scheduler=constant",
        "trainer.limit_train_batches=2",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    effective = outcome.record(tmp_path)["effective"]
    rates = [effective[key] for key in ("lr_first", "lr_peak", "lr_last")]
    assert rates == pytest.approx([0.004] * 3)


@pytest.mark.parametrize(
    "option",
    [
        "optimizer=torch optimizer.name=NAdam",
        "optimizer=torch optimizer.name=RMSprop optimizer.arguments={momentum:0.9}",
        "optimizer=timm optimizer.name=lamb",
        "optimizer=timm optimizer.name=lion",
    ],
)
def test_any_optimizer_by_name(option: str, cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    recipe = [*TOY, "trainer.limit_train_batches=3", "tracker=none", *option.split()]
    outcome = cvexp(*recipe, "scheduler=constant")
    assert outcome.code == 0, outcome.err
    assert outcome.record(tmp_path)["effective"]["optimizer_steps"] == 3
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    (state,) = torch.load(path, weights_only=True)["optimizer_states"]
    assert state["state"]
    if "momentum" in option:
        assert all(group["momentum"] == 0.9 for group in state["param_groups"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("optimizer=torch optimizer.name=adamw", "did you mean AdamW?"),
        ("optimizer=timm optimizer.name=lam", "did you mean lamb?"),
        ("optimizer=torch optimizer.name=LBFGS", "needs more than a gradient a step"),
        ("optimizer=torch optimizer.name=Rprop", "type optimizer.weight_decay=0.0"),
        (
            "optimizer=torch optimizer.name=NAdam optimizer.arguments={momentun:0.9}",
            "optimizer.arguments may name: betas",
        ),
        ("optimizer.grad_clip_norm=0.0", "optimizer.grad_clip_norm=0.0"),
        ("trainer.gradient_clip_val=1.0", "type optimizer.grad_clip_norm=1.0"),
        ("optimizer=sgd optimizer.momentum=0.0", "try optimizer.momentum=0.9"),
    ],
)
def test_an_optimizer_that_cannot_be_is_one_line(
    overrides: str, message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*TOY, *overrides.split())
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_one_kernel_where_torch_has_one(make: type[torch.optim.Optimizer]) -> None:
    """The same update, up to rounding, as parameter by parameter."""

    def updated(fuse: bool) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 50))
        optimizer = make([parameter], lr=0.1)
        if fuse:
            fused(optimizer)
            assert all(
                bool(group.get("fused")) == (make is not torch.optim.RMSprop)
                for group in optimizer.param_groups
            )
        for step in range(5):
            parameter.grad = torch.sin(parameter.detach() * 3 + step)
            optimizer.step()
        return parameter.detach()

    assert torch.allclose(updated(True), updated(False), atol=1e-6)
