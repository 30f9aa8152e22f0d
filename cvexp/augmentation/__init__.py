"""Stage augmentation: a policy, drawn once and applied by any engine.

A policy is a list of operations. The parameters for image i of epoch e are a pure function of
(seed, e, i); an engine (albumentations' kernels on one image, torch or DALI on a batch) only
applies them, so every loader augments the same image the same way.
"""

from cvexp.augmentation.colour import BrightnessContrast, ColorJitter, RgbShift
from cvexp.augmentation.geometry import Affine, Crop, Erasing, Flip, ResizedCrop
from cvexp.augmentation.policy import (
    AffineOptions,
    BrightnessContrastOptions,
    ColorJitterOptions,
    CropOptions,
    ErasingOptions,
    FlipOptions,
    Policy,
    ResizedCropOptions,
    RgbShiftOptions,
)
from cvexp.config import UsageError

__all__ = ["Policy", "flip_crop", "light", "none", "strong"]


def none() -> Policy:
    """Return the policy that leaves every image as it is."""
    return Policy()


def light(
    *,
    affine: AffineOptions,
    rgb_shift: RgbShiftOptions,
    brightness_contrast: BrightnessContrastOptions,
) -> Policy:
    """Return the course's policy: small affine move, colour shift, brightness and contrast."""
    return Policy(
        Affine(**affine), RgbShift(**rgb_shift), BrightnessContrast(**brightness_contrast)
    )


def flip_crop(*, flip: FlipOptions, crop: CropOptions) -> Policy:
    """Return the CIFAR policy: a mirror image, then a crop from the padded image."""
    return Policy(Flip(**flip), Crop(**crop))


def strong(
    *,
    flip: FlipOptions,
    affine: AffineOptions,
    resized_crop: ResizedCropOptions,
    color_jitter: ColorJitterOptions,
    erasing: ErasingOptions,
) -> Policy:
    """Return the policy of training from scratch: flip, move, cut and stretch, recolour, erase.

    Raises:
        UsageError: the smallest erased area is above the largest.
    """
    low, high = erasing["min_area_fraction"], erasing["max_area_fraction"]
    if low > high:
        raise UsageError(
            f"augmentation.erasing.min_area_fraction={low} is above max_area_fraction={high}; "
            f"try augmentation.erasing.min_area_fraction={high}"
        )
    return Policy(
        Flip(**flip),
        Affine(**affine),
        ResizedCrop(**resized_crop),
        ColorJitter(**color_jitter),
        Erasing(**erasing),
    )
