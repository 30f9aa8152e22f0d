"""What Hydra and OmegaConf complain of, as one line that a person can act on."""

import re
from pathlib import Path

from cvexp import config


def explain(error: Exception, overrides: list[str], config_dir: Path | None) -> str:
    """Return Hydra's or OmegaConf's error as one line; an unknown key comes with the known ones."""
    cause = error.__cause__ or error
    unknown = re.search(r"Could not (?:override|append|delete).*?'([^']+)'", str(error))
    if unknown:
        key = unknown[1].lstrip("+~")
        parent, _, leaf = key.rpartition(".")
        known = _known_keys(parent, [text for text in overrides if key not in text], config_dir)
        if known is not None and leaf in known:
            return f"{key}: not every option of {parent} that is swept over has the key {leaf}"
        if known is not None:
            return (
                f"{key}: {parent} has no key {leaf}{_elsewhere(key, leaf, known)}; "
                f"known: {', '.join(known) or 'none'}"
            )
    lines = [line.strip() for line in f"{error}\n{cause}".splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))


def _elsewhere(key: str, leaf: str, known: list[str]) -> str:
    """Return what to type instead of a key that is not there."""
    if key.startswith("trainer."):
        from cvexp.trainer import ELSEWHERE

        if leaf in ELSEWHERE:
            return f"; {ELSEWHERE[leaf]}"
    return config.did_you_mean(leaf, known)


def _known_keys(parent: str, overrides: list[str], config_dir: Path | None) -> list[str] | None:
    """Return a config node's keys, composed without the override at fault; None without a node."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    GlobalHydra.instance().clear()
    plain = [text for text in overrides if not text.startswith("hydra") and "," not in text]
    if config_dir is not None:
        plain.append(f"hydra.searchpath=[file://{config_dir.resolve()}]")
    with initialize_config_dir(str(config.CONF), version_base="1.3"):
        node = OmegaConf.select(compose("config", plain), parent) if parent else None
    if not isinstance(node, DictConfig):
        return None
    return [str(key) for key in node if key != "_target_"]
