"""What doctor measures is a matmul's rate, what it says follows from the measured rates."""

import re
from pathlib import Path

import pytest
import torch

from cvexp import config, doctor
from cvexp.config import UsageError
from cvexp.nominal import PRECISIONS, dense_tflops, read_nominal

CPU = torch.device("cpu")
QUICK = ["--size", "64", "--repeats", "2"]
SPEEDS = {"64-true": 0.5, "32-true": 1.0, "tf32": 2.0, "bf16-mixed": 8.0, "16-mixed": 4.0}


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SAMPLE_S", 1e-4)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a call take 1 s over its precision's speed; return the precisions as they are sampled."""
    taken = []

    def seconds(name: str, operands: doctor.Operands, calls: int) -> float:
        taken.append(name)
        return calls / SPEEDS[name]

    monkeypatch.setattr(doctor, "seconds", seconds)
    return taken


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def rows(out: str) -> dict[str, list[str]]:
    """Return the cells of a printed table's rows by the first, folded lines joined."""
    found: dict[str, list[str]] = {}
    lines = [line for line in out.splitlines() if line.startswith("│")]
    for line in lines:
        name, *cells = [cell.strip() for cell in line.strip("│").split("│")]
        if name:
            found[name] = cells
        else:
            last = found[list(found)[-1]]
            last[:] = [f"{a} {b}".strip() for a, b in zip(last, cells, strict=True)]
    return found


def test_precisions_are_options_of_a_run() -> None:
    assert set(PRECISIONS) <= set(config.options()["precision"])
    assert set(PRECISIONS) == set(doctor.DTYPES)


def test_a_multiply_and_an_add_count_two() -> None:
    assert doctor.tflops(size=1000, calls=1, elapsed_s=1) == pytest.approx(2e-3)
    assert doctor.tflops(size=8192, calls=10, elapsed_s=0.5) == pytest.approx(21.990232555)


def test_a_rate_is_that_of_the_measured_time(samples: list[str]) -> None:
    rates, failed = doctor.measure(CPU, 100, 3)
    assert rates["32-true"] == pytest.approx([2e-6] * 3)
    assert rates["bf16-mixed"] == pytest.approx([16e-6] * 3)
    assert not failed


def test_precisions_are_sampled_by_turns(
    samples: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_has_tf32", lambda device: True)
    doctor.measure(CPU, 8, 3)
    assert samples[-3 * len(PRECISIONS) :] == list(PRECISIONS) * 3


def test_samples_are_long_enough_and_the_first_call_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "SAMPLE_S", 1.0)
    asked = []

    def seconds(name: str, operands: doctor.Operands, calls: int) -> float:
        asked.append(calls)
        return 60.0 if len(asked) == 1 else calls * 0.3

    monkeypatch.setattr(doctor, "seconds", seconds)
    operands = doctor._operands(torch.float32, 8, CPU)
    assert doctor._warm_up("32-true", operands) == 4
    assert asked == [1, 1, 2, 4]


def test_every_precision_is_measured_on_a_cpu() -> None:
    rates, failed = doctor.measure(CPU, 64, 2)
    assert {*rates, *failed} == set(PRECISIONS) - {"tf32"}
    for samples in rates.values():
        assert len(samples) == 2
        assert min(samples) > 0


@pytest.mark.usefixtures("on_a_cpu")
def test_the_table_has_a_row_for_each_precision_and_ratios_of_its_rates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doctor.main(QUICK)
    out = capsys.readouterr().out
    table = rows(out)
    assert list(table) == list(PRECISIONS)
    base = float(table["32-true"][0])
    for name in ("64-true", "32-true", "bf16-mixed"):
        rate, n, spread, ratio, *_ = table[name]
        lowest, highest = map(float, spread.split(" - "))
        assert n == "2"
        assert lowest <= float(rate) <= highest
        assert float(ratio.rstrip("x")) == pytest.approx(float(rate) / base, rel=0.02)
    assert torch.__version__ in out
    assert f"{torch.get_num_threads()} threads" in out
    assert "a real run is the judge" in out


@pytest.mark.usefixtures("on_a_cpu", "samples")
def test_what_a_cpu_cannot_run_is_not_advised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "bf16_emulated", lambda device: None)
    doctor.main(QUICK)
    out = capsys.readouterr().out
    table = rows(out)
    assert table["bf16-mixed"][-1] == "pays: 8x"
    assert table["16-mixed"][3] == "4x"
    assert table["16-mixed"][-1] == "not on this device: needs CUDA"
    assert "8.0 or newer" in table["tf32"][-1]
    (sentence,) = [line for line in out.splitlines() if "a real run" in line]
    assert re.findall(r"precision=([\w-]+)", sentence) == ["bf16-mixed"]


def test_emulation_is_said_with_its_reason() -> None:
    said = doctor.verdict("bf16-mixed", 0.4, {}, "no instructions")
    assert said == "does not pay: 0.4x, emulated: no instructions"
    assert doctor.verdict("tf32", 0.4, {}, "no instructions") == "does not pay: 0.4x"


