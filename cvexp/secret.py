"""What ${oc.env:...} stands for in a config, kept out of whatever a run says in words."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

SHORTEST = 6  # characters: what is shorter is no secret, and would be found in any text


class Secrets:
    """Values, each with the reference to show in its place.

    Args:
        config: unresolved, as composed.
    """

    def __init__(self, config: DictConfig | None = None) -> None:
        self._references: dict[str, str] = {}
        written = {} if config is None else OmegaConf.to_container(config, resolve=False)
        for reference in set(_references(written)):
            with suppress(OmegaConfBaseException):  # what is not set is no secret
                node = OmegaConf.create({"value": reference})
                value = str(node.value)
                if len(value) >= SHORTEST:
                    self._references[value] = reference

    def hide(self, text: str) -> str:
        """Return a text with references in place of values."""
        for value in sorted(self._references, key=len, reverse=True):
            text = text.replace(value, self._references[value])
        return text


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _references(key)
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)
    elif isinstance(node, str):
        yield from re.findall(r"\$\{oc\.env:[^${}]*\}", node)


NO_SECRETS = Secrets()
