"""Where conf/ is, what it may name, and whether a composed config keeps the contract with the code.

The contract (a test binds it): conf/<group>/<option>.yaml names
`_target_: cvexp.<group>.<function>` and gives every keyword-only argument of that function, whose
annotations are the types and ranges that are allowed.
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Lt
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import TypedDict

from cvexp.signals import slurm_job

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # of a folder
F = TypeVar("F", bound=Callable[..., Any])
_HERE = Path(__file__).resolve().parent
CONF = next(
    (c for c in (_HERE / "conf", _HERE.parent / "conf") if (c / "config.yaml").is_file()),
    _HERE / "conf",
)
# Keys that do not change what a run computes, so its identity leaves them out.
NO_PART_OF_IDENTITY = (
    "name tags show_config dry_run sweep trusted_packages tracker checkpoint data.root data.path "
    "data.classes data.cache data.cache_dir loader.num_workers loader.num_threads "
    "loader.prefetch_batches loader.timeout_s".split()
)
_TAKES_TIME = "data augmentation loader mix model freeze precision accumulation ema trainer".split()


class _Sweep(TypedDict):
    name: str | None
    pair: list[str]
    exclude: list[str]
    on_error: Literal["continue", "stop"]
    retries: Annotated[int, Ge(0)]


_TOP_LEVEL: dict[str, Any] = {
    "seed": Annotated[int, Ge(0), Lt(2**32)],
    "name": str | None,
    "tags": list[str],
    "show_config": bool,
    "dry_run": bool,
    "sweep": _Sweep,
    "trusted_packages": list[str],
}


class UsageError(ValueError):
    """A request that cannot be done as asked: one line for the user, exit code 2, no traceback."""


def options(directory: Path = CONF) -> dict[str, list[str]]:
    """Return group -> its options, read from a conf folder on disk."""
    return {
        group.name: sorted(file.stem for file in group.glob("*.yaml"))
        for group in sorted(directory.iterdir())
        if group.is_dir() and group.name != "hydra"
    }


def default_options() -> dict[str, str]:
    """Return group -> the option that a run has if nothing is typed."""
    text = (CONF / "config.yaml").read_text("utf-8")
    return dict(re.findall(r"^  - (\w+): ([\w-]+)", text, re.MULTILINE))


def keys() -> list[str]:
    """Return the top-level keys of conf/config.yaml that are no groups."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert isinstance(plain, dict)
    return [str(key) for key in plain if key != "defaults"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean X?' for the closest known word, or nothing."""
    words = list(known)
    same = [other for other in words if other.lower() == word.lower()]
    close = same or difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def register_resolvers() -> None:
    """Make ${stamp:} and ${job_directory:...} known to OmegaConf."""
    OmegaConf.register_new_resolver("stamp", _stamp, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("job_directory", _job_directory, replace=True)


def _stamp() -> str:
    """Return a name that no other launch has: the second it began and 4 random hex digits.

    Under SLURM one that the same command in the same job has again: what is requeued goes on.
    """
    if job := slurm_job():
        step = [
            job,
            *(os.environ[key] for key in ("SLURM_STEP_ID", "SLURM_PROCID") if key in os.environ),
        ]
        digest = hashlib.sha256(chr(0).join([*sys.argv, *step]).encode()).hexdigest()[:4]
        return f"slurm-{job}-{digest}"
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{os.urandom(2).hex()}"


def _job_directory(*, _root_: DictConfig) -> str:
    """Return a job's folder by its overrides as they were typed: a secret stays a reference."""
    return job_directory(str(unresolved(_root_, "hydra.job.override_dirname")))


def job_directory(override_dirname: str) -> str:
    """Return a folder name of letters, digits, '.', '_' and '-' for one job of a sweep.

    Whatever would be lost by the cut or by the replacements is kept apart by a hash.
    """
    plain = override_dirname.replace(",", "_").replace("=", "-")
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("._-") or "job"
    if clean == (plain or "job") and len(clean) <= 100:
        return clean
    digest = hashlib.sha256(override_dirname.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{clean[:90]}-{digest}"


def build(config: DictConfig, group: str, *runtime: Any) -> Any:
    """Call the group's function: runtime objects positionally, the option's values by keyword."""
    function = _function(group, config[group], config.trusted_packages)
    return function(*runtime, **_values(config[group]))


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return the config as plain containers, interpolations resolved. Never save it: secrets."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def identity(config: DictConfig) -> str:
    """Return the sha256 of what defines a result: config less paths, trackers, worker counts."""
    plain = OmegaConf.create(resolved(config))
    for key in NO_PART_OF_IDENTITY:
        parent, _, leaf = key.rpartition(".")
        node = OmegaConf.select(plain, parent) if parent else plain
        if isinstance(node, DictConfig) and leaf in node:
            del node[leaf]
    return hashlib.sha256(OmegaConf.to_yaml(plain, sort_keys=True).encode()).hexdigest()


def kind(config: DictConfig) -> str:
    """Return the sha256 of what decides how long a run takes."""
    plain = {group: value for group, value in resolved(config).items() if group in _TAKES_TIME}
    return hashlib.sha256(OmegaConf.to_yaml(plain, sort_keys=True).encode()).hexdigest()


def unresolved(config: DictConfig, key: str) -> Any:
    """Return a value as it was written: what ${oc.env:...} names stays out of records and logs."""
    node: Any = OmegaConf.to_container(config, resolve=False)
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def check(config: DictConfig, typed: Iterable[str]) -> None:
    """Check everything that can be known of a composed config before data is touched.

    Args:
        typed: the overrides of the command line, the only place that may trust a package.

    Raises:
        UsageError: a key, type, range or _target_ that the contract does not allow.
    """
    known = [*options(), *keys()]
    for key in config:
        if key not in known:
            raise UsageError(f"{key!s}: unknown key; known: {', '.join(known)}")
    check_keys(config)
    if config.trusted_packages and not any(o.startswith("trusted_packages=") for o in typed):
        raise UsageError(
            f"trusted_packages={_plain(config.trusted_packages)} stands in a file; only the "
            "command line may trust a package"
        )
    for group in options():
        if group == "experiment":
            continue
        if not isinstance(config.get(group), DictConfig):
            raise UsageError(f"{group}: the config has no such group; type {group}=OPTION")
        _check_group(group, config)


def check_keys(config: DictConfig) -> None:
    """Check what is no group.

    Raises:
        UsageError: a type or a value that is not allowed.
    """
    for key, annotation in _TOP_LEVEL.items():
        try:
            value = _plain(config[key])
        except OmegaConfBaseException as error:
            raise UsageError(str(error).replace("\n", "; ")) from error
        _typed(config, key, value, annotation)


def _plain(value: Any) -> Any:
    """Return a list or mapping of a config as Python's own, and any other value as it is."""
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _check_group(group: str, config: DictConfig) -> None:
    node = config[group]
    function = _function(group, node, config.trusted_packages)
    _check_extra(group, config, function)
    accepted = keyword_only(function)
    values = _values(node)
    for key in values:
        if key not in accepted:
            hint = did_you_mean(key, accepted)
            raise UsageError(
                f"{group}.{key}: unknown key{hint}; known: {', '.join(accepted) or 'none'}"
            )
    for key, annotation in accepted.items():
        if key not in values:
            raise UsageError(f"{group}.{key}: missing; type {group}.{key}=VALUE")
        _typed(config, f"{group}.{key}", values[key], annotation)


def needs(module: str, *, extra: str) -> Callable[[F], F]:
    """Mark a group's function as one that a package of one of cvexp's extras must back."""

    def mark(function: F) -> F:
        function.needs = (module, extra)  # type: ignore[attr-defined]  # functions take attributes
        return function

    return mark


def _check_extra(group: str, config: DictConfig, function: Callable[..., Any]) -> None:
    """Say what to install before time is spent.

    Raises:
        UsageError: the package behind this option is not installed.
    """
    module, extra = getattr(function, "needs", (None, None))
    if module is None:
        return
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # not even the package around it
        found = None
    if found is None:
        raise UsageError(
            f"{group}={function.__name__.replace('_', '-')} needs {module}, which is not "
            f"installed; type pip install 'cvexp[{extra}]'"
        )


def keyword_only(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a group's function with their annotations."""
    return {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _values(node: DictConfig) -> dict[str, Any]:
    """Return an option's keyword arguments as plain, resolved values."""
    for key in node:
        if key != "_target_" and OmegaConf.is_missing(node, key):
            path = node._get_full_key(key)
            raise UsageError(f"{path} has no value; type {path}=VALUE")
    try:
        plain = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(str(error).replace("\n", "; ")) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items() if key != "_target_"}


def _typed(config: DictConfig, key: str, value: Any, annotation: Any) -> None:
    """Check one value against its annotation; an int serves as a float, nothing else converts."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(annotation).validate_python(value, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([key, *(str(part) for part in first["loc"] if part in _parts(value))])
        reason = first["msg"][:1].lower() + first["msg"][1:]
        written = unresolved(config, key)
        secret = "${" in str(written)
        raise UsageError(
            f"{where}={written if secret else repr(first['input'])}: {reason}"
        ) from None


def _parts(value: Any) -> Iterable[Any]:
    """Return a container's keys or positions, to tell them from pydantic's location names."""
    if isinstance(value, Mapping):
        return [*value, *(part for inner in value.values() for part in _parts(inner))]
    return range(len(value)) if isinstance(value, list) else ()


def _function(group: str, node: DictConfig, trusted_packages: Iterable[str]) -> Callable[..., Any]:
    """Return the function that a _target_ names, if it may be named.

    Only a function that is defined in cvexp.<group> itself is one of ours: a prefix would admit
    cvexp.<group>.os.system. Others come from packages that the user names in trusted_packages.
    """
    target = str(node.get("_target_"))
    module_name, _, name = target.rpartition(".")
    ours = f"cvexp.{group}"
    package = target.partition(".")[0]
    if module_name != ours and package not in trusted_packages:
        raise UsageError(
            f"{group}._target_={target}: not a function of {ours}; "
            f"if you trust it, type trusted_packages=[{package}]"
        )
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{group}._target_={target}: {error}") from error
    home = getattr(function, "__module__", "")
    if module_name == ours and home != ours and not home.startswith(f"{ours}."):
        raise UsageError(f"{group}._target_={target}: not a function of {ours}")
    return function  # type: ignore[no-any-return]  # getattr on a module is Any


def factors(config: DictConfig, overrides: list[str], parser: Any) -> dict[str, Any]:
    """Return what the command line set: group -> option, key -> its typed, composed value."""
    found: dict[str, Any] = {}
    groups = options()
    for override in parser.parse_overrides(overrides):
        key = override.key_or_group
        if key in groups:
            found[key] = override.get_value_element_as_str()
        elif not override.is_delete():
            found[key] = unresolved(config, key)
    return found
