"""One way to run the command line, in this process or in one of its own, and toys to run it on."""

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cvexp import child, cli, signals
from cvexp.data import Data, digits
from cvexp.data.images import Split
from cvexp.data.store import Form, Pixels

ROOT = Path(__file__).resolve().parent.parent
TOY = (
    "model=timm model.name=test_efficientnet model.pretrained=false data.size=32 "
    "trainer.max_epochs=1"
).split()


DIGITS: dict[str, Any] = {
    "size": 32,
    "channels": 3,
    "val_fraction": 0.1,
    "test_fraction": 0.2,
    "split_seed": 0,
    "class_weights": "none",
    "sampler": "uniform",
}


class Outcome(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str

    def record(self, folder: Path, name: str = "*") -> dict[str, Any]:
        """Return the one run.json below a folder, or that of the run of this name."""
        (path,) = folder.glob(f"multirun/{name}/run.json")
        return json.loads(path.read_text())


@pytest.fixture
def cvexp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run the command line in this process (imports are paid once), in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["cvexp", *arguments])
        try:
            code = cli.main(list(arguments))
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


def command(*arguments: str, cwd: Path, path: Path | None = None) -> Outcome:
    """Run the command line in a process of its own, as a person would.

    Args:
        path: a folder of packages that are found before all others.
    """
    environment = {**os.environ, "PYTHONPATH": ":".join(str(p) for p in (path, ROOT) if p)}
    done = subprocess.run(
        [sys.executable, "-m", "cvexp", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def data() -> Data:
    """Return the digits at 32 px."""
    return digits(**DIGITS)


def made(images: np.ndarray) -> Data:
    """Return (N, size, size, C) uint8 images as all three splits, in ten classes by turns."""
    count, size, channels = len(images), images.shape[1], images.shape[-1]
    split = Split(
        Pixels(images),
        np.arange(count),
        np.arange(count) % 10,
        [f"{i}.png" for i in range(count)],
        Form(size, "squash", channels, size * size),
    )
    return Data("made", tuple("0123456789"), split, split, split, "")


@pytest.fixture
def photo() -> np.ndarray:
    """Return a smooth (40, 40, 3) uint8 image with detail in each channel."""
    return photograph()


def photograph(size: int = 40) -> np.ndarray:
    """Return a smooth (size, size, 3) uint8 image with detail in each channel."""
    y, x = np.mgrid[0:size, 0:size] / size
    waves = [np.sin(7 * x + 3 * y), np.cos(5 * y - 2 * x), np.sin(9 * x * y)]
    return np.stack([127 + 100 * wave for wave in waves], axis=-1).astype(np.uint8)


def until(condition: Callable[[], object], process: subprocess.Popen[Any]) -> None:
    """Wait for what a process will bring about; waiting busily would take one of its two cores."""
    while not condition():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)


def scontrol(folder: Path) -> Path:
    """Return a SLURM command in a folder of its own, which notes what it is asked in `asked`."""
    path = folder / "bin" / "scontrol"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho $@ >> {folder}/asked\n")
    path.chmod(0o755)
    return path


def in_child(
    folder: Path,
    *arguments: str,
    die: tuple[str, str, int] | None = None,
    signal: int = 9,
    environment: dict[str, str] | None = None,
) -> int:
    """Run the command line in a fresh process that has the imports done; return its exit code.

    Args:
        die: module, name of a function in it, n: the n-th call of that ends in the signal.
    """
    child.start_server()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_child, args=(folder, arguments, die, signal, environment))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _child(
    folder: Path,
    arguments: tuple[str, ...],
    die: tuple[str, str, int] | None,
    number: int,
    environment: dict[str, str] | None,
) -> None:
    os.environ.update(environment or {})
    multiprocessing.set_start_method(None, force=True)  # workers are forked, as ever
    for asking in signals.ASKING:  # the server ignores them
        signals.signal.signal(asking, signals.signal.SIG_DFL)
    os.chdir(folder)
    null = os.open(folder / f"output-{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if die is not None:
        module, name, left = die
        owner: Any = importlib.import_module(module)
        *outer, name = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        function = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            nonlocal left
            result = function(*given, **named)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)
            return result

        setattr(owner, name, counted)
    sys.argv = ["cvexp", *arguments]
    sys.exit(cli.main(list(arguments)))
