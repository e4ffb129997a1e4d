"""The command lines: of each command one or more that are right, and how to spoil them.

A word in braces is a slot. Whole things are put into all slots but one, which gets an odd thing of
its kind; or all are whole, and an option has an odd value. A new command is a new entry in LINES.
"""

import functools
import signal
import tempfile
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_post_hook
from typer.models import OptionInfo
from typer.testing import CliRunner

from arcsm import ARCSMDensity, cli
from arcsm.data import read_table
from arcsm.images import ImageModel

from . import corpus, inputs
from .things import File, Folder, Thing, Told

QUICK = "--max-steps 1 --no-card"
QUICK_IMAGES = f"--network made --batch 4 {QUICK}"


@functools.cache
def run_files() -> corpus.Files:
    """Return the state of a run that was stopped after its first step."""
    hook = register_optimizer_step_post_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "people.csv").write_bytes(corpus.table(".csv"))
        words = ["train", f"{directory}/people.csv", "-o", f"{directory}/run", "--max-steps", "3"]
        try:
            result = CliRunner().invoke(cli.app, words, prog_name="arcsm")
        finally:
            hook.remove()
        assert result.exit_code == 130, (result.output, result.exception)
        return corpus.files_below(place / "run.partial")


# What each slot holds: a whole thing, and a strategy for odd ones.

ODD_PLACES = (
    Told(""), Told("."), Told(".."), Told("/"), Told("/dev/null"), Told("/dev/full"),
    Told("/proc/x.csv"), Told("/proc/x.png"), Told("/proc/x"), Told("x" * 300 + ".csv"),
    Told("x" * 300), Told("x" * 5000 + "/a.png"), Told("out.x"), Told("out"), Told("out.npy"),
    Told("new/place/out.csv"), Told("new/place/out.png"), Told("new/place/out"), Told("-"),
    Told("\udcff.csv"), Told("é\n.csv"), Told("~nobody/out.csv"), Told("out.csv/"),
    File(".csv", b"kept"), File(".png", b"kept"), File(".html", b"kept"), File("", b"kept"),
    Folder({}), Folder({"kept": b"kept"}), Folder({"config.json": b"{}"}), Told("{source}"),
    Folder({}, {"out.csv": "out.csv"}), Told("link/loop/out.csv"), Told("{source}/out.csv"),
    Told("{source}/out.png"), Told("out.parquet"), Told("out.npz"), Told("out.csv.gz"),
)  # fmt: skip


def _places(ending: str) -> tuple[Thing, st.SearchStrategy[Thing]]:
    return Told(f"made{ending}"), st.sampled_from(ODD_PLACES)


SLOTS: dict[str, Callable[[], tuple[Thing, st.SearchStrategy[Any]]]] = {
    "table": lambda: (File(".csv", corpus.table(".csv")), inputs.odd_tables()),
    "pictures": lambda: (Folder(corpus.pictures()), inputs.odd_pictures()),
    "picture": lambda: (File(".png", corpus.picture()), inputs.odd_pictures()),
    "model": lambda: (Folder(corpus.model()), inputs.odd_models(corpus.model())),
    "anyone": lambda: (Folder(corpus.anyone()), inputs.odd_models(corpus.anyone())),
    "given": lambda: (Folder(corpus.given()), inputs.odd_models(corpus.given())),
    "holes": lambda: (File(".csv", corpus.holes()), inputs.odd_tables()),
    "spots": lambda: (Folder(corpus.spots()), inputs.odd_models(corpus.spots())),
    "detector": lambda: (Folder(corpus.detector()), inputs.odd_models(corpus.detector())),
    "results": lambda: (Folder(corpus.results()), inputs.odd_results()),
    "run": lambda: (Folder(run_files(), ending=".partial"), inputs.odd_states(run_files())),
    "rows": lambda: _places(".csv"),
    "png": lambda: _places(".png"),
    "page": lambda: _places(".html"),
    "fresh": lambda: _places(""),
}


