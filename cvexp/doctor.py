"""The verb doctor: how fast this machine multiplies matrices in each precision, and what that pays.

It takes no config and prints a table: measured rates, the hardware's nominal ones, a verdict each.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.table import Column, Table
from rich.text import Text

from cvexp.arguments import Arguments
from cvexp.config import UsageError
from cvexp.console import say, show
from cvexp.nominal import PRECISIONS, dense_tflops, read_nominal
from cvexp.precision import _has_tf32, bf16_emulated

BASE = "32-true"  # what the others are compared with
# Float64 Tensor Cores may beat plain float32 here; its use is exactness, so it is never advised.
EXACT = "64-true"
DTYPES = {
    EXACT: torch.float64,
    BASE: torch.float32,
    "tf32": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
}
DEFAULT_SIZE = {"cpu": 512, "cuda": 8192}
SAMPLE_S = 0.05  # the least that one sample takes: far above a clock's grain or a kernel's launch
PAYS = 1.1  # times BASE; a smaller gain in its matmuls is lost in the rest of a network

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # two factors, and room for the product


def main(arguments: Sequence[str]) -> None:
    """Measure this machine and print what pays on it.

    Raises:
        UsageError: an unknown option, a bad number or file, matrices too large for this machine.
    """
    given = _parse(arguments)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    size = given.size or DEFAULT_SIZE[device.type]
    name, detail = _described(device)
    nominal = dense_tflops(name) if device.type == "cuda" else {}
    if given.nominal:
        nominal |= read_nominal(given.nominal)
    say("device", f"{name}, {detail}; torch {torch.__version__}")
    say("matmul", f"{size} x {size}, {given.repeats} samples of each; this can take a minute")
    rates, failed = measure(device, size, given.repeats)
    if BASE not in rates:
        raise UsageError(f"{BASE} matmuls fail here: {failed[BASE]}; try a smaller --size")
    base = statistics.median(rates[BASE])
    ratios = {name: statistics.median(samples) / base for name, samples in rates.items()}
    why_not = failed | refusals(device)
    emulated = bf16_emulated(device)
    verdicts = {name: verdict(name, ratios.get(name), why_not, emulated) for name in PRECISIONS}
    show(_table(rates, ratios, nominal, verdicts))
    never = {EXACT, *why_not}
    paying = {name: r for name, r in ratios.items() if r >= PAYS and name not in never}
    say("verdict", advice(paying))


def measure(
    device: torch.device, size: int, repeats: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Measure all precisions by turns, so that a drift of the machine hits all alike.

    Leaves torch's float32 matmul precision as it was.

    Returns:
        TFLOP/s of each repeat by precision, and why some precisions have none.
    """
    before = torch.get_float32_matmul_precision()
    ready: dict[str, tuple[Operands, int]] = {}
    failed = {}
    try:
        for name in PRECISIONS:
            if name == "tf32" and not _has_tf32(device):
                continue  # it would be 32-true once more
            operands = _operands(DTYPES[name], size, device)
            try:
                ready[name] = (operands, _warm_up(name, operands))
            except RuntimeError as error:  # no kernel for this type
                failed[name] = str(error).partition("\n")[0]
        rates: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(repeats):
            for name, (operands, calls) in ready.items():
                rates[name].append(tflops(size, calls, seconds(name, operands, calls)))
    finally:
        torch.set_float32_matmul_precision(before)
    return rates, failed


def tflops(size: int, calls: int, elapsed_s: float) -> float:
    """Return the rate of matmuls of (size, size) by (size, size): a multiply and an add count 2."""
    return 2 * size**3 * calls / elapsed_s / 1e12


def seconds(name: str, operands: Operands, calls: int) -> float:
    """Return how long some calls take, on the device's own clock where it has one."""
    left, right, product = operands
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    if left.device.type == "cuda":
        began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
        torch.cuda.synchronize(left.device)
        began.record()
        for _ in range(calls):
            torch.mm(left, right, out=product)
        ended.record()
        torch.cuda.synchronize(left.device)
        return float(began.elapsed_time(ended)) / 1000
    start = time.perf_counter()
    for _ in range(calls):
        torch.mm(left, right, out=product)
    return time.perf_counter() - start


