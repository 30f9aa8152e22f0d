"""A checkpoint is whole or not there, and loads anywhere."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cvexp.atomic import write_atomically
from tests.conftest import TOY, Outcome


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
