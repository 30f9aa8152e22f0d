"""One run, stage by stage: from a composed config to a record."""

import gc
import json
import math
import os
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from cvexp import features, record, signals
from cvexp.atomic import write_atomically
from cvexp.checkpoint import AtomicCheckpointIO, Found, LastAndBest, newest, read_checkpoint
from cvexp.config import UsageError, build, check, factors, identity, kind, options, unresolved
from cvexp.console import config_tree, counts_table, quieten_lightning, run_table, show, stage, warn
from cvexp.freeze import Caching
from cvexp.loader import Loaders
from cvexp.loop import shorten
from cvexp.meter import Meter
from cvexp.module import Classifier
from cvexp.prepare import Prepared, prepare
from cvexp.progress import Bar
from cvexp.record_file import lock, now, read_record
from cvexp.resume import extension
from cvexp.secret import Secrets
from cvexp.tracker import show_factors


def main(config: DictConfig, began: float) -> None:
    """Run one job in the directory that Hydra made for it, and keep its record, however it ends.

    Args:
        config: as composed.
        began: time.perf_counter() when the job began.
    """
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    quieten_lightning()
    gc.collect()  # a job before this one in the process must not count in this one's peak memory
    torch.cuda.empty_cache()
    typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    if config.dry_run:
        _dry(config, typed, run_dir)
        return
    set_by_hand = factors(config, typed, OverridesParser.create())
    _refuse_links(run_dir)
    with signals.handled(), lock(run_dir):
        earlier = read_record(run_dir)
        going_on = _Resumed() if earlier is None else _resumed(run_dir, config, typed, earlier)
        if earlier is not None and going_on.completed:
            stage("resume", f"{os.path.relpath(run_dir)} is complete: nothing to do")
            show(run_table(earlier))
            return
        if earlier is None:  # or a run that is cut here would have a record and no config
            _keep_config(run_dir / ".hydra", config, hydra, typed)
        try:
            with record.open_record(run_dir, set_by_hand, earlier, Secrets(config)) as run:
                try:
                    _execute(config, typed, run, began, going_on)
                except SystemExit as stop:
                    if isinstance(stop.__context__, KeyboardInterrupt):  # as Lightning ends it
                        raise KeyboardInterrupt from stop
                    raise RuntimeError(f"it exited with code {stop.code}") from stop
        except signals.Interrupted:
            stage("interrupted", f"python -m cvexp resume {os.path.relpath(run_dir)} goes on")
            raise


def _refuse_links(run_dir: Path) -> None:
    """Write through no link that whoever made a directory left in it.

    Raises:
        UsageError: there is one.
    """
    inside = [*run_dir.iterdir(), *run_dir.glob("checkpoints/*"), *run_dir.glob(".hydra/*")]
    if links := [path for path in inside if path.is_symlink()]:
        raise UsageError(f"{links[0]} is a link, through which a run would write; remove it")


def _dry(config: DictConfig, typed: list[str], run_dir: Path) -> None:
    """Prepare a run, and leave nothing of it."""
    if not any(run_dir.iterdir()):
        run_dir.rmdir()
    check(config, typed)
    prepare(config).loaders.close()
    stage("dry run", f"it can run; its identity is {identity(config)[:12]}")


class _Resumed(NamedTuple):
    """What a run goes on from.

    Args:
        goes_on: in a directory that holds its beginning, even without a checkpoint.
        epochs: that it was to have before and is to have now, where these are more.
        data_sha256: of what it saw so far.
    """

    goes_on: bool = False
    epochs: tuple[int, int] | None = None
    completed: bool = False
    data_sha256: str | None = None


def _resumed(
    run_dir: Path, config: DictConfig, typed: list[str], earlier: dict[str, Any]
) -> _Resumed:
    """Find out what is left to do of the run that a directory holds.

    Raises:
        UsageError: it is another run, or one that this config cannot go on with.
    """
    check(config, typed)
    epochs = extension(run_dir, config)
    if earlier["status"] == "completed" and epochs is None:
        return _Resumed(completed=True)
    return _Resumed(True, epochs, data_sha256=(earlier.get("data") or {}).get("sha256"))


