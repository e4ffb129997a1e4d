"""Strategies for what commands read: tables, pictures, models and results that are not whole."""

import functools
import io
import json
import zipfile
import zlib
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from . import corpus
from .damage import (
    damaged,
    join_safetensors,
    odd_json,
    odd_json_text,
    odd_safetensors,
    split_safetensors,
)
from .things import File, Folder, Thing, Told

ODD_NAMES = (
    "", " ", "a", "a", "é", "名前", "a,b", 'say "x"', "1", "nan", "log_density", "age", "income",
    "city", "=1+1", "a\tb", "a;b", "\ufeffage", "x" * 3000, "a\nb", "[bold]", "outlier_score",
)  # fmt: skip
ODD_FIELDS = (
    "", "NA", "nan", "inf", "-inf", "1e309", "1e-320", "-0", " 1 ", "0x1F", "1_000", "1,5", "true",
    "text", "Bern", "Ulm", '"', '""', '"open', "a\0b", "9" * 30, "9" * 5000, "x" * 200_000,
    "2020-01-01", "٣", "1e308", "-1e308", "\r", "[red]x[/]", "TRUE", "40.5", "-3", "1e17",
)  # fmt: skip
NOWHERE = Told("nowhere/at/all")
WORDS = (
    Told(""), Told("."), Told("/dev/null"), NOWHERE, Told("nowhere.csv"),
    Told("nowhere.zip"), Told("nowhere.png"), Told("sklearn:"), Told("sklearn:nothing"),
    Told("adbench:x"), Told("power:x"), Told("mnist:x"), Told("cifar10"), Told("x" * 5000),
    Told("\udcff.csv"), Told("~nobody/x.csv"), Told("file://x.csv"), Told("a\nb.csv"),
)  # fmt: skip


@st.composite
def odd_text(draw: st.DrawFn) -> bytes:
    """Return a table as text in which anything may be wrong."""
    delimiter = draw(st.sampled_from(",,,;\t|"))
    width = draw(st.integers(0, 4))
    names = draw(st.lists(st.sampled_from(ODD_NAMES), min_size=width, max_size=width))
    plain = st.sampled_from(("1", "2", "3.5", "-4", "Bern"))
    field = draw(st.sampled_from((plain, st.sampled_from(ODD_FIELDS), plain | st.text(max_size=6))))
    lines = [delimiter.join(names)]
    for _ in range(draw(st.integers(0, 6))):
        fields = width if draw(st.integers(0, 9)) else draw(st.integers(0, 6))
        lines.append(delimiter.join(draw(field) for _ in range(fields)))
    end = draw(st.sampled_from(("\n", "\n", "\r\n", "\r", "\n\n")))
    text = end.join(lines) + draw(st.sampled_from((end, "")))
    encoding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")))
    return text.encode(encoding, "replace" if encoding == "latin-1" else "surrogatepass")


@st.composite
def odd_people(draw: st.DrawFn) -> bytes:
    """Return the table of people with one thing wrong: a name, a field, a column, a row."""
    rows = [line.split(",") for line in corpus.table(".csv").decode().splitlines()]
    how = draw(st.sampled_from(("name", "field", "field", "column", "row", "rows", "blanks")))
    column = draw(st.integers(0, 2))
    if how == "name":
        rows[0][column] = draw(st.sampled_from(ODD_NAMES))
    elif how == "field":
        for _ in range(draw(st.integers(1, 3))):
            rows[draw(st.integers(1, len(rows) - 1))][column] = draw(st.sampled_from(ODD_FIELDS))
    elif how == "column":
        odd = draw(st.sampled_from(ODD_FIELDS))
        rows = [rows[0]] + [[*row[:column], odd, *row[column + 1 :]] for row in rows[1:]]
    elif how == "row":
        row = draw(st.lists(st.sampled_from(("1", "2.5", "Bern", "")), max_size=6))
        rows.insert(draw(st.integers(1, len(rows))), row)
    elif how == "rows":
        rows = rows[: draw(st.integers(0, 3))]
    else:
        rows = [[f" {field}" for field in row] for row in rows]
    return "\n".join(map(",".join, rows)).encode()


