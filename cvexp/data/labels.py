"""One label space for all splits: names in code-point order, whatever the library or the locale."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from cvexp.config import UsageError

SPLITS = ("train", "val", "test")


def label_space(found: Mapping[str, Iterable[str]], classes_file: str | None) -> tuple[str, ...]:
    """Return the class names: those of train, or of a file.

    Args:
        found: split -> the class names of its samples.
        classes_file: one name a line, or a JSON list of names, in the order that is wanted.

    Raises:
        UsageError: a class that train lacks, fewer than two classes, a name that cannot be shown.
    """
    present = {split: set(names) for split, names in found.items()}
    if classes_file is None:
        classes = tuple(sorted(present["train"]))
    else:
        classes = read_classes(classes_file)
    for name in classes:
        if not name.isprintable() or not _is_unicode(name):
            raise UsageError(f"the class name {name!a} has characters that no page can show")
    for split, names in present.items():
        unknown = sorted(names - set(classes))
        if unknown:
            where = f"data.classes={classes_file}" if classes_file else "train"
            raise UsageError(
                f"{split} has classes that {where} lacks: {', '.join(map(repr, unknown))}; "
                "move or rename them, or name every class in data.classes=FILE"
            )
    if len(classes) < 2:
        raise UsageError(
            f"a classifier needs two classes and train has {len(classes)}"
            f"{f' ({classes[0]!r})' if classes else ''}; each class is one folder, or one label"
        )
    return classes


def read_classes(path: str) -> tuple[str, ...]:
    """Read class names from a JSON list, or from a text file with one a line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        names = json.loads(text) if path.endswith(".json") else text.splitlines()
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
