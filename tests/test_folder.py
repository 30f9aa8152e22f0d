"""Your own images: what happens to each file and each label, before epoch 0."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cvexp.config import UsageError
from cvexp.data import Data, folder, table, torchvision
from cvexp.data import inspect as inspection
from tests.conftest import ROOT, TOY, Outcome
from tests.test_loader import make

READING: dict[str, Any] = {
    "classes": None,
    "size": 16,
    "resize": "crop",
    "channels": 3,
    "val_fraction": 0.2,
    "test_fraction": 0.2,
    "split_seed": 0,
    "on_error": "raise",
    "max_pixels": 10_000,
    "class_weights": "none",
    "sampler": "uniform",
    "cache": "disk",
}
TABLE = {"path_column": "path", "label_column": "label", "split_column": None}


def picture(seed: int, size: tuple[int, int] = (20, 24)) -> Image.Image:
    """Return noise that no two seeds share."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def album(root: Path, classes: dict[str, int], start: int = 0) -> Path:
    """Write so many PNG files a class below root."""
    for offset, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(start + 1000 * offset + i).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Data]:
    """Read a folder with its cache beside it."""

    def call(root: Path, **changes: object) -> Data:
        settings = {**READING, "cache_dir": str(tmp_path / "cache"), **changes}
        return folder(root=str(root), **settings)

    return call


def test_a_plain_folder_is_split_by_class(read: Callable[..., Data], tmp_path: Path) -> None:
    data = read(album(tmp_path / "a", {"cat": 20, "dog": 10}))
    assert [len(split) for split in data.splits.values()] == [18, 6, 6]
    assert data.report["counts"]["test"] == {"cat": 4, "dog": 2}
    again = read(tmp_path / "a")
    assert again.sha256 == data.sha256
    assert read(tmp_path / "a", split_seed=1).sha256 != data.sha256


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_given_splits_are_kept(val: str, read: Callable[..., Data], tmp_path: Path) -> None:
    root = tmp_path / "a"
    album(root / "train", {"cat": 6, "dog": 6})
    album(root / val, {"cat": 2, "dog": 3}, start=50)
    data = read(root)
    assert [len(split) for split in data.splits.values()] == [12, 5, 0]
    album(root / "test", {"dog": 4}, start=80)
    data = read(root)
    assert [len(split) for split in data.splits.values()] == [12, 5, 4]
    assert data.test.names[0] == "test/dog/0.png"


def test_train_and_test_alone_take_validation_from_train(
    read: Callable[..., Data], tmp_path: Path
) -> None:
    root = tmp_path / "a"
    album(root / "train", {"cat": 10, "dog": 10})
    album(root / "test", {"cat": 2, "dog": 2}, start=50)
    assert [len(split) for split in read(root).splits.values()] == [16, 4, 4]


def test_label_order_is_code_points(read: Callable[..., Data], tmp_path: Path) -> None:
    """Torchvision and timm sort 1, 2, 10 differently (traps.md 4)."""
    names = {"10": 5, "2": 5, "1": 5, "Zebra": 5, "ape": 5, "äpe": 5}
    assert read(album(tmp_path / "a", names)).classes == ("1", "10", "2", "Zebra", "ape", "äpe")


def test_val_and_test_are_mapped_by_name(read: Callable[..., Data], tmp_path: Path) -> None:
    """A class that val lacks shifts no label; one that only val has is an error that names it."""
    root = tmp_path / "a"
    album(root / "train", {"ant": 4, "bee": 4, "cat": 4})
    album(root / "val", {"cat": 2}, start=50)
    data = read(root)
    assert set(data.val.labels) == {2}
    album(root / "val", {"dog": 1}, start=60)
    with pytest.raises(UsageError, match=r"val has classes that train lacks: 'dog'"):
        read(root)


def test_a_file_of_classes_sets_the_order(read: Callable[..., Data], tmp_path: Path) -> None:
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    (tmp_path / "order.txt").write_text("dog\ncat\nemu\n")
    (tmp_path / "order.json").write_text('["dog", "cat", "emu"]')
    for file in ("order.txt", "order.json"):
        assert read(root, classes=str(tmp_path / file)).classes == ("dog", "cat", "emu")
    (tmp_path / "short.txt").write_text("dog\nemu\n")
    with pytest.raises(UsageError, match=r"train has classes that data\.classes=.* lacks: 'cat'"):
        read(root, classes=str(tmp_path / "short.txt"))


