"""Which files a source has, in which split, of which class: before anything is opened."""

import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cvexp.config import UsageError
from cvexp.data.decode import check_readable
from cvexp.data.labels import SPLITS, read_classes, show

EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .apng .bmp .dib .gif .webp .tif .tiff .ppm .pgm .pbm .pnm .jp2 "
    ".avif .ico .tga".split()
)
_SPLITS = {
    **{name: "train" for name in ("train", "training")},
    **{name: "val" for name in ("val", "valid", "validation", "dev")},
    **{name: "test" for name in ("test", "testing")},
}


class Sample(NamedTuple):
    """One file: its path, its class by name, its split, or None where that is to be drawn."""

    path: Path
    name: str
    split: str | None


@dataclass
class Listing:
    """A source's samples in a fixed order, and what was passed over, by reason."""

    samples: list[Sample] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)  # class folders without an image


def list_folder(root: str) -> Listing:
    """List root/<class>/**, or root/{train,val,test}/<class>/**; a class is the top-level folder.

    Raises:
        UsageError: no such folder, or none of its sub-folders holds an image.
    """
    top = Path(root)
    check_readable(top, "data.root")
    if not top.is_dir():
        raise UsageError(f"data.root={root}: not a folder")
    listing = Listing()
    parts: dict[str, Path] = {}
    others: list[Path] = []
    for entry in sorted(top.iterdir()):
        split = _SPLITS.get(entry.name.lower()) if entry.is_dir() else None
        if split in parts:
            raise UsageError(
                f"data.root={root}: {parts[split].name} and {entry.name} are both the {split} split"
            )
        if split:
            parts[split] = entry
        elif _hidden(entry.name):
            listing.ignored["hidden"] += 1
        else:
            others.append(entry)
    if parts and ("train" not in parts or any(entry.is_dir() for entry in others)):
        raise UsageError(
            f"data.root={root} has {', '.join(p.name for p in parts.values())} beside "
            f"{', '.join(show(p.name) for p in others if p.is_dir()) or 'no train'}: either its "
            "folders are classes, none named like a split, or they are train, val and test"
        )
    for split in SPLITS:
        if split in parts:
            _list_classes(parts[split], split, listing)
    if parts:
        listing.ignored["not in a class folder"] += len(others)
    else:
        listing.ignored.clear()
        _list_classes(top, None, listing)
    listing.ignored = +listing.ignored
    if not listing.samples:
        raise UsageError(
            f"data.root={root}: no images; each class is a folder of them, as in {root}/cat/1.jpg "
            f"or {root}/train/cat/1.jpg"
        )
    return listing


def _list_classes(folder: Path, split: str | None, listing: Listing) -> None:
    for entry in sorted(folder.iterdir()):
        if _hidden(entry.name):
            listing.ignored["hidden"] += 1
        elif not entry.is_dir():
            listing.ignored["not in a class folder"] += 1
        else:
            before = len(listing.samples)
            for path in _walk(entry, listing.ignored, set()):
                listing.samples.append(Sample(path, entry.name, split))
            if len(listing.samples) == before:
                listing.empty.append(str(entry.relative_to(folder.parent if split else folder)))


