"""Running an experiment: piece after piece, then the record, the curves and the figures.

What is finished stays finished: after Ctrl-C, a crash or the end of its time a run goes on with the
pieces that are left. The record appears last. Of some pieces there is one where the experiment can
tell of them; it names those that are left, and does not take the place of that of a whole run with
others than these. A run that is interrupted leaves the record as it was.
"""

import functools
import io
import multiprocessing
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from arcsm.devices import check_device
from arcsm.errors import InputError
from arcsm.experiments.experiment import Experiment, Piece, Place, Raw
from arcsm.experiments.store import Store, plain_settings, provenance, some_of
from arcsm.files import write_bytes
from arcsm.plots import save_figure
from arcsm.progress import Reporter
from arcsm.results import current_commit, write_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Legible on a page 900 pixels wide, and sharp on screens of twice as many.
_DOTS_PER_INCH = 160
# A drawing of many points is smaller as PNG.
_LARGEST_SVG = 150_000
# The folder of results, unless another is named.
_FOLDER = "results"


class Outcome(NamedTuple):
    """What a run wrote, the record first, and the names of the pieces that are left."""

    written: list[Path]
    left: list[str]


def run_experiment(
    experiment: Experiment,
    budget: str,
    *,
    device: str = "auto",
    folder: str | os.PathLike[str] = _FOLDER,
    resume: bool = True,
    reporter: Reporter | None = None,
    only: Sequence[str] | None = None,
    max_seconds: float | None = None,
    jobs: int = 1,
) -> Outcome:
    """Run the pieces that are not finished; once all are, write the results.

    `only` names the pieces to run, if not all. Without `resume` those of them that are finished are
    discarded, and so are all that are damaged or of other settings; those that are run discard what
    they have kept of an interruption. With `max_seconds` no piece is begun that, taking as long as
    the longest so far, would end later; the first is begun in any case. `jobs` pieces are run at a
    time, in processes of one thread each.
    """
    _check_jobs(experiment, jobs)
    if max_seconds is not None and not max_seconds > 0:
        raise InputError(f"expected a positive number of seconds, got {max_seconds}; choose one")
    store = Store(folder, experiment, budget)
    command = command_of(experiment.name, budget, None if device == "auto" else device, folder)
    reporter = reporter or Reporter(quiet=True)
    finished = store.load(strict=resume)
    if not resume:
        kept = [name for name in finished if only is not None and name not in only]
        finished = {name: finished[name] for name in kept}
    wanted = _wanted(store, finished, only)
    if experiment.tells_of_some and len(finished) < len(store.pieces):
        store.record_stays(finished)  # a record that cannot be read is refused before the work
    if wanted:  # else the results are only made anew, which needs no device
        device = choose_device(device, budget)
        if not all(piece.anywhere for piece in wanted):
            _check_devices(store, finished, device)
        experiment.check(store.settings, wanted)
        if not resume:
            store.begin_anew(finished)
        run_pieces = _run_pieces if jobs == 1 else functools.partial(_run_side_by_side, jobs)
        before = len(finished)
        try:
            run_pieces(store, wanted, finished, device, max_seconds, reporter, not resume)
        except InputError:  # of one piece; what others have found out is told all the same
            if len(finished) > before and experiment.tells_of_some:
                _write(store, store.load(strict=False))
            raise
        finished = store.load()  # others may have been at work in the same folder
    left = [piece.name for piece in store.pieces if piece.name not in finished]
    if not left:
        with reporter.stage(f"{experiment.name}: figures and metrics"):
            return Outcome(_write(store, finished), left)
    said, written = [_what_is_left(store, finished, only, command, not resume)], []
    if finished and experiment.tells_of_some:
        written = _write(store, finished)
        said.append(
            f"What is finished is told in {str(store.record)!r}, with pictures in"
            f" {str(store.directory)!r}."
            if written
            else f"The record {str(store.record)!r} is of a whole run with pieces other than those"
            " that are finished, and stays until these, or all of today's, are."
        )
    for sentence in said:
        reporter.console.print(sentence, markup=False, soft_wrap=True)  # so that it can be copied
    return Outcome(written, left)


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


