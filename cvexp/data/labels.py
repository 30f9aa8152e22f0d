"""One label space for all splits: names in code-point order, whatever the library or the locale."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cvexp.config import UsageError

SPLITS = ("train", "val", "test")


def label_space(
    found: Mapping[str, Iterable[str]],
    classes_file: str | None,
    order: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return the class names: those of train, of a file, or in the source's own order.

    Args:
        found: split -> the class names of its samples.
        order: the source's own names, all of them, where it has an order.
        classes_file: one name a line, or a JSON list of names, in the order that is wanted.

    Raises:
        UsageError: a class that train lacks, fewer than two classes, a name that cannot be shown.
    """
    present = {split: set(names) for split, names in found.items()}
    if order is not None:
        classes = tuple(order)
    elif classes_file is None:
        classes = tuple(sorted(present["train"]))
    else:
        classes = read_classes(classes_file)
    for name in classes:
        if not name.isprintable() or not _is_unicode(name):
            raise UsageError(f"the class name {name!a} has characters that no page can show")
    for split, names in present.items():
        unknown = sorted(names - (present["train"] if order is not None else set(classes)))
        if unknown:
            where = f"data.classes={classes_file}" if classes_file else "train"
            raise UsageError(
                f"{split} has classes that {where} lacks: {', '.join(map(repr, unknown))}; "
                "move or rename them, or name every class in data.classes=FILE"
            )
    if min(len(classes), len(present["train"])) < 2:
        raise UsageError(
            f"a classifier needs two classes and train has {len(present['train'])} "
            f"({', '.join(map(repr, present['train']))}); each class is one folder, or one label"
        )
    return classes


def read_classes(path: str) -> tuple[str, ...]:
    """Read class names from a JSON list, or from a text file with one a line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        names = json.loads(text) if path.endswith(".json") else text.strip().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"data.classes={path}: cannot be read ({error})") from error
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"data.classes={path}: not a list of class names, one a line")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"data.classes={path}: named twice: {', '.join(doubled)}")
    return tuple(names)


def _is_unicode(name: str) -> bool:
    """Return whether a name was decoded from bytes that are UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def show(name: str) -> str:
    """Return a file's or a class's name with what a terminal cannot show escaped."""
    text = name.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
