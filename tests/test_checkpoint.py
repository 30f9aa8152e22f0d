"""A checkpoint is whole or not there, and loads anywhere."""

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from cvexp import child
from cvexp.atomic import write_atomically
from cvexp.checkpoint import LastAndBest, newest
from cvexp.console import quieten_lightning
from cvexp.prepare import prepare
from cvexp.run import make_trainer
from tests.conftest import TOY, Outcome
from tests.test_contract import composed


def test_writing_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "file"
    for content in (b"old", b"new"):
        write_atomically(target, content)
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call of the writer fails: the old bytes stay, no temporary file does."""
    target = tmp_path / "file"
    write_atomically(target, b"old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as broken:

            def fail(*args: object) -> None:
                raise OSError("disk full")

            broken.setattr(f"cvexp.atomic.os.{name}", fail)
            with pytest.raises(OSError, match="disk full"):
                write_atomically(target, b"new")
        assert target.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [target]


def test_checkpoints_of_a_run(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    assert cvexp(*TOY, "trainer.max_epochs=3", "tracker=none", "optimizer.lr=0.05").code == 0
    (folder,) = tmp_path.glob("multirun/*/checkpoints")
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.ckpt",
        "best.ckpt.sha256",
        "last.ckpt",
        "last.ckpt.sha256",
        "previous.ckpt",
        "previous.ckpt.sha256",
    ]
    subprocess.run(
        ["sha256sum", "--check", "--quiet", *folder.glob("*.sha256")], cwd=folder, check=True
    )
    last = torch.load(folder / "last.ckpt", weights_only=True)
    best = torch.load(folder / "best.ckpt", weights_only=True)
    assert last["epoch"] == 2
    assert str(tmp_path).encode() not in (folder / "last.ckpt").read_bytes()  # the run may move
    digest = hashlib.sha256((folder / "last.ckpt").read_bytes()).hexdigest()
    assert (folder / "last.ckpt.sha256").read_text() == f"{digest}  last.ckpt\n"

    record = Outcome(0, "", "").record(tmp_path)
    lines = (folder.parent / "metrics.jsonl").read_text().splitlines()
    curve = [line for line in map(json.loads, lines) if "val/accuracy" in line]
    highest = max(line["val/accuracy"] for line in curve)
    first = next(line["epoch"] for line in curve if line["val/accuracy"] == highest)
    assert record["metrics_best"]["val/accuracy"] == highest
    assert record["metrics_best"]["epoch"] == first == best["epoch"] + 1
    assert "test/accuracy" in record["metrics_best"]


def test_no_crash_of_the_writer_leaves_a_run_without_a_sound_checkpoint(tmp_path: Path) -> None:
    """The process dies before each line in turn; what is there is the old state or the new."""
    child.start_server()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_crash_everywhere, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    points = json.loads((tmp_path / "points.json").read_text())
    assert points["crashes"] > 60
    assert points["found"]["before"] > 20
    assert points["found"]["written"] > 20


def _crash_everywhere(folder: Path) -> None:
    quieten_lightning()
    ready = prepare(composed(*TOY, "trainer.limit_train_batches=2"))
    checkpoints = LastAndBest(folder / "checkpoints", every_steps=1)
    trainer = make_trainer(ready, folder, [], [checkpoints])
    trainer.fit(ready.module, ready.loaders.train, ready.loaders.val)
    shutil.copytree(folder / "checkpoints", folder / "whole")
    found: Counter[str] = Counter()
    crashes = 0
    while True:
        shutil.rmtree(folder / "checkpoints")
        shutil.copytree(folder / "whole", folder / "checkpoints")
        child = os.fork()
        if child == 0:
            checkpoints._is_best, checkpoints.best = True, {"epoch": 3, "step": 2}
            _die_after(crashes)
            checkpoints._save(trainer)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kept = newest(folder / "checkpoints")
        assert kept is not None
        best = kept.checkpoint["callbacks"]["LastAndBest"]["best"]
        found["written" if best["epoch"] == 3 else "before"] += 1
        if code == 0:
            break
        assert code == 9
        crashes += 1
    (folder / "points.json").write_text(json.dumps({"crashes": crashes, "found": found}))


def _die_after(lines: int) -> None:
    """End this process, as a kill would, once so many lines of the writer have run."""
    ours = ("cvexp/atomic.py", "cvexp/checkpoint.py")
    left = lines

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(ours):
            return None
        if event == "line":
            if left == 0:
                os._exit(9)
            left -= 1
        return trace

    sys.settrace(trace)