def command_of(
    name: str,
    budget: str,
    device: str | None = None,
    folder: str | os.PathLike[str] = _FOLDER,
) -> str:
    """Return the command that runs an experiment."""
    words = ["arcsm", "reproduce", name, "--budget", budget]
    if device is not None:
        words += ["--device", device]
    if Path(folder) != Path(_FOLDER):
        words += ["--out", os.fspath(folder)]
    return shlex.join(words)


def _run_pieces(
    store: Store,
    wanted: Sequence[Piece],
    finished: dict[str, dict[str, Any]],
    device: str,
    max_seconds: float | None,
    reporter: Reporter,
    fresh: bool,
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
                if (there := store.finished_by_others(piece)) is not None:
                    finished[piece.name] = there
                    continue
                state = f"{index + 1}/{len(wanted)} {piece.name}"

                told: list[str] = []

                def progress(
                    share: float, index: int = index, state: str = state, told: list[str] = told
                ) -> None:
                    words = " ".join([state, *told])
                    show((index + min(max(share, 0.0), 1.0)) / len(wanted), words)

                def tell(text: str, told: list[str] = told) -> None:
                    told[:] = [text]

                progress(0.0)
                start = time.monotonic()
                place = Place(device, progress, tell, fresh=fresh)
                raw = store.experiment.run(store.settings, piece, place)
                seconds = time.monotonic() - start
                finished[piece.name] = store.add(
                    piece, raw, seconds=seconds, device=device, commit=commit
                )
                longest = max(longest, seconds)
                _tell(store, piece, seconds, finished, reporter)
    except KeyboardInterrupt as error:
        # Or the same command without --fresh would find them finished.
        raise _interruption(store, finished, fresh, discarded=store.discard()) from error


def _run_side_by_side(
    jobs: int,
    store: Store,
    wanted: Sequence[Piece],
    finished: dict[str, dict[str, Any]],
    device: str,
    max_seconds: float | None,
    reporter: Reporter,
    fresh: bool,
) -> None:
    """Run so many pieces at a time, and add them to those finished, as far as the time goes."""
    began, commit = time.monotonic(), current_commit()
    longest = max((piece["seconds"] for piece in finished.values()), default=0.0)
    waiting, done = list(wanted), 0
    running: dict[Future[tuple[Raw, float]], Piece] = {}
    refusal: InputError | None = None
    # Not forked: what torch has begun in this process would be there by halves.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool,
        reporter.share(f"{store.experiment.name} ({store.budget})") as show,
    ):
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    expected_end = time.monotonic() - began + longest
                    if running and max_seconds is not None and expected_end > max_seconds:
                        waiting.clear()
                        break
                    piece = waiting.pop(0)
                    if (there := store.finished_by_others(piece)) is not None:
                        finished[piece.name] = there
                        continue
                    about = (store.experiment.name, store.budget, piece.name, device, jobs, fresh)
                    running[pool.submit(_run_elsewhere, *about)] = piece
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    piece = running.pop(future)
                    try:
                        raw, seconds = future.result()
                    except InputError as error:  # no other is begun; those under way are let end
                        refusal = refusal or error
                        waiting.clear()
                        continue
                    finished[piece.name] = store.add(
                        piece, raw, seconds=seconds, device=device, commit=commit
                    )
                    longest, done = max(longest, seconds), done + 1
                    show(done / len(wanted), f"{done}/{len(wanted)}")
                    _tell(store, piece, seconds, finished, reporter)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if isinstance(error, KeyboardInterrupt):
                discarded = store.discard()
                raise _interruption(store, finished, fresh, discarded=discarded) from error
            raise
    if refusal is not None:
        raise refusal


def _run_elsewhere(
    name: str, budget: str, piece: str, device: str, jobs: int, fresh: bool
) -> tuple[Raw, float]:
    """Run a piece in a process of its own; return its raw data and the seconds it took."""
    from arcsm.experiments import get_experiment

    experiment = get_experiment(name)
    settings = plain_settings(experiment, budget)
    (chosen,) = (one for one in experiment.pieces(settings) if one.name == piece)
    start = time.monotonic()
    place = Place(device, lambda share: None, jobs=jobs, fresh=fresh)
    raw = experiment.run(settings, chosen, place)
    return raw, time.monotonic() - start


def _tell(
    store: Store, piece: Piece, seconds: float, finished: Mapping[str, Any], reporter: Reporter
) -> None:
    reporter.console.print(
        f"[green]✓[/] {store.experiment.name}: {piece.name} [dim]{seconds:.1f} s,"
        f" {len(finished)} of {len(store.pieces)}[/]"
    )


