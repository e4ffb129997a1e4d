"""What is whole: tables, pictures, models and results, each as the bytes of its files."""

import functools
import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from arcsm import cli
from arcsm.data import Table, write_table

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".npy", ".npz")
PICTURES = (".png", ".jpg", ".gif", ".bmp", ".webp", ".tiff")
SIDE = 4
Files = Mapping[str, bytes]


def people(rows: int = 30) -> Table:
    """Return rows with a column of each type."""
    random = np.random.default_rng(3)
    age = random.integers(18, 80, rows)
    return Table(
        {
            "age": age,
            "income": np.exp(0.02 * age + random.normal(size=rows)),
            "city": np.array(["Bern", "Basel", "Chur"], dtype=object)[random.integers(0, 3, rows)],
        }
    )


@functools.cache
def table(suffix: str) -> bytes:
    """Return a whole table; .npy holds the numbers alone."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"people{suffix}"
        whole = people()
        write_table(path, whole.select(["age", "income"]) if suffix == ".npy" else whole)
        return path.read_bytes()


@functools.cache
def picture(suffix: str = ".png", number: int = 0, channels: int = 1) -> bytes:
    """Return a whole picture."""
    shape = (SIDE, SIDE) if channels == 1 else (SIDE, SIDE, channels)
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, {".jpg": "jpeg"}.get(suffix, suffix.removeprefix(".")))
    return content.getvalue()


def pictures(count: int = 6) -> dict[str, bytes]:
    """Return a folder of pictures."""
    return {f"{number}.png": picture(number=number) for number in range(count)}


def zipped(files: Files, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip file of `files`."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return content.getvalue()


def files_below(directory: Path) -> dict[str, bytes]:
    """Return all files in a directory by their names; a folder without any has a name with /."""
    found: dict[str, bytes] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir() and not path.is_symlink():
            found[f"{name}/"] = b""
        else:
            found[name] = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    return found


@functools.cache
def made_by(*words: str) -> Files:
    """Return the files of the directory "made" that a command line makes of whole data."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        put(place / "pictures", pictures())
        (place / "people.csv").write_bytes(table(".csv"))
        full = [word.replace("@", f"{directory}/") for word in words]
        result = CliRunner().invoke(cli.app, full, prog_name="arcsm")
        assert result.exit_code == 0, (words, result.output, result.exception)
        return files_below(place / "made")


def put(directory: Path, files: Files) -> Path:
    """Write files into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name.endswith("/"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        else:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
    return directory


def model() -> Files:
    """Return a model of people."""
    return made_by("train", "@people.csv", "-o", "@made", "--max-steps", "2", "--no-card")


def anyone() -> Files:
    """Return a model of people in any order."""
    words = ("--max-steps", "2", "--no-card", "--order", "any")
    return made_by("train", "@people.csv", "-o", "@made", *words)


def given() -> Files:
    """Return a model of people given their age."""
    words = ("--max-steps", "2", "--no-card", "--given", "age", "--ensemble", "1")
    return made_by("train", "@people.csv", "-o", "@made", *words)


def holes() -> bytes:
    """Return the table of people with some fields missing."""
    lines = table(".csv").decode().splitlines()
    for number in range(1, len(lines), 4):
        fields = lines[number].split(",")
        fields[number % 3] = ""
        lines[number] = ",".join(fields)
    return "\n".join(lines).encode()


def spots() -> Files:
    """Return a model of pictures."""
    words = ("--network", "made", "--max-steps", "2", "--batch", "4", "--no-card")
    return made_by("train", "@pictures", "-o", "@made", *words)


def detector() -> Files:
    """Return a detector of unusual people."""
    words = ("--train", "@people.csv", "--max-steps", "2", "-o", "@out.csv", "--save", "@made")
    return made_by("detect", "@people.csv", *words)


def results() -> Files:
    """Return a folder of results with a run of toy-samples under the budget smoke."""
    return made_by("reproduce", "toy-samples", "--budget", "smoke", "--out", "@made")
