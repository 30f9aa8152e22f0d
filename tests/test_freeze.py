"""What is frozen does not move, whatever trains around it; what trains does."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cvexp import freeze
from cvexp.config import UsageError
from cvexp.model import Network
from cvexp.prepare import prepare
from tests.conftest import TOY, Outcome
from tests.test_contract import composed
from tests.test_model import timm, torchvision

LAST = partial(freeze.last, norm="eval", cache_features=False, cached_views=None)
MOST = partial(freeze.most, stages=2, norm="eval")
# What else may touch weights: averaging, clipping, half precision, mixing, recomputing.
AROUND = (
    "ema=weights optimizer.grad_clip_norm=0.1 accumulation=x2 precision=bf16-mixed mix=mixup "
    "model.grad_checkpointing=true optimizer.decay_norm_and_bias=true"
)
TOYS = ("test_resnet", "test_efficientnet", "test_vit", "test_convnext")


def trains(network: Network) -> set[str]:
    return {name for name, p in network.module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", TOYS)
def test_last_is_within_most_is_within_full(name: str) -> None:
    network = timm(name)
    network.replace_head(10)
    found = []
    for apply in (LAST, MOST, freeze.full):
        apply(network)
        found.append(trains(network))
    last, most, full = found
    assert last == {name for name in full if network.in_head(name)}
    assert last < most < full
    assert full == {name for name, _ in network.module.named_parameters()}


@pytest.mark.parametrize("make", [timm, torchvision], ids=["timm", "torchvision"])
def test_most_of_resnet18_is_layer3_layer4_and_fc(make: Callable[[str], Network]) -> None:
    network = make("resnet18")
    plan = MOST(network)
    assert {name.partition(".")[0] for name in trains(network)} == {"layer3", "layer4", "fc"}
    assert plan.frozen == ["conv1", "bn1", "layer1", "layer2"]
    words = {row.stage: (row.trains, row.norms) for row in plan.table()}
    assert words["layer2"] == ("frozen", "eval")
    assert words["layer3"] == ("trains", "train")
    assert words["head"] == ("trains", None)


def test_most_that_would_freeze_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"freeze\.stages=5 would freeze nothing.*freeze=full"):
        freeze.most(timm("test_resnet"), stages=5, norm="eval")


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("option", ["last", "most"])
@pytest.mark.parametrize("around", ["", AROUND], ids=["plain", "all-at-once"])
def test_a_frozen_tensor_is_bit_identical_after_training(
    name: str, option: str, around: str, cvexp: Callable[..., Outcome], tmp_path: Path
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
        *around.split(),
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
    (MOST if option == "most" else LAST)(network)
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


def test_gradual_trains_one_stage_more_at_each_epoch() -> None:
    network = timm("test_resnet")
    network.replace_head(10)
    plan = freeze.gradual(network, unfreeze_epochs=[1, 3], lr_factor=0.5, norm="eval")
    seen = []
    for epoch in range(5):
        plan.apply(epoch)
        seen.append({name.partition(".")[0] for name in trains(network)})
    head, one, two = {"fc"}, {"layer4", "fc"}, {"layer3", "layer4", "fc"}
    assert seen == [head, one, one, two, two]
    plan.apply(0)  # as a run resumed there would be, whatever the network was before
    assert {name.partition(".")[0] for name in trains(network)} == head
    assert [group.lr_factor for group in plan.groups] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["freeze=gradual", "freeze.unfreeze_epochs=[2,1]"], "must rise"),
        (["freeze=gradual", "freeze.unfreeze_epochs=[1,4]"], "try trainer.max_epochs=5"),
        (["freeze=gradual", "freeze.unfreeze_epochs=[1,2,3,4,5,6,7,8,9]"], "epochs at most"),
        (["freeze=pattern", "freeze.pattern=nowhere"], "matches nothing of the"),
        (["freeze=pattern", "freeze.pattern='(('"], "no regular expression"),
        (["freeze=last", "freeze.norm=frozen"], "freeze.norm='frozen'"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(
    overrides: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*TOY, "trainer.max_epochs=4", *overrides)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("name", TOYS)
def test_gradual_begins_at_exactly_the_stated_step(
    name: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """What waits is bit-identical until then and has no state; older state is kept."""
    torch.manual_seed(0)
    start = timm(name).module.state_dict()
    torch.save(start, tmp_path / "start.pth")
    recipe = [
        *TOY,
        f"model.name={name}",
        "model.weights=start.pth",
        "freeze=gradual",
        "freeze.unfreeze_epochs=[1]",
        "optimizer.weight_decay=0.5",
        "scheduler=constant",
        "trainer.limit_train_batches=4",
        "tracker=none",
        "debug=none",
    ]
    outcome = cvexp(*recipe, "trainer.max_epochs=2", "hydra.run.dir=multirun/two")
    assert outcome.code == 0, outcome.err
    record = outcome.record(tmp_path, "two")
    network = timm(name)
    network.replace_head(10)
    stage = network.stages[-1]
    assert record["effective"]["began_to_train_at_step"] == {stage.name: 4}
    checkpoint = torch.load(
        tmp_path / "multirun" / "two" / "checkpoints" / "last.ckpt", weights_only=True
    )
    end = {k.removeprefix("network."): v for k, v in checkpoint["state_dict"].items()}
    resting = [n for other in network.stages[:-1] for n in other.parameters]
    assert all(torch.equal(start[n], end[n]) for n in resting)
    assert all(not torch.equal(start[n], end[n]) for n in stage.parameters)
    steps = [int(state["step"]) for state in checkpoint["optimizer_states"][0]["state"].values()]
    assert sorted(set(steps)) == [4, 8]  # the stage since it began, the head since the start
    head = sum(network.in_head(n) for n, _ in network.module.named_parameters())
    assert steps.count(8) == head
    assert steps.count(4) == len(stage.parameters)


class KeepEach(Callback):
    """Keep a checkpoint at the end of every epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep one."""
        trainer.save_checkpoint(self._folder / f"{trainer.current_epoch}.ckpt")


def test_gradual_resumes_in_any_epoch_with_what_trains_then(tmp_path: Path) -> None:
    """From the config and the epoch; a checkpoint does not say it (traps.md 10)."""
    recipe = [
        *TOY,
        "freeze=gradual",
        "freeze.unfreeze_epochs=[1,2]",
        "trainer.max_epochs=4",
        "trainer.limit_train_batches=2",
    ]

    def fit(start: Path | None, folder: Path) -> tuple[dict[str, torch.Tensor], set[str]]:
        ready = prepare(composed(*recipe))
        trainer = Trainer(
            **ready.arguments,
            logger=False,
            callbacks=[KeepEach(folder)],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
        )
        loaders = ready.loaders
        trainer.fit(ready.module, loaders.train, loaders.val, ckpt_path=start, weights_only=True)
        assert trains(ready.network) == set(ready.plan.trainable)  # all has begun by the end
        return ready.module.state_dict(), trains(ready.network)

    whole, trained = fit(None, tmp_path)
    for epoch in range(3):
        end, trained_again = fit(tmp_path / f"{epoch}.ckpt", tmp_path / "resumed")
        assert trained_again == trained
        assert all(torch.equal(whole[key], end[key]) for key in whole)


def test_norms_of_what_is_frozen_may_move_if_asked_for(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Their statistics alone: weights and biases rest."""
    torch.manual_seed(0)
    start = timm("test_efficientnet").module.state_dict()
    torch.save(start, tmp_path / "start.pth")
    outcome = cvexp(
        *TOY,
        "model.weights=start.pth",
        "freeze=last",
        "freeze.norm=train",
        "trainer.limit_train_batches=3",
        "tracker=none",
    )
    assert outcome.code == 0, outcome.err
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    end = torch.load(path, weights_only=True)["state_dict"]
    names = [n for n in start if not n.startswith("classifier")]
    moved = [n for n in names if not torch.equal(start[n], end[f"network.{n}"])]
    assert moved
    assert all(n.endswith(("running_mean", "running_var", "num_batches_tracked")) for n in moved)


