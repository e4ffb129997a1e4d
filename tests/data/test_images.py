"""Image sets by name: the published forms, written small by the tests, and the real files."""

import gzip
import os
import pickle
import struct
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from arcsm.data import IMAGE_SETS, Images, dequantise, load_images, to_pixels
from arcsm.data.images import places
from arcsm.data.images.published import COUNTS, PUBLISHED
from arcsm.errors import InputError


@pytest.fixture
def real() -> Path:
    """The folder with the real files; a test that needs it is skipped without one."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("ARCSM_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("needs the data sets: set ARCSM_DATA to their folder")
    return folder


@pytest.fixture(autouse=True)
def no_package_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "DEBIAN_FASHION_MNIST", tmp_path / "debian")


def pixels_of(n: int, side: int, channels: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, side, side, channels), dtype=np.uint8)


def idx(array: np.ndarray, *, magic: int | None = None, shape: tuple[int, ...] = ()) -> bytes:
    dims = shape or array.shape
    start = 0x0800 + len(dims) if magic is None else magic
    return struct.pack(f">I{len(dims)}I", start, *dims) + array.tobytes()


def write_idx(
    folder: Path, stem: str, images: bytes, labels: bytes, *, packed: bool = True
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        (f"{stem}-images-idx3-ubyte", images),
        (f"{stem}-labels-idx1-ubyte", labels),
    ):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


def png(pixels: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


DIGITS = pixels_of(5, 28, 1)
MARKS = np.array([3, 0, 9, 1, 1], dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "within", "packed"),
    [
        ("mnist", "mnist", True),
        ("mnist", "mnist", False),
        ("mnist", "MNIST/raw", False),
        ("fashion-mnist", "fashion-mnist", True),
        ("fashion-mnist", "FashionMNIST/raw", True),
        ("fashion-mnist", "debian", True),
    ],
)
def test_idx_files(name: str, within: str, packed: bool, tmp_path: Path) -> None:
    write_idx(tmp_path / within, "train", idx(DIGITS[..., 0]), idx(MARKS), packed=packed)
    write_idx(tmp_path / within, "t10k", idx(DIGITS[:2, ..., 0]), idx(MARKS[:2]), packed=packed)
    train = load_images(name, folder=tmp_path, download=False)
    np.testing.assert_array_equal(train.pixels, DIGITS)
    assert train.labels is not None and train.labels.dtype == np.int64
    assert train.labels.tolist() == [3, 0, 9, 1, 1]
    assert (train.name, train.part, train.note) == (name, "train", "5 of 60000 images")
    assert len(train) == 5 and train.shape == (28, 28, 1)
    test = load_images(name, "test", folder=tmp_path, download=False, most=1)
    np.testing.assert_array_equal(test.pixels, DIGITS[:1])
    assert test.labels is not None and test.labels.tolist() == [3]
    assert test.note == "2 of 10000 images"  # of the copy, whatever was asked for


def test_sets_with_the_same_file_names_are_not_mixed_up(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", "train", idx(DIGITS[..., 0]), idx(MARKS))
    write_idx(tmp_path, "train", idx(DIGITS[..., 0]), idx(MARKS))
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz and .*fashion-mnist"):
        load_images("fashion-mnist", folder=tmp_path, download=False)


WHOLE = idx(DIGITS[..., 0])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(DIGITS[..., 0], magic=0x0801), idx(MARKS), "begins with 00000803 in.*got 00000801"),
        (idx(DIGITS[..., 0], magic=0x0D03), idx(MARKS), "begins with 00000803 in.*got 00000d03"),
        (b"", idx(MARKS), "begins with 00000803 in.*got none"),
        (WHOLE[:9], idx(MARKS), "a header of 16 bytes"),
        (WHOLE[:-1], idx(MARKS), "3920 bytes after the header.*got 3919"),
        (WHOLE + b"\0", idx(MARKS), "3920 bytes after the header.*got more"),
        (idx(DIGITS[..., 0], shape=(5, 14, 56)), idx(MARKS), r"items of shape \(28, 28\).*14, 56"),
        (idx(DIGITS[..., 0], shape=(2**32 - 1, 28, 28)), idx(MARKS), "between 1 and 60000 items"),
        (idx(DIGITS[:0, ..., 0]), idx(MARKS), "between 1 and 60000 items.*got 0"),
        (WHOLE, idx(MARKS[:4]), "as many labels as images, got 4 .*and 5"),
        (WHOLE, idx(MARKS + 1), "labels from 0 to 9.*got 10"),
    ],
)
def test_idx_files_that_are_wrong(
    images: bytes, labels: bytes, message: str, tmp_path: Path
) -> None:
    write_idx(tmp_path / "mnist", "train", images, labels)
    with pytest.raises(InputError, match=f"(?s){message}.*delete these files"):
        load_images("mnist", folder=tmp_path, download=False)


@pytest.mark.parametrize("cut", [12, -4, -40])
def test_idx_file_whose_compression_is_torn(cut: int, tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", "train", WHOLE, idx(MARKS))
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match="a whole idx file"):
        load_images("mnist", folder=tmp_path, download=False)
    path.write_bytes(b"<html>no such page</html>")
    with pytest.raises(InputError, match="a whole idx file"):
        load_images("mnist", folder=tmp_path, download=False)


def test_svhn(tmp_path: Path) -> None:
    images = pixels_of(11, 32, 3)
    y = np.array([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], dtype=np.uint8)[:, None]
    (tmp_path / "svhn").mkdir()
    path = tmp_path / "svhn" / "test_32x32.mat"
    scipy.io.savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": y}, do_compression=True)
    test = load_images("svhn", "test", folder=tmp_path, download=False)
    np.testing.assert_array_equal(test.pixels, images)
    assert test.pixels.flags["C_CONTIGUOUS"]
    assert test.labels is not None
    assert test.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert test.note == "11 of 26032 images"
    content = path.read_bytes()
    for torn in (content[: len(content) // 2], content[:100], b"", b"MATLAB" * 100):
        path.write_bytes(torn)
        with pytest.raises(InputError, match=r"X as uint8 of shape .*delete the file"):
            load_images("svhn", "test", folder=tmp_path, download=False)
    for wrong in (
        {"X": images, "y": y},
        {"X": images.transpose(1, 2, 3, 0).astype(float), "y": y},
        {"X": images.transpose(1, 2, 3, 0), "y": y[:3]},
        {"X": images.transpose(1, 2, 3, 0), "y": y - 1},
        {"X": images.transpose(1, 2, 3, 0)},
    ):
        scipy.io.savemat(path, wrong)
        with pytest.raises(InputError, match="X as uint8"):
            load_images("svhn", "test", folder=tmp_path, download=False)


def test_first_images_of_svhn(tmp_path: Path) -> None:
    images = pixels_of(4, 32, 3)
    (tmp_path / "svhn").mkdir()
    np.savez(tmp_path / "svhn" / "svhn_train_first4.npz", images=images)
    train = load_images("svhn", folder=tmp_path, download=False)
    np.testing.assert_array_equal(train.pixels, images)
    assert train.labels is None and train.note == "4 of 73257 images; no labels"
    with pytest.raises(InputError, match=r"expected test_32x32.mat in .*ufldl.stanford.edu"):
        load_images("svhn", "test", folder=tmp_path, download=False)
    y = np.ones((4, 1), dtype=np.uint8)
    path = tmp_path / "svhn" / "train_32x32.mat"
    scipy.io.savemat(path, {"X": 255 - images.transpose(1, 2, 3, 0), "y": y})
    published = load_images("svhn", folder=tmp_path, download=False)  # goes before the partial one
    np.testing.assert_array_equal(published.pixels, 255 - images)
    path.unlink()
    for wrong in ({"images": images[..., 0]}, {"images": images.astype(int)}, {"other": images}):
        np.savez(tmp_path / "svhn" / "svhn_train_first4.npz", **wrong)
        with pytest.raises(InputError, match=r"expected .*images"):
            load_images("svhn", folder=tmp_path, download=False)
    (tmp_path / "svhn" / "svhn_train_first4.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(InputError, match="the array images"):
        load_images("svhn", folder=tmp_path, download=False)


def face(seed: int) -> np.ndarray:
    """A picture of 178 x 218 whose red is the column, whose green the row, whose blue a number."""
    rows, columns = np.mgrid[:218, :178]
    return np.stack([columns, rows, np.full_like(rows, seed)], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("form", ["folder", "nested", "zip", "parts"])
def test_published_celeba(form: str, tmp_path: Path) -> None:
    base = tmp_path / "celeba"
    numbers = [(1, 0), (2, 0), (3, 1), (4, 2), (5, 0)]
    within = {"folder": "img_align_celeba", "nested": "img_align_celeba/img_align_celeba"}
    if form in within:
        (base / within[form]).mkdir(parents=True)
        for number, _ in numbers:
            # The decoder goes by the content: a PNG keeps the numbers exact.
            (base / within[form] / f"{number:06}.jpg").write_bytes(png(face(number)))
    else:
        img = base / ("Img" if form == "parts" else "")
        img.mkdir(parents=True)
        with zipfile.ZipFile(img / "img_align_celeba.zip", "w") as archive:
            for number, _ in numbers:
                archive.writestr(f"img_align_celeba/{number:06}.jpg", png(face(number)))
    lists = base / ("Eval" if form == "parts" else "")
    lists.mkdir(exist_ok=True)
    text = "".join(f"{number:06}.jpg {code}\n" for number, code in numbers)
    (lists / "list_eval_partition.txt").write_text(text)

    train = load_images("celeba", folder=tmp_path)
    assert train.pixels.shape == (3, 64, 64, 3) and train.labels is None
    assert train.note == "3 of 162770 images"
    assert train.pixels[:, 0, 0, 2].tolist() == [1, 2, 5]
    test = load_images("celeba", "test", folder=tmp_path)
    assert (test.pixels[..., 2] == 4).all() and len(test) == 1
    # On a ramp the filter is exact away from the edges: the centre of new pixel i is the old
    # coordinate start + (i + 1/2) 140/64 - 1/2.
    centres = (np.arange(64) + 0.5) * 140 / 64 - 0.5
    inner = slice(2, -2)
    red = train.pixels[0, inner, inner, 0].mean(0) - (19 + centres[inner])
    green = train.pixels[0, inner, inner, 1].mean(1) - (39 + centres[inner])
    assert np.abs(red).max() <= 0.51 and abs(red.mean()) < 0.05
    assert np.abs(green).max() <= 0.51 and abs(green.mean()) < 0.05

    small = load_images("celeba", folder=tmp_path, size=32, most=2)
    blocks = train.pixels[:2].reshape(2, 32, 2, 32, 2, 3).mean(axis=(2, 4))
    assert small.pixels.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(small.pixels, np.floor(blocks + 0.5))


def triangles(old: int, new: int) -> np.ndarray:
    """The matrix of a bilinear filter without aliasing: triangles as wide as two new pixels."""
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(old) + 0.5 - centres[:, None]) / scale)
    return weights / weights.sum(1, keepdims=True)


def test_the_filter_of_celeba(tmp_path: Path) -> None:
    picture = np.random.default_rng(5).integers(0, 256, (218, 178, 3), dtype=np.uint8)
    (tmp_path / "img_align_celeba").mkdir()
    (tmp_path / "img_align_celeba" / "000001.jpg").write_bytes(png(picture))
    (tmp_path / "list_eval_partition.txt").write_text("000001.jpg 0\n")
    matrix = triangles(140, 64)
    crop = picture[39:179, 19:159].astype(float)
    expected = np.einsum("ij,jkc,lk->ilc", matrix, crop, matrix)
    got = load_images("celeba", folder=tmp_path).pixels[0]
    np.testing.assert_allclose(got, expected, atol=1.1)  # rounded twice, once for each axis


def test_published_celeba_that_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be fetched by a program: from https://mmlab"):
        load_images("celeba", folder=tmp_path)
    images = tmp_path / "celeba" / "img_align_celeba"
    images.mkdir(parents=True)
    (images / "000001.jpg").write_bytes(png(face(1)))
    with pytest.raises(InputError, match=r"expected list_eval_partition.txt beside"):
        load_images("celeba", folder=tmp_path)
    partition = tmp_path / "celeba" / "list_eval_partition.txt"
    partition.write_text("000001.jpg 0\n\n000002.jpg 0\n")
    with pytest.raises(InputError, match=r"whole image in '000002.jpg'.*[Nn]o such file"):
        load_images("celeba", folder=tmp_path)
    assert len(load_images("celeba", folder=tmp_path, most=1)) == 1
    with pytest.raises(InputError, match="images of the test part"):
        load_images("celeba", "test", folder=tmp_path)
    (images / "000002.jpg").write_bytes(png(face(1)[:, :177]))
    with pytest.raises(InputError, match=r"'000002.jpg'.*RGB and 177 x 218, not RGB and 178 x 218"):
        load_images("celeba", folder=tmp_path)
    (images / "000002.jpg").write_bytes(png(face(1))[:-30])
    with pytest.raises(InputError, match=r"whole image in '000002.jpg'"):
        load_images("celeba", folder=tmp_path)
    partition.write_text("000001.jpg 0\n000002.jpg 7\n")
    with pytest.raises(InputError, match="0, 1 or 2 in line 2"):
        load_images("celeba", folder=tmp_path)


def test_celeba_in_webp(tmp_path: Path) -> None:
    (tmp_path / "celeba").mkdir()
    faces = {"train/000009.webp": 9, "test/000011.webp": 11, "train/000002.webp": 2}
    path = tmp_path / "celeba" / "celeba64.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, number in faces.items():
            buffer = BytesIO()
            Image.fromarray(face(number)[:64, :64]).save(buffer, "webp", lossless=True)
            archive.writestr(name, buffer.getvalue())
    train = load_images("celeba", folder=tmp_path)
    np.testing.assert_array_equal(train.pixels, np.stack([face(2), face(9)])[:, :64, :64])
    assert train.note == "2 of 162770 images, re-encoded as WebP at 64 x 64 (slightly lossy)"
    assert load_images("celeba", "test", folder=tmp_path).pixels[0, 0, 0, 2] == 11
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train/000001.webp", png(face(1)))
    with pytest.raises(InputError, match="178 x 218, not RGB and 64 x 64"):
        load_images("celeba", folder=tmp_path)
    with pytest.raises(InputError, match="images under test/"):
        load_images("celeba", "test", folder=tmp_path)


def test_arguments(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", "train", idx(DIGITS[..., 0]), idx(MARKS))
    with pytest.raises(InputError, match=r"one of the sets mnist, .*celeba, got 'imagenet'"):
        load_images("imagenet", folder=tmp_path)
    with pytest.raises(InputError, match="'train' or 'test', got 'valid'"):
        load_images("mnist", "valid", folder=tmp_path)
    for size in (10, 0, -7, 56, True, 14.0):
        with pytest.raises(
            InputError, match=r"divide .* 28, got .*choose one of 1, 2, 4, 7, 14, 28"
        ):
            load_images("mnist", folder=tmp_path, size=size)  # type: ignore[arg-type]
    for most in (0, -1, 2.0, True):
        with pytest.raises(InputError, match="most as a positive whole number"):
            load_images("mnist", folder=tmp_path, most=most)  # type: ignore[arg-type]
    quarter = load_images("mnist", folder=tmp_path, size=7).pixels
    mean = DIGITS.reshape(5, 7, 4, 7, 4).mean(axis=(2, 4))[..., None]
    np.testing.assert_array_equal(quarter, np.floor(mean + 0.5))
    with pytest.raises(InputError, match="existing folder"):
        load_images("mnist", folder=tmp_path / "nowhere")


def test_averages_of_many_images_are_made_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcsm.data.images import pixels

    write_idx(tmp_path / "mnist", "train", idx(DIGITS[..., 0]), idx(MARKS))
    whole = load_images("mnist", folder=tmp_path, size=14).pixels
    monkeypatch.setattr(pixels, "_CHUNK_ELEMENTS", 2 * 28 * 28)
    np.testing.assert_array_equal(load_images("mnist", folder=tmp_path, size=14).pixels, whole)


def test_where_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ARCSM_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    home = tmp_path / "home"
    assert places.images_folder() == home / ".cache" / "arcsm" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert places.images_folder() == home / ".cache" / "arcsm" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert places.images_folder() == tmp_path / "xdg" / "arcsm" / "data"
    write_idx(tmp_path / "xdg/arcsm/data/mnist", "train", idx(DIGITS[..., 0]), idx(MARKS))
    assert len(load_images("mnist", download=False)) == 5
    monkeypatch.setattr(sys, "platform", "darwin")
    assert places.images_folder() == home / "Library" / "Caches" / "arcsm" / "data"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert places.images_folder() == tmp_path / "local" / "arcsm" / "data"
    (tmp_path / "told").mkdir()
    monkeypatch.setenv("ARCSM_DATA", str(tmp_path / "told"))
    assert places.images_folder() == tmp_path / "told"
    assert places.images_folder(tmp_path) == tmp_path
    with pytest.raises(InputError, match="existing folder"):
        places.images_folder(tmp_path / "nowhere")


def test_every_part_of_every_set_is_known() -> None:
    parts = {(name, part) for name in IMAGE_SETS for part in ("train", "test")}
    assert set(COUNTS) == parts
    assert set(PUBLISHED) == {pair for pair in parts if pair[0] != "celeba"}
    for remotes in PUBLISHED.values():
        for remote in remotes:
            assert len(bytes.fromhex(remote.sha256)) == 32
            assert all(url.endswith(f"/{remote.file}") for url in remote.urls)


def test_images_are_checked() -> None:
    pixels = pixels_of(2, 4, 3)
    for wrong in (pixels[0], pixels.astype(float), pixels[:0]):
        with pytest.raises(InputError, match=r"uint8 of shape \(images, height"):
            Images(wrong, None, "x", "train")
    for labels in (np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.uint8), [0, 1]):
        with pytest.raises(InputError, match=r"labels as an int64 array of shape \(2,\)"):
            Images(pixels, labels, "x", "train")  # type: ignore[arg-type]
    images = Images(pixels, np.zeros(2, dtype=np.int64), "x", "train")
    with pytest.raises(AttributeError):
        images.name = "y"  # type: ignore[misc]


def test_dequantised_pixels() -> None:
    every = np.arange(256, dtype=np.uint8).repeat(768).reshape(-1, 4, 4, 3)
    rows = dequantise(every, seed=3)
    assert rows.dtype == torch.float32 and rows.shape == (len(every), 48)
    assert rows.min() >= 0 and rows.max() < 1
    noise = rows.double().numpy() * 256 - every.reshape(rows.shape)
    assert noise.min() >= 0 and noise.max() < 1
    # Uniform: mean 1/2, variance 1/12, and no neighbour knows of another.
    n = noise.size
    assert abs(noise.mean() - 0.5) < 5 / np.sqrt(12 * n)
    assert abs(noise.var() - 1 / 12) < 5 / np.sqrt(180 * n)
    flat = noise.reshape(-1) - 0.5
    assert abs((flat[1:] * flat[:-1]).mean()) < 5 / 12 / np.sqrt(n)
    np.testing.assert_array_equal(to_pixels(rows, (4, 4, 3)), every)
    assert torch.equal(rows, dequantise(every, seed=3))
    assert not torch.equal(rows, dequantise(every, seed=4))
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(rows, dequantise(torch.from_numpy(every), seed=generator))
    assert not torch.equal(rows, dequantise(every, seed=generator))  # it goes on


def test_noise_next_to_one_does_not_lift_a_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    most = float(np.nextafter(np.float32(1), np.float32(0)))
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, most))
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    rows = dequantise(every)
    assert rows.max() < 1
    np.testing.assert_array_equal(to_pixels(rows, (16, 16, 1)), every)


def test_order_of_scalars() -> None:
    pixels = np.zeros((1, 2, 2, 3), dtype=np.uint8)
    pixels[0, 0, 0] = 10, 20, 30
    pixels[0, 0, 1] = 40, 50, 60
    pixels[0, 1, 0] = 70, 80, 90
    row = (dequantise(pixels)[0] * 256).floor().int().tolist()
    assert row == [10, 20, 30, 40, 50, 60, 70, 80, 90, 0, 0, 0]
    view = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    for other in (view, pixels.copy()):
        other.flags.writeable = False
        assert torch.equal(dequantise(other), dequantise(pixels))


def test_rows_to_pixels() -> None:
    x = np.array([[-3.0, 0.0, 0.5, 0.999, 1.0, 7.0]])
    assert to_pixels(x, (1, 2, 3)).reshape(-1).tolist() == [0, 0, 128, 255, 255, 255]
    assert to_pixels(x, (1, 2, 3)).dtype == np.uint8
    learned = torch.zeros(2, 4, requires_grad=True)
    assert to_pixels(learned, (2, 2, 1)).shape == (2, 2, 2, 1)
    with pytest.raises(InputError, match="with 4 columns, got 6"):
        to_pixels(x, (2, 2, 1))
    with pytest.raises(InputError, match="finite"):
        to_pixels(x * np.nan, (1, 2, 3))
    with pytest.raises(InputError, match="shape \\(height, width, channels\\)"):
        to_pixels(x, (2, 3))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="of Images, pass their pixels"):
        dequantise(Images(pixels_of(1, 2, 1), None, "x", "all"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="uint8"):
        dequantise(np.zeros((1, 2, 2, 1)))
    with pytest.raises(InputError, match="seed as a whole number"):
        dequantise(pixels_of(1, 2, 1), seed=None)  # type: ignore[arg-type]


def test_real_mnist(real: Path) -> None:
    train = load_images("mnist", folder=real, download=False)
    assert train.pixels.shape == (60_000, 28, 28, 1) and train.note == ""
    assert train.labels is not None
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(train.labels).tolist() == counts
    assert train.pixels.mean(dtype=np.float64) / 255 == pytest.approx(0.13066, abs=5e-6)
    test = load_images("mnist", "test", folder=real, download=False)
    assert test.labels is not None
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(test.labels).tolist() == counts


def test_real_svhn(real: Path) -> None:
    train = load_images("svhn", folder=real, download=False)
    means = train.pixels.mean((0, 1, 2), dtype=np.float64) / 255
    if train.labels is None:
        assert train.pixels.shape == (1083, 32, 32, 3)
        np.testing.assert_allclose(means, [0.452, 0.456, 0.482], atol=5e-4)
    else:
        assert train.pixels.shape == (73_257, 32, 32, 3)
        np.testing.assert_allclose(means, [0.438, 0.444, 0.473], atol=5e-4)


def test_real_celeba(real: Path) -> None:
    small = load_images("celeba", "test", folder=real, size=32, most=50)
    large = load_images("celeba", "test", folder=real, most=50)
    assert small.pixels.shape == (50, 32, 32, 3) and large.pixels.shape == (50, 64, 64, 3)
    assert 60 < large.pixels.mean() < 160 and large.pixels.std() > 40
    gap = large.pixels.reshape(50, 32, 2, 32, 2, 3).mean(axis=(2, 4)) - small.pixels
    assert np.abs(gap).max() <= 0.5


@pytest.mark.slow
def test_real_cifar(real: Path) -> None:
    test = load_images("cifar10", "test", folder=real, download=False)
    assert test.pixels.shape == (10_000, 32, 32, 3) and test.labels is not None
    assert np.bincount(test.labels).tolist() == [1000] * 10
    # The well-known channel means of the training part, close to those of the test part.
    means = test.pixels.mean((0, 1, 2), dtype=np.float64) / 255
    np.testing.assert_allclose(means, [0.49140, 0.48216, 0.44653], atol=5e-3)
    # Channels are planes in the file: mixed up, neighbouring pixels would have nothing in common.
    step = np.abs(np.diff(test.pixels[:100].astype(int), axis=2)).mean()
    assert step < 20


def test_pickles_are_not_in_the_way_of_npz(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    path = tmp_path / "svhn" / "svhn_train_first1.npz"
    path.write_bytes(pickle.dumps({"images": 1}))
    with pytest.raises(InputError, match="the array images"):
        load_images("svhn", folder=tmp_path, download=False)