def _go_on(run: record.Record, going_on: _Resumed, checkpoints: LastAndBest) -> Found | None:
    """Find the checkpoint to go on from, and cut off what the run wrote after it."""
    run_dir = run.run_dir
    found = newest(run_dir / "checkpoints")
    for left in (*run_dir.glob(".*.tmp"), *run_dir.glob("checkpoints/.*.tmp")):
        left.unlink()  # of a write that was cut
    steps = found.checkpoint["progress"]["counts"]["steps"] if found else 0
    metrics = run_dir / "metrics.jsonl"
    if metrics.exists():
        kept = int(found.checkpoint["resume"]["metrics_bytes"]) if found else 0
        os.truncate(metrics, min(max(kept, 0), metrics.stat().st_size))
    where = f"optimizer step {steps} ({found.name})" if found else "the start: no checkpoint"
    stage("resume", f"from {where}")
    if found:
        checkpoints.take_up(found, extended=going_on.epochs is not None)
    if found and going_on.epochs is not None:
        found.checkpoint["resume"]["should_stop"] = False
        old, new = going_on.epochs
        stage("", f"{old} epochs become {new}: from here on the schedule is that of {new}")
    entry: dict[str, Any] = {
        "at": now(),
        "optimizer_steps": steps,
        "from": found and found.name,
    }
    if going_on.epochs is not None:
        entry["max_epochs_before"] = going_on.epochs[0]
    run.update(resumed=[*run.fields["resumed"], entry])
    return found


def _keep_config(folder: Path, config: DictConfig, hydra: Any, typed: list[str]) -> None:
    """Write what Hydra writes, unresolved, now that the directory is known to be this run's."""
    folder.mkdir(exist_ok=True)
    _save(config, folder / "config.yaml")
    _save(OmegaConf.create(typed), folder / "overrides.yaml")
    plain = OmegaConf.create({"hydra": hydra})
    with read_write(plain.hydra), open_dict(plain.hydra):
        del plain.hydra.runtime  # absolute paths, which a run that moves would belie
    _save(plain, folder / "hydra.yaml")


def _save(node: Any, path: Path) -> None:
    write_atomically(path, OmegaConf.to_yaml(node).encode("utf-8", "surrogateescape"))


def _execute(
    config: DictConfig, typed: list[str], run: record.Record, began: float, going_on: _Resumed
) -> None:
    """Tell the story: prepare, trainer, fit, test, record."""
    check(config, typed)
    labels = {key: unresolved(config, key) for key in ("name", "tags")}
    chosen = dict(HydraConfig.get().runtime.choices)
    choices = {group: chosen[group] for group in options() if group in chosen}
    run.update(**labels, choices=choices, identity=identity(config), kind=kind(config))
    if config.show_config:
        plain: Any = OmegaConf.to_container(config)  # unresolved: a secret stays a reference
        show(config_tree(plain, list(run.fields["factors"])))
    ready = prepare(config)
    arguments, module, loaders, run_dir = ready.arguments, ready.module, ready.loaders, run.run_dir
    if going_on.data_sha256 not in (None, ready.data.sha256):
        raise UsageError(
            f"the images or labels of {ready.data.source} have changed since the run in "
            f"{os.path.relpath(run_dir)} began; choose another folder"
        )
    run.update(data=ready.data.record())
    _report(run_dir, ready)
    checkpoints: LastAndBest = build(config, "checkpoint", run_dir)
    if arguments["fast_dev_run"]:
        checkpoints.directory = None
    checkpoints.check_space(module)
    found = None
    if going_on.goes_on:  # from here on nothing is refused any more
        _keep_config(run_dir / ".hydra", config, HydraConfig.get(), typed)
        found = _go_on(run, going_on, checkpoints)
    meter = Meter(began)
    steps = run.fields["resumed"][-1]["optimizer_steps"] if going_on.goes_on else None
    trackers = build(config, "tracker", run_dir, steps)
    loggers = [record.MetricsLog(run_dir / "metrics.jsonl"), *trackers]
    debugging = build(config, "debug", run_dir)
    callbacks = [meter, Bar(), checkpoints, *ready.early_stopping, *debugging]
    trainer = make_trainer(ready, run_dir, loggers, callbacks, found)
    with closing(loaders), signals.patient():
        cached = None
        if ready.plan.caching is not None:
            loaders, cached = _cached(trainer, ready, ready.plan.caching)
        _fit(trainer, module, loaders, found)
        run.update(effective={**record.effective(trainer, module), "cached_features": cached})
        run.update(**_test(trainer, module, loaders, checkpoints), cost=meter.cost(ready.device))
    show_factors(
        trackers, {**run.fields["choices"], **run.fields["factors"]}, run.fields["metrics"]
    )
    run.end("completed")
    show(run_table(run.fields))
    stage("run", os.path.relpath(run_dir))


