"""One policy, every engine: what differs is rounding and interpolation alone."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from cvexp.augmentation import Policy, flip_crop, light, none
from cvexp.augmentation.colour import BrightnessContrast, RgbShift
from cvexp.augmentation.geometry import Affine, Crop, Flip

LIGHT = light(
    affine={"p": 0.5, "translate_fraction": 0.05, "scale_fraction": 0.05, "rotate_degrees": 15.0},
    rgb_shift={"p": 0.5, "limit": 15.0},
    brightness_contrast={"p": 0.5, "brightness_fraction": 0.2, "contrast_fraction": 0.2},
)
FLIP_CROP = flip_crop(flip={"p": 0.5}, crop={"p": 1.0, "padding_fraction": 0.125})


def both_engines(policy: Policy, image: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Augment one image `count` times, each with its own draw, by albumentations and by torch."""
    indices, size = np.arange(count), image.shape[0]
    drawn = policy.draw(0, 0, indices, size)
    by_image = np.stack([policy.on_image(image, drawn, i) for i in range(count)])
    batch = torch.from_numpy(np.stack([image] * count)).permute(0, 3, 1, 2)
    by_batch = policy.on_batch(batch, drawn).permute(0, 2, 3, 1).numpy()
    assert by_batch.dtype == by_image.dtype == np.uint8
    return by_image, by_batch


# Mean absolute difference in 1/255; half a pixel of error in the affine makes it over 2.
@pytest.mark.parametrize(
    ("policy", "bound"),
    [
        (none(), 0.0),
        (Policy(Flip(1.0)), 0.0),
        (Policy(Crop(1.0, 0.125)), 0.0),
        (Policy(RgbShift(1.0, 15.0)), 0.6),
        (Policy(BrightnessContrast(1.0, 0.2, 0.2)), 0.6),
        (Policy(Affine(1.0, 0.05, 0.05, 15.0)), 0.5),
        (LIGHT, 1.0),
        (FLIP_CROP, 0.0),
    ],
    ids=[
        "none",
        "flip",
        "crop",
        "rgb-shift",
        "brightness-contrast",
        "affine",
        "light",
        "flip-crop",
    ],
)
def test_engines_agree(policy: Policy, bound: float, photo: np.ndarray) -> None:
    by_image, by_batch = both_engines(policy, photo, 40)
    difference = np.abs(by_image.astype(float) - by_batch.astype(float))
    assert difference.mean() <= bound
    if bound:
        assert np.any(by_image != photo)


def test_affine_moves_by_whole_pixels_exactly(photo: np.ndarray) -> None:
    """A shift by whole pixels is a copy, in both engines: pixel centres are right."""
    move = Affine(1.0, 0.0, 0.0, 0.0)
    values = np.array([1, 0, 3, 0, 1, -2], np.float32)  # 3 to the right, 2 up
    expected = np.zeros_like(photo)
    expected[:-2, 3:] = photo[2:, :-3]
    batch = torch.from_numpy(photo).permute(2, 0, 1)[None].float()
    by_batch = move.on_batch(batch, torch.from_numpy(values)[None])[0].permute(1, 2, 0).round()
    assert np.array_equal(move.on_image(photo, values), expected)
    assert np.abs(by_batch.numpy() - expected).max() <= 1


def test_affine_draws_stay_in_their_ranges() -> None:
    u = np.random.default_rng(0).random((2000, 4))
    rows = Affine(1.0, 0.1, 0.2, 30.0).draw(u, 100).reshape(-1, 2, 3).astype(float)
    scale = np.sqrt(np.linalg.det(rows[:, :, :2]))
    angle = np.rad2deg(np.arctan2(rows[:, 1, 0], rows[:, 0, 0]))
    centre = rows @ np.array([50, 50, 1]) - 50  # where the middle of the image goes
    assert 0.8 <= scale.min() < 0.81
    assert 1.19 < scale.max() <= 1.2
    assert 29 < np.abs(angle).max() <= 30.001
    assert 9.9 < np.abs(centre).max() <= 10.001


@pytest.mark.parametrize("policy", [LIGHT, FLIP_CROP], ids=["light", "flip-crop"])
def test_no_two_images_or_epochs_share_their_augmentation(
    policy: Policy, photo: np.ndarray
) -> None:
    """Albumentations alone repeats its draws in each worker and epoch (AlbumentationsX#266)."""

    def values(epoch: int) -> np.ndarray:
        return policy.draw(0, epoch, np.arange(64), 40)[-1].values

    for epoch in (0, 1):
        assert len(np.unique(values(epoch), axis=0)) > 40
    assert not np.array_equal(values(0), values(1))


@pytest.mark.parametrize("build", [lambda: LIGHT, lambda: FLIP_CROP], ids=["light", "flip-crop"])
def test_probability_is_a_share_of_images(build: Callable[[], Policy]) -> None:
    policy = build()
    for operation, parameters in zip(
        policy.operations, policy.draw(0, 0, np.arange(4000), 32), strict=True
    ):
        assert abs(parameters.applied.mean() - operation.p) < 0.03
