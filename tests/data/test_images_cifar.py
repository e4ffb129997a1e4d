"""CIFAR-10 and its pickles: the forms it comes in, and pickles that want to do something."""

import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data import load_images
from arcsm.data.images.unpickle import unpickle_plain
from arcsm.errors import InputError

NAMES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


def old_text(text: bytes) -> bytes:
    return b"U" + bytes((len(text),)) + text


def published_batch(rows: np.ndarray, labels: list[int], *, names: bool = True) -> bytes:
    """A batch as the Python 2 of 2009 wrote it, instruction by instruction."""
    n, width = rows.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85"
        + old_text(b"b")
        + b"\x87Rq\x08(K\x01"
        + struct.pack("<cHcH", b"M", n, b"M", width)
        + b"\x86cnumpy\ndtype\nq\x09"
        + old_text(b"u1")
        + b"K\x00K\x01\x87Rq\x0a(K\x03"
        + old_text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", rows.size)
        + rows.tobytes()
        + b"tb"
    )
    entries = old_text(b"batch_label") + old_text(b"training batch 1 of 5")
    entries += old_text(b"labels") + b"](" + b"".join(b"K" + bytes((k,)) for k in labels) + b"e"
    entries += old_text(b"data") + array
    if names:
        entries += old_text(b"filenames") + b"](" + old_text(b"frog_s_1.png") * n + b"e"
    return b"\x80\x02}q\x01(" + entries + b"u."


def planes(pixels: np.ndarray) -> np.ndarray:
    """Rows of all red, then all green, then all blue."""
    return np.stack([np.concatenate([image[..., c].ravel() for c in range(3)]) for image in pixels])


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def batches(*, names: bool = True) -> dict[str, bytes]:
    return {
        name: published_batch(
            planes(PIXELS[2 * k : 2 * k + 2]), LABELS[2 * k : 2 * k + 2], names=names
        )
        for k, name in enumerate(NAMES)
    }


