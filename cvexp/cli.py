"""The command line: its own help, requests checked before composing, all else a Hydra run."""

import importlib
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cvexp import config
from cvexp.explain import explain
from cvexp.resume import command
from cvexp.signals import Interrupted, requeue

if TYPE_CHECKING:
    from omegaconf import DictConfig

VERBS = {
    "preview": "what a run would see, as one page: images, learning rates, what trains",
    "lr-find": "the learning-rate range test: a curve, and what two rules read off it",
    "models": "networks by name, their parameters, weights on disk",
    "doctor": "how fast this machine multiplies in each precision, and which pay",
    "status": "the runs below a folder: how far, how good, when last heard of",
    "report": "what the runs below folders showed, and how sure that is: tables, figures, a page",
    "export": "a run's weights as one file, low-rank updates merged",
    "resume": "go on where a run or a sweep was cut; trainer.max_epochs=N for more epochs",
}
USAGE = f"""\
cvexp fine-tunes image classifiers, and compares what you change.

usage: python -m cvexp [GROUP=OPTION ...] [KEY=VALUE ...]      one run
       python -m cvexp -m GROUP=OPTION,OPTION seed=0,1,2       a sweep: every combination
       python -m cvexp preview [GROUP=OPTION ...]              {VERBS["preview"]}
       python -m cvexp lr-find [GROUP=OPTION ...]              {VERBS["lr-find"]}
       python -m cvexp models "*resnet*18*"                    {VERBS["models"]}
       python -m cvexp doctor                                  {VERBS["doctor"]}
       python -m cvexp status [DIR]                            {VERBS["status"]}
       python -m cvexp report DIR                              {VERBS["report"]}
       python -m cvexp resume RUN                              {VERBS["resume"]}
       python -m cvexp export RUN [--checkpoint last|best]     {VERBS["export"]}

examples:
  python -m cvexp precision=bf16-mixed
  python -m cvexp -m freeze=last,most,full seed=0,1,2
  python -m cvexp trainer.fast_dev_run=true
"""
HINTS = """\
show what a command would run:  python -m cvexp model=resnet18 --cfg job
keys of an option:              python -m cvexp optimizer=sgd --cfg job --package optimizer
your own options:               python -m cvexp --config-dir FOLDER precision=mine
Hydra's flags:                  python -m cvexp --hydra-help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Returns:
        0 done; 1 a fault of ours, or a sweep in which a job failed; 2 a request that cannot be done
        as asked; 130 interrupted by Ctrl-C, 143 by SIGTERM or SIGUSR1.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if {"--help", "-h"} & set(arguments) and arguments[0] != "report":
            print(help_text(_config_dir(arguments) if len(arguments) > 1 else None))
            return 0
        verb = arguments.pop(0) if arguments and arguments[0] in VERBS else "run"
        if verb in ("models", "doctor", "status", "report", "export"):  # these take no config
            importlib.import_module(f"cvexp.{verb}").main(arguments)
            return 0
        _check_folders(arguments)
        if verb == "resume":
            flags, given = _flags(arguments)
            verb, arguments = "run", [*flags, *command(given.overrides)]
        return _hydra(verb, arguments)
    except config.UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Interrupted) as stop:
        print("interrupted", file=sys.stderr)
        if not isinstance(stop, Interrupted):
            return 130
        requeue(stop)  # here, since no job of a sweep comes here
        return stop.code


def help_text(config_dir: Path | None = None) -> str:
    """Return the usage with every group and its options, as found on disk, defaults marked."""
    default = config.default_options()
    lines = ["groups (* is the default):"]
    for group, options in _options(config_dir).items():
        marked = [f"{option}*" if option == default.get(group) else option for option in options]
        lines.append(f"  {group:<13} {'  '.join(marked)}")
    return "\n".join([USAGE, *lines, "", HINTS])


def _hydra(verb: str, arguments: list[str]) -> int:
    """Hand the command line to Hydra, with cvexp.<verb> as what each job does.

    Hydra's errors and ours become one line.
    """
    import hydra
    from hydra.core.plugins import Plugins
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from cvexp.sweep import outcomes
    from hydra_plugins.cvexp import Grid, Isolated, Optuna

    config.register_resolvers()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra prints errors in its own words and exits 1
    flags, given = _flags(arguments)
    config_dir = None if given.config_dir is None else Path(given.config_dir)
    overrides = list(given.overrides)
    if given.multirun and verb != "run":
        raise config.UsageError(f"{verb} takes one configuration; leave -m out")
    if not given.shell_completion:
        overrides = [re.sub("^sweep=", "sweep.name=", text) for text in overrides]
        parsed = _parse(overrides)
        _check_names(parsed, config_dir)
        several = [o.input_line for o in parsed if o.is_sweep_override()]
        if several and not given.multirun:
            raise config.UsageError(f"{several[0]}: several values; type -m to sweep over them")
        overrides = [_open(text) for text in overrides] + _short_names(parsed) + _folder(parsed)

    def job(composed: "DictConfig") -> None:
        _job(verb, composed)

    sys.argv[1:] = flags + overrides
    outcomes.clear()
    for plugin in (Isolated, Grid, Optuna):  # Hydra's own scan does not see an editable install
        Plugins.instance().register(plugin)
    try:
        app = hydra.main(version_base="1.3", config_path=str(config.CONF), config_name="config")
        app(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise config.UsageError(explain(error, overrides, config_dir)) from error
    except OSError as error:  # a job never raises: this is Hydra, making the run directory
        raise config.UsageError(
            f"the run directory {error.filename} cannot be written ({error.strerror}); "
            "type hydra.run.dir=FOLDER, or hydra.sweep.dir=FOLDER for a sweep"
        ) from error
    codes = [outcome.code for outcome in outcomes]
    swept = given.multirun or len(codes) > 1
    return min(max(codes, default=0), 1 if swept else 2)


def _check_folders(arguments: list[str]) -> None:
    """Refuse a folder of a run or a sweep that would lie outside of its root."""
    for text in arguments:
        key, _, value = text.lstrip("+").partition("=")
        if key in ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"):
            if ".." in Path(value.strip("'\"")).parts:
                raise config.UsageError(f"{text}: a run stays below its root; leave .. out")
        if key in ("sweep", "sweep.name") and not re.match(config.NAME, value):
            raise config.UsageError(
                f"{text}: a name below multirun/, of letters, digits, '.', '_' and '-'"
            )


def _folder(parsed: list[Any]) -> list[str]:
    """Return where a sweep with a name lies."""
    named = [o.get_value_element_as_str() for o in parsed if o.key_or_group == "sweep.name"]
    if not named or any(o.key_or_group == "hydra.sweep.dir" for o in parsed):
        return []
    return [f"hydra.sweep.dir=multirun/{named[-1]}"]


def run_job(composed: "DictConfig") -> None:
    """Run one job of a sweep, in whatever process."""
    _job("run", composed)


def _flags(arguments: list[str]) -> tuple[list[str], Any]:
    """Return Hydra's flags in their order, and everything as Hydra's own parser reads it."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise config.UsageError(f"{message}; python -m cvexp --hydra-help lists the flags")

    parser.error = refuse  # type: ignore[method-assign]  # argparse would print its whole usage
    given = parser.parse_intermixed_args(arguments)
    flags = list(arguments)
    for override in given.overrides:  # a flag's value never equals an override, which has a =
        flags.remove(override)
    return flags, given


