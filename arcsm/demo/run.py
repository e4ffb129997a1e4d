"""The demonstration from start to end."""

import os
import platform
import shlex
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from arcsm import __version__
from arcsm.data import TOYS
from arcsm.demo.digits import DigitsSizes, run_digits
from arcsm.demo.page import About, render
from arcsm.demo.toy import ToySizes, run_toy
from arcsm.errors import ArcsmError, InputError
from arcsm.files import write_text
from arcsm.progress import Reporter


@dataclass(frozen=True)
class Settings:
    """What the user can choose. `quick` trains for seconds: it shows the page, not the quality."""

    toy: str = "two-spirals"
    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        if self.toy not in TOYS:
            raise InputError(
                f"expected a toy among {', '.join(TOYS)}, got {self.toy!r}; choose one of these"
            )

    @property
    def sizes(self) -> tuple[ToySizes, DigitsSizes]:
        """How much of everything."""
        if not self.quick:
            return ToySizes(), DigitsSizes()
        return (
            ToySizes(
                rows=1000, held_out=100, steps=30, hidden=(32, 32), shown=400, grid=40,
                components=(2, 5), bandwidths=(0.1, 0.2), scored=20,
            ),
            DigitsSizes(
                held_out=24, steps=20, copies=2, hidden=(32,), shown=20, components=(1, 5),
                bandwidths=(0.4, 0.6), scored=20,
            ),
        )  # fmt: skip


def run_demo(
    output: str | os.PathLike[str], settings: Settings, *, reporter: Reporter | None = None
) -> None:
    """Train, draw, and write the page to `output` as a whole or not at all."""
    reporter = reporter or Reporter()
    toy_sizes, digits_sizes = settings.sizes
    toy = run_toy(TOYS[settings.toy], toy_sizes, settings.seed, reporter)
    digits = run_digits(digits_sizes, settings.seed, reporter)
    with reporter.stage("page"):
        about = About(
            command=_command(output, settings),
            settings={
                settings.toy: _describe(toy.settings),
                "digits": _describe(digits.settings),
                "seed": str(settings.seed),
            },
            versions=_versions(),
            seconds=dict(reporter.seconds),
            total=reporter.total,
        )
        content = render(toy, digits, about)
        try:
            write_text(output, content)
        except OSError as error:
            raise ArcsmError(
                f"expected to write {os.fspath(output)!r}, got: {error.strerror or error};"
                " choose another path"
            ) from error
    done = f"Wrote {os.fspath(output)} after {reporter.total:.0f} s."
    reporter.console.print(done, soft_wrap=True, markup=False)


def _command(output: str | os.PathLike[str], settings: Settings) -> str:
    """Return a command that makes this page again."""
    words = ["arcsm", "demo", "-o", Path(output).name]
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            words += [f"--{field.name}"] if value is True else [f"--{field.name}", str(value)]
    return shlex.join(words)


def _describe(settings: dict[str, Any]) -> str:
    model, training = settings["model"], settings["training"]
    context, head, noise = model["context"], model["head"], model["noise"]
    return (
        f"{context['kind']} {' × '.join(map(str, context['hidden']))}, context {context['width']};"
        f" {head['kind']} of {head['steps']} steps;"
        f" σ {noise['sigma_min']:g} … {noise['sigma_max']:g};"
        f" {training.steps:,} steps of {training.batch_size} rows,"
        f" learning rate {training.learning_rate:g}"
    )


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "scikit-learn", "matplotlib")
    return {
        "arcsm": __version__,
        "libraries": ", ".join(f"{name} {version(name)}" for name in names),
        "machine": f"Python {platform.python_version()}, {platform.machine()},"
        f" {torch.get_num_threads()} threads",
    }
