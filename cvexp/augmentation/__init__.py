"""Stage augmentation: a policy, drawn once and applied by any engine.

A policy is a list of operations. The parameters for image i of epoch e are a pure function of
(seed, e, i); an engine (albumentations' kernels on one image, torch on a batch) only applies them,
so every loader augments the same image the same way.
"""

from cvexp.augmentation.operations import Affine, BrightnessContrast, Crop, Flip, RgbShift
from cvexp.augmentation.policy import (
    AffineOptions,
    BrightnessContrastOptions,
    CropOptions,
    FlipOptions,
    Policy,
    RgbShiftOptions,
)

__all__ = ["Policy", "flip_crop", "light", "none"]


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
