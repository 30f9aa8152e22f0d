"""What the hardware makes of a precision is known before the run."""

import pytest
import torch

from cvexp import precision
from cvexp.config import UsageError

CPU = torch.device("cpu")


def test_float16_without_cuda_is_an_error_that_says_so() -> None:
    """Lightning alone trains in bf16-mixed instead, without a word (traps.md 12)."""
    with pytest.raises(UsageError, match="needs a CUDA device"):
        precision.lightning(CPU, trainer="16-mixed", float32_matmul="highest")


def test_tf32_without_the_hardware_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"8\.0 or newer.*precision=32-true"):
        precision.lightning(CPU, trainer="32-true", float32_matmul="high")


@pytest.mark.parametrize("trainer", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("feature", [None, "avx512_bf16", "amx_bf16"])
def test_emulated_bfloat16_is_warned_about(
    trainer: str, feature: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_cpu_features", lambda: {feature: True})
    warning = precision.lightning(CPU, trainer=trainer, float32_matmul="highest").warning
    assert (warning is None) == (feature is not None)
    if warning:
        assert f"precision={trainer} is emulated" in warning
        assert "avx512_bf16" in warning


def test_full_precision_resets_what_another_run_set() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    assert precision.lightning(CPU, trainer="32-true", float32_matmul="highest").warning is None
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
def test_tf32_on_a_gpu() -> None:
    found = precision.lightning(torch.device("cuda", 0), trainer="32-true", float32_matmul="high")
    assert found.warning is None
    assert torch.backends.cudnn.allow_tf32
