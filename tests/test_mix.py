"""Two images become one, and the targets say in which shares."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from cvexp.mix import Draw, Mix, cutmix, mixup, none
from tests.conftest import TOY, Outcome

MIXES = {"mixup": partial(mixup, alpha=0.4), "cutmix": partial(cutmix, alpha=1.0)}


def shares_of(images: torch.Tensor) -> torch.Tensor:
    """Return (B, B): how much of each image's pixels came from each, where image i is one-hot i."""
    return images.flatten(2).mean(dim=2)


def one_hot_images(count: int, size: int = 16) -> torch.Tensor:
    """Return images whose channel i says how much of image i a pixel is."""
    return torch.eye(count)[:, :, None, None].expand(-1, -1, size, size).contiguous()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("name", MIXES)
def test_targets_are_the_shares_of_the_pixels(name: str, count: int) -> None:
    """For odd batches too, and no image is mixed with itself."""
    mix = MIXES[name](p=1.0)
    labels = torch.arange(count)
    for batch in range(40):
        draw = Draw.at(0, 3, batch)
        images, targets = mix(one_hot_images(count), labels, count, draw)
        assert torch.allclose(shares_of(images), targets, atol=1e-6)
        assert torch.allclose(targets.sum(dim=1), torch.ones(count))
        partners = (targets > 0).sum(dim=1)
        assert int(partners.max()) <= 2


def test_cutmix_pastes_one_rectangle_of_the_partner() -> None:
    mix = cutmix(alpha=1.0, p=1.0)
    for batch in range(20):
        images, _ = mix(one_hot_images(3), torch.arange(3), 3, Draw.at(1, 0, batch))
        pasted = images[0, 0] == 0  # where image 0 is not its own
        rows, columns = pasted.any(dim=1), pasted.any(dim=0)
        assert torch.equal(pasted, rows[:, None] & columns[None, :])


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("count", [8, 9])
def test_parts_of_a_batch_mix_as_the_whole(name: str, count: int) -> None:
    """Neighbours are a pair, and a step draws once: what accumulation splits mixes alike."""
    mix, draw = MIXES[name](p=1.0), Draw.at(0, 0, 0)
    images, labels = torch.rand(count, 3, 8, 8), torch.arange(count)
    whole = mix(images, labels, count, draw)
    for cut in (2, 4, 6):
        parts = [mix(images[at], labels[at], count, draw) for at in (slice(cut), slice(cut, None))]
        for mixed, found in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(mixed, torch.cat(found))


@pytest.mark.parametrize("name", MIXES)
def test_a_step_draws_by_its_coordinates_alone(name: str) -> None:
    mix = MIXES[name](p=1.0)

    def targets(seed: int, epoch: int, batch: int) -> torch.Tensor:
        return mix(one_hot_images(5), torch.arange(5), 5, Draw.at(seed, epoch, batch))[1]

    first = targets(0, 0, 0)
    torch.rand(100)
    assert torch.equal(targets(0, 0, 0), first)
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not torch.equal(targets(*other), first)


def test_mixups_share_is_drawn_from_beta() -> None:
    """Its mean and variance are those of Beta(a, a): 1/2 and 1 / (4 (2a + 1))."""
    mix = mixup(alpha=0.4, p=1.0)
    first = [
        float(mix(one_hot_images(2, 1), torch.arange(2), 2, Draw.at(0, 0, batch))[1][0, 0])
        for batch in range(3000)
    ]
    assert np.mean(first) == pytest.approx(0.5, abs=0.03)
    assert np.var(first) == pytest.approx(1 / (4 * 1.8), abs=0.01)


@pytest.mark.parametrize("name", MIXES)
def test_p_is_a_share_of_steps(name: str) -> None:
    mix: Mix = MIXES[name](p=0.3)
    images, labels = one_hot_images(3), torch.arange(3)
    mixed = [mix(images, labels, 3, Draw.at(0, 0, batch))[1].dim() == 2 for batch in range(1000)]
    assert abs(np.mean(mixed) - 0.3) < 0.05


@pytest.mark.parametrize("mix", [none(), mixup(alpha=1.0, p=1.0), cutmix(alpha=1.0, p=1.0)])
def test_a_batch_of_one_is_left_alone(mix: Mix) -> None:
    images, labels = torch.rand(1, 3, 8, 8), torch.tensor([2])
    mixed, targets = mix(images, labels, 4, Draw.at(0, 0, 0))
    assert torch.equal(mixed, images)
    assert torch.equal(targets, labels)


@pytest.mark.parametrize("option", ["mixup", "cutmix"])
def test_a_run_that_mixes(option: str, cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    """An odd last batch, class weights and smoothing at once; the same weights again."""
    weights = []
    for name in ("once", "again"):
        outcome = cvexp(
            *TOY,
            f"mix={option}",
            "mix.p=1.0",
            "loader.batch_size=250",
            "loss.label_smoothing=0.1",
            "data.class_weights=balanced",
            "tracker=none",
            f"hydra.run.dir=multirun/{name}",
        )
        assert outcome.code == 0, outcome.err
        path = tmp_path / "multirun" / name / "checkpoints" / "last.ckpt"
        weights.append(torch.load(path, weights_only=True)["state_dict"])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert outcome.record(tmp_path, "again")["factors"]["mix"] == option
