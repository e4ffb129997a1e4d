"""Running an experiment: piece after piece, then the record, the curves and the figures.

What is finished stays finished: after Ctrl-C, a crash or the end of its time a run goes on with the
pieces that are left. The record appears last, and only of a whole run.
"""

import io
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from arcsm.errors import InputError
from arcsm.experiments.experiment import Experiment, Piece, Place
from arcsm.experiments.store import Store, provenance
from arcsm.files import write_bytes
from arcsm.plots import save_figure
from arcsm.progress import Reporter
from arcsm.results import current_commit, write_result
from arcsm.tabular import check_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Legible on a page 900 pixels wide, and sharp on screens of twice as many.
_DOTS_PER_INCH = 160
# A drawing of many points is smaller as PNG.
_LARGEST_SVG = 150_000


def run_experiment(
    experiment: Experiment,
    budget: str,
    *,
    device: str = "auto",
    folder: str | os.PathLike[str] = "results",
    resume: bool = True,
    reporter: Reporter | None = None,
    only: Sequence[str] | None = None,
    max_seconds: float | None = None,
) -> list[Path]:
    """Run the pieces that are not finished; once all are, write the results and return their paths.

    Without `resume` finished pieces are discarded first. `only` names the pieces to run, if not
    all. With `max_seconds` no piece is begun that, taking as long as the longest so far, would end
    later; the first is begun in any case. While pieces are left the list of paths is empty.
    """
    if max_seconds is not None and not max_seconds > 0:
        raise InputError(f"expected a positive number of seconds, got {max_seconds}; choose one")
    store = Store(folder, experiment, budget)
    reporter = reporter or Reporter(quiet=True)
    finished = store.load() if resume else {}
    wanted = _wanted(store, finished, only)
    if wanted:  # else the results are only made anew, which needs no device
        device = choose_device(device, budget)
        _check_devices(store, finished, device)
        if not resume:  # not before it is clear that the run can begin
            store.clear()
        _run_pieces(store, wanted, finished, device, max_seconds, reporter)
    left = [piece.name for piece in store.pieces if piece.name not in finished]
    if left:
        reporter.console.print(
            f"{experiment.name}: {len(store.pieces) - len(left)} of {len(store.pieces)} pieces are"
            f" finished; left: {_some(left)}. The same command goes on.",
            markup=False,
        )
        return []
    with reporter.stage(f"{experiment.name}: figures and metrics"):
        return _write(store, {piece.name: finished[piece.name] for piece in store.pieces})


def choose_device(device: str, budget: str) -> str:
    """Return the device to use: "auto" is a GPU where there is one, but for the budget cpu."""
    if device != "auto":
        check_device(device)
        return device
    if budget == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if budget == "gpu":
        raise InputError(
            "expected a GPU for the budget gpu, got none that torch can use; take --budget cpu,"
            " or, to wait for as long as it takes, --device cpu"
        )
    return "cpu"


def command_of(name: str, budget: str, device: str | None = None) -> str:
    """Return the command that runs an experiment."""
    words = ["arcsm", "reproduce", name, "--budget", budget]
    return shlex.join(words if device is None else [*words, "--device", device])


def _run_pieces(
    store: Store,
    wanted: Sequence[Piece],
    finished: dict[str, dict[str, Any]],
    device: str,
    max_seconds: float | None,
    reporter: Reporter,
) -> None:
    """Run pieces and add them to those finished, as far as the time goes."""
    name, began = store.experiment.name, time.monotonic()
    longest = max((piece["seconds"] for piece in finished.values()), default=0.0)
    commit = current_commit()
    try:
        with reporter.share(f"{name} ({store.budget})") as show:
            for index, piece in enumerate(wanted):
                expected_end = time.monotonic() - began + longest
                if index and max_seconds is not None and expected_end > max_seconds:
                    break
                state = f"{index + 1}/{len(wanted)} {piece.name}"

                def progress(share: float, index: int = index, state: str = state) -> None:
                    show((index + min(max(share, 0.0), 1.0)) / len(wanted), state)

                progress(0.0)
                start = time.monotonic()
                raw = store.experiment.run(store.settings, piece, Place(device, progress))
                seconds = time.monotonic() - start
                finished[piece.name] = store.add(
                    piece, raw, seconds=seconds, device=device, commit=commit
                )
                longest = max(longest, seconds)
                reporter.console.print(
                    f"[green]✓[/] {name}: {piece.name} [dim]{seconds:.1f} s,"
                    f" {len(finished)} of {len(store.pieces)}[/]"
                )
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; {len(finished)} of {len(store.pieces)} pieces of {name} are kept in"
            f" {str(store.directory)!r}, and the same command goes on"
        ) from error


def _write(store: Store, finished: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Write curves, figures and, at last, the record; return their paths, the record first."""
    experiment, settings = store.experiment, store.settings
    raws = {name: piece["raw"] for name, piece in finished.items()}
    metrics = list(experiment.metrics(settings, raws))
    figures = experiment.figures(settings, raws)
    store.fold(finished)
    drawn = [path for name, figure in figures.items() for path in _draw(store, name, figure)]
    for path in (*store.directory.glob("*.png"), *store.directory.glob("*.svg")):
        if path not in drawn:  # of a former run
            path.unlink()
    about = provenance(list(finished.values()))
    run = {
        "budget": store.budget,
        "device": about["device"],
        "pieces": len(finished),
        "figures": list(figures),
    }
    if len(about["commits"]) > 1:
        run["commits"] = about["commits"]
    write_result(
        store.record,
        experiment=experiment.name,
        metrics=metrics,
        seeds=settings.get("seeds", []),
        settings={**run, "experiment": settings},
        seconds=about["seconds"],
        command=command_of(experiment.name, store.budget, about["device"]),
        commit=about["commit"],
        hardware=about["hardware"],
        versions=about["versions"],
        date=about["date"],
    )
    return [store.record, store.curves, *drawn]


def _draw(store: Store, name: str, figure: "Figure") -> list[Path]:
    """Write a figure as PNG, and as SVG if that is small."""
    import matplotlib

    png, svg = (store.directory / f"{name}.{kind}" for kind in ("png", "svg"))
    save_figure(figure, png, dpi=_DOTS_PER_INCH)
    buffer = io.BytesIO()
    # Without a date and with names that are not drawn by lot the same figure is the same file.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    if len(buffer.getvalue()) > _LARGEST_SVG:
        return [png]
    write_bytes(svg, buffer.getvalue())
    return [png, svg]


def _check_devices(store: Store, finished: Mapping[str, Mapping[str, Any]], device: str) -> None:
    """Refuse to go on on another kind of device: times would not compare."""
    kind = torch.device(device).type
    others = {torch.device(piece["device"]).type for piece in finished.values()} - {kind}
    if others:
        raise InputError(
            f"expected pieces that were run on {kind} in {str(store.directory)!r}, got some from"
            f" {', '.join(sorted(others))}; use --device {min(others)}, or --fresh to begin anew"
        )


def _wanted(store: Store, finished: Mapping[str, Any], only: Sequence[str] | None) -> list[Piece]:
    names = [piece.name for piece in store.pieces]
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise InputError(
            f"expected pieces among {_some(names)}, got {unknown[0]!r}; choose from these"
        )
    return [
        piece
        for piece in store.pieces
        if piece.name not in finished and (only is None or piece.name in only)
    ]


def _some(names: Sequence[str], most: int = 6) -> str:
    """Return a list of names for people, cut where it grows long."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
