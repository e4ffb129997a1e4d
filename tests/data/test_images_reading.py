"""Folders and zip files of pictures: all kinds that there are, and what is refused and why."""

import io
import struct
import sys
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arcsm.data import read_images
from arcsm.data.images import decode, pictures, reading
from arcsm.errors import InputError

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (6, 8, 3), dtype=np.uint8)
GREY = RANDOM.integers(0, 256, (6, 8), dtype=np.uint8)


def encoded(pixels: np.ndarray | Image.Image, kind: str = "png", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def one(folder: Path, content: bytes, **options: Any) -> np.ndarray:
    pixels = read_images(write(folder, only_png=content), **options).pixels
    assert len(pixels) == 1
    return pixels[0]


def test_a_folder_in_the_order_of_names(tmp_path: Path) -> None:
    shades = {"b__z_png": 3, "a_PNG": 1, "b__c__d_png": 2, "c_png": 4}
    write(tmp_path, **{k: encoded(np.full((4, 5, 3), v, np.uint8)) for k, v in shades.items()})
    write(tmp_path, notes_txt=b"x", b___hidden_png=b"x", a_npy=b"x")
    write(tmp_path / ".thumbnails", small_png=b"no picture")
    images = read_images(tmp_path)
    assert images.pixels.shape == (4, 4, 5, 3) and images.pixels.dtype == np.uint8
    assert images.pixels[:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    assert images.labels is None and images.note == ""
    assert (images.name, images.part) == (tmp_path.name, "all")
    assert read_images(str(tmp_path), most=2).pixels[:, 0, 0, 0].tolist() == [1, 2]
    assert len(read_images(tmp_path, most=9)) == 4


def test_a_zip_file_is_only_read(tmp_path: Path) -> None:
    names = ["../../up.png", "/absolute.png", "in/side.png", "C:\\windows.png"]
    names += ["__MACOSX/in/._side.png", "in/.DS_Store", "in/"]
    content = encoded(COLOUR)
    path = write_zip(tmp_path / "faces.zip", dict.fromkeys(names, content))
    images = read_images(path)
    assert len(images) == 4 and images.name == "faces"
    np.testing.assert_array_equal(images.pixels, np.broadcast_to(COLOUR, (4, 6, 8, 3)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["faces.zip"]


@pytest.mark.parametrize("kind", ["png", "webp", "bmp", "gif", "tiff", "jpeg"])
def test_formats(kind: str, tmp_path: Path) -> None:
    options = {"lossless": True} if kind == "webp" else {}
    smooth = np.arange(48, dtype=np.uint8).reshape(6, 8).repeat(3).reshape(6, 8, 3) * 5
    pixels = one(tmp_path, encoded(smooth, kind, **options))
    assert pixels.shape == (6, 8, 3) or kind == "gif"
    np.testing.assert_allclose(
        pixels.astype(int)[..., :1], smooth[..., :1], atol=8 * (kind == "jpeg")
    )


def test_greys_and_colours(tmp_path: Path) -> None:
    write(tmp_path, a_png=encoded(GREY), b_png=encoded(COLOUR))
    with pytest.raises(InputError, match=r"'a.png' in grey and 'b.png' in colour; channels=3"):
        read_images(tmp_path)
    expanded = read_images(tmp_path, channels=3).pixels
    np.testing.assert_array_equal(expanded[0], np.repeat(GREY[..., None], 3, axis=2))
    np.testing.assert_array_equal(expanded[1], COLOUR)
    reduced = read_images(tmp_path, channels=1).pixels
    assert reduced.shape == (2, 6, 8, 1)
    np.testing.assert_array_equal(reduced[0, ..., 0], GREY)
    luma = COLOUR @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(reduced[1, ..., 0], luma, atol=1)
    (tmp_path / "b.png").unlink()
    assert read_images(tmp_path).shape == (6, 8, 1)
    for channels in (0, 2, 4, True, "3"):
        with pytest.raises(InputError, match="channels as 1"):
            read_images(tmp_path, channels=channels)  # type: ignore[arg-type]


def test_transparency(tmp_path: Path) -> None:
    alpha = RANDOM.integers(1, 255, (6, 8, 1), dtype=np.uint8)
    content = encoded(np.concatenate([COLOUR, alpha], axis=2))
    with pytest.raises(InputError, match=r"transparency, got some in 'only.png'.*on white"):
        one(tmp_path, content)
    weight = alpha / 255
    expected = COLOUR * weight + 255 * (1 - weight)
    np.testing.assert_allclose(one(tmp_path, content, channels=3), expected, atol=1)
    opaque = np.concatenate([COLOUR, np.full_like(alpha, 255)], axis=2)
    np.testing.assert_array_equal(one(tmp_path, encoded(opaque)), COLOUR)
    grey = np.concatenate([GREY[..., None], alpha], axis=2)
    expected = GREY[..., None] * weight + 255 * (1 - weight)
    np.testing.assert_allclose(one(tmp_path, encoded(grey), channels=1), expected, atol=1)
    opaque = np.concatenate([GREY[..., None], np.full_like(alpha, 255)], axis=2)
    np.testing.assert_array_equal(one(tmp_path, encoded(opaque))[..., 0], GREY)
    # One colour that stands for transparency, in a file without an alpha channel.
    keyed = encoded(COLOUR, transparency=tuple(int(c) for c in COLOUR[2, 3]))
    with pytest.raises(InputError, match="transparency"):
        one(tmp_path, keyed)
    white = one(tmp_path, keyed, channels=3)
    assert white[2, 3].tolist() == [255, 255, 255]
    np.testing.assert_array_equal(white[:2], COLOUR[:2])
    with pytest.raises(InputError, match="transparency"):
        one(tmp_path, encoded(GREY, transparency=int(GREY[0, 0])))


def test_palettes(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], dtype=np.uint8)).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    expected = [[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [0, 255, 0]]]
    assert one(tmp_path, encoded(image)).tolist() == expected
    see_through = encoded(image, transparency=1)
    with pytest.raises(InputError, match="transparency"):
        one(tmp_path, see_through)
    assert one(tmp_path, see_through, channels=3)[0, 1].tolist() == [255, 255, 255]
    assert one(tmp_path, encoded(image.convert("RGB").convert("CMYK"), "tiff")).tolist() == expected
    two = Image.fromarray(np.array([[True, False]]))
    assert one(tmp_path, encoded(two)).tolist() == [[[255], [0]]]


def deep_colour_png(pixels: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel in colour, which Pillow reads and cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def test_sixteen_bits(tmp_path: Path) -> None:
    deep = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    for kind in ("png", "tiff"):
        assert one(tmp_path, encoded(deep, kind)).reshape(-1).tolist() == [0, 0, 1, 128, 255]
    assert read_images(tmp_path).note == "reduced from 16 to 8 bits a channel: 1"
    colours = RANDOM.integers(0, 2**16, (3, 4, 3), dtype=np.uint16)
    np.testing.assert_array_equal(one(tmp_path, deep_colour_png(colours)), colours >> 8)
    assert read_images(tmp_path).note == "reduced from 16 to 8 bits a channel: 1"
    with pytest.raises(InputError, match="numbers without a range"):
        one(tmp_path, encoded(Image.fromarray(np.ones((2, 2), dtype=np.float32)), "tiff"))
    with pytest.raises(InputError, match="numbers without a range"):
        one(tmp_path, encoded(Image.fromarray(np.ones((2, 2), dtype=np.int32)), "tiff"))


def test_pictures_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    pixels = one(tmp_path, encoded(COLOUR, exif=exif))
    np.testing.assert_array_equal(pixels, np.rot90(COLOUR, -1))
    garbage = encoded(COLOUR, exif=b"Exif\0\0garbage")
    np.testing.assert_array_equal(one(tmp_path, garbage), COLOUR)


def test_animations_are_read_for_their_first_frame(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4, 3), shade, np.uint8)) for shade in (10, 200)]
    content = encoded(frames[0], "webp", save_all=True, append_images=frames[1:], lossless=True)
    assert one(tmp_path, content).mean() == 10
    assert read_images(tmp_path).note == "only the first frame of an animation: 1"
    pages = encoded(frames[1], "tiff", save_all=True, append_images=frames[:1])
    assert one(tmp_path, pages).mean() == 200


