"""What torch.compile needs of a machine, known before time is spent."""

import logging
import sysconfig
from pathlib import Path

import torch

from cvexp.config import UsageError


def check_compiler(device: torch.device) -> None:
    """Say before the first step what would stop the compiler in it.

    Raises:
        UsageError: no C++ compiler, no Python headers, or no Triton for a GPU.
    """
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch.utils._triton import has_triton

    missing = None
    try:
        get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        missing = "a C++ compiler; install g++"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing = missing or "Python's headers; install python3-dev"
    if device.type == "cuda" and not has_triton():
        missing = missing or "Triton for this GPU"
    if missing:
        raise UsageError(f"model.compile=true needs {missing}, or type model.compile=false")
    # Without a GPU it would remark on that.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