def write_tar(path: Path, contents: dict[str, bytes], mode: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name in reversed(contents):  # the order in the file is not that of the images
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(contents[name])
            archive.addfile(member, io.BytesIO(contents[name]))


def write_folder(path: Path, contents: dict[str, bytes]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("cifar10/cifar-10-python.tar.gz", True),
        ("cifar-10-python.tar.gz", True),
        ("cifar10/cifar-10-batches-py.tar.xz", False),
        ("cifar10/cifar-10-batches-py", True),
        ("cifar-10-batches-py", False),
    ],
)
def test_published_forms(form: str, names: bool, tmp_path: Path) -> None:
    contents = {"batches.meta": b"", **batches(names=names)}
    if form.endswith("py"):
        write_folder(tmp_path / form, contents)
    else:
        write_tar(tmp_path / form, contents, f"w:{form[-2:]}")
    train = load_images("cifar10", folder=tmp_path, download=False)
    np.testing.assert_array_equal(train.pixels, PIXELS[:10])
    assert train.labels is not None and train.labels.dtype == np.int64
    assert train.labels.tolist() == LABELS[:10]
    assert train.pixels.flags["C_CONTIGUOUS"] and train.pixels.flags["WRITEABLE"]
    told = "" if names else "; re-packed batches, without their lists of file names"
    assert train.note == f"10 of 50000 images{told}"
    test = load_images("cifar10", "test", folder=tmp_path, download=False, most=1)
    np.testing.assert_array_equal(test.pixels, PIXELS[10:11])
    assert test.labels is not None and test.labels.tolist() == LABELS[10:11]


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
@pytest.mark.parametrize("protocol", [3, 4])
def test_copies_that_python_3_wrote(module: str, protocol: int, tmp_path: Path) -> None:
    rows = planes(PIXELS[:2])
    content = pickle.dumps({"data": rows, "labels": [7, 8], "filenames": ["a", "b"]}, protocol)
    new, old = b"numpy._core.multiarray", b"numpy.core.multiarray"
    if protocol == 3:  # GLOBAL ends its names by line breaks; later ones have lengths and frames
        content = content.replace(new, old).replace(old, module.encode())
    write_folder(tmp_path / "cifar-10-batches-py", {"test_batch": content})
    test = load_images("cifar10", "test", folder=tmp_path, download=False)
    np.testing.assert_array_equal(test.pixels, PIXELS[:2])
    assert test.labels is not None and test.labels.tolist() == [7, 8]


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "cifar10" / "cifar-10-python.tar.gz"
    contents = batches()
    del contents["data_batch_3"]
    write_tar(path, contents, "w:gz")
    with pytest.raises(InputError, match=r"expected data_batch_3 in .*tar.gz"):
        load_images("cifar10", folder=tmp_path, download=False)
    content = path.read_bytes()
    for torn in (content[: len(content) // 2], content[:5], b"", b"<html></html>"):
        path.write_bytes(torn)
        with pytest.raises(InputError, match="a whole tar file"):
            load_images("cifar10", folder=tmp_path, download=False)
    path.unlink()
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    whole = published_batch(planes(PIXELS[:2]), [1, 2])
    for torn in (whole[:-1], whole[:100], whole[:-2000], b"", b"\x80"):
        write_folder(folder, {"test_batch": torn})
        with pytest.raises(InputError, match="a whole pickle in test_batch of"):
            load_images("cifar10", "test", folder=tmp_path, download=False)
    rows = planes(PIXELS[:2])
    for wrong in (
        published_batch(rows, [1]),
        published_batch(rows, [1, 10]),
        published_batch(rows[:, :3000], [1, 2]),
        pickle.dumps({b"data": [1], b"labels": [1]}, 2),
        pickle.dumps([1, 2], 2),
        pickle.dumps({"data": None}, 2),
    ):
        write_folder(folder, {"test_batch": wrong})
        with pytest.raises(InputError, match=r"data of 3,072 bytes and a label|pickle of plain"):
            load_images("cifar10", "test", folder=tmp_path, download=False)
    with (folder / "test_batch").open("r+b") as file:
        file.truncate(2**26 + 1)  # sparse
    with pytest.raises(InputError, match="with 31 MB, got 67108865 bytes"):
        load_images("cifar10", "test", folder=tmp_path, download=False)


def test_nothing_is_extracted(tmp_path: Path) -> None:
    """Members with other paths, links and devices are passed over."""
    path = tmp_path / "data" / "cifar10" / "cifar-10-python.tar.gz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in ("../../test_batch", "/test_batch", "other/test_batch"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        link.type, link.linkname = tarfile.CHRTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(InputError, match="expected test_batch in"):
        load_images("cifar10", "test", folder=tmp_path / "data", download=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["cifar-10-python.tar.gz"]


class Malice:
    """Unpickled in the usual way, this makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def text(value: str) -> bytes:
    return b"\x8c" + bytes((len(value),)) + value.encode()


def stack_global(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


SYSTEM = b"(S'touch {path}'\ntR."
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ATTACKS = {
    "GLOBAL and REDUCE": (b"cos\nsystem\n" + SYSTEM, "the name os.system"),
    "builtins": (b'cbuiltins\neval\n(S\'open("{path}", "w")\'\ntR.', "the name builtins.eval"),
    "the old name of builtins": (b"c__builtin__\neval\n(S'1'\ntR.", "the name __?builtin"),
    "STACK_GLOBAL": (b"\x80\x04" + stack_global("os", "system") + SYSTEM, "the name os.system"),
    "dotted": (
        b"\x80\x04" + stack_global("numpy", "ndarray.tofile") + b"(tR.",
        "the name numpy.ndarray.tofile",
    ),
    "INST": (b"(S'touch {path}'\nios\nsystem\n.", "the instruction INST"),
    "OBJ": (b"(cos\nsystem\nS'touch {path}'\no.", "the instruction OBJ"),
    "NEWOBJ": (b"\x80\x02cnumpy\nndarray\nK\x01\x85\x81.", "the instruction NEWOBJ"),
    "persistent id": (b"Psomething\n.", "the instruction PERSID"),
    "binary persistent id": (b"\x80\x02K\x01Q.", "the instruction BINPERSID"),
    "extension": (b"\x80\x02\x82\x01.", "the instruction EXT1"),
    "buffer": (b"\x80\x05\x97.", "the instruction NEXT_BUFFER"),
    "bytearray": (b"\x80\x05\x96" + struct.pack("<Q", 4) + b"abcd.", "the instruction BYTEARRAY8"),
    "numpy's loader": (b"cnumpy\nload\n(S'{path}'\ntR.", "the name numpy.load"),
    "numpy's tests": (b"cnumpy.testing._private.utils\nrunstring\n(S'1'\n}tR.", "runstring"),
    "numpy's buffers": (b"cnumpy\nfrombuffer\n(S'1'\ntR.", "the name numpy.frombuffer"),
    "numpy's memory maps": (b"cnumpy\nmemmap\n(S'{path}'\ntR.", "the name numpy.memmap"),
    "numpy's scalars": (b"cnumpy.core.multiarray\nscalar\n(S'1'\ntR.", "multiarray.scalar"),
    "objects in an array": (b"cnumpy\ndtype\n(S'O'\ntR.", "an array of the type"),
    "dtype of nothing": (b"cnumpy\ndtype\n(tR.", "an array of the type"),
    "another class of array": (RECONSTRUCT + b"(cnumpy\ndtype\ntR.", "not numpy.ndarray"),
    "array made of nothing": (RECONSTRUCT + b"(tR.", "not numpy.ndarray"),
    "array without content": (RECONSTRUCT + b"(cnumpy\nndarray\ntR.", "without content"),
    "array of a forged state": (RECONSTRUCT + b"(cnumpy\nndarray\ntRK\x01b.", "not bytes in row"),
    "change of a stand-in": (b"cnumpy\ndtype\n}S'__call__'\nK\x01sb.", "a change to a name"),
    "change of a function": (RECONSTRUCT + b"N}S'x'\nK\x01s\x86b.", "a change to a name"),
    "a name as a value": (b"cnumpy\nndarray\n.", "a name of numpy as a value"),
    "memory": (b"\x80\x02Nr\xff\xff\xff\x7f.", "remembered under the number 2147483647"),
    "memory in text": (b"Np99999999999\n.", "remembered under the number 99999999999"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_pickle_that_asks_for_more_is_refused(attack: str, tmp_path: Path) -> None:
    content, message = ATTACKS[attack]
    path = tmp_path / "made"
    content = content.replace(b"{path}", str(path).encode())
    with pytest.raises(InputError, match=rf"in here, got one with .*{message}.*nothing .* was run"):
        unpickle_plain(content, "here")
    assert not path.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_malice_in_a_batch_is_not_executed(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "made"
    content = pickle.dumps({"data": Malice(path), "labels": [1]}, protocol)
    write_folder(tmp_path / "cifar-10-batches-py", {"test_batch": content})
    with pytest.raises(InputError, match=r"nothing of it was run"):
        load_images("cifar10", "test", folder=tmp_path, download=False)
    assert not path.exists()
    pickle.loads(content)
    assert path.exists()  # the payload was a real one


def test_stand_ins_hold_arrays_to_their_word() -> None:
    start = RECONSTRUCT + b"(cnumpy\nndarray\ntR(K\x01(K\x02K\x03tcnumpy\ndtype\n(S'u1'\ntR"
    value = unpickle_plain(b"\x80\x02" + start + b"I00\nU\x06abcdeftb.", "here")
    assert value.dtype == np.uint8 and value.tolist() == [[97, 98, 99], [100, 101, 102]]
    for wrong in (b"I00\nU\x05abcdetb.", b"I01\nU\x06abcdeftb.", b"I00\n]tb.", b"I00\ntb."):
        with pytest.raises(InputError, match="not bytes in row order"):
            unpickle_plain(b"\x80\x02" + start + wrong, "here")
    negative = start.replace(b"K\x02K\x03", b"J\xfe\xff\xff\xffJ\xfd\xff\xff\xff")
    with pytest.raises(InputError, match="not bytes in row order"):
        unpickle_plain(b"\x80\x02" + negative + b"I00\nU\x06abcdeftb.", "here")


def test_plain_values_pass() -> None:
    value = {"a": [1, -2, 2**40, None, True], b"b": ("é", b"\xff", "x" * 300), "c": {"d": []}}
    for protocol in (3, 4):
        assert unpickle_plain(pickle.dumps(value, protocol), "here") == value
    assert unpickle_plain(pickle.dumps({"a": [1, (2, 3)]}, 0), "here") == {"a": [1, (2, 3)]}
    with pytest.raises(InputError, match="the instruction BINFLOAT"):
        unpickle_plain(pickle.dumps(1.5, 2), "here")
