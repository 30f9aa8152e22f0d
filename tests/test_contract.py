"""conf/ and cvexp/ keep the contract: every option on disk is bound to a function's signature."""

import importlib
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from cvexp import config

OPTIONS = config.options()
NEEDS = {  # what an option leaves to the user
    ("model", "timm"): ["model.name=test_resnet"],
    ("model", "torchvision"): ["model.name=resnet18"],
    ("data", "folder"): ["data.root=x"],
    ("data", "table"): ["data.path=x.csv"],
    ("data", "torchvision"): ["data.name=MNIST"],
    ("freeze", "pattern"): ["freeze.pattern=layer4"],
    ("optimizer", "timm"): ["optimizer.name=lamb"],
    ("optimizer", "torch"): ["optimizer.name=NAdam"],
}
PAIRS = [(group, option) for group, options in OPTIONS.items() for option in options]


def composed(*overrides: str) -> DictConfig:
    config.register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.CONF), version_base="1.3"):
        return compose("config", list(overrides))


def test_options_snapshot() -> None:
    """The public surface changes only on purpose."""
    assert OPTIONS == {
        "accumulation": ["ramp", "x1", "x2", "x4", "x8"],
        "augmentation": ["flip-crop", "light", "none", "strong"],
        "checkpoint": ["last-and-best"],
        "data": ["cifar10", "cifar100", "digits", "folder", "table", "torchvision"],
        "debug": ["fast", "none", "overfit", "profile"],
        "early_stopping": ["none", "plateau"],
        "ema": ["none", "weights"],
        "experiment": [
            "ablate-accumulation",
            "ablate-freeze",
            "ablate-loader",
            "ablate-precision",
            "ablate-scheduler",
            "none",
            "seminar-cifar10",
        ],
        "freeze": ["full", "gradual", "last", "lora", "most", "pattern"],
        "loader": ["albumentations", "dali", "device"],
        "loss": ["bce", "cross-entropy", "focal"],
        "mix": ["cutmix", "mixup", "none"],
        "model": ["efficientnet-lite0", "resnet18", "resnet50", "timm", "torchvision", "vit-tiny"],
        "optimizer": ["adam", "adamw", "sgd", "timm", "torch"],
        "precision": ["16-mixed", "32-true", "64-true", "bf16-mixed", "bf16-true", "tf32"],
        "scheduler": [
            "constant",
            "cosine",
            "multi-step",
            "one-cycle",
            "plateau",
            "poly",
            "step",
            "warmup-cosine",
        ],
        "tracker": ["none", "tensorboard"],
        "trainer": ["single"],
    }


@pytest.mark.parametrize("group", [group for group in OPTIONS if group != "experiment"])
def test_group_has_module_and_default(group: str) -> None:
    importlib.import_module(f"cvexp.{group}")
    defaults = OmegaConf.load(config.CONF / "config.yaml").defaults
    assert any(group in entry for entry in defaults if isinstance(entry, DictConfig))


@pytest.mark.parametrize(("group", "option"), PAIRS)
def test_option_composes_and_passes_the_check(group: str, option: str) -> None:
    """The check is the contract: target in cvexp.<group>, keys == keyword-only names, types."""
    config.check(composed(f"{group}={option}", *NEEDS.get((group, option), [])), [])


@pytest.mark.parametrize("path", sorted(config.CONF.rglob("*.yaml")), ids=lambda path: path.name)
def test_option_says_what_it_is(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# ")


@pytest.mark.parametrize(("group", "option"), PAIRS)
def test_functions_have_no_defaults(group: str, option: str) -> None:
    """The YAML is the only home of a default."""
    if group == "experiment":
        return
    text = (config.CONF / group / f"{option}.yaml").read_text()
    target = next(line.split()[-1] for line in text.splitlines() if "_target_" in line)
    function = getattr(importlib.import_module(f"cvexp.{group}"), target.rpartition(".")[2])
    assert not function.__kwdefaults__
    assert not function.__defaults__


def test_seminar_recipe_is_the_notebook() -> None:
    recipe = composed("experiment=seminar-cifar10")
    assert recipe.model.name == "resnet18"
    assert recipe.freeze._target_ == "cvexp.freeze.most"
    assert recipe.optimizer._target_ == "cvexp.optimizer.adam"
    assert (recipe.loader.batch_size, recipe.trainer.max_epochs) == (32, 10)
    assert recipe.augmentation._target_ == "cvexp.augmentation.light"
    assert recipe.data._target_ == "cvexp.data.cifar10"
