"""The arguments of a verb that takes no config."""

from argparse import ArgumentParser
from typing import NoReturn

from cvexp.config import UsageError


class Arguments(ArgumentParser):
    """A parser whose complaint is one line, as every bad request's.

    Args:
        usage: the verb and what it takes.
    """

    def __init__(self, usage: str) -> None:
        super().__init__(usage=usage, add_help=False)

    def error(self, message: str) -> NoReturn:
        """Refuse a request.

        Raises:
            UsageError: always.
        """
        verb = str(self.usage).partition(" ")[0]
        raise UsageError(f"{verb}: {message}; usage: python -m cvexp {self.usage}")
