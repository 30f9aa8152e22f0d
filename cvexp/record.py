"""run.json, metrics.jsonl and the log of one run directory (schema 1; add keys, never rename)."""

import errno
import importlib.metadata
import json
import logging
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger

from cvexp.config import UsageError
from cvexp.freeze import count_parameters
from cvexp.module import Classifier
from cvexp.record_file import now, write_record
from cvexp.secret import NO_SECRETS, Secrets
from cvexp.signals import Interrupted
from cvexp.window import Diverged, dtype_name

SCHEMA = 1
_PACKAGES = (
    "cvexp torch torchvision lightning hydra-core omegaconf timm albumentations numpy pillow "
    "opencv-python-headless scikit-learn"
).split()
_UNFINISHED: dict[str, Any] = {
    key: {} for key in ("effective", "data", "metrics", "metrics_best", "cost")
}

_RESULTS = ("ended", "metrics", "metrics_best", "cost")


class Record:
    """The record of one run; every change of it is on disk, whole, before `update` returns.

    Args:
        earlier: what it was, where the run goes on.
        secrets: that no reason may quote.
    """

    def __init__(
        self,
        run_dir: Path,
        factors: Mapping[str, Any],
        earlier: Mapping[str, Any] | None,
        secrets: Secrets,
    ) -> None:
        self.run_dir = run_dir
        self._secrets = secrets
        self.path = run_dir / "run.json"
        before = earlier or {}
        self.fields: dict[str, Any] = {
            "schema": SCHEMA,
            "status": "running",
            "reason": None,
            "started": before.get("started", now()),
            "ended": None,
            "factors": dict(factors),
            **_UNFINISHED,
            "resumed": list(before.get("resumed", [])),
        }
        if before.get("status") == "completed":  # what more epochs are to take the place of
            self.fields["extends"] = {key: before.get(key) for key in _RESULTS}
        elif "extends" in before:
            self.fields["extends"] = before["extends"]

    def update(self, **fields: Any) -> None:
        """Change fields and write the record."""
        self.fields.update(fields)
        write_record(self.run_dir, self.fields)

    def end(self, status: str, reason: str | None = None) -> None:
        """Write how the run ended."""
        said = None if reason is None else self._secrets.hide(reason)
        self.update(status=status, reason=said, ended=now())


@contextmanager
def open_record(
    run_dir: Path,
    factors: Mapping[str, Any],
    earlier: Mapping[str, Any] | None = None,
    secrets: Secrets = NO_SECRETS,
) -> Iterator[Record]:
    """Keep a run's record while the body runs, and write how that ended.

    Args:
        earlier: the record that the directory holds, where the run goes on.
        secrets: that neither the record nor the log may quote.
    """
    record = Record(run_dir, factors, earlier, secrets)
    record.update(environment=environment())
    try:
        with _log_file(run_dir / "cvexp.log", secrets):
            yield record
    except UsageError as error:
        record.end("failed", str(error))
        if earlier and earlier["status"] == "completed":  # more epochs were asked for, and refused
            write_record(run_dir, earlier)
        raise
    except Diverged as error:
        record.update(diverged=error.where)
        record.end("diverged", reason(error))
        raise
    except Interrupted as stop:
        record.end("interrupted", str(stop))
        raise
    except Exception as error:
        record.end("failed", reason(error))
        raise
    except BaseException:
        record.end("interrupted")
        raise


def reason(error: Exception) -> str:
    """Return why a run failed, with what people search for first."""
    if isinstance(error, Diverged):
        return str(error)
    host = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    if host or isinstance(error, torch.OutOfMemoryError | MemoryError):
        return f"out of memory: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"disk full: {error}"
    return f"{type(error).__name__}: {error}"


class _Hiding(logging.Formatter):
    """Lines of the log, tracebacks included, without secrets."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as text."""
        return self._secrets.hide(super().format(record))


@contextmanager
def _log_file(path: Path, secrets: Secrets) -> Iterator[None]:
    """Log to a file of the run directory, tracebacks included, once the directory is this run's."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_Hiding(secrets))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    except Exception:
        error = logging.LogRecord(
            "cvexp", logging.ERROR, "", 0, "the run failed", None, sys.exc_info()
        )
        handler.handle(error)
        raise
    finally:
        root.removeHandler(handler)
        handler.close()


class MetricsLog(Logger):
    """metrics.jsonl: one line a logged step or epoch, append-only, written through at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    @property
    def name(self) -> str:
        """Return what Lightning calls this logger."""
        return "metrics"

    @property
    def version(self) -> str:
        """Return nothing: there is one per run."""
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Keep none: the config is in .hydra."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one line: the optimizer step, the epoch (from 1), the metrics."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}, allow_nan=False) + "\n")


def effective(trainer: Trainer, module: Classifier) -> dict[str, Any]:
    """Return what really ran, read from the objects that ran it and not from the config."""
    trainable, total = count_parameters(module.network)
    rates = module.counts.learning_rates
    return {
        "precision": _precision(trainer, module),
        "parameter_dtype": dtype_name(next(module.network.parameters())),
        "compute_dtype": module.counts.compute_dtype,
        "device": _device_name(module.device),
        "devices": trainer.num_devices,
        "strategy": type(trainer.strategy).__name__,
        "batch_size": module.order.batch_size,
        "effective_batch_size": module.counts.largest_step_images,
        "optimizer_steps": module.counts.steps,
        "channels_last": module.channels_last,
        "compiled": module.network._compiled_call_impl is not None,
        "images_seen": module.counts.images_seen,
        "images_not_seen_per_epoch": module.order.not_seen,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "trainable_fraction": trainable / total,
        "frozen_modules": module.plan.frozen,
        "began_to_train_at_step": module.counts.began_at,
        "lr_first": rates[0] if rates else None,
        "lr_peak": max(rates, default=None),
        "lr_last": rates[-1] if rates else None,
        "stopped_early": trainer.global_step < module.horizon.total_steps,
        "skipped_steps": trainer.global_step - module.counts.steps,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _precision(trainer: Trainer, module: Classifier) -> str:
    """Return the precision by its option's name, from the plug-in and torch's own switch."""
    plugin = str(trainer.precision_plugin.precision)
    on_cuda, matmul = module.device.type == "cuda", torch.get_float32_matmul_precision()
    return "tf32" if plugin == "32-true" and on_cuda and matmul == "high" else plugin


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def environment() -> dict[str, Any]:
    """Return versions, hardware, threads and the code's commit."""
    commit = _git("rev-parse", "HEAD")
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": {
            "host": socket.gethostname(),
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "threads": torch.get_num_threads(),
        "git_commit": commit,
        "git_dirty": bool(_git("status", "--porcelain")) if commit else None,
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _cpu() -> str:
    """Return the CPU's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        logging.getLogger(__name__).debug("no /proc/cpuinfo")
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Return what git says of cvexp's own checkout, or None where there is none."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