def _interruption(
    store: Store, finished: Mapping[str, Any], fresh: bool, *, discarded: bool
) -> KeyboardInterrupt:
    before = "; those of before that were to be run anew are discarded" if discarded else ""
    kept = f" and kept in {str(store.directory)!r}" if finished else ""
    return KeyboardInterrupt(
        f"interrupted; {len(finished)} of {len(store.pieces)} pieces of {store.experiment.name} are"
        f" finished{kept}, and {_same_command(fresh)} goes on{before}"
    )


def _same_command(fresh: bool) -> str:
    return "the same command without --fresh" if fresh else "the same command"


def _what_is_left(
    store: Store,
    finished: Mapping[str, Any],
    only: Sequence[str] | None,
    command: str,
    fresh: bool,
) -> str:
    """Return a sentence on the pieces that are not finished, and on what to do about them."""
    left = [piece.name for piece in store.pieces if piece.name not in finished]
    chosen = [piece.name for piece in store.pieces if only is None or piece.name in only]
    of_chosen = [name for name in left if name in chosen]
    if not of_chosen:
        return (
            f"{store.experiment.name}: the pieces chosen are finished; left are others:"
            f" {some_of(left)}. To run these: {command}"
        )
    what = "pieces" if only is None else "pieces chosen"
    return (
        f"{store.experiment.name}: {len(chosen) - len(of_chosen)} of {len(chosen)} {what} are"
        f" finished; left: {some_of(of_chosen)}. {_same_command(fresh).capitalize()} goes on."
    )


def _check_jobs(experiment: Experiment, jobs: int) -> None:
    if jobs < 1:
        raise InputError(f"expected at least one job, got {jobs}; leave it out")
    if jobs > 1 and experiment.measures_time:
        raise InputError(
            f"expected one job for {experiment.name}, got {jobs}: its times would be those of a"
            " busy machine; leave --jobs out"
        )


def _write(store: Store, finished: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Write curves, figures and, at last, the record; return their paths, the record first.

    Curves are those of a whole run: of some pieces they stay where they are. And where there is the
    record of a whole run with others than these, nothing is written of some pieces.
    """
    experiment, settings = store.experiment, store.settings
    done = [piece for piece in store.pieces if piece.name in finished]
    left = [piece.name for piece in store.pieces if piece.name not in finished]
    raws = {piece.name: finished[piece.name]["raw"] for piece in done}
    metrics = list(experiment.metrics(settings, raws))
    figures = experiment.figures(settings, raws)
    if left and store.record_stays(finished):  # others may have written it meanwhile
        return []
    if not left:
        store.fold({piece.name: finished[piece.name] for piece in done})
    drawn = _draw_all(store, figures)
    anywhere = [finished[piece.name] for piece in done if piece.anywhere]
    about = provenance([finished[piece.name] for piece in done], anywhere)
    run = {
        "budget": store.budget,
        "device": about["device"],
        "pieces": len(done),
        "figures": list(figures),
    }
    if left:
        run["left"] = left
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
    return [store.record, *([] if left else [store.curves]), *drawn]


def _draw_all(store: Store, figures: "Mapping[str, Figure]") -> list[Path]:
    """Write figures, and remove those of a former run; return their paths."""
    drawn = [path for name, figure in figures.items() for path in _draw(store, name, figure)]
    for path in (*store.directory.glob("*.png"), *store.directory.glob("*.svg")):
        if path not in drawn:
            path.unlink(missing_ok=True)
    return drawn


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
    bound = [piece.name for piece in store.pieces if piece.name in finished and not piece.anywhere]
    others = {torch.device(finished[name]["device"]).type for name in bound} - {kind}
    if others:
        raise InputError(
            f"expected pieces that were run on {kind} in {str(store.directory)!r}, got some from"
            f" {', '.join(sorted(others))}; use --device {min(others)}, or --fresh to run all anew"
        )


def _wanted(store: Store, finished: Mapping[str, Any], only: Sequence[str] | None) -> list[Piece]:
    names = [piece.name for piece in store.pieces]
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise InputError(
            f"expected pieces among {some_of(names)}, got {unknown[0]!r}; choose from these"
        )
    return [
        piece
        for piece in store.pieces
        if piece.name not in finished and (only is None or piece.name in only)
    ]