def test_sizes(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 6, dtype=np.uint8)[:, None], (40, 40))
    write(tmp_path, a_png=encoded(ramp[:20]), b_png=encoded(ramp))
    with pytest.raises(
        InputError, match=r"'a.png' of 40 x 20 and 'b.png' of 40 x 40; pass size=.*size=20"
    ):
        read_images(tmp_path)
    images = read_images(tmp_path, size=10).pixels
    assert images.shape == (2, 10, 10, 1)
    # Rows of the second are averages of four with weights that reach further: on a ramp, the
    # middle of the four. The first is cut to its 20 columns in the middle, and all of its rows.
    np.testing.assert_allclose(images[1, 1:-1, 5, 0], (np.arange(1, 9) * 4 + 1.5) * 6, atol=0.6)
    np.testing.assert_allclose(images[0, 1:-1, 5, 0], (np.arange(1, 9) * 2 + 0.5) * 6, atol=0.6)
    wide = read_images(tmp_path, size=(5, 20)).pixels
    assert wide.shape == (2, 5, 20, 1)
    # Of 40 x 40 the middle 10 rows are left, two for each new one.
    np.testing.assert_allclose(wide[1, 1:-1, 3, 0], (15 + np.arange(1, 4) * 2 + 0.5) * 6, atol=0.6)
    columns = write(tmp_path / "other", a_png=encoded(np.ascontiguousarray(ramp[:20].T)))
    np.testing.assert_array_equal(
        read_images(columns, size=(40, 20)).pixels[0, ..., 0], ramp[:20].T
    )
    for size in (0, -1, 2.5, True, (3,), (3, 0), "8"):
        with pytest.raises(InputError, match="size as a positive whole number or"):
            read_images(tmp_path, size=size)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="most as a positive"):
        read_images(tmp_path, most=0)


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_files_that_cannot_be_read_are_named(form: str, tmp_path: Path) -> None:
    whole = encoded(COLOUR)
    torn = encoded(RANDOM.integers(0, 256, (6, 8, 3), dtype=np.uint8), "jpeg")[:-30]
    files = {"a.png": whole, "b.jpg": torn, "c.png": b"no picture", "d.png": b"", "e.png": whole}
    if form == "zip":
        path = write_zip(tmp_path / "all.zip", files)
    else:
        path = write(tmp_path, **{name.replace(".", "_"): c for name, c in files.items()})
    with pytest.raises(InputError, match=r"whole image in 'b.jpg' of .*skip_unreadable=True"):
        read_images(path)
    images = read_images(path, skip_unreadable=True)
    assert len(images) == 2
    np.testing.assert_array_equal(images.pixels[1], COLOUR)
    assert images.note == "skipped as unreadable: 3 files (the first: b.jpg)"
    assert len(read_images(path, skip_unreadable=True, most=2)) == 2
    assert len(read_images(path, most=1)) == 1