def refusals(device: torch.device) -> dict[str, str]:
    """Return the precisions that a run on this device is refused, and why."""
    refused = {}
    if not _has_tf32(device):
        refused["tf32"] = "needs an NVIDIA GPU of compute capability 8.0 or newer"
    if device.type != "cuda":
        refused["16-mixed"] = "needs CUDA"
    return refused


def verdict(
    name: str, ratio: float | None, why_not: Mapping[str, str], bf16_emulated: str | None
) -> str:
    """Return in words whether a precision pays, by its ratio to BASE (None: there is none)."""
    if name in why_not or ratio is None:
        return f"not on this device: {why_not[name]}"
    if name == BASE:
        return "what the others are compared with"
    if name == EXACT:
        return f"for exactness, not speed: {_figure(ratio, 2)}x, at twice the memory"
    emulated = f", emulated: {bf16_emulated}" if bf16_emulated and name == "bf16-mixed" else ""
    return f"{'pays' if ratio >= PAYS else 'does not pay'}: {_figure(ratio, 2)}x{emulated}"


def advice(paying: Mapping[str, float]) -> str:
    """Return one sentence on the precisions that pay, given with their ratios to BASE."""
    fastest_first = sorted(paying, key=lambda name: -paying[name])
    alike = {"bf16-mixed": "precision=bf16-mixed (its matmuls are bf16-true's too)"}
    named = [alike.get(name, f"precision={name}") for name in fastest_first]
    return (
        "for matmuls, what pays on this machine is "
        f"{', then '.join(named) or f'nothing beyond precision={BASE}'}; "
        "a whole network can differ, so a real run is the judge"
    )


def _described(device: torch.device) -> tuple[str, str]:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return torch.cuda.get_device_name(device), f"compute capability {major}.{minor}"
    name = torch.cpu.get_capabilities().get("cpu_name") or platform.machine()
    return f"{name} (CPU)", f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"


def _operands(dtype: torch.dtype, size: int, device: torch.device) -> Operands:
    """Return random matrices: on a GPU zeros take less power, and so run at higher clocks.

    Raises:
        UsageError: they do not fit.
    """
    try:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        return left, right, torch.empty_like(left)
    except (RuntimeError, TypeError) as error:  # no memory; TypeError above 64-bit sizes
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--size={size}: {reason}; type a smaller --size") from error


def _warm_up(name: str, operands: Operands) -> int:
    """Return how many calls fill a sample; the samples on the way there are discarded."""
    calls = 1
    seconds(name, operands, calls)  # the first chooses its kernels and says nothing of the rate
    while seconds(name, operands, calls) < SAMPLE_S:
        calls *= 2
    return calls


def _table(
    rates: Mapping[str, Sequence[float]],
    ratios: Mapping[str, float],
    nominal: Mapping[str, float],
    verdicts: Mapping[str, str],
) -> Table:
    titles = ("TFLOP/s", "n", "lowest - highest", f"to {BASE}", "nominal", "of nominal")
    table = Table("precision", *(Column(t, justify="right") for t in titles), "pays here")
    for name in PRECISIONS:
        cells = ["-", "0", "-", "-"]
        if samples := rates.get(name):
            spread = f"{_figure(min(samples))} - {_figure(max(samples))}"
            median = statistics.median(samples)
            cells = [_figure(median), str(len(samples)), spread, f"{_figure(ratios[name])}x"]
        promised = nominal.get(name)
        share = f"{statistics.median(samples) / promised:.0%}" if samples and promised else "-"
        cells += [_figure(promised) if promised else "-", share]
        table.add_row(name, *cells, Text(verdicts[name]))
    return table


def _figure(value: float, digits: int = 3) -> str:
    """Return a number to some significant digits, never as a power of ten above them."""
    return f"{value:.{digits}g}" if value < 10 ** (digits - 1) else f"{value:,.0f}"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Arguments("doctor [--size N] [--repeats N] [--nominal FILE]")
    parser.add_argument("--size", type=_count, metavar="N")
    parser.add_argument("--repeats", type=_count, metavar="N", default=7)
    parser.add_argument("--nominal", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)