# What must hold of an output when a command says that all went well.


def is_rows(path: Path) -> None:
    """A table without a score that is no number."""
    table = read_table(path)
    assert table.rows > 0
    for name, column in table.columns.items():
        if name.startswith(("log_", "outlier", "bits")) and column.dtype == np.float64:
            assert not np.isnan(column).any(), (name, column)


def is_model(path: Path) -> None:
    """A model of a table that gives finite densities to its own rows."""
    density = ARCSMDensity.load(path)
    drawn = density.model_.sample(4)
    assert not np.isnan(density.model_.log_prob(drawn)).any()


def is_images_model(path: Path) -> None:
    """A model of images that can be drawn from."""
    assert ImageModel.load(path).sample(1, seed=0).dtype == np.uint8


def is_picture(path: Path) -> None:
    """A whole picture, or a folder of such."""
    for file in [path] if path.is_file() else path.rglob("*.png"):
        with Image.open(file) as image:
            image.load()


def is_page(path: Path) -> None:
    """A whole page."""
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


@dataclass(frozen=True)
class Line:
    """A command line that is right, how many odd ones are made of it, and how to judge them."""

    words: str
    examples: int
    output: Callable[[Path], None] | None = None
    out: str | None = None  # the slot of the output
    codes: tuple[int, ...] = (0, 2)
    costly: tuple[str, ...] = ()  # options whose large values are right, and take long

    @property
    def command(self) -> str:
        """The name of the command."""
        return self.words.split()[0]

    @property
    def slots(self) -> list[str]:
        """The names of the slots."""
        return [word[1:-1] for word in self.words.split() if word.startswith("{")]


_ALL = {
    "train": Line(f"train {{table}} -o {{fresh}} {QUICK}", 80, is_model, "fresh"),
    "train pictures": Line(
        f"train {{pictures}} -o {{fresh}} {QUICK_IMAGES}", 40, is_images_model, "fresh"
    ),
    "resume": Line("train {table} -o {run} --max-steps 3 --no-card --resume", 25, is_model, "run"),
    "score": Line("score {model} {table} -o {rows}", 50, is_rows, "rows"),
    "score pictures": Line("score {spots} {pictures} -o {rows}", 25, is_rows, "rows"),
    "sample": Line("sample {anyone} -n 3 -o {rows}", 40, is_rows, "rows", costly=("--rows",)),
    "sample pictures": Line(
        "sample {spots} -n 2 -o {png}", 25, is_picture, "png", costly=("--rows", "--steps")
    ),
    "check": Line("check {model} {table}", 15, codes=(0, 1, 2)),
    "check pictures": Line("check {spots} {pictures}", 10, codes=(0, 1, 2)),
    "detect": Line("detect {table} --model {detector} -o {rows}", 30, is_rows, "rows"),
    "detect and learn": Line(
        "detect {table} --train {table} -o {rows} --max-steps 1",
        20,
        is_rows,
        "rows",
        costly=("--max-steps",),
    ),
    "predict": Line(
        "predict {given} {table} -o {rows} --column income", 25, is_rows, "rows", (0, 2),
        ("--draws",),
    ),
    "impute": Line(
        "impute {holes} --model {anyone} -o {rows}", 25, is_rows, "rows", costly=("--multiple",)
    ),
    "impute and learn": Line(
        "impute {holes} -o {rows} --max-steps 1", 15, is_rows, "rows", (0, 2),
        ("--multiple", "--max-steps"),
    ),
    # No page is served: all lines are refused in the end.
    "app": Line("app --model {spots} --no-browser", 10, codes=(2,)),
    "denoise": Line(
        "denoise {picture} {png} --model {spots} --noise gaussian:0.3", 30, is_picture, "png"
    ),
    "complete": Line(
        "complete {picture} {png} --model {spots} --draws 1", 30, is_picture, "png", (0, 2),
        ("--draws",),
    ),
    "reproduce": Line("reproduce toy-samples --budget smoke --out {results}", 10),
    "report": Line("report --results {results} -o {page}", 30, is_page, "page"),
    "demo": Line("demo -o {page} --quick", 15),
}  # fmt: skip
_KNOWN = {one.name for one in cli.app.registered_commands}
LINES = {name: line for name, line in _ALL.items() if line.command in _KNOWN}