def _job(verb: str, composed: "DictConfig") -> None:
    """Run one job, never raising: Hydra would add words, and a sweep goes on after a failure."""
    began = time.perf_counter()  # before what follows is imported, so that a first job counts it

    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from cvexp.console import log, stage
    from cvexp.secret import Secrets
    from cvexp.sweep import Outcome, outcomes

    hydra = HydraConfig.get()
    directory = Path(hydra.runtime.output_dir)
    if hydra.mode == RunMode.MULTIRUN:
        composing: Any = HydraConfig.instance().cfg
        named = config.unresolved(composing, "hydra.job.override_dirname")
        stage("job", f"{hydra.job.num + 1}: {named}")
    try:
        importlib.import_module(f"cvexp.{verb.replace('-', '_')}").main(composed, began)
        outcomes.append(Outcome(directory, "completed", None, 0))
    except config.UsageError as error:
        said = Secrets(composed).hide(str(error))
        log.error("error: %s", said)
        outcomes.append(Outcome(directory, "failed", said, 2))
    except Exception as error:
        from cvexp.record import reason

        said = Secrets(composed).hide(reason(error))
        log.error("%s", said)
        if hydra.mode != RunMode.MULTIRUN:
            traceback.print_exc()
        status = "diverged" if type(error).__name__ == "Diverged" else "failed"
        outcomes.append(Outcome(directory, status, said, 1))


