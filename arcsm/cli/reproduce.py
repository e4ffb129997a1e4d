"""`arcsm reproduce`: the experiments of the paper, run again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arcsm.cli.options import Json, Quiet, Voice, examples, prose
from arcsm.cli.shell import check_place
from arcsm.errors import InputError

if TYPE_CHECKING:
    from arcsm.experiments import Experiment

ALL = "all"
HELP = prose("""Run an experiment of the paper, or all of them, piece by piece.

Each finished piece is kept: after Ctrl-C, or when its time is over, the same command goes on with
what is left. When all pieces are there, FOLDER/NAME-BUDGET.json has the numbers and
FOLDER/NAME-BUDGET the curves and the figures; `arcsm report` makes a page of them. Of vae some
pieces will do: then the numbers are theirs, with the names of those that are left.

The budget smoke shows in seconds that everything runs, and is no result; cpu takes minutes to hours
on a few cores, gpu needs a GPU, and paper is the paper's own settings where it states them.""")
EXAMPLES = examples(
    "arcsm reproduce --list",
    "arcsm reproduce toy-samples --budget cpu",
    "arcsm reproduce vae --data mnist --latent 8 --method csm --budget gpu",
    "arcsm reproduce all --budget gpu --seconds 540",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce", help=HELP, epilog=EXAMPLES)(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The experiment, or: all. See --list.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="How much work: smoke, cpu, gpu or paper.")
    ] = "cpu",
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="NAME", help="Where to compute: auto, cpu, cuda, cuda:1, …"
        ),
    ] = "auto",
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help="Begin no piece that would end later than this.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help=(
                "Run so many pieces side by side, and say only which are finished; not where times"
                " are what is measured."
            ),
        ),
    ] = 1,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="NAME", help="Only pieces on this data set.", show_default=False
        ),
    ] = None,
    latent: Annotated[
        int | None,
        typer.Option(
            "--latent", metavar="D", help="Only pieces with D latents.", show_default=False
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", metavar="NAME", help="Only pieces of this method.", show_default=False
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help=(
                "Discard the pieces that are finished, of those chosen, and begin anew. Damaged"
                " pieces and those of settings other than today's are discarded in any case."
            ),
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="The folder of results.")
    ] = Path("results"),
    list_them: Annotated[
        bool, typer.Option("--list", help="Show all experiments, and what has been run.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run what was asked for, or list it."""
    voice = Voice(quiet=quiet, as_json=as_json)
    if not list_them and name is None:
        raise InputError(
            "expected the NAME of an experiment, got none; `arcsm reproduce --list` shows them"
        )
    from arcsm.experiments import BUDGETS, NAMES, get_experiment

    if list_them:
        chosen = NAMES if name in (None, ALL) else (str(name),)
        _list([get_experiment(one) for one in chosen], out, voice, as_json=as_json)
        return
    if budget not in BUDGETS:
        raise InputError(
            f"expected a budget among {', '.join(BUDGETS)}, got {budget!r}; choose one of these"
        )
    check_place(out / "file")
    if name != ALL:
        experiments = [get_experiment(str(name))]
    else:
        experiments = [get_experiment(one) for one in NAMES]
        without = [one.name for one in experiments if budget not in one.budgets]
        if without:
            voice.say(f"Without a budget {budget}, left out: {', '.join(without)}.")
        experiments = [one for one in experiments if budget in one.budgets]
    told = {"data": data, "latent": latent, "method": method}
    wanted = {label: value for label, value in told.items() if value is not None}
    _run(experiments, budget, device, seconds, jobs, fresh, out, voice, wanted)


def _run(
    experiments: "list[Experiment]",
    budget: str,
    device: str,
    seconds: float | None,
    jobs: int,
    fresh: bool,
    out: Path,
    voice: Voice,
    wanted: "dict[str, Any]",
) -> None:
    import time

    from arcsm.experiments import run_experiment

    began, reporter = time.monotonic(), voice.reporter()
    written: list[str] = []
    unfinished: list[str] = []
    refused: list[str] = []
    for index, experiment in enumerate(experiments):
        left = None if seconds is None else seconds - (time.monotonic() - began if index else 0)
        if left is not None and left <= 0 and written + unfinished:
            unfinished.append(experiment.name)
            continue
        try:
            outcome = run_experiment(
                experiment,
                budget,
                device=device,
                folder=out,
                resume=not fresh,
                reporter=reporter,
                max_seconds=left,
                **({"only": _some_pieces(experiment, budget, wanted)} if wanted else {}),
                # Among others, one that measures times is run by itself.
                jobs=1 if experiment.measures_time and len(experiments) > 1 else jobs,
            )
        except InputError as error:
            if len(experiments) == 1:
                raise
            # What one of them lacks, a data set for instance, need not keep the others waiting.
            refused.append(f"{experiment.name}: {error}")
            continue
        written += [str(path) for path in outcome.written]
        if outcome.left:
            unfinished.append(experiment.name)
        else:
            voice.say(f"Wrote {outcome.written[0]}.")
    if unfinished:
        voice.say(f"Not finished: {', '.join(unfinished)}.")
    if refused:
        raise InputError(" — ".join(refused))
    voice.result(command="reproduce", budget=budget, written=written, unfinished=unfinished)


def _some_pieces(experiment: "Experiment", budget: str, wanted: "dict[str, Any]") -> list[str]:
    """Return the names of the pieces with certain labels; refuse labels that no piece has."""
    if budget not in experiment.budgets:  # which the runner says
        return []
    pieces = experiment.pieces(experiment.budgets[budget])
    found = [piece.name for piece in pieces if wanted.items() <= piece.labels.items()]
    if not found:
        told = " ".join(f"--{label} {value}" for label, value in wanted.items())
        known = []
        for label in wanted:
            values = {str(piece.labels[label]) for piece in pieces if label in piece.labels}
            known.append(f"--{label} {', '.join(sorted(values)) or 'for none'}")
        raise InputError(
            f"expected pieces of {experiment.name} under the budget {budget} with {told}, got"
            f" none; there are {'; '.join(known)}"
        )
    return found


def _list(experiments: "list[Experiment]", out: Path, voice: Voice, *, as_json: bool) -> None:
    from arcsm.experiments import Store

    listed: list[dict[str, Any]] = []
    for experiment in experiments:
        states = {budget: Store(out, experiment, budget).state() for budget in experiment.budgets}
        listed.append({"name": experiment.name, "question": experiment.question, "budgets": states})
    voice.result(command="reproduce", experiments=listed)
    if as_json:
        return
    for one in listed:
        told = ", ".join(
            budget if state is None else f"{budget} ({state})"
            for budget, state in one["budgets"].items()
        )
        print(f"{one['name']}\n    {one['question']}\n    budgets: {told}")
