"""Help, and one clear line for what cannot be done."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cvexp import config
from tests.conftest import TOY, Outcome, command


def test_help_shows_groups_options_and_examples(cvexp: Callable[..., Outcome]) -> None:
    outcome = cvexp("--help")
    assert outcome.code == 0
    for group, options in config.options().items():
        (line,) = [line for line in outcome.out.splitlines() if line.split()[:1] == [group]]
        assert [option.rstrip("*") for option in line.split()[1:]] == options
    assert outcome.out.count("  python -m cvexp") >= 3
    assert "digits*" in outcome.out


def test_help_imports_nothing_heavy() -> None:
    """It answers in a fraction of a second because of this."""
    code = (
        "import sys; from cvexp.cli import main; main(['--help']);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'lightning', 'timm', 'hydra')))"
    )
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["freez=last"], ["freez", "did you mean freeze?", "augmentation", "trainer", "seed"]),
        (["freeze=lst"], ["freeze=lst", "did you mean last?", "full, gradual, last, lora, most"]),
        (["freeze=last,most"], ["freeze=last,most", "type -m"]),
        (["mix.alpha=1"], ["mix.alpha: mix has no key alpha; known: none"]),
        (
            ["-m", "loader=albumentations,dali", "loader.num_workers=2"],
            ["not every option of loader that is swept over has the key num_workers"],
        ),
        (["-m", "freeze=last,lst"], ["freeze=lst", "full, gradual, last, lora, most"]),
        (["optimizer.lrr=1"], ["optimizer.lrr", "did you mean lr?", "weight_decay"]),
        (["optimizer=sgd", "optimizer.eps=1"], ["optimizer.eps", "momentum, nesterov"]),
        (["+typo=1"], ["no group or key typo"]),
        (["trainer.precision=16"], ["trainer.precision", "type precision=bf16-mixed"]),
        (["trainer.max_epoch=1"], ["trainer.max_epoch", "did you mean max_epochs?"]),
        (["data.size=["], ["data.size=[", "not KEY=VALUE"]),
        (["nonsense"], ["nonsense"]),
        (["--config-dir=nowhere", "seed=1"], ["--config-dir=nowhere", "no such folder"]),
        (["hydra.run.dir=/proc/nothing"], ["/proc/nothing", "hydra.run.dir=FOLDER"]),
        (["optimizer.lr=abc"], ["optimizer.lr='abc'", "number"]),
        (["precision=16-mixed"], ["precision=16-mixed", "CUDA"]),
        (["trainer.limit_train_batches=0"], ["leaves no training batch"]),
        (["model=timm", "model.name=resnet1"], ["model.name=resnet1"]),
        (["model.weights=nowhere.pth"], ["model.weights=nowhere.pth", "no such file"]),
        (["model=resnet18"], ["could not be downloaded", "model.weights=FILE"]),
        (["model=vit-tiny", "model.pretrained=false", "model.image_size=48"], ["data.size=64"]),
        (["loader.batch_size=2000", "loader.drop_last=true"], ["loader.batch_size=2000"]),
        ([*TOY, "scheduler.warmup_steps=500"], ["scheduler.warmup_steps=500", "20 steps"]),
        ([*TOY, "trainer.limit_val_batches=0.001"], ["limit_val_batches=0.001", "none of the 3"]),
        ([*TOY, "trainer.val_check_interval=100"], ["val_check_interval=100", "20 batches"]),
        (["trainer.max_time=abc"], ["trainer.max_time='abc'"]),
        (["trainer.profiler=simple"], ["debug=profile"]),
        (["name=${nope}"], ["nope"]),
        (["seed=${oc.env:NOPE}"], ["NOPE"]),
        (["--nonsense"], ["--nonsense", "--hydra-help"]),
        (["--config-dir"], ["--config-dir"]),
        (["--help", "--config-dir=nowhere"], ["--config-dir=nowhere", "no such folder"]),
        (
            ["model=resnet18", "model.pretrained=false", "data.size=32", "loader.batch_size=314"],
            ["one image", "loader.drop_last=true"],
        ),
        (["trainer.accelerator=gpu"], ["trainer.accelerator=gpu", "trainer.accelerator=cpu"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], said: list[str], cvexp: Callable[..., Outcome]
) -> None:
    outcome = cvexp(*arguments)
    assert outcome.code == 2
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith("error: ")
    for words in said:
        assert words in line


def test_names_are_checked_before_anything_is_made(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    for wrong in ("freeze=lst", "freez=last", "optimizer.lrr=1"):
        assert cvexp(wrong).code == 2
    assert not list(tmp_path.iterdir())


def test_what_the_config_says_is_checked_before_data_is_touched(
    cvexp: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cvexp.data.digits", None)
    for wrong in ("precision=16-mixed", "model=resnet18", "trainer.limit_train_batches=0"):
        assert cvexp(wrong).code == 2


def test_an_option_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    """With another package of the name nvidia before it on the path, DALI is not there."""
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "__init__.py").touch()
    outcome = command("loader=dali", cwd=tmp_path, path=tmp_path)
    assert outcome.code == 2
    assert outcome.err == (
        "error: loader=dali needs nvidia.dali, which is not installed; "
        "type pip install 'cvexp[dali]'\n"
    )


def test_an_own_fault_is_a_traceback_and_exit_1(
    cvexp: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fault(network: object) -> str:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("cvexp.freeze.Plan.describe", fault)
    outcome = cvexp(*TOY)
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    (log,) = tmp_path.glob("multirun/*/cvexp.log")
    assert "ZeroDivisionError: ours" in log.read_text()
    assert outcome.record(tmp_path)["reason"] == "ZeroDivisionError: ours"


def test_hydras_own_flags_work(cvexp: Callable[..., Outcome]) -> None:
    shown = cvexp("--cfg", "job", "--package", "optimizer", "optimizer=sgd")
    assert shown.code == 0
    assert "momentum: 0.9" in shown.out
    assert "Flags" in cvexp("--hydra-help").out
    assert cvexp("--info", "searchpath").code == 0


def test_flags_may_stand_anywhere(cvexp: Callable[..., Outcome]) -> None:
    shown = cvexp("optimizer=sgd", "--cfg", "job", "--package", "optimizer", "optimizer.lr=0.25")
    assert shown.code == 0, shown.err
    assert "lr: 0.25" in shown.out
    assert cvexp("-sc", "install=bash").code == 0


def test_a_sweep_may_name_options_by_pattern(cvexp: Callable[..., Outcome]) -> None:
    outcome = cvexp("-m", *TOY, "trainer.fast_dev_run=true", "freeze=glob(*st)")
    assert outcome.code == 0, outcome.err
    assert "2 of 2 completed" in outcome.out


def test_a_users_own_options_need_no_clone(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "optimizer"
    folder.mkdir(parents=True)
    (folder / "slow.yaml").write_text(
        "_target_: cvexp.optimizer.sgd\nlr: 0.0001\nweight_decay: 0.0\n"
        "momentum: 0.0\nnesterov: false\n"
        "layer_decay: 1.0\nhead_lr_factor: 1.0\ndecay_norm_and_bias: false\ngrad_clip_norm: null\n"
    )
    flag = f"--config-dir={tmp_path / 'mine'}"
    assert "slow" in cvexp(flag, "--help").out
    outcome = cvexp(flag, *TOY, "optimizer=slow", "scheduler=constant", "trainer.fast_dev_run=true")
    assert outcome.code == 0, outcome.err
    assert outcome.record(tmp_path)["effective"]["lr_peak"] == pytest.approx(0.0001)


def test_ctrl_c_ends_the_run_as_interrupted(tmp_path: Path) -> None:
    """A real SIGINT to a real process, in mid-training."""
    import os
    import signal

    root = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "cvexp", *TOY, "trainer.max_epochs=1000", "tracker=none"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("epoch 1/"):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert Outcome(0, "", "").record(tmp_path)["status"] == "interrupted"