def _parse(overrides: list[str]) -> list[Any]:
    """Parse overrides one by one, so that the one at fault can be named."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise config.UsageError(
                f"{text}: not KEY=VALUE as Hydra reads it ({reason}); quote special characters: "
                "'KEY=\"VALUE\"'"
            ) from error
    return parsed


def _config_dir(arguments: list[str]) -> Path | None:
    """Return the folder that --config-dir names."""
    given = _flags([argument for argument in arguments if argument not in ("--help", "-h")])[1]
    return None if given.config_dir is None else Path(given.config_dir)


def _options(config_dir: Path | None) -> dict[str, list[str]]:
    """Return every group's options: ours, and those of the user's own folder."""
    found = config.options()
    if config_dir is not None:
        if not config_dir.is_dir():
            raise config.UsageError(f"--config-dir={config_dir}: no such folder")
        for group, options in config.options(config_dir).items():
            found[group] = sorted({*found.get(group, []), *options})
    return found


def _check_names(parsed: list[Any], config_dir: Path | None) -> None:
    """Check each override's group or first key, and each option's name, before composing."""
    groups, keys = _options(config_dir), config.keys()
    own = "" if config_dir else "; for options of your own type --config-dir FOLDER"
    for override in parsed:
        name = override.key_or_group
        first = re.split(r"[./]", name)[0]
        if first == "hydra":
            continue
        if first not in groups and first not in keys:
            hint = config.did_you_mean(first, [*groups, *keys])
            raise config.UsageError(
                f"{override.input_line}: no group or key {first}{hint}; "
                f"groups: {', '.join(groups)}; keys: {', '.join(keys)}"
            )
        if name in groups and not override.is_delete():
            for option in _choices(override):
                if option not in groups[name]:
                    hint = config.did_you_mean(option, groups[name])
                    raise config.UsageError(
                        f"{name}={option}: no such option{hint}; {name} takes: "
                        f"{', '.join(groups[name])}{own}"
                    )


def _open(override: str) -> str:
    """Let the one mapping whose keys are not ours take new ones: the structure is closed."""
    return f"++{override}" if override.startswith("optimizer.arguments=") else override


def _short_names(parsed: list[Any]) -> list[str]:
    """Leave out of a job's folder name what is the same in every job of its sweep."""
    key = "hydra.job.config.override_dirname.exclude_keys"
    swept = {o.key_or_group for o in parsed if o.is_sweep_override()}
    same = [o.key_or_group for o in parsed if o.key_or_group not in swept]
    if key in same or not (swept or "experiment" in same):
        return []
    return [f"{key}=[{','.join(same)}]"]


def _choices(override: Any) -> list[str]:
    """Return the option or, in a sweep, the options that an override names."""
    from hydra.core.override_parser.types import Glob

    if isinstance(override.value(), Glob):  # Hydra expands it over the options that there are
        return []
    if override.is_sweep_override():
        return list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    return [override.get_value_element_as_str()]