def test_one_skipped_file_is_named_in_the_note(tmp_path: Path) -> None:
    write(tmp_path, a_png=b"", b_png=encoded(COLOUR))
    assert read_images(tmp_path, skip_unreadable=True).note == "skipped as unreadable: a.png"
    (tmp_path / "b.png").unlink()
    with pytest.raises(InputError, match=r"an image that can be read in .*got none among 1"):
        read_images(tmp_path, skip_unreadable=True)


def test_zip_members_that_are_damaged(tmp_path: Path) -> None:
    content = encoded(COLOUR)
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.png", content)
        archive.writestr("b.png", content)
    spoiled = bytearray(path.read_bytes())
    spoiled[spoiled.index(content) + 60] ^= 0xFF
    path.write_bytes(spoiled)
    with pytest.raises(InputError, match=r"'a.png'.*CRC"):
        read_images(path)
    assert len(read_images(path, skip_unreadable=True)) == 1
    locked = bytearray(spoiled)
    for start in (locked.rindex(b"PK\x01\x02") + 8, locked.rindex(b"PK\x03\x04") + 6):
        locked[start] |= 1  # encrypted
    path.write_bytes(locked)
    with pytest.raises(InputError, match=r"an image that can be read in"):
        read_images(path, skip_unreadable=True)
    for wrong in (spoiled[:50], b"", b"PK\x03\x04"):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match="a whole zip file of images"):
            read_images(path)


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(width: int, height: int) -> bytes:
        content = bytearray(encoded(GREY))
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        return bytes(content)

    with pytest.raises(InputError, match=r"10001 x 10000 pixels, more than the 100000000"):
        one(tmp_path, claim(10001, 10000))
    with pytest.raises(InputError, match=r"whole image in 'only.png'"):  # Pillow's own limit
        one(tmp_path, claim(60000, 60000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # which may be lifted
    with pytest.raises(InputError, match="60000 x 60000 pixels"):
        one(tmp_path, claim(60000, 60000))
    write(tmp_path, only_png=claim(10001, 10000), second_png=encoded(GREY))
    assert len(read_images(tmp_path, skip_unreadable=True)) == 1
    zeros = write_zip(tmp_path / "zeros.zip", {"a.png": bytes(10_000)})
    monkeypatch.setattr(pictures, "MOST_BYTES", 9_999)
    with pytest.raises(InputError, match="10000 bytes, more than the 9999"):
        read_images(zeros)
    monkeypatch.setattr(pictures, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="bytes, more than the 10 "):
        read_images(tmp_path)


def test_other_formats_behind_a_name_are_not_tried(tmp_path: Path) -> None:
    for kind in ("ppm", "eps", "tga"):
        with pytest.raises(InputError, match=r"got: no picture that can be read \(PNG, .* TIFF\);"):
            one(tmp_path, encoded(COLOUR, kind))


def test_an_empty_file_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"whole image in 'only.png' .* got: an empty file; "):
        one(tmp_path, b"")


def test_a_single_picture_is_not_taken_for_a_damaged_zip_file(tmp_path: Path) -> None:
    write(tmp_path, only_png=encoded(GREY))
    with pytest.raises(InputError, match=r"got the single picture '.*only.png'; pass the folder"):
        read_images(tmp_path / "only.png")
    # A zip file is one, whatever it is called.
    assert len(read_images(write_zip(tmp_path / "zip.png", {"a.png": encoded(GREY)}))) == 1


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected images in .*\.bmp, \.gif"):
        read_images(tmp_path)
    write(tmp_path, a_txt=b"x")
    with pytest.raises(InputError, match="expected images in"):
        read_images(tmp_path)
    with pytest.raises(InputError, match="got: nothing there"):
        read_images(tmp_path / "nowhere")
    with pytest.raises(InputError, match="got: nothing there"):
        read_images("~nobody-at-all/pictures")
    with pytest.raises(InputError, match="a folder or a whole zip file"):
        read_images(tmp_path / "a.txt")
    with pytest.raises(InputError, match="expected images in"):
        read_images(write_zip(tmp_path / "empty.zip", {}))


def test_more_than_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any, **__: Any) -> Any:
        raise MemoryError

    write(tmp_path, a_png=encoded(COLOUR))
    monkeypatch.setattr(reading.np, "empty", no_room)
    with pytest.raises(InputError, match=r"fit into memory, got 1 of shape \(6, 8, 3\)"):
        read_images(tmp_path)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_png=encoded(COLOUR))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"pip install 'arcsm\[images\]'"):
        read_images(tmp_path)


def test_warnings_of_decoders_are_not_the_users(tmp_path: Path) -> None:
    # Ninety million pixels are more than Pillow likes, and fewer than are refused.
    assert decode.MOST_PIXELS == 100_000_000
    content = bytearray(encoded(GREY))
    content[16:24] = struct.pack(">II", 9500, 9500)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with pytest.raises(InputError, match=r"truncated|broken"):
            one(tmp_path, bytes(content))
        assert warnings.filters == before
