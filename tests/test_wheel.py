"""The installed artefact is tested: every YAML is in the wheel, and cvexp runs from it."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_wheel_holds_every_module_and_option(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = tmp_path / "source"  # setuptools leaves its build folder beside the sources
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "cvexp", "conf", "hydra_plugins"):
        (source / name).symlink_to(ROOT / name)
    build = [
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)

    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    for folder, inside in (
        (ROOT / "conf", site / "cvexp" / "conf"),
        (ROOT / "cvexp", site / "cvexp"),
        (ROOT / "hydra_plugins", site / "hydra_plugins"),
    ):
        for path in (p for p in folder.rglob("*") if p.suffix in (".yaml", ".py", ".html")):
            assert (inside / path.relative_to(folder)).read_bytes() == path.read_bytes()

    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    shown = subprocess.run(
        [tmp_path / "venv" / "bin" / "cvexp", "optimizer=sgd", "--cfg", "job"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_target_: cvexp.optimizer.sgd" in shown.stdout
