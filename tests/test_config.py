"""Names, types, targets and identities."""

import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from cvexp import config
from tests.test_contract import composed


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        ("freeze=last,seed=0", "freeze-last_seed-0"),
        ("optimizer.lr=0.001", "optimizer.lr-0.001"),
        ("", "job"),
    ],
)
def test_job_directory_reads_like_its_overrides(overrides: str, folder: str) -> None:
    assert config.job_directory(overrides) == folder


@pytest.mark.parametrize(
    "hostile",
    [
        "../../x",
        "name=a/b",
        "a=" + "b" * 400,
        "x='é ß'",
        "a=\n",
        "=,=",
        "..",
        "model.weights=/etc/x",
    ],
)
def test_job_directory_cannot_leave_its_parent(hostile: str) -> None:
    folder = config.job_directory(hostile)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", folder)
    assert len(folder) <= 100


def test_job_directory_keeps_apart_what_it_cuts() -> None:
    long = "model.weights=" + "w" * 300
    assert config.job_directory(long + "1") != config.job_directory(long + "2")
    assert config.job_directory("a=é") != config.job_directory("a=è")


def test_stamp_is_unique_within_a_second() -> None:
    """Two launches in the same second must not share a directory (traps.md 21)."""
    assert len({config._stamp() for _ in range(50)}) == 50


def test_identity_ignores_what_changes_no_result() -> None:
    base = config.identity(composed())
    for same in ("tracker=none", "loader.num_workers=2", "name=x", "tags=[a]", "show_config=true"):
        assert config.identity(composed(same)) == base, same


@pytest.mark.parametrize("override", ["seed=1", "optimizer.lr=0.5", "freeze=last", "loader=device"])
def test_identity_changes_with_the_result(override: str) -> None:
    assert config.identity(composed(override)) != config.identity(composed())


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("optimizer.lr=abc", "optimizer.lr='abc'"),
        ("optimizer.lr=0", "optimizer.lr=0"),
        ("optimizer.betas=[0.9,1.5]", "optimizer.betas.1=1.5"),
        ("loader.batch_size=2.5", "loader.batch_size=2.5"),
        ("loader.batch_size=true", "loader.batch_size=True"),
        ("model.pretrained=1", "model.pretrained=1"),
        ("augmentation.affine.p=2", "augmentation.affine.p=2"),
        ("+augmentation.affine.shear=2", "augmentation.affine.shear"),
        ("trainer.fast_dev_run=maybe", "trainer.fast_dev_run"),
        ("seed=-1", "seed=-1"),
        ("tags=x", "tags='x'"),
        ("~freeze", "freeze"),
        ("+freeze.x=1", "freeze.x"),
        ("+typo=1", "typo"),
        ("model=timm", "model.name"),
        ("data.size=${data.nothing}", "nothing"),
    ],
)
def test_check_names_the_key_and_the_value(override: str, named: str) -> None:
    with pytest.raises(config.UsageError) as raised:
        config.check(composed(*override.split()), [])
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_int_serves_as_a_float() -> None:
    config.check(composed("optimizer.lr=1"), [])


# What Hydra's own block-list let through (traps.md 24), and ways through our own modules.
@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "pathlib.Path.write_text",
        "builtins.open",
        "os.system",
        "cvexp.record.subprocess.run",
        "cvexp.freeze.UsageError",
        "cvexp.model.full",
        "cvexp.nothing.here",
        "None",
        "",
    ],
)
def test_only_functions_of_the_group_may_be_targets(target: str) -> None:
    hostile = composed(f"freeze._target_='{target}'")
    with pytest.raises(config.UsageError, match=r"freeze\._target_"):
        config.check(hostile, [])
    with pytest.raises(config.UsageError, match=r"freeze\._target_"):
        config.build(hostile, "freeze", None)


def test_a_trusted_package_may_be_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def nothing(network, /):\n    return 'mine'\n")
    monkeypatch.syspath_prepend(tmp_path)
    trusting = composed("freeze._target_=mine.nothing", "trusted_packages=[mine]")
    with pytest.raises(config.UsageError, match="stands in a file"):
        config.check(trusting, [])
    config.check(trusting, ["trusted_packages=[mine]"])
    assert config.build(trusting, "freeze", None) == "mine"


def test_factors_are_typed() -> None:
    """Hydra parses values, so they come from the typed config, not from strings (traps.md 26)."""
    overrides = ["freeze=last", "optimizer.lr=1e-3", "seed=0", "tags=[a,b]", "model.weights=null"]
    found = config.factors(composed(*overrides), overrides, OverridesParser.create())
    assert found == {
        "freeze": "last",
        "optimizer.lr": 0.001,
        "seed": 0,
        "tags": ["a", "b"],
        "model.weights": None,
    }