def test_nesting_hidden_files_and_strange_ones(read: Callable[..., Data], tmp_path: Path) -> None:
    """A notebook's .ipynb_checkpoints is no class (traps.md 7); cat/left and dog/left are two."""
    root = album(tmp_path / "a", {"cat": 5, "cat/left": 5, "dog/left/far": 10, "empty": 0})
    for name in (".ipynb_checkpoints/x.png", "cat/.hidden.png", "cat/notes.txt", "stray.png"):
        (root / name).parent.mkdir(exist_ok=True)
        picture(77).save(root / name, format="PNG")
    (root / "dog" / "up").symlink_to(root / "dog", target_is_directory=True)
    data = read(root)
    assert data.classes == ("cat", "dog")
    assert sum(len(split) for split in data.splits.values()) == 20
    assert data.report["ignored"] == {
        "hidden": 2,
        "extension .txt": 1,
        "not in a class folder": 1,
        "link to a folder above": 1,
    }
    assert data.report["empty_classes"] == ["empty"]


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "huge"])
def test_a_bad_file_is_named_or_dropped_and_never_touched(
    damage: str, read: Callable[..., Data], tmp_path: Path
) -> None:
    root = album(tmp_path / "a", {"cat": 8, "dog": 8})
    bad = root / "cat" / "bad.jpg"
    picture(5, (64, 64)).save(bad)
    if damage == "truncated":
        bad.write_bytes(bad.read_bytes()[:-400])  # Image.verify() passes it (traps.md 5)
    elif damage == "huge":
        picture(5, (200, 200)).save(bad)
    else:
        bad.write_bytes(b"no image" if damage == "text" else b"")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}
    with pytest.raises(
        UsageError, match=r"cat/bad\.jpg \(split none yet, class cat\): ."
    ) as raised:
        read(root)
    assert ("data.max_pixels=10000" in str(raised.value)) == (damage == "huge")
    assert "data.on_error=skip" in str(raised.value)
    data, again = (read(root, on_error="skip") for _ in range(2))
    assert [d["path"] for d in data.dropped] == ["cat/bad.jpg"]
    assert data.sha256 == again.sha256
    assert all("bad" not in name for split in data.splits.values() for name in split.names)
    assert sum(len(split) for split in data.splits.values()) == 16
    after = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ({"cat": 9}, "needs two classes and train has 1 .*cat"),
        ({"cat": 9, "dog": 1}, "cannot be drawn: one image is left in dog"),
        ({}, "no images; each class is a folder"),
        (dict.fromkeys("abcdef", 4), r"data\.test_fraction leaves a class without an image"),
    ],
)
def test_small_data_says_what_is_lacking(
    classes: dict[str, int], said: str, read: Callable[..., Data], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(UsageError, match=said):
        read(album(tmp_path / "a", classes))


def test_duplicates_across_splits_are_found(
    read: Callable[..., Data], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a"
    album(root / "train", {"cat": 3, "dog": 3})
    album(root / "val", {"cat": 2, "dog": 2}, start=0)  # the same seeds: the same content
    (root / "train" / "cat" / "copy.png").write_bytes((root / "val/dog/0.png").read_bytes())
    pairs = read(root).report["duplicates_across_splits"]
    assert ["train:train/cat/0.png", "val:val/cat/0.png"] in pairs
    assert any("train:train/cat/copy.png" in pair and "val:val/dog/0.png" in pair for pair in pairs)


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["Train", "VAL", "testing"], None),
        (["training", "valid"], None),
        (["val", "test"], "has test, val beside no train"),
        (["train", "val", "validation"], "val and validation are both the val split"),
        (["car", "bus", "train"], "has train beside bus, car: either its folders are classes"),
    ],
)
def test_folders_that_are_splits_are_not_taken_for_classes(
    folders: list[str], said: str | None, read: Callable[..., Data], tmp_path: Path
) -> None:
    for i, name in enumerate(folders):
        album(tmp_path / "a" / name, {"cat": 5, "dog": 5}, start=100 * i)
    if said:
        with pytest.raises(UsageError, match=said):
            read(tmp_path / "a")
    else:
        assert read(tmp_path / "a").classes == ("cat", "dog")