@functools.cache
def odd_arrays() -> tuple[File, ...]:
    """Return whole numpy files of arrays that are no table."""
    arrays: list[Any] = [
        np.zeros(3), np.zeros(()), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros((2, 2, 2)),
        np.zeros((5, 2), complex), np.array([["a", "b"], ["c", "d"]]), np.full((4, 2), np.nan),
        np.full((4, 2), np.inf), np.zeros((4, 2), "M8[s]"), np.zeros((4, 2), "V3"),
        np.zeros(4, [("a", "f8"), ("b", "U3")]), np.zeros(4, [("a", "f8", (2,))]),
        np.array([[1, 2], [3, None]], dtype=object), np.arange(8.0).reshape(4, 2),
        np.array([[1e308, 1], [-1e308, 2], [0, 3]]), np.zeros((4, 2), np.float16),
        np.arange(6, dtype=np.uint64).reshape(3, 2) + 2**63, np.zeros((1, 2)),
    ]  # fmt: skip
    files = []
    for array in arrays:
        npy, npz, named = io.BytesIO(), io.BytesIO(), io.BytesIO()
        np.save(npy, array, allow_pickle=True)
        np.savez(npz, array)
        np.savez(named, X=array, age=np.zeros(3))
        files += [File(".npy", npy.getvalue()), File(".npz", npz.getvalue())]
        files.append(File(".npz", named.getvalue()))
    claim = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)}
    for shape in ((10**12, 3), (10**30, 3), (-1, 3), (2**62, 2**62), (3.5, 2), "x"):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {**claim, "shape": shape})
        files.append(File(".npy", header.getvalue() + bytes(48)))
        files.append(File(".npz", corpus.zipped({"X.npy": header.getvalue() + bytes(48)})))
    for members in ({}, {"X.txt": b"1"}, {"X.npy": b"x"}, {"../X.npy": corpus.table(".npy")}):
        files.append(File(".npz", corpus.zipped(members)))
    return tuple(files)


@functools.cache
def odd_parquet() -> tuple[File, ...]:
    """Return whole parquet files with columns that no table has."""
    import pyarrow
    from pyarrow import parquet

    columns: list[Any] = [
        [[1], [2], [3]], [{"a": 1}, {"a": 2}, None], [b"a", b"\xff", b"c"], [None, None, None],
        ["a", None, "c"], [1, None, 3], [True, None, False], [1.0, float("inf"), 2.0],
    ]  # fmt: skip
    files = []
    for values in columns:
        content = io.BytesIO()
        parquet.write_table(pyarrow.table({"age": values, "income": [1.0, 2.0, 4.0]}), content)
        files.append(File(".parquet", content.getvalue()))
    for table in (
        pyarrow.table({}),
        pyarrow.table({"age": pyarrow.array([], "int64")}),
        pyarrow.Table.from_arrays([pyarrow.array([1, 2, 3])] * 2, ["age", "age"]),
        pyarrow.table({"": [1, 2, 3], "b": [2.5, 3.5, 1.5]}),
        pyarrow.table({"t": pyarrow.array([1, 2, 3], "timestamp[s]")}),
        pyarrow.table({"t": pyarrow.array([1, 2, 3], "duration[s]")}),
        pyarrow.table({"big": pyarrow.array([2**64 - 1, 1, 2], "uint64"), "b": [1.5, 2.5, 9.5]}),
    ):
        content = io.BytesIO()
        parquet.write_table(table, content)
        files.append(File(".parquet", content.getvalue()))
    return tuple(files)


@st.composite
def odd_tables(draw: st.DrawFn) -> Thing:
    """Return DATA that is hardly ever a table."""
    suffix = draw(st.sampled_from(corpus.TABLES))
    text = draw(st.sampled_from((".csv", ".tsv")))
    return draw(
        st.one_of(
            st.builds(lambda content: File(suffix, content), damaged(corpus.table(suffix))),
            st.builds(lambda content: File(text, content), odd_text()),
            st.builds(lambda content: File(".csv", content), odd_people()),
            st.builds(
                lambda content: File(
                    draw(st.sampled_from((*corpus.TABLES, ".zip", ".x"))), content
                ),
                st.binary(max_size=300),
            ),
            st.sampled_from(odd_arrays() + odd_parquet() + WORDS),
            st.sampled_from([Folder({"people.csv": corpus.table(".csv")}), Folder({})]),
        )
    )


@functools.cache
def odd_folders() -> tuple[Thing, ...]:
    """Return folders and zip files of pictures with something wrong about them."""
    whole, png = corpus.pictures(), corpus.picture()
    wide = io.BytesIO()
    Image.new("L", (9, 4)).save(wide, "png")
    folders: list[Any] = [
        {}, {"notes.txt": b"x"}, {"a.png": b""}, {"a.png": b"x"}, {"a.png": png},
        {**whole, "z.png": b"x"}, {**whole, "z.png": corpus.picture(channels=3)},
        {**whole, "z.png": wide.getvalue()}, {**whole, "z.png": corpus.picture(channels=4)},
        {"a.png/": b"", "b.png": png}, {"a" * 60 + "/" + "b" * 60 + ".png": png},
        {"/".join("abcdefghij" * 5) + ".png": png, "y.png": png},
    ]  # fmt: skip
    things: list[Thing] = [Folder(files) for files in folders]
    things += [
        File(".zip", corpus.zipped({n: c for n, c in files.items() if not n.endswith("/")}))
        for files in folders
    ]
    things += [
        File(".zip", corpus.zipped({"../../slip.png": png, "/slip.png": png, "a.png": png})),
        File(".zip", corpus.zipped({"C:\\slip.png": png, "..\\slip.png": png})),
        File(".zip", corpus.zipped({"bomb.png": bytes(20_000_000)})),
        File(".zip", _lying_zip()),
        File(".zip", corpus.zipped({"inner.zip": corpus.zipped(whole)})),
        File(".png", _claiming_png()),
        Folder({**whole, "claims.png": _claiming_png()}),
        Folder({"a.png": png}, {"loop": ".", "b.png": "b.png", "c.png": "/dev/zero"}),
        Folder({"a.png": png}, {"d.png": "nowhere"}),
    ]
    return tuple(things)