def _walk(folder: Path, ignored: Counter[str], above: set[str]) -> Iterator[Path]:
    """Yield the images below a folder in code-point order; a link back up is passed over."""
    real = os.path.realpath(folder)
    if real in above:
        ignored["link to a folder above"] += 1
        return
    for entry in sorted(folder.iterdir()):
        if _hidden(entry.name):
            ignored["hidden"] += 1
        elif entry.is_dir():
            yield from _walk(entry, ignored, above | {real})
        elif not entry.is_file():
            ignored["not a regular file"] += 1
        elif entry.suffix.lower() in EXTENSIONS:
            yield entry
        else:
            ignored[f"extension {ascii(entry.suffix)[1:-1] or '(none)'}"] += 1


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def list_table(
    path: str,
    path_column: str,
    label_column: str,
    split_column: str | None,
    classes_file: str | None,
) -> Listing:
    """List the rows of a CSV, TSV or Parquet file; image paths are relative to it.

    Raises:
        UsageError: everything that is wrong with the table, with line numbers, at once.
    """
    table = Path(path)
    check_readable(table, "data.path")
    columns = [path_column, label_column, *([split_column] if split_column else [])]
    try:
        rows = list(_read_table(table, columns))
    except (OSError, csv.Error, ValueError) as error:  # pyarrow's own errors are ValueErrors
        if isinstance(error, UsageError):
            raise
        reason = next(iter(str(error).splitlines()), "")
        raise UsageError(f"data.path={path}: cannot be read as a table ({reason})") from error
    known = set(read_classes(classes_file)) if classes_file else None
    source = f"data.classes={classes_file}" if classes_file else "the rows of train"
    if known is None and split_column:
        known = {row[label_column] for _, row in rows if _split(row[split_column]) == "train"}
    problems: list[str] = []
    seen: dict[str, tuple[int, Sample]] = {}
    listing = Listing()
    for line, row in rows:
        file = table.parent / row[path_column]
        label = row[label_column]
        split = _split(row[split_column]) if split_column else None
        sample = Sample(file, label, split)
        real = os.path.realpath(file)
        if not row[path_column] or not _is_file(file):
            problems.append(f"line {line}: no file {row[path_column][:200]!r}")
        elif not label:
            problems.append(f"line {line}: no label")
        elif split_column and split is None:
            given = row[split_column]
            problems.append(f"line {line}: {split_column} {given!r} is none of train, val, test")
        elif known is not None and label not in known:
            problems.append(f"line {line}: label {label!r} is not in {source}")
        elif real in seen and (seen[real][1].name, seen[real][1].split) != (label, split):
            before, other = seen[real]
            problems.append(
                f"line {line}: {row[path_column]!r} is {label!r} ({split or 'no split'}) here and "
                f"{other.name!r} ({other.split or 'no split'}) in line {before}"
            )
        elif real in seen:
            listing.ignored["the same row again"] += 1
        else:
            seen[real] = (line, sample)
            listing.samples.append(sample)
    if problems:
        shown = problems[:50] + [f"and {len(problems) - 50} more"] * (len(problems) > 50)
        raise UsageError(f"data.path={path}: {len(problems)} faults\n  " + "\n  ".join(shown))
    if not listing.samples:
        raise UsageError(f"data.path={path}: the table has no rows")
    return listing


def _split(text: str) -> str | None:
    return _SPLITS.get(text.strip().lower())


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _read_table(table: Path, columns: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of text; a value is never taken for a number: label 007 stays 007."""
    ending = table.suffix.lower()
    if ending == ".parquet":
        content = _read_parquet(table)
        _check_columns(table, columns, content.column_names)
        values = {column: content.column(column).to_pylist() for column in columns}
        for i in range(content.num_rows):
            yield i + 1, {c: "" if values[c][i] is None else str(values[c][i]) for c in columns}
        return
    delimiter = {".csv": ",", ".tsv": "\t"}.get(ending)
    if delimiter is None:
        raise UsageError(f"data.path={table}: not a .csv, .tsv or .parquet file")
    with table.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        _check_columns(table, columns, reader.fieldnames or [])
        line = reader.line_num + 1
        for row in reader:
            yield line, {column: row[column] or "" for column in columns}
            line = reader.line_num + 1  # a quoted cell may span lines: a row is where it begins


def _check_columns(table: Path, columns: list[str], found: Any) -> None:
    doubled = [column for column in columns if list(found).count(column) > 1]
    if doubled:
        raise UsageError(f"data.path={table}: the column {', '.join(doubled)} stands there twice")
    missing = [column for column in columns if column not in found]
    if missing:
        raise UsageError(
            f"data.path={table}: no column {', '.join(missing)}; it has {', '.join(found)}; type "
            "data.path_column=, data.label_column= or data.split_column="
        )


def _read_parquet(table: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"data.path={table}: reading Parquet needs pyarrow; pip install 'cvexp[parquet]'"
        ) from error
    return parquet.read_table(table)