def test_what_is_no_regular_file_is_passed_over(read: Callable[..., Data], tmp_path: Path) -> None:
    """Opening a pipe would wait for ever."""
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    os.mkfifo(root / "cat" / "pipe.jpg")
    assert read(root).report["ignored"] == {"not a regular file": 1}


def test_one_image_in_two_classes_is_found(read: Callable[..., Data], tmp_path: Path) -> None:
    root = album(tmp_path / "a", {"cat": 8, "dog": 8})
    (root / "dog" / "copy.png").write_bytes((root / "cat" / "3.png").read_bytes())
    groups = read(root).report["duplicates_across_classes"]
    assert groups == [["cat:cat/3.png", "dog:dog/copy.png"]]


# --- the cache


@pytest.mark.parametrize("cache", ["disk", "memory", "none"])
def test_every_cache_gives_the_same_pixels(
    cache: str, read: Callable[..., Data], tmp_path: Path
) -> None:
    root = album(tmp_path / "a", {"cat": 6, "dog": 6})
    plain, cached = read(root, cache="none"), read(root, cache=cache)
    for split in ("train", "val", "test"):
        left, right = plain.splits[split], cached.splits[split]
        assert all(np.array_equal(left.read(i), right.read(i)) for i in range(len(left)))


def test_a_second_run_decodes_nothing(
    read: Callable[..., Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = album(tmp_path / "a", {"cat": 6, "dog": 6})
    first = read(root)
    with monkeypatch.context() as broken:
        broken.setattr(inspection, "look_at", None)
        second = read(root)
        assert np.array_equal(first.train.read(3), second.train.read(3))
    picture(99).save(root / "cat" / "0.png")  # changed: it is opened again
    changed = read(root)
    assert changed.sha256 != first.sha256
    moved = tmp_path / "b"
    root.rename(moved)  # the same content elsewhere: opened, but its pixels are there already
    assert read(moved).sha256 == changed.sha256


def test_a_passing_fault_is_not_remembered_of_a_file(
    read: Callable[..., Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files once must not drop a good image for good."""
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    with monkeypatch.context() as broken:

        def fail(*args: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        broken.setattr(inspection.Image, "open", fail)
        with pytest.raises(UsageError, match="Too many open files; try again"):
            read(root, on_error="skip")
    assert read(root, on_error="skip").dropped == []


@pytest.mark.parametrize("which", ["findings", "pixels"])
@pytest.mark.parametrize("damage", [b"", b"[[", b"\xff\xfe\x00", None])
def test_a_damaged_cache_is_made_again(
    which: str, damage: bytes | None, read: Callable[..., Data], tmp_path: Path
) -> None:
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    first = [image.copy() for image in map(read(root).train.read, range(6))]
    (kept,) = (tmp_path / "cache" / which).iterdir()
    content = kept.read_bytes()
    kept.unlink()  # its pages are still mapped
    kept.write_bytes(content[: len(content) // 2] if damage is None else damage)
    again = read(root)
    assert all(np.array_equal(first[i], again.train.read(i)) for i in range(6))


def test_memory_is_shared_by_the_jobs_of_a_process(
    read: Callable[..., Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    read(root, cache="memory")
    monkeypatch.setattr(inspection, "look_at", None)
    assert len(read(root, cache="memory").train) == 6


def test_a_file_that_changes_during_the_run_is_named(
    read: Callable[..., Data], tmp_path: Path
) -> None:
    data = read(album(tmp_path / "a", {"cat": 5, "dog": 5}), cache="none")
    (tmp_path / "a" / data.train.names[0]).write_bytes(b"gone")
    with pytest.raises(RuntimeError, match=data.train.names[0] + " changed during the run"):
        data.train.read(0)


def test_two_processes_may_fill_the_cache_at_once(tmp_path: Path) -> None:
    root = album(tmp_path / "a", {"cat": 40, "dog": 40})
    settings = {**READING, "root": str(root), "cache_dir": str(tmp_path / "cache")}
    code = (
        "import json, sys; from cvexp.data import folder; d = folder(**json.loads(sys.argv[1]));"
        "print(int(sum(d.train.read(i).sum() for i in range(len(d.train)))))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(settings)], cwd=ROOT, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    sums = {process.communicate()[0].splitlines()[-1] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(sums) == 1
    assert not list((tmp_path / "cache").glob(".*"))
    assert len(list((tmp_path / "cache" / "pixels").iterdir())) == 1


def test_a_cache_that_cannot_be_written_names_its_key(
    read: Callable[..., Data], tmp_path: Path
) -> None:
    root = album(tmp_path / "a", {"cat": 6, "dog": 6})
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"data\.cache_dir=.*type data\.cache_dir=FOLDER"):
        read(root, cache_dir=str(tmp_path / "file" / "x"))


# --- tables


def test_a_table_reads_text_as_text(tmp_path: Path) -> None:
    """Label 007 is not 7, in CSV, TSV and Parquet alike; paths are relative to the table."""
    import pyarrow
    from pyarrow import parquet

    album(tmp_path / "images", {"x": 12})
    rows = [
        (f"images/x/{i}.png", "007" if i % 2 else "7", "train val test".split()[i % 3])
        for i in range(12)
    ]
    for ending, mark in (("csv", ","), ("tsv", "\t")):
        lines = [mark.join(("path", "label", "part")), *(mark.join(row) for row in rows)]
        (tmp_path / f"t.{ending}").write_text("\n".join(lines))
    columns = dict(zip(("path", "label", "part"), map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = []
    for ending in ("csv", "tsv", "parquet"):
        settings = {**READING, **TABLE, "split_column": "part", "cache_dir": str(tmp_path / "c")}
        found.append(table(path=str(tmp_path / f"t.{ending}"), **settings))
    assert found[0].classes == ("007", "7")
    assert len({data.sha256 for data in found}) == 1
    assert [len(split) for split in found[0].splits.values()] == [4, 4, 4]


def test_everything_wrong_with_a_table_is_said_at_once(tmp_path: Path) -> None:
    album(tmp_path / "i", {"x": 4})
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    (tmp_path / "t.csv").write_text(
        "path,label,split\n"
        "i/x/0.png,cat,train\n"
        "i/x/9.png,cat,train\n"
        "i/x/1.png,emu,train\n"
        "i/x/0.png,dog,train\n"
        "i/x/2.png,dog,holdout\n"
        "i/x/3.png,,train\n"
        "i/x/0.png,cat,train\n"
    )
    settings = {**READING, **TABLE, "split_column": "split", "classes": str(tmp_path / "names.txt")}
    with pytest.raises(UsageError) as raised:
        table(path=str(tmp_path / "t.csv"), cache_dir=str(tmp_path / "c"), **settings)
    text = str(raised.value)
    assert "5 faults" in text
    for said in (
        "line 3: no file 'i/x/9.png'",
        "line 4: label 'emu' is not in data.classes=",
        "line 5: 'i/x/0.png' is 'dog' (train) here and 'cat' (train) in line 2",
        "line 6: split 'holdout' is none of train, val, test",
        "line 7: no label",
    ):
        assert said in text


def test_labels_that_train_lacks_are_said_with_their_lines(tmp_path: Path) -> None:
    album(tmp_path / "i", {"x": 3})
    rows = ['i/x/0.png,"c\nat",train', "i/x/1.png,dog,train", "i/x/2.png,zebra,val"]
    (tmp_path / "t.CSV").write_text("\ufeffpath,label,part\n" + "\n".join(rows))
    settings = {**READING, **TABLE, "split_column": "part"}
    with pytest.raises(UsageError, match="line 5: label 'zebra' is not in the rows of train"):
        table(path=str(tmp_path / "t.CSV"), cache_dir="c", **settings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("path,label,label\n", "the column label stands there twice"),
        ("path,label\n" + "x" * 300 + ",a\n", "line 2: no file 'xxx"),
        ("path,label\n" + "x" * 140_000 + ",a\n", "cannot be read as a table"),
        ("file,label\n", r"no column path; it has file, label; type data\.path_column="),
        ("path,label\n", "the table has no rows"),
    ],
)
def test_a_table_without_its_columns_or_rows(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UsageError, match=said):
        table(path=str(tmp_path / "t.csv"), cache_dir="c", **READING, **TABLE)


# --- torchvision's sets


def torchvision_set(name: str, root: Path, **changes: object) -> Data:
    settings = {k: v for k, v in READING.items() if k != "classes"}
    cache = {"cache_dir": str(root / "cache")}
    return torchvision(**{**settings, **cache, **changes, "name": name, "root": str(root)})


def test_a_torchvision_set_without_splits_is_split(tmp_path: Path) -> None:
    """It lies on disk as torchvision lays it out, so nothing is downloaded; read like a folder."""
    album(tmp_path / "eurosat" / "2750", {"Forest": 10, "River": 10})
    data = torchvision_set("EuroSAT", tmp_path)
    assert data.classes == ("Forest", "River")
    assert [len(split) for split in data.splits.values()] == [12, 4, 4]
    (tmp_path / "eurosat" / "2750" / "River" / "bad.png").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"River/bad\.png \(split none yet, class River\)"):
        torchvision_set("EuroSAT", tmp_path)
    assert len(torchvision_set("EuroSAT", tmp_path, on_error="skip").dropped) == 1


def test_a_torchvision_set_brings_its_own_splits(tmp_path: Path) -> None:
    names = ["n01440764", "n02102040"]  # two of Imagenette's ten
    album(tmp_path / "imagenette2" / "train", dict.fromkeys(names, 6))
    album(tmp_path / "imagenette2" / "val", dict.fromkeys(names, 3), start=50)
    for path in (tmp_path / "imagenette2").rglob("*.png"):
        path.rename(path.with_suffix(".JPEG"))  # the only ending that it looks for
    data = torchvision_set("Imagenette", tmp_path)
    assert [len(split) for split in data.splits.values()] == [12, 6, 0]
    assert set(data.train.labels) == {0, 1}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("EuroSat", r"data\.name=EuroSat: .*did you mean EuroSAT"),
        ("MNIST", r"data\.name=MNIST: neither in data\.root="),
        ("UCF101", r"data\.name=UCF101 cannot be opened with a train split alone"),
        ("CocoDetection", r"data\.name=CocoDetection"),
    ],
)
def test_a_torchvision_set_that_cannot_be_had(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        torchvision_set(name, tmp_path)


# --- through the command line


def of_all_modes(root: Path, count: int) -> Path:
    """Write some hundred JPEG, PNG, GIF, TIFF and WebP files of every mode, in two classes."""
    rng = np.random.default_rng(0)
    for i in range(count):
        name, image = ("cat", "dog")[i % 2], picture(i, (20 + i % 7, 30))
        place = root / name / f"{i}"
        place.parent.mkdir(parents=True, exist_ok=True)
        kind = i // 2 % 10
        if kind == 0:
            exif = Image.Exif()
            exif[0x0112] = 6
            image.save(f"{place}.jpg", exif=exif)
        elif kind == 1:
            image.convert("CMYK").save(f"{place}.jpg")
        elif kind == 2:
            Image.fromarray(rng.integers(0, 65536, (30, 20), dtype=np.uint16)).save(f"{place}.png")
        elif kind == 3:
            image.convert("P").save(f"{place}.png", transparency=3)
        elif kind == 4:
            image.putalpha(100)
            image.save(f"{place}.png")
        elif kind == 5:
            image.convert("LA").save(f"{place}.png")
        elif kind == 6:
            image.save(f"{place}.gif", save_all=True, append_images=[picture(i + 1)])
        elif kind == 7:
            image.convert("1").save(f"{place}.tif")
        elif kind == 8:
            image.convert("L").save(f"{place}.jpeg")
        else:
            image.save(f"{place}.webp")
    return root


@pytest.mark.parametrize("loader", ["albumentations", "device"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_run_on_files_of_all_modes(
    loader: str, channels: int, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    root = of_all_modes(tmp_path / "my images, = 'odd'", 200)
    outcome = cvexp(
        *TOY,
        "data=folder",
        f'data.root="{root}"',
        f"data.channels={channels}",
        f"loader={loader}",
        "data.cache_dir=cache",
        "data.class_weights=balanced",
        "data.sampler=balanced",
    )
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)
    assert found["data"]["splits"] == {"train": 140, "val": 20, "test": 40}
    assert found["data"]["transform"].startswith("decode rule 1")
    assert set(found["recall_per_class"]["test"]) == {"cat", "dog"}
    assert {"val/balanced_accuracy", "test/macro_f1"} <= set(found["metrics"])
    (report,) = tmp_path.glob("multirun/*/data.json")
    text = json.loads(report.read_text())
    assert text["loader"] == {
        "batches_per_epoch": 3,
        "steps_per_epoch": 3,
        "images_in_last_batch": 12,
        "images_not_seen_per_epoch": None,  # a balanced sampler draws with replacement
    }
    assert len(text["modes"]) >= 6
    assert "140" in outcome.out


def test_odd_names_survive(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    """Spaces, commas, equals signs, quotes, brackets and unicode, in classes and in files."""
    classes = ["a b, c=d", 'it\'s "so"', "[red]ü", "日本", "x'\\y"]
    root = album(tmp_path / "a", dict.fromkeys(classes, 12))
    picture(9).save(root / "日本" / "new\nline.png")
    os.rename(root / "日本" / "0.png", os.fsencode(root / "日本") + b"/\xff\xfe.png")
    outcome = cvexp(*TOY, "data=folder", "data.root=a", "data.cache_dir=c")
    assert outcome.code == 0, outcome.err
    found = outcome.record(tmp_path)
    assert found["data"]["classes"] == sorted(classes)
    assert set(found["recall_per_class"]["val"]) == set(classes)
    (path,) = tmp_path.glob("multirun/*/checkpoints/last.ckpt")
    assert torch.load(path, weights_only=True)["classes"] == sorted(classes)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"two\nlines"])
def test_a_class_name_that_no_page_can_show_is_refused(
    name: bytes, read: Callable[..., Data], tmp_path: Path
) -> None:
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    os.rename(root / "dog", os.fsencode(root) + b"/" + name)
    with pytest.raises(UsageError, match=r"the class name .* no page can show"):
        read(root)


def test_a_class_without_validation_images_is_not_applicable(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    album(tmp_path / "a" / "train", {"cat": 8, "dog": 8})
    album(tmp_path / "a" / "val", {"cat": 4}, start=90)
    outcome = cvexp(*TOY, "data=folder", "data.root=a", "data.cache_dir=c", "loader.batch_size=8")
    assert outcome.code == 0, outcome.err
    assert "val has no image of dog: their recall there is n/a" in outcome.out
    assert "there is no test split" in outcome.out
    found = outcome.record(tmp_path)
    assert found["recall_per_class"]["val"]["dog"] is None
    assert found["recall_per_class"]["val"]["cat"] is not None
    assert not any(key.startswith("test/") for key in found["metrics"])


def test_skipped_files_stand_in_the_record(cvexp: Callable[..., Outcome], tmp_path: Path) -> None:
    root = album(tmp_path / "a", {"cat": 8, "dog": 8})
    (root / "dog" / "bad.jpg").write_bytes(b"no")
    quick = [*TOY, "data=folder", "data.root=a", "data.cache_dir=c", "trainer.fast_dev_run=true"]
    refused = cvexp(*quick)
    assert refused.code == 2
    assert "dog/bad.jpg (split none yet, class dog)" in refused.err
    outcome = cvexp(*quick, "data.on_error=skip", "hydra.run.dir=multirun/x")
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "multirun" / "x" / "run.json").read_text())
    assert [d["path"] for d in record["data"]["dropped"]] == ["dog/bad.jpg"]


def test_engines_read_a_folder_alike(read: Callable[..., Data], tmp_path: Path) -> None:
    from cvexp.augmentation import none

    data = read(of_all_modes(tmp_path / "a", 60), max_pixels=10**6, sampler="balanced")
    batches = [
        torch.cat([b.images for b in make(e, data, none()).train]) for e in ("0", "2", "device")
    ]
    assert all(torch.equal(batches[0], other) for other in batches[1:])


def test_the_content_hash_is_of_the_file(read: Callable[..., Data], tmp_path: Path) -> None:
    root = album(tmp_path / "a", {"cat": 5, "dog": 5})
    findings, _ = inspection.inspect(
        [root / "cat" / "0.png"], read(root).train.form, "none", tmp_path / "c"
    )
    assert findings[0].sha256 == hashlib.sha256((root / "cat" / "0.png").read_bytes()).hexdigest()