# Options with odd values

ODD_TEXT = (
    "", " ", "x", "-1", "0", "nan", "inf", "-inf", "1e400", "1.5", "None", "age", "age=", "=",
    "age=x", "city=Ulm", "age=40", "age=integer", "age=integer:x", "age=bounded:9:1",
    "age=bounded:", "city=real", "city=ordinal:a:a", "income=quantised:0", "income=quantised:-1",
    "age=ordinal", "income=linear",
    "nowhere=real", "gaussian", "gaussian:-1", "gaussian:nan", "salt-and-pepper:2", "half", "é",
    "meta", "cuda:99", "cpu:0", "all", "any", "\udcff", "9" * 5000, "age=category:1:2",
    "income=integer", "age=integer:0:10", "age=bounded:nan:1", "age=" + "9" * 5000, "age=inf",
    "income=bounded:1e308:", "age=quantised:1e-320", "outlier_score", "log_density",
)  # fmt: skip
ODD_COUNTS = ("-1", "0", "x", "1.5", "", "1e3", "9" * 30, "nan", "٣", "0x1", "9" * 5000, " 7", "1")
ODD_REALS = (
    "-1", "0", "x", "", "nan", "inf", "-inf", "1e400", "1e-300", "٣", "0.3", "0.5", "0.6", "1",
)  # fmt: skip
MANY = ("9" * 30, "9" * 5000)


@functools.cache
def options_of(command: str) -> dict[str, Any]:
    """Return the options of a command, each with the type of its values."""
    (callback,) = (one.callback for one in cli.app.registered_commands if one.name == command)
    found: dict[str, Any] = {}
    for own, hint in typing.get_type_hints(callback, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, OptionInfo):
                long = [name for name in note.param_decls or () if name.startswith("--")]
                found[(long or [f"--{own.replace('_', '-')}"])[0]] = hint.__origin__
    return {name: kind for name, kind in found.items() if name != "--download"}


@st.composite
def odd_options(draw: st.DrawFn, line: Line) -> list[str]:
    """Return options, known or not, with values that hardly fit."""
    words: list[str] = []
    options = options_of(line.command)
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 9)) == 0:
            odd = ("--nonsense", "--", "-", "-x", "--outputs", "extra", "--seed", "-o", "--rows=")
            words += [draw(st.sampled_from(odd))]
            continue
        name = draw(st.sampled_from(sorted(options)))
        kinds = {options[name], *typing.get_args(options[name])}
        if bool in kinds:
            words += [draw(st.sampled_from(name.split("/")))]
            continue
        odd = ODD_COUNTS if int in kinds else ODD_REALS if float in kinds else ODD_TEXT
        value = draw(st.sampled_from(odd))
        words += [name, "-1" if name in line.costly and value in MANY else value]
    return words


@dataclass(frozen=True)
class Case:
    """A line with an odd thing in one slot, if any, and further words."""

    slot: str | None
    odd: Thing | None
    further: tuple[str, ...] = ()


@st.composite
def spoiled(draw: st.DrawFn, line: Line) -> Case:
    """Return what is wrong with a line."""
    if draw(st.integers(0, 3)) == 0:
        return Case(None, None, tuple(draw(odd_options(line))))
    slot = draw(st.sampled_from(line.slots))
    further = draw(st.sampled_from(((), (), ("--json",), ("-q",))))
    return Case(slot, draw(SLOTS[slot]()[1]), further if line.command != "demo" else ())
