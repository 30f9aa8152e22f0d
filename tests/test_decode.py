"""The decoding rule of cvexp.data, clause by clause."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from cvexp.data.decode import decode, to_size


def saved(image: Image.Image, path: Path, **options: object) -> np.ndarray:
    image.save(path, **options)
    return np.asarray(decode(path, 10**6, 3))


def test_16_bit_grey_is_scaled(tmp_path: Path) -> None:
    """Pillow's own conversion turns it almost white (traps.md 6)."""
    values = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    found = saved(Image.fromarray(values), tmp_path / "x.png")
    assert found[0].tolist() == [[v] * 3 for v in (0, 1, 128, 255)]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    found = saved(Image.fromarray(pixels), tmp_path / "x.png", exif=exif)
    assert found.shape == (3, 2, 3)
    assert found[0, 1].tolist() == [255] * 3


def test_16_bit_transparency_is_white_too(tmp_path: Path) -> None:
    values = Image.fromarray(np.array([[1000, 2000]], np.uint16))
    assert saved(values, tmp_path / "x.png", transparency=1000)[0].tolist() == [[255] * 3, [8] * 3]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_over_white(mode: str, tmp_path: Path) -> None:
    """What colour lies under a transparent pixel must not matter (traps.md 6)."""
    image = Image.new("RGBA", (1, 1), (200, 0, 0, 0))
    options = {}
    if mode == "P":
        image = Image.new("P", (1, 1), 0)
        image.putpalette([200, 0, 0])
        options = {"transparency": 0}
    found = saved(image if mode == "P" else image.convert(mode), tmp_path / "x.png", **options)
    assert found[0, 0].tolist() == [255] * 3


def test_palette_cmyk_and_bits_become_rgb(tmp_path: Path) -> None:
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([10, 20, 30])
    assert saved(palette, tmp_path / "p.png")[0, 0].tolist() == [10, 20, 30]
    assert saved(Image.new("1", (1, 1), 1), tmp_path / "b.png")[0, 0].tolist() == [255] * 3
    cyan = saved(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), tmp_path / "c.tif")
    assert cyan[0, 0].tolist() == [0, 255, 255]
    assert saved(Image.new("L", (1, 1), 7), tmp_path / "l.png")[0, 0].tolist() == [7] * 3


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    found = saved(frames[0], tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert found[0, 0].tolist() == [255, 0, 0]


def test_floating_point_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(ValueError, match="floating-point"):
        decode(tmp_path / "x.tif", 100, 3)


def test_grey_is_itu_601(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (255, 0, 0)).save(tmp_path / "x.png")
    assert np.asarray(decode(tmp_path / "x.png", 100, 1)).tolist() == [[76]]


@pytest.mark.parametrize("shape", [(40, 40), (64, 31), (31, 64), (100, 7), (9, 200), (1, 50)])
def test_placing_is_pillows_own(shape: tuple[int, int], photo: np.ndarray) -> None:
    """Other decoders are told in numbers what Pillow's fit and pad do."""
    image = Image.fromarray(photo).resize(shape)
    cubic = Image.Resampling.BICUBIC
    expected = {
        "crop": ImageOps.fit(image, (32, 32), cubic),
        "squash": image.resize((32, 32), cubic),
        "pad": ImageOps.pad(image, (32, 32), cubic, color=0),
    }
    for resize, other in expected.items():
        assert np.array_equal(to_size(image, 32, resize), np.asarray(other)), resize


def test_resizing_is_a_choice() -> None:
    """Left third red, middle green, right blue: what is left of them tells the three apart."""
    wide = Image.new("RGB", (30, 10))
    for i, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
        wide.paste(colour, (10 * i, 0, 10 * i + 10, 10))
    crop, squash, pad = (to_size(wide, 10, kind) for kind in ("crop", "squash", "pad"))
    assert np.all(crop == [0, 255, 0])
    assert squash[5, 0, 0] > 200
    assert squash[5, 9, 2] > 200
    assert np.all(pad[0] == 0)
    assert pad[5, 0, 0] > 200
    assert all(image.shape == (10, 10, 3) for image in (crop, squash, pad))