def _lying_zip() -> bytes:
    """Return a zip file that says of a member that it holds 4 GB."""
    content = corpus.zipped({"a.png": bytes(100)}, zipfile.ZIP_STORED)
    sizes = (100).to_bytes(4, "little") * 2
    return content.replace(sizes, (100).to_bytes(4, "little") + b"\xfe\xff\xff\xff")


def _claiming_png() -> bytes:
    """Return a picture that says that it has two thousand million pixels."""
    content = corpus.picture()
    size = b"IHDR" + (50_000).to_bytes(4, "big") * 2 + content[24:29]
    return content[:12] + size + zlib.crc32(size).to_bytes(4, "big") + content[33:]


@st.composite
def odd_pictures(draw: st.DrawFn) -> Thing:
    """Return IN or DATA that is hardly ever a set of pictures."""
    suffix = draw(st.sampled_from(corpus.PICTURES))
    harmed = draw(st.sampled_from(("one", "folder", "zip", "within", "bytes", "odd", "word")))
    if harmed == "one":
        return File(suffix, draw(damaged(corpus.picture(suffix))))
    if harmed == "folder":
        return Folder({**corpus.pictures(), f"z{suffix}": draw(damaged(corpus.picture(suffix)))})
    if harmed == "zip":
        return File(".zip", draw(damaged(corpus.zipped(corpus.pictures()))))
    if harmed == "within":
        harm = {**corpus.pictures(), f"z{suffix}": draw(damaged(corpus.picture(suffix)))}
        return File(".zip", corpus.zipped(harm))
    if harmed == "bytes":
        ending = draw(st.sampled_from((suffix, ".zip")))
        return File(ending, draw(st.binary(max_size=300)))
    return draw(st.sampled_from(odd_folders() if harmed == "odd" else WORDS))


@st.composite
def odd_models(draw: st.DrawFn, files: corpus.Files) -> Thing:
    """Return a directory that was one of a model."""
    how = draw(st.sampled_from(("config", "weights", "both", "both", "gone", "word", "mixed")))
    changed = dict(files)
    if how == "config":
        changed["config.json"] = draw(odd_json_text(files["config.json"]))
    elif how == "weights":
        name = draw(st.sampled_from(sorted(n for n in files if n.endswith(".safetensors"))))
        changed[name] = draw(odd_safetensors(files[name]))
    elif how == "both":  # one who wrote a wrong model on purpose, or by another release
        description = draw(odd_json(json.loads(files["config.json"])))
        changed["config.json"] = json.dumps(description).encode()
        header, numbers = split_safetensors(files["model.safetensors"])
        header["__metadata__"]["header"] = json.dumps(description)
        changed["model.safetensors"] = join_safetensors(header, numbers)
    elif how == "gone":
        gone = draw(st.sampled_from(sorted(changed)))
        del changed[gone]
        changed |= draw(st.sampled_from(({}, {f"{gone}/": b""})))
    elif how == "mixed":
        other = corpus.spots() if files == corpus.model() else corpus.model()
        changed["config.json"] = other["config.json"]
    else:
        return draw(st.sampled_from((*WORDS, File("", b"x"), Folder({}), Folder({"x": b""}))))
    return Folder(changed)


@st.composite
def odd_states(draw: st.DrawFn, files: corpus.Files) -> Thing:
    """Return the state of a run, in which something is not as it was left."""
    name = draw(st.sampled_from(sorted(files)))
    odd = odd_safetensors if name.endswith(".safetensors") else odd_json_text
    return Folder({**files, name: draw(odd(files[name]))}, ending=".partial")


@st.composite
def odd_results(draw: st.DrawFn) -> Thing:
    """Return a folder of results in which a file is not what it was, or is of someone else."""
    files = dict(corpus.results())
    named = draw(st.sampled_from(sorted(name for name in files if name.endswith(".json"))))
    how = draw(st.sampled_from(("json", "json", "gone", "bytes", "word", "folder", "budget")))
    if how == "json":
        files[named] = draw(odd_json_text(files[named]))
    elif how == "gone":
        del files[draw(st.sampled_from(sorted(files)))]
    elif how == "bytes":
        files["other.json"] = draw(st.binary(max_size=80))
    elif how == "budget":
        files["toy-samples-cpu.json"] = files["toy-samples-smoke.json"]
    elif how == "folder":
        files["folder.json/"] = b""
    else:
        return draw(st.sampled_from((*WORDS, File("", b"x"), Folder({}))))
    return Folder(files)
