"""One policy, every engine: what differs is rounding and interpolation alone."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest
import torch
from nvidia.dali import Pipeline, fn

from cvexp.augmentation import Policy, flip_crop, light, none, strong
from cvexp.augmentation.colour import BrightnessContrast, ColorJitter, RgbShift
from cvexp.augmentation.geometry import Affine, Crop, Erasing, Flip, ResizedCrop
from cvexp.augmentation.operation import Parameters
from cvexp.config import UsageError

LIGHT = light(
    affine={"p": 0.5, "translate_fraction": 0.05, "scale_fraction": 0.05, "rotate_degrees": 15.0},
    rgb_shift={"p": 0.5, "limit": 15.0},
    brightness_contrast={"p": 0.5, "brightness_fraction": 0.2, "contrast_fraction": 0.2},
)
FLIP_CROP = flip_crop(flip={"p": 0.5}, crop={"p": 1.0, "padding_fraction": 0.125})
STRONG = strong(
    flip={"p": 0.5},
    affine={"p": 0.5, "translate_fraction": 0.05, "scale_fraction": 0.05, "rotate_degrees": 15.0},
    resized_crop={"p": 1.0, "min_area_fraction": 0.25, "max_aspect_ratio": 4 / 3},
    color_jitter={
        "p": 0.8,
        "brightness_fraction": 0.3,
        "contrast_fraction": 0.3,
        "saturation_fraction": 0.3,
        "hue_degrees": 15.0,
    },
    erasing={
        "p": 0.25,
        "min_area_fraction": 0.02,
        "max_area_fraction": 0.33,
        "max_aspect_ratio": 3.3,
        "fill": 127.0,
    },
)
POLICIES = {"none": none(), "light": LIGHT, "flip-crop": FLIP_CROP, "strong": STRONG}
# One of each operation, always applied; mean absolute difference between engines in 1/255. Half a
# pixel of error in a warp makes it over 2.
OPERATIONS = {
    "flip": (Flip(1.0), 0.0),
    "crop": (Crop(1.0, 0.125), 0.0),
    "erasing": (Erasing(1.0, 0.02, 0.33, 3.3, 127.0), 0.0),
    "affine": (Affine(1.0, 0.05, 0.05, 15.0), 0.5),
    "resized-crop": (ResizedCrop(1.0, 0.25, 4 / 3), 0.5),
    "rgb-shift": (RgbShift(1.0, 15.0), 0.6),
    "brightness-contrast": (BrightnessContrast(1.0, 0.2, 0.2), 0.6),
    "color-jitter": (ColorJitter(1.0, 0.3, 0.3, 0.3, 15.0), 0.6),
}
CASES = {name: (Policy(operation), bound) for name, (operation, bound) in OPERATIONS.items()}
CASES |= {"none": (none(), 0.0), "light": (LIGHT, 1.0), "flip-crop": (FLIP_CROP, 0.0)}
CASES |= {"strong": (STRONG, 1.0)}


def by_albumentations(policy: Policy, images: np.ndarray, drawn: list[Parameters]) -> np.ndarray:
    return np.stack([policy.on_image(image, drawn, i) for i, image in enumerate(images)])


def by_torch(policy: Policy, images: np.ndarray, drawn: list[Parameters]) -> np.ndarray:
    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    return policy.on_batch(batch, drawn).permute(0, 2, 3, 1).numpy()


def by_dali(policy: Policy, images: np.ndarray, drawn: list[Parameters]) -> np.ndarray:
    pipeline = Pipeline(batch_size=len(images), num_threads=1, device_id=None)
    fed = [images, *policy.settings(drawn)]
    with pipeline:
        nodes = fn.external_source(
            source=lambda: fed,
            num_outputs=len(fed),
            batch=True,
            layout=["HWC"] + [""] * (len(fed) - 1),
        )
        pipeline.set_outputs(policy.in_dali(nodes[0], nodes[1:], images.shape[-1]))
    pipeline.build()
    return np.array(pipeline.run()[0].as_array())


ENGINES = {"albumentations": by_albumentations, "torch": by_torch, "dali": by_dali}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("case", CASES)
def test_engines_agree(case: str, channels: int, photo: np.ndarray) -> None:
    policy, bound = CASES[case]
    images = np.stack([photo[..., :channels]] * 40)
    drawn = policy.draw(0, 0, np.arange(40), 40)
    made = [engine(policy, images, drawn) for engine in ENGINES.values()]
    for left, right in combinations(made, 2):
        assert left.dtype == right.dtype == np.uint8
        assert np.abs(left.astype(float) - right.astype(float)).mean() <= bound
    if policy.operations:
        assert np.any(made[0] != images)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_neutral_parameters_leave_an_image_alone(name: str, engine: str, photo: np.ndarray) -> None:
    """DALI and torch give them to the images that an operation was not drawn for."""
    operation, _ = OPERATIONS[name]
    policy = Policy(dataclasses.replace(operation, p=0.0))
    drawn = policy.draw(0, 0, np.arange(3), 40)
    images = np.stack([photo] * 3)
    assert np.array_equal(ENGINES[engine](policy, images, drawn), images)


def test_a_resized_crop_is_a_window_of_the_image() -> None:
    u = np.random.default_rng(0).random((2000, 4))
    values = ResizedCrop(1.0, 0.25, 2.0).draw(u, 64).astype(float)
    width, height = 64 / values[:, 0], 64 / values[:, 4]
    left, top = -values[:, 2] / values[:, 0], -values[:, 5] / values[:, 4]
    for start, length in ((left, width), (top, height)):
        assert start.min() >= -1e-3
        assert (start + length).max() <= 64 + 1e-3
    whole = (width < 63.9) & (height < 63.9)  # a side that the image cut short
    area, ratio = (width * height / 64**2)[whole], (width / height)[whole]
    assert 0.25 <= area.min() + 1e-6
    assert area.max() > 0.8
    assert 0.5 <= ratio.min() + 1e-6 < 0.55
    assert 1.8 < ratio.max() <= 2 + 1e-6


def test_an_erased_rectangle_lies_in_the_image_and_has_the_area_asked_for() -> None:
    u = np.random.default_rng(0).random((2000, 4))
    top, left, height, width = Erasing(1.0, 0.05, 0.2, 2.0, 0.0).draw(u, 64).T
    assert min(top.min(), left.min()) >= 0
    assert max((top + height).max(), (left + width).max()) <= 64
    area = height * width / 64**2
    assert 0.045 < area.min() < 0.06
    assert 0.19 < area.max() < 0.21


def test_jitter_keeps_grey_grey_and_can_take_all_colour_away(photo: np.ndarray) -> None:
    jitter = ColorJitter(1.0, 0.3, 0.3, 0.3, 180.0)
    grey = np.repeat(photo[..., :1], 3, axis=2)
    turned = jitter.on_image(grey, np.array([1, 1, 1.3, 120], np.float32))
    assert np.abs(turned.astype(int) - grey).max() <= 1
    faded = jitter.on_image(photo, np.array([1, 1, 0, 0], np.float32)).astype(int)
    assert np.ptp(faded, axis=2).max() <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_affine_moves_by_whole_pixels_exactly(engine: str, photo: np.ndarray) -> None:
    """A shift by whole pixels is a copy, in every engine: pixel centres are right."""
    values = np.array([[1, 0, 3, 0, 1, -2]], np.float32)  # 3 to the right, 2 up
    expected = np.zeros_like(photo)
    expected[:-2, 3:] = photo[2:, :-3]
    drawn = [Parameters(np.array([True]), values)]
    (moved,) = ENGINES[engine](Policy(Affine(1.0, 0.0, 0.0, 0.0)), photo[None], drawn)
    assert np.abs(moved.astype(int) - expected).max() <= 1


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


def fingerprints(policy: Policy, seed: int, epoch: int, count: int = 64) -> list[bytes]:
    """Return all that is drawn for each image, as bytes."""
    drawn = policy.draw(seed, epoch, np.arange(count), 40)
    return [
        b"".join(applied[i].tobytes() + values[i].tobytes() for applied, values in drawn)
        for i in range(count)
    ]


@pytest.mark.parametrize("name", ["light", "strong"])
def test_no_two_images_epochs_or_seeds_share_their_draws(name: str) -> None:
    """Albumentations alone repeats its draws in each worker and epoch (AlbumentationsX#266)."""
    runs = [(0, 0), (0, 1), (0, 2), (1, 0), (2**32 - 1, 0)]
    seen = [mark for run in runs for mark in fingerprints(POLICIES[name], *run)]
    assert len(set(seen)) == len(seen)


def test_flip_and_crop_take_every_value_that_there_is() -> None:
    """10 px padded by 2 have 25 places, flipped or not: too few for images to be all different."""
    flip, crop = FLIP_CROP.draw(0, 0, np.arange(2000), 16)
    assert len(np.unique(np.column_stack([flip.applied, crop.values]), axis=0)) == 50


@pytest.mark.parametrize("name", ["light", "flip-crop", "strong"])
def test_probability_is_a_share_of_images(name: str) -> None:
    policy = POLICIES[name]
    for operation, parameters in zip(
        policy.operations, policy.draw(0, 0, np.arange(4000), 32), strict=True
    ):
        assert abs(parameters.applied.mean() - operation.p) < 0.03


def test_an_erasing_range_upside_down_is_an_error() -> None:
    erasing = {"p": 1.0, "min_area_fraction": 0.5, "max_area_fraction": 0.2}
    with pytest.raises(UsageError, match=r"erasing\.min_area_fraction=0\.5 is above"):
        strong(
            flip={"p": 0.0},
            affine={"p": 0, "translate_fraction": 0, "scale_fraction": 0, "rotate_degrees": 0},
            resized_crop={"p": 0, "min_area_fraction": 1, "max_aspect_ratio": 1},
            color_jitter={
                "p": 0,
                "brightness_fraction": 0,
                "contrast_fraction": 0,
                "saturation_fraction": 0,
                "hue_degrees": 0,
            },
            erasing={**erasing, "max_aspect_ratio": 1.0, "fill": 0.0},
        )
