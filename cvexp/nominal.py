"""What a device's maker promises for matmuls: dense TFLOP/s per precision, for the verb doctor."""

import math
import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from cvexp.config import UsageError, did_you_mean

PRECISIONS = ("64-true", "32-true", "tf32", "bf16-mixed", "16-mixed")

# Whole names, so that a variant with other clocks (Ti, Laptop GPU, a MIG slice) finds nothing.
_DENSE_TFLOPS: dict[str, tuple[float | None, ...]] = {
    "B200": (None, None, 1125, 2250, 2250),
    "H200|H100 80GB HBM3": (66.9, 66.9, 494.7, 989.4, 989.4),
    "H100 PCIe": (51.2, 51.2, 378, 756, 756),
    "A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe": (19.5, 19.5, 156, 312, 312),
    "A10": (None, 31.2, 62.5, 125, 125),
    "L4": (None, 30.3, 60, 121, 121),
    "L40S": (None, 91.6, 183, 362, 362),
    "T4": (None, 8.1, None, None, 65),
    "V100-SXM2-(16|32)GB": (7.8, 15.7, None, None, 125),
    "V100-PCIE-(16|32)GB": (7.0, 14.0, None, None, 112),
    "RTX 3090": (None, 35.6, 35.6, 71, 71),
    "RTX 4090": (None, 82.6, 82.6, 165.2, 165.2),
}


def dense_tflops(device_name: str) -> dict[str, float]:
    """Return the dense rates of a GPU by the name that CUDA gives it; none for one not known.

    Half of what a data sheet prints with sparsity; products are summed in float32, which halves
    the 16-bit rates of GeForce cards; 64-true is the Tensor Cores' rate where they have one.

    Source: NVIDIA's data sheets of the data centre cards (HGX B200's by eight); the architecture
    white papers of GH100 (H100 SXM, PCIe), GA102 (RTX 3090), AD102 (RTX 4090).
    """
    bare = re.sub(r"^((NVIDIA|Tesla|GeForce) )*", "", device_name)
    for names, rates in _DENSE_TFLOPS.items():
        if re.fullmatch(names, bare):
            pairs = zip(PRECISIONS, rates, strict=True)
            return {precision: rate for precision, rate in pairs if rate is not None}
    return {}


def read_nominal(file: Path) -> dict[str, float]:
    """Return the rates that a YAML file gives for this device.

    Raises:
        UsageError: not a mapping of precisions to TFLOP/s.
    """
    given = _mapping(file)
    for precision, rate in given.items():
        if precision not in PRECISIONS:
            hint = did_you_mean(str(precision), PRECISIONS)
            raise UsageError(
                f"--nominal={file}: no precision {precision}{hint}; known: {', '.join(PRECISIONS)}"
            )
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not (number and math.isfinite(rate) and rate > 0):
            raise UsageError(
                f"--nominal={file}: {precision}: {rate} is not a number of TFLOP/s above 0; "
                f"type a line such as {precision}: 19.5"
            )
    return {precision: float(rate) for precision, rate in given.items()}


def _mapping(file: Path) -> dict[Any, Any]:
    try:
        given = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        reason = str(getattr(error, "strerror", None) or error).partition("\n")[0]
        raise UsageError(
            f"--nominal={file} cannot be read ({reason}); type a YAML file of lines "
            "such as bf16-mixed: 312"
        ) from error
    if not isinstance(given, dict) or not given:
        raise UsageError(f"--nominal={file}: no mapping; write lines such as bf16-mixed: 312")
    return given
