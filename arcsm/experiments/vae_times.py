"""What a training step of a VAE takes by each estimator of the entropy gradient.

All methods in one piece, in turns, so that they meet the same machine. On a GPU steps are captured
as graphs, ten as one, but for those with eigenvectors, which are found between two graphs. On MNIST
all seeds are trained side by side, and a step is one of all of them; on CelebA it is that of one.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from arcsm.experiments.experiment import Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.image_figures import points_figure
from arcsm.experiments.image_parts import forget_former_work
from arcsm.experiments.vae_budgets import BUDGETS, METHODS, OF_LIKELIHOODS, OF_SAMPLES
from arcsm.experiments.vae_parts import (
    Pictures,
    make_stack,
    seeds_together,
    settings_of,
    title_of,
)
from arcsm.experiments.work import synchronise
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The most that a step of CSM is to take, beside one of ELBO.
SLOWER = 1.5
# The most minutes that a run without eigenvectors is to take.
MINUTES = 3.0
_TURNS = 5
# How runs are judged is not in a step, and controls have the steps of the methods.
_NOT_TIMED = {"controls", *OF_LIKELIHOODS, *OF_SAMPLES}
# Nor are which other runs there are, and how often these are kept.
_OF_RUNS = {"tables", "seeds", "celeba_seeds", "save_seconds"}
_STEP, _RUN = "milliseconds of a step", "minutes of a run"


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return a piece for each set and latent size; one depends on nothing said of another set."""
    found = []
    for table in settings["tables"]:
        data = table["data"]
        left_out = {*_OF_RUNS, "width"} if data == "mnist" else _OF_RUNS
        together = {"seeds": seeds_together(settings, data)[0]}
        depends_on = {**settings_of(settings, data, left_out), **table, **together}
        found.append(Piece(f"{data}.{table['latent']}", table, depends_on=depends_on))
    return found


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Return the milliseconds of a step of every method, the best of a few turns."""
    data, latent = piece.labels["data"], piece.labels["latent"]
    pictures = Pictures(settings, data)
    forget_former_work(place.device)
    seeds = seeds_together(settings, data)[0]
    stacks = {
        method: make_stack(settings, pictures, method, latent, seeds, place.device)
        for method in settings["methods"]
    }
    for stack in stacks.values():
        for _ in range(6):  # the first ones allocate, and one is captured
            stack.advance()
    best = dict.fromkeys(stacks, math.inf)
    steps = max(1, settings["timed_steps"] // _TURNS)
    for turn in range(_TURNS):
        for method, stack in stacks.items():
            first = stack.step
            synchronise(place.device)
            began = time.perf_counter()
            while stack.step < first + steps:
                stack.advance()
            synchronise(place.device)
            taken = (time.perf_counter() - began) / (stack.step - first)
            best[method] = min(best[method], taken * 1e3)
        place.progress((turn + 1) / _TURNS)
    return {
        "data": data,
        "latent": latent,
        "ms": best,
        "captured": {method: stack.captured for method, stack in stacks.items()},
        "seeds": len(seeds),
    }


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return the time of a step, and of a whole run, by each method."""
    found = []
    for one in raw.values():
        for method, value in one["ms"].items():
            labels = {"data": one["data"], "latent": one["latent"], "method": method}
            about = {**labels, "seeds": one["seeds"], "captured": one["captured"][method]}
            found.append(Metric(_STEP, value, "ms", _TURNS, labels=about))
            steps = settings["training"][one["data"]]["steps"]
            found.append(Metric(_RUN, value * steps / 6e4, "min", _TURNS, labels=labels))
    return found


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw the times of all methods."""
    values = {
        METHODS[method]: {
            title_of(one["data"], one["latent"]): [one["ms"][method]] for one in raw.values()
        }
        for method in settings["methods"]
    }
    title = "A step of training"
    return {"times": points_figure(values, x="milliseconds", title=title)}


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say what CSM takes beside ELBO, and how long runs are."""
    said = []
    for table in settings["tables"]:
        of = {
            (one.name, one.labels["method"]): one.value or 0.0
            for one in metrics
            if table.items() <= one.labels.items()
        }
        title = title_of(table["data"], table["latent"])
        # Aims are those of a GPU.
        captured = any(one.labels.get("captured", False) for one in metrics)
        tells = captured and settings["sources"][table["data"]]["name"] == table["data"]
        if (_STEP, "csm") in of and (_STEP, "elbo") in of:
            own, other = of[_STEP, "csm"], of[_STEP, "elbo"]
            text = (
                f"{title}: a step of CSM takes {own:.2f} ms, {own / other:.2f} times as long as"
                f" one of ELBO; the aim is {SLOWER}."
            )
            said.append(Verdict(own <= SLOWER * other if tells else None, text))
        plain = {method: of[_RUN, method] for method in settings["methods"] if method != "spectral"}
        slowest = max(plain, key=lambda method: plain[method])
        text = (
            f"{title}: runs without eigenvectors take up to {plain[slowest]:.1f} minutes"
            f" ({METHODS[slowest]}); the aim for MNIST is {MINUTES:.0f}."
        )
        judged = tells and table["data"] == "mnist"
        said.append(Verdict(plain[slowest] <= MINUTES if judged else None, text))
    return said


EXPERIMENT = Experiment(
    name="vae-times",
    title="The cost of an entropy gradient",
    question="How long does a training step of a VAE take by each estimator?",
    claims=[],
    budgets={
        name: {key: value for key, value in settings.items() if key not in _NOT_TIMED}
        for name, settings in BUDGETS.items()
    },
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
    measures_time=True,
)
