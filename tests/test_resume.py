"""A run that was cut goes on, and ends as if it never had been: bit for bit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cvexp.checkpoint import AtomicCheckpointIO, newest, read_checkpoint
from cvexp.config import _stamp
from cvexp.resume import elsewhere
from cvexp.signals import Interrupted, handled
from tests.conftest import ROOT, TOY, Outcome, in_child, scontrol, until
from tests.test_loop import assert_same

BATCH = ("cvexp.module", "Classifier.on_train_batch_end")
RECIPES = {
    # 6 batches and 3 steps an epoch
    "gradual": (
        "freeze=gradual freeze.unfreeze_epochs=[1] ema=weights mix=mixup scheduler=one-cycle "
        "accumulation=x2 checkpoint.every_steps=2 trainer.limit_train_batches=6 "
        "trainer.max_epochs=3 trainer.log_every_n_steps=4 model.dropout=0.2"
    ),
    # 8 batches, validation within the epoch
    "plateau": (
        "scheduler=plateau scheduler.patience_epochs=0 early_stopping=plateau optimizer=sgd "
        "early_stopping.patience_validations=5 mix=cutmix trainer.val_check_interval=0.5 "
        "optimizer.lr=0.05 loader.num_workers=2 checkpoint.every_steps=3 "
        "trainer.limit_train_batches=8 trainer.max_epochs=4"
    ),
    # the low-rank updates of attention and half precision
    "lora": (
        "freeze=lora model.name=test_vit freeze.rank=2 precision=bf16-mixed "
        "trainer.limit_train_batches=3 trainer.max_epochs=2 checkpoint.every_steps=1 "
        "model.image_size=32"
    ),
    # early stopping after two of its epochs
    "stopped": (
        "early_stopping=plateau early_stopping.min_delta=1.0 trainer.max_epochs=9 "
        "early_stopping.patience_validations=1 trainer.limit_train_batches=3"
    ),
}


def recipe(name: str) -> list[str]:
    return [*TOY, "tracker=none", "hydra.run.dir=run", *RECIPES[name].split()]


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that a run leaves, but for times."""
    run = folder / "run"
    kept = {
        name: read_checkpoint(run / "checkpoints" / f"{name}.ckpt") for name in ("last", "best")
    }
    for checkpoint in kept.values():
        del checkpoint["callbacks"]["Meter"]
    record = json.loads((run / "run.json").read_text())
    fields = "status metrics metrics_best recall_per_class effective data".split()
    return {
        **kept,
        "metrics.jsonl": (run / "metrics.jsonl").read_text(),
        **{key: record[key] for key in fields},
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what each recipe comes to where nothing cuts it."""
    found = {}
    for name in RECIPES:
        folder = tmp_path_factory.mktemp(name)
        assert in_child(folder, *recipe(name)) == 0
        found[name] = outcome(folder)
        assert found[name]["status"] == "completed"
    return found


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        ("gradual", [(*BATCH, 1)]),  # the first batch
        ("gradual", [(*BATCH, 5)]),  # in the middle of an accumulation window
        ("gradual", [(*BATCH, 6)]),  # an epoch's last batch
        ("gradual", [("cvexp.module", "Classifier.on_validation_epoch_end", 2)]),
        ("gradual", [("cvexp.checkpoint", "LastAndBest.on_train_epoch_end", 2)]),
        ("gradual", [("cvexp.module", "Classifier.on_test_epoch_end", 1)]),
        ("gradual", [(*BATCH, 9), (*BATCH, 3), (*BATCH, 7)]),  # three times
        ("plateau", [(*BATCH, 4)]),  # with a validation due
        ("plateau", [(*BATCH, 7), (*BATCH, 11)]),
        ("plateau", [("cvexp.module", "Classifier.on_validation_epoch_end", 3)]),
        ("plateau", [("cvexp.checkpoint", "LastAndBest.on_train_epoch_end", 4)]),
        ("stopped", [("cvexp.module", "Classifier.on_test_epoch_end", 1)]),
        ("lora", [(*BATCH, 5)]),
    ],
)
def test_a_killed_run_ends_as_one_that_was_not(
    name: str,
    cuts: list[tuple[str, str, int]],
    tmp_path: Path,
    uninterrupted: dict[str, dict[str, Any]],
) -> None:
    for cut in cuts:
        assert in_child(tmp_path, *recipe(name), die=cut) == -9
        assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    assert in_child(tmp_path, "resume", "run") == 0
    assert_same(outcome(tmp_path), uninterrupted[name])


@pytest.mark.parametrize(
    ("where", "number", "code"),
    [
        ((*BATCH, 9), signal.SIGTERM, 143),  # of epoch 2, in the middle of a window
        (("cvexp.module", "Classifier.validation_step", 5), signal.SIGTERM, 143),
        (("cvexp.module", "Classifier.test_step", 2), signal.SIGTERM, 143),
        (("cvexp.prepare", "check_limits", 1), signal.SIGTERM, 143),
        ((*BATCH, 9), signal.SIGINT, 130),
        ((*BATCH, 9), signal.SIGUSR1, 143),
    ],
    ids=["training", "validation", "test", "set-up", "ctrl-c", "usr1"],
)
def test_a_signal_keeps_what_there_is_and_the_run_goes_on(
    where: tuple[str, str, int],
    number: int,
    code: int,
    tmp_path: Path,
    uninterrupted: dict[str, dict[str, Any]],
) -> None:
    assert in_child(tmp_path, *recipe("gradual"), die=where, signal=number) == code
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("interrupted", signal.Signals(number).name)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    if where[:2] == BATCH:  # of the very step that the signal came in, not of the one before
        assert read_checkpoint(last)["progress"]["counts"]["steps"] == 5
    if "validation" in where[1]:
        assert read_checkpoint(last)["resume"]["validates"]
    assert last.exists() == (where[1] != "check_limits")
    assert in_child(tmp_path, *recipe("gradual")) == 0  # the same command again
    assert_same(outcome(tmp_path), uninterrupted["gradual"])


def test_a_signal_to_all_processes_leaves_the_workers_to_the_run(tmp_path: Path) -> None:
    """As a scheduler sends it: a worker that ended at once would fail the step."""
    command = [*TOY, "loader.num_workers=2", "trainer.max_epochs=1000", "hydra.run.dir=run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cvexp", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until((tmp_path / "run" / "checkpoints" / "last.ckpt.sha256").exists, process)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, b"interrupted\n")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"


def test_a_checkpoint_may_come_by_the_clock(tmp_path: Path) -> None:
    command = [*recipe("gradual"), "checkpoint.every_steps=null", "checkpoint.every_s=1e-9"]
    assert in_child(tmp_path, *command, die=(*BATCH, 5)) == -9
    last = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert last["progress"]["counts"]["steps"] == 2  # the third is being made


def test_options_of_ones_own_go_on_where_they_are_typed_again(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    option = tmp_path / "mine" / "ema" / "slow.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: cvexp.ema.weights\ndecay: 0.5\n")
    folder = f"--config-dir={tmp_path / 'mine'}"
    quick = [*TOY, "ema=slow", "trainer.limit_train_batches=2", "hydra.run.dir=run"]
    assert cvexp(folder, *quick).code == 0
    refused = cvexp("resume", "run", "trainer.max_epochs=2")
    assert refused.code == 2
    assert "ema=slow: no such option" in refused.err
    assert "for options of your own type --config-dir FOLDER" in refused.err
    longer = cvexp("resume", "--config-dir", "mine", "run", "trainer.max_epochs=2")
    assert longer.code == 0, longer.err


@pytest.mark.parametrize("loader", ["device", "dali"])
def test_every_loader_goes_on_within_an_epoch(loader: str, tmp_path: Path) -> None:
    command = [*recipe("gradual"), f"loader={loader}", "augmentation=strong"]
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    assert in_child(tmp_path / "whole", *command) == 0
    assert in_child(tmp_path / "cut", *command, die=(*BATCH, 11)) == -9
    assert in_child(tmp_path / "cut", *command) == 0
    assert_same(outcome(tmp_path / "cut"), outcome(tmp_path / "whole"))


def test_slurm_runs_the_job_again_and_it_goes_on(tmp_path: Path) -> None:
    """SIGUSR1 asks scontrol to requeue; the same command in the same job has the same folder."""
    slurm = {"SLURM_JOB_ID": "17", "PATH": f"{scontrol(tmp_path).parent}:{os.environ['PATH']}"}
    command = [*TOY, "tracker=none", "trainer.max_epochs=2", "trainer.limit_train_batches=2"]
    usr1 = signal.SIGUSR1
    assert in_child(tmp_path, *command, die=(*BATCH, 3), signal=usr1, environment=slurm) == 143
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    assert in_child(tmp_path, *command, environment=slurm) == 0
    record = Outcome(0, "", "").record(tmp_path, "slurm-17-*")
    assert record["status"] == "completed"
    assert record["resumed"][0]["optimizer_steps"] == 3


def test_each_task_of_a_slurm_job_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one once it is requeued, in which the numbers of steps and tasks come again."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    found = []
    for step, task in (("0", "0"), ("0", "1"), ("1", "0"), ("0", "0")):
        monkeypatch.setenv("SLURM_STEP_ID", step)
        monkeypatch.setenv("SLURM_PROCID", task)
        found.append(_stamp())
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_a_second_signal_lets_a_run_write_how_it_ended() -> None:
    def run() -> None:
        with handled():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGUSR1)
                written.append("run.json")

    written: list[str] = []
    with pytest.raises(Interrupted, match="SIGTERM"):
        run()
    assert written == ["run.json"]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, uninterrupted: dict[str, dict[str, Any]]
) -> None:
    assert in_child(tmp_path, *recipe("gradual"), die=(*BATCH, 17)) == -9
    folder = tmp_path / "run" / "checkpoints"
    content = bytearray((folder / "last.ckpt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "last.ckpt").write_bytes(content)
    # A crash of the next run must not leave the damaged one alone.
    link = ("cvexp.checkpoint", "link_checkpoint", 1)
    assert in_child(tmp_path, "resume", "run", die=link) == -9
    sound = newest(folder)
    assert sound is not None
    assert sound.name == "last.ckpt"
    (folder / "last.ckpt").write_bytes(content)
    assert in_child(tmp_path, "resume", "run") == 0
    log = (tmp_path / "run" / "cvexp.log").read_text()
    assert "last.ckpt is damaged: its sha256 is not the one" in log
    assert "(previous.ckpt)" in log
    assert_same(outcome(tmp_path), uninterrupted["gradual"])
    for path in folder.glob("*.ckpt"):
        read_checkpoint(path)


def test_without_a_checkpoint_a_run_begins_anew(
    tmp_path: Path, uninterrupted: dict[str, dict[str, Any]]
) -> None:
    assert in_child(tmp_path, *recipe("gradual"), die=(*BATCH, 9)) == -9
    for path in (tmp_path / "run" / "checkpoints").glob("*.ckpt"):
        path.write_bytes(b"")
    assert in_child(tmp_path, "resume", "run") == 0
    assert_same(outcome(tmp_path), uninterrupted["gradual"])


def test_a_moved_run_goes_on_and_a_complete_one_is_left_alone(
    tmp_path: Path, uninterrupted: dict[str, dict[str, Any]], cvexp: Callable[..., Outcome]
) -> None:
    assert in_child(tmp_path, *recipe("gradual"), die=(*BATCH, 9)) == -9
    there = tmp_path / "else where, e=1"  # what Hydra's grammar would take apart
    there.mkdir()
    (tmp_path / "run").rename(there / "run")
    assert in_child(tmp_path, "resume", str(there / "run")) == 0
    assert_same(outcome(there), uninterrupted["gradual"])
    files = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in there.rglob("*") if p.is_file()}
    assert str(tmp_path).encode() not in files[there / "run" / "checkpoints" / "last.ckpt"][0]
    again = cvexp("resume", str(there / "run"))
    assert again.code == 0
    assert "is complete: nothing to do" in again.out
    assert f"{uninterrupted['gradual']['metrics']['test/accuracy']:.4f}" in again.out
    lock = there / "run" / ".lock"
    for path, (content, modified) in files.items():
        assert path == lock or (path.read_bytes(), path.stat().st_mtime_ns) == (content, modified)


def test_images_that_were_moved_are_said_to_be_taken_for_the_same() -> None:
    then, now = {"data": {"path": "a", "size": 8}}, {"data": {"path": "b", "size": 8}}
    assert elsewhere(then, now) == "data.path=a there, b here: taken for the same images"
    assert elsewhere(then, then) == ""


def test_a_run_does_not_go_on_with_other_data(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    quick = [*TOY, "tracker=none", "trainer.fast_dev_run=true", "hydra.run.dir=run"]
    assert cvexp(*quick).code == 0
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    record["data"]["sha256"] = "0" * 64  # as if a file had been there then
    path.write_text(json.dumps({**record, "status": "interrupted"}))
    refused = cvexp("resume", "run")
    assert refused.code == 2
    assert "images or labels of digits have changed since" in refused.err


def test_more_epochs_follow_the_schedule_of_all_of_them(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    quick = [*TOY, "tracker=none", "trainer.limit_train_batches=3", "hydra.run.dir=run"]
    assert cvexp(*quick, "trainer.max_epochs=2").code == 0
    before = json.loads((tmp_path / "run" / "run.json").read_text())
    longer = cvexp("resume", "run", "trainer.max_epochs=4", "loader.num_workers=1")
    assert longer.code == 0, longer.err
    assert "2 epochs become 4: from here on the schedule is that of 4" in longer.out
    assert cvexp(*quick, "trainer.max_epochs=4", "hydra.run.dir=straight").code == 0
    lasts = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("run", "straight")]
    extended, straight = (read_checkpoint(p)["progress"]["counts"] for p in lasts)
    assert extended["learning_rates"][6:] == straight["learning_rates"][6:]
    assert extended["learning_rates"][:6] != straight["learning_rates"][:6]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["effective"]["optimizer_steps"] == 12
    assert record["resumed"][0]["max_epochs_before"] == 2
    assert record["extends"]["metrics"] == before["metrics"] != record["metrics"]
    assert record["metrics_best"]["step"] <= 12


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["optimizer.lr=0.3"], ["optimizer.lr=0.002 there, 0.3 here", "state in its checkpoint"]),
        (["optimizer=sgd"], ["optimizer=adamw there, sgd here"]),
        (["seed=1", "data.size=16"], ["seed=0 there, 1 here", "data.size=32 there, 16 here"]),
        (["trainer.max_epochs=0"], ["trainer.max_epochs=0"]),
        (
            ["name=${oc.env:HOME}", "ema=weights", "ema.decay=${seed}"],
            ["ema=none there, weights here"],
        ),
    ],
)
def test_another_config_is_refused_and_nothing_is_touched(
    typed: list[str], said: list[str], cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert cvexp(*TOY, "trainer.fast_dev_run=true", "tracker=none", "hydra.run.dir=run").code == 0
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != ".lock"]
    before = {path: path.read_bytes() for path in files}
    refused = cvexp("resume", "run", *typed)
    assert refused.code == 2
    for words in said:
        assert words in refused.err
    assert before == {path: path.read_bytes() for path in files}


def test_tensorboard_shows_no_step_twice(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = [*recipe("gradual"), "tracker=tensorboard"]
    assert in_child(tmp_path, *command) == 0  # all of its events are on disk
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace('"completed"', '"failed"'))
    (tmp_path / "run" / "checkpoints" / "last.ckpt").unlink()
    assert in_child(tmp_path, *command) == 0
    assert json.loads(record.read_text())["resumed"][0]["from"] == "previous.ckpt"
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(text) for text in metrics.splitlines()]
    for tag in ("lr", "val/accuracy"):
        steps = [line["step"] for line in lines if tag in line]
        assert [event.step for event in events.Scalars(tag)] == steps


def test_a_full_disk_ends_the_run_and_leaves_its_checkpoint(tmp_path: Path) -> None:
    """Files above a limit cannot be written, as none can once a disk is full."""
    command = [*TOY, "tracker=none", "hydra.run.dir=run", "trainer.max_epochs=3"]
    assert in_child(tmp_path, *command, die=(*BATCH, 21)) == -9
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    before = read_checkpoint(last)
    cut = ["sh", "-c", 'ulimit -f 1000; exec "$@"', "", sys.executable, "-m", "cvexp", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": "/nowhere"}
    done = subprocess.run(cut, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["reason"].startswith("disk full: ")
    assert_same(read_checkpoint(last), before)
    assert in_child(tmp_path, *command, environment={"TMPDIR": "/nowhere"}) == 0


def test_a_disk_without_room_is_said_before_the_start(
    cvexp: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    little = SimpleNamespace(free=10**6)
    monkeypatch.setattr("cvexp.checkpoint.shutil.disk_usage", lambda path: little)
    outcome = cvexp(*TOY, "hydra.run.dir=run")
    assert outcome.code == 2
    assert "checkpoints of this run take up to" in outcome.err
    assert "epoch 1" not in outcome.out


def test_more_epochs_that_are_refused_leave_the_run_complete(
    cvexp: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [*TOY, "tracker=none", "trainer.limit_train_batches=2", "hydra.run.dir=run"]
    assert cvexp(*quick).code == 0
    before = (tmp_path / "run" / "run.json").read_text()
    with monkeypatch.context() as full:
        little = SimpleNamespace(free=10**6)
        full.setattr("cvexp.checkpoint.shutil.disk_usage", lambda path: little)
        assert cvexp("resume", "run", "trainer.max_epochs=2").code == 2
    assert (tmp_path / "run" / "run.json").read_text() == before
    assert "is complete: nothing to do" in cvexp("resume", "run").out
    assert cvexp("resume", "run", "trainer.max_epochs=2").code == 0


def test_a_strangers_directory_runs_no_code(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    """What it typed of Hydra's own, what it trusted, and its config's targets count for nothing."""
    assert cvexp(*TOY, "trainer.fast_dev_run=true", "tracker=none", "hydra.run.dir=run").code == 0
    written = tmp_path / "written"
    call = f"{{_target_:pathlib.Path.touch,self:{{_target_:pathlib.Path,_args_:[{written}]}}}}"
    overrides = tmp_path / "run" / ".hydra" / "overrides.yaml"
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace('"completed"', '"failed"'))
    plain = overrides.read_text()
    (tmp_path / "run" / "evil.yaml").write_text(
        f"# @package _global_\nhydra: {{callbacks: {{x: {call}}}}}"
    )
    for evil in (
        f"+hydra.callbacks.x={call}",
        "trusted_packages=[pathlib]",
        f"hydra.sweeper={call}",
        f"--experimental-rerun={written}",
        f"--config-dir={tmp_path / 'run'}",
        f"hydra/launcher=../../../../../..{tmp_path / 'run'}/evil",
        "optimizer@hydra.callbacks=adamw",
    ):
        overrides.write_text(f"{plain}- '{evil}'\n")
        assert cvexp("resume", "run").code == 0
        record.write_text(record.read_text().replace('"completed"', '"failed"'))
    overrides.write_text(f"{plain}- '+optimizer._target_=os.system'\n")
    assert cvexp("resume", "run").code == 2
    overrides.write_text("- {a: [\n")
    assert cvexp("resume", "run").code == 2
    assert not written.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", '{"status": "completed", "metrics": [1]}'),
        ("run.json", '{"status": 1}'),
        ("run.json", "[]"),
        (".hydra/config.yaml", "- a\n"),
        (".hydra/config.yaml", "a: ${b\n"),
    ],
)
def test_a_file_that_is_none_of_ours_is_one_line(
    name: str, content: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    run = tmp_path / "run" / ".hydra"
    run.mkdir(parents=True)
    (run / "overrides.yaml").write_text("[]")
    (run / "config.yaml").write_text("{}")
    (run.parent / "run.json").write_text('{"status": "failed"}')
    (run.parent / name).write_text(content)
    refused = cvexp("resume", "run")
    assert refused.code == 2
    assert Path(name).name in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "cvexp.log", ".hydra/config.yaml"])
def test_a_strangers_link_is_not_written_through(
    name: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert cvexp(*TOY, "trainer.fast_dev_run=true", "tracker=none", "hydra.run.dir=run").code == 0
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(mine)
    refused = cvexp("resume", "run")
    assert refused.code == 2
    assert f"{name} is a link" in refused.err
    assert mine.read_text() == "mine"


def test_a_checkpoint_of_something_else_is_passed_over(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Also one that holds code: a sha256 that fits says only that it is what was written."""
    quick = [*TOY, "trainer.limit_train_batches=2", "tracker=none", "hydra.run.dir=run"]
    assert in_child(tmp_path, *quick, die=("cvexp.module", "Classifier.on_test_epoch_end", 1)) == -9
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    resume = {"within_step": 0, "validates": True, "should_stop": False, "metrics_bytes": 0}
    parts = {"resume": resume, "progress": {"counts": {"steps": 1}}, "callbacks": {}, "epoch": 0}
    for content in ({"state_dict": {}}, {"run": print}, {**parts, "resume": {}}, parts):
        AtomicCheckpointIO().save_checkpoint(content, last)
        outcome = cvexp("resume", "run")
        assert outcome.code == 0, outcome.err
        assert "last.ckpt: no" in outcome.out
        record = tmp_path / "run" / "run.json"
        record.write_text(record.read_text().replace('"completed"', '"failed"'))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume"], "resume takes a folder"),
        (["resume", "seed=1"], "resume takes a folder"),
        (["resume", "nowhere"], "no run and no sweep to go on with"),
        (["++hydra.run.dir=../x"], "leave .. out"),
    ],
)
def test_a_bad_request_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome]
) -> None:
    refused = cvexp(*arguments)
    assert refused.code == 2
    assert message in refused.err
    assert refused.err.count("\n") == 1