@pytest.mark.usefixtures("on_a_cpu", "samples")
def test_a_fast_float64_is_not_advised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some GPUs multiply it on Tensor Cores; it is for exactness all the same."""
    monkeypatch.setitem(SPEEDS, "64-true", 1.5)
    doctor.main(QUICK)
    out = capsys.readouterr().out
    assert rows(out)["64-true"][-1] == "for exactness, not speed: 1.5x, at twice the memory"
    assert "precision=64-true" not in out


def test_the_advice_names_the_fastest_first() -> None:
    said = doctor.advice({"tf32": 5.0, "16-mixed": 11.0, "bf16-mixed": 12.0})
    names = ["bf16-mixed", "16-mixed", "tf32"]
    assert re.findall(r"precision=([\w-]+)", said) == names
    assert "nothing beyond precision=32-true" in doctor.advice({})


def test_a_type_without_a_kernel_is_reported(
    samples: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = doctor.seconds

    def seconds(name: str, operands: doctor.Operands, calls: int) -> float:
        if name == "16-mixed":
            raise RuntimeError('"addmm" not implemented for Half\nand a trace')
        return known(name, operands, calls)

    monkeypatch.setattr(doctor, "seconds", seconds)
    rates, failed = doctor.measure(CPU, 8, 2)
    assert "16-mixed" not in rates
    assert failed == {"16-mixed": '"addmm" not implemented for Half'}
    said = doctor.verdict("16-mixed", None, failed, None)
    assert said == 'not on this device: "addmm" not implemented for Half'


@pytest.mark.parametrize("fails", [False, True])
def test_the_float32_matmul_precision_is_restored(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_has_tf32", lambda device: True)
    seen = {}
    known = doctor.seconds

    def seconds(name: str, operands: doctor.Operands, calls: int) -> float:
        elapsed_s = known(name, operands, calls)
        seen[name] = torch.get_float32_matmul_precision()
        if fails and name == "16-mixed":
            raise KeyboardInterrupt
        return elapsed_s

    monkeypatch.setattr(doctor, "seconds", seconds)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        if fails:
            with pytest.raises(KeyboardInterrupt):
                doctor.measure(CPU, 8, 1)
        else:
            doctor.measure(CPU, 8, 1)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen.pop("tf32") == "high"
    assert set(seen.values()) == {"highest"}


@pytest.mark.usefixtures("on_a_cpu", "samples")
def test_a_file_of_nominal_rates_fills_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("32-true: 4e-6\nbf16-mixed: 1234\n")
    doctor.main(["--size", "100", "--repeats", "1", "--nominal", str(file)])
    table = rows(capsys.readouterr().out)
    assert table["32-true"][4:6] == ["4e-06", "50%"]
    assert table["bf16-mixed"][4:6] == ["1,234", "0%"]
    assert table["64-true"][4:6] == ["-", "-"]


def test_a_file_of_nominal_rates_goes_before_the_built_in(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("16-mixed: 60\n")
    assert dense_tflops("Tesla T4") | read_nominal(file) == {"32-true": 8.1, "16-mixed": 60.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"bf16: 312", "no precision bf16.*known: 64-true"),
        (b"16: 312", "no precision 16"),
        (b"tf32: fast", "tf32: fast is not a number"),
        (b"tf32: true", "tf32: True is not a number"),
        (b"tf32: .nan", "nan is not a number"),
        (b"tf32: -1", "-1 is not a number"),
        (b"tf32: ${oc.env:HOME}", "is not a number"),
        (b"tf32:", "None is not a number"),
        (b"- 312", "no mapping"),
        (b"", "no mapping"),
        (b"312", "cannot be read"),
        (b"tf32: [", "cannot be read"),
        (b"tf32: 1\ntf32: 2", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (None, "cannot be read \\(No such file"),
    ],
)
def test_a_bad_file_of_nominal_rates_is_one_line(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        doctor.main([*QUICK, f"--nominal={file}"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["here"], "unrecognized arguments: here; usage"),
        (["--size", "0"], "0 is not a whole number above 0"),
        (["--repeats", "two"], "two is not a whole number above 0"),
        (["--repeats"], "expected one argument"),
        (["--size", str(10**12)], "type a smaller --size"),
        (["--size", str(10**30)], "type a smaller --size"),
    ],
)
def test_a_bad_request_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        doctor.main(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device_name", "bf16"),
    [
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", None),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", None),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", None),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_a_nominal_rate_is_that_of_this_card_alone(device_name: str, bf16: float | None) -> None:
    assert dense_tflops(device_name).get("bf16-mixed") == bf16


def test_a_card_before_bfloat16_has_no_nominal_rate_of_it() -> None:
    assert dense_tflops("Tesla V100-SXM2-16GB") == {
        "64-true": 7.8,
        "32-true": 15.7,
        "16-mixed": 125,
    }


@pytest.mark.gpu
def test_a_gpu_is_measured_by_its_own_clock(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main(["--size", "512", "--repeats", "2"])
    out = capsys.readouterr().out
    table = rows(out)
    assert list(table) == list(PRECISIONS)
    assert torch.cuda.get_device_name(0) in out
    assert "compute capability" in out
    for name in ("64-true", "32-true", "16-mixed"):
        assert float(table[name][0].replace(",", "")) > 0