def test_a_frozen_prefix_builds_no_graph() -> None:
    """Nothing before the first stage that trains is kept for a backward pass."""
    network = timm("test_resnet")
    network.replace_head(10)
    freeze.most(network, stages=1, norm="eval")
    outputs: dict[str, bool] = {}
    for name in ("conv1", "layer1", "layer2", "layer3", "layer4"):
        network.module.get_submodule(name).register_forward_hook(
            lambda _, __, output, name=name: outputs.update({name: output.requires_grad})
        )
    network.module(torch.rand(2, 3, 32, 32))
    assert outputs.pop("layer4")
    assert outputs == dict.fromkeys(("conv1", "layer1", "layer2", "layer3"), False)


@pytest.mark.parametrize(
    "overrides",
    [
        ["freeze=full"],
        ["freeze=last", "freeze.norm=train"],
        ["freeze=gradual", "freeze.unfreeze_epochs=[1]", "trainer.max_epochs=2"],
    ],
    ids=["full", "norm-train", "gradual"],
)
def test_a_last_batch_of_one_is_refused_where_a_norm_will_see_it(
    overrides: list[str], cvexp: Callable[..., Outcome]
) -> None:
    """Whether it trains from the start, later, or lets its statistics alone move (traps.md 31)."""
    recipe = [*TOY, "model.name=test_resnet", "loader.batch_size=1256", "tracker=none"]
    outcome = cvexp(*recipe, *overrides)
    assert outcome.code == 2
    assert "layer4.0.bn1 sees a single value" in outcome.err
    assert outcome.err.count("\n") == 1
    assert cvexp(*recipe, "freeze=last").code == 0  # its norms rest