def make_trainer(
    ready: Prepared,
    run_dir: Path,
    loggers: list[Logger],
    callbacks: list[Callback],
    found: Found | None = None,
) -> Trainer:
    """Return Lightning's Trainer; whatever decides about training is in `ready`.

    Args:
        found: what the fit goes on from.
    """
    trainer = Trainer(
        **ready.arguments,
        precision=ready.precision.trainer,
        accumulate_grad_batches=ready.accumulation.at(0),
        logger=loggers,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO(found)],
        default_root_dir=run_dir,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    shorten(trainer)
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]  # cvexp.signals does
    # deterministic=true would also fill all new memory, for a tenth of a step's time on a CPU.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return trainer


def _fit(trainer: Trainer, module: Classifier, loaders: Loaders, found: Found | None) -> None:
    """Train, and hold the run to its plan: a loader must not skip batches unnoticed."""
    trainer.fit(module, loaders.train, loaders.val, ckpt_path=found and found.name)
    planned, attempted = module.horizon.total_steps, trainer.global_step
    if attempted != planned and not trainer.should_stop:
        raise RuntimeError(f"{attempted} optimizer steps were made of the {planned} planned")
    if attempted < planned:
        stage("", f"stopped early, after {attempted} of at most {planned} optimizer steps")


def _cached(trainer: Trainer, ready: Prepared, caching: Caching) -> tuple[Loaders, dict[str, Any]]:
    """Swap images for the features that the frozen trunk gives them; return what that came to."""
    plugin, module = trainer.precision_plugin, ready.module
    plugin.convert_module(module.to(ready.device))
    loaders, report = features.cache(ready.loaders, module, caching, plugin.forward_context())
    stage("features", f"{loaders.description}, computed in {report['seconds']:.1f} s")
    return loaders, report


def _report(run_dir: Path, ready: Prepared) -> None:
    """Write data.json, and say of the data what a person should know before epoch 0."""
    data, order = ready.data, ready.loaders.train.order
    batches = len(order)
    last = order.images_in(batches - 1, batches)
    loader = {
        "batches_per_epoch": batches,
        "steps_per_epoch": math.ceil(batches / ready.accumulation.at(0)),
        "images_in_last_batch": last,
        "images_not_seen_per_epoch": order.not_seen,
    }
    report = {**data.report, "loader": loader}
    text = json.dumps(report, indent=2, ensure_ascii=False)
    write_atomically(run_dir / "data.json", text.encode("utf-8", "backslashreplace"))
    if batches == 1 and last < order.batch_size:
        warn(
            f"the {order.length} training images are less than one loader.batch_size="
            f"{order.batch_size}; try loader.batch_size={max(order.length // 4, 1)}"
        )
    show(counts_table(data.report["counts"]))
    if ignored := data.report.get("ignored"):
        stage("", "passed over: " + ", ".join(f"{n} {why}" for why, n in ignored.items()))


def _test(
    trainer: Trainer, module: Classifier, loaders: Loaders, checkpoints: LastAndBest
) -> dict[str, dict[str, Any]]:
    """Test the last epoch's weights, and those of the epoch that validation chose, apart."""
    tests = len(loaders.test) > 0
    module.tested_epoch = math.ceil(module.horizon.epochs(trainer.global_step))
    if module.evaluated_at.get("val") != module.counts.steps and trainer.limit_val_batches:
        trainer.validate(module, loaders.val, verbose=False)  # the last weights were not validated
    if tests:
        trainer.test(module, loaders.test, verbose=False)
    metrics, best = dict(module.results), dict(checkpoints.best)
    recall = {
        split: dict(zip(module.classes, values, strict=True))
        for split, values in module.recall.items()
    }
    if tests and checkpoints.best_path and best["step"] != module.counts.steps:
        module.load_weights(read_checkpoint(checkpoints.best_path))
        module.tested_epoch = int(best["epoch"])
        trainer.test(module, loaders.test, verbose=False)
    if best:
        best |= {key: module.results[key] for key in module.results if key.startswith("test/")}
    return {"metrics": metrics, "metrics_best": best, "recall_per_class": recall}
