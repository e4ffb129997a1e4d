"""A MADE with a likelihood, trained on MNIST by CSM, SSM and DSM (Section 5.1, Figure 3a).

One normal density for each pixel given those before it: normalised, so that what score matching has
learned can be read off as a likelihood. All methods train the same network. CSM acts on its
conditional scores ∂ log q(x_d | x_<d)/∂x_d, which are closed forms; SSM and DSM act on the joint
score ∇ log q(x), by automatic differentiation; maximum likelihood is the floor.

Pixels are dequantised and put into [−1, 1] as in Appendix C, and carry noise of a fixed σ, the same
for all methods and for held-out rows: without it a pixel that is black in nearly all images has a
conditional so narrow that a single white one outweighs the rest of the data in every score-matching
loss. The noise of DSM comes on top. The paper does not say what it did, nor its network or batch.

Of a few learning rates each method has the one that is best on validation rows; figures are those
of other, test rows.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from arcsm.baselines import MixtureMADE
from arcsm.data.images import dequantise, load_images
from arcsm.errors import InputError
from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.lines import Line, line_figure
from arcsm.experiments.summaries import finite, over_seeds, spaced_steps
from arcsm.experiments.work import synchronise
from arcsm.objectives import Rows, csm, dsm, nll, ssm
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 28
# How near to the floor counts as learned: of the way from the start to maximum likelihood.
NEAR = 0.1
LABELS = {
    "mle": "maximum likelihood",
    "csm": "CSM",
    "ssm": "SSM",
    "ssm-vr": "SSM-VR",
    "dsm-0.01": "DSM, σ = 0.01",
    "dsm-0.1": "DSM, σ = 0.1",
    "dsm-0.3": "DSM, σ = 0.3",
}
_JOINT = "joint score ∇ log q, by autograd"
FIELDS = {
    "mle": "none: log q itself",
    "csm": "autoregressive: conditional scores, closed forms",
    **dict.fromkeys(("ssm", "ssm-vr", "dsm-0.01", "dsm-0.1", "dsm-0.3"), _JOINT),
}

_COMMON = {
    "assumed": "network, batch, noise on the data, learning rates: the paper does not state them",
    "methods": list(LABELS),
    "fields": FIELDS,
    "source": "mnist",
    "noise": 0.1,
    "learning_rates": [2e-4, 1e-3],
    "batch": 128,
    "projections": 1,
    "seeds": [0, 1, 2],
}
_GPU = {
    **_COMMON,
    "hidden": [1000, 1000],
    "steps": 3000,
    "points": 60,
    "training_rows": 59_000,
    "validation_rows": 1000,
    "test_rows": 2000,
}
BUDGETS: dict[str, Settings] = {
    "smoke": {
        **_COMMON,
        "source": "stand-in: random strokes of the size of MNIST, so that nothing need be fetched",
        "hidden": [16, 16],
        "steps": 6,
        "points": 4,
        "training_rows": 200,
        "validation_rows": 50,
        "test_rows": 50,
        "batch": 16,
        "learning_rates": [1e-3],
        "seeds": [0],
    },
    "cpu": {
        **_COMMON,
        "hidden": [256, 256],
        "steps": 600,
        "points": 25,
        "training_rows": 10_000,
        "validation_rows": 500,
        "test_rows": 1000,
        "batch": 64,
        "learning_rates": [1e-3],
        "seeds": [0, 1],
    },
    "gpu": _GPU,
    "paper": {**_GPU, "steps": 20_000, "points": 100},
}


def stand_in(images: int, seed: int) -> np.ndarray:
    """Return bright strokes on black, uint8 (images, 28, 28, 1): a straight one each, somewhere."""
    random = np.random.default_rng(seed)
    start, end = random.uniform(6, 22, size=(2, images, 1, 1, 2))
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1)[None]
    along = end - start
    length = np.maximum((along**2).sum(-1, keepdims=True), 1e-9)
    share = np.clip(((grid - start) * along).sum(-1, keepdims=True) / length, 0, 1)
    distance = np.sqrt(((grid - start - share * along) ** 2).sum(-1, keepdims=True))
    return (255 * np.clip(2 - distance, 0, 1)).astype(np.uint8)


def load_rows(settings: Settings, device: str) -> dict[str, Rows]:
    """Return rows for training, validation and test, in [−1, 1]; the first two from one part."""
    counts = {part: settings[f"{part}_rows"] for part in ("training", "validation", "test")}
    if settings["source"] == "mnist":
        used = counts["training"] + counts["validation"]
        train = load_images("mnist", "train", most=used).pixels
        test = load_images("mnist", "test", most=counts["test"]).pixels
        if len(train) < used or len(test) < counts["test"]:
            raise InputError(
                f"expected {used} training and {counts['test']} test images of MNIST, got"
                f" {len(train)} and {len(test)}; fetch the whole set"
            )
    else:
        every = stand_in(sum(counts.values()), seed=0)
        train, test = every[: -counts["test"]], every[-counts["test"] :]
    pixels = {
        "training": train[: counts["training"]],
        "validation": train[counts["training"] :],
        "test": test,
    }
    rows = {}
    for i, (part, some) in enumerate(pixels.items()):
        scaled = dequantise(some, seed=i).mul_(2).sub_(1)
        if part != "training":  # rows for training have fresh noise in each batch
            noise = torch.randn(scaled.shape, generator=torch.Generator().manual_seed(i))
            scaled.add_(noise, alpha=settings["noise"])
        rows[part] = scaled.to(device)
    return rows


def make_model(settings: Settings, rows: Rows, seed: int) -> MixtureMADE:
    """Return the network; its units are one mean and one deviation for all pixels."""
    model = MixtureMADE(
        rows.shape[1], components=1, kind="gaussian", hidden=settings["hidden"], seed=seed
    )
    model.shift.fill_(rows.mean().item())
    model.scale.fill_(math.hypot(rows.std().item(), settings["noise"]))
    return model.to(rows.device)


def loss_function(
    name: str, model: MixtureMADE, settings: Settings, generator: torch.Generator
) -> Callable[[Rows], Tensor]:
    """Return the loss of a batch by the method of that name."""

    def joint_score(x: Rows) -> Rows:
        x = x if x.requires_grad else x.detach().requires_grad_()
        (score,) = torch.autograd.grad(model.log_prob(x).sum(), x, create_graph=True)
        return score

    def by_ssm(x: Rows) -> Tensor:
        return ssm(
            joint_score,
            x,
            projections=settings["projections"],
            variance_reduced=name == "ssm-vr",
            generator=generator,
        )

    if name == "mle":
        return lambda x: nll(model.log_prob, x)
    if name == "csm":
        return lambda x: csm(model.conditional_scores, x)
    if name in ("ssm", "ssm-vr"):
        return by_ssm
    sigma = float(name.removeprefix("dsm-"))
    return lambda x: dsm(joint_score, x, sigma=sigma, generator=generator)


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return one piece for each method, learning rate and seed."""
    return [
        Piece(f"{name}-{rate:g}-{seed}", {"method": name, "learning rate": rate, "seed": seed})
        for name in settings["methods"]
        for rate in settings["learning_rates"]
        for seed in settings["seeds"]
    ]


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Train by one method; return the likelihoods of held-out rows over steps and seconds."""
    name, rate, seed = (piece.labels[key] for key in ("method", "learning rate", "seed"))
    rows = load_rows(settings, place.device)
    model = make_model(settings, rows["training"], seed)
    generator = torch.Generator(place.device).manual_seed(seed)
    loss = loss_function(name, model, settings, generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    marks = set(spaced_steps(settings["steps"], settings["points"]))
    curve: dict[str, list[float]] = {"step": [], "seconds": [], "validation": [], "test": []}
    seconds, began = 0.0, time.perf_counter()
    for step in range(settings["steps"] + 1):
        if step in marks:
            synchronise(place.device)
            seconds += time.perf_counter() - began
            curve["step"].append(step)
            curve["seconds"].append(seconds)
            for part in ("validation", "test"):
                curve[part].append(_mean_nll(model, rows[part]))
            place.progress(step / settings["steps"])
            began = time.perf_counter()
        chosen = torch.randint(
            len(rows["training"]), (settings["batch"],), generator=generator, device=place.device
        )
        x = rows["training"][chosen]
        x = x + settings["noise"] * torch.randn(x.shape, generator=generator, device=x.device)
        value = loss(x)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
    return {
        "method": name,
        "field": FIELDS[name],
        "learning_rate": rate,
        "seed": seed,
        **{key: finite(values) for key, values in curve.items()},
    }


@torch.no_grad()
def _mean_nll(model: MixtureMADE, rows: Rows) -> float:
    return -torch.cat([model.log_prob(some) for some in rows.split(500)]).mean().item()


def chosen_runs(settings: Settings, raw: Mapping[str, Raw], method: str) -> list[Raw]:
    """Return the runs of a method at the rate whose validation likelihood is best on average."""
    by_rate: dict[float, list[Raw]] = {}
    for data in raw.values():
        if data["method"] == method:
            by_rate.setdefault(data["learning_rate"], []).append(data)

    def cost(runs: Iterable[Raw]) -> float:
        ends = [data["validation"][-1] for data in runs]
        return math.inf if None in ends else statistics.mean(ends)

    return sorted(min(by_rate.values(), key=cost), key=lambda data: data["seed"])


def first_below(data: Raw, level: float, unit: str) -> float | None:
    """Return the step, or the seconds, from which the test likelihood stays at the level."""
    reached = None
    for place, value in zip(data[unit], data["test"], strict=True):
        below = value is not None and value <= level
        reached = (place if reached is None else reached) if below else None
    return reached


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return likelihoods at the end, rates, and when a method comes near its end and the floor."""
    found: list[Metric] = []
    runs = {method: chosen_runs(settings, raw, method) for method in settings["methods"]}
    floor = statistics.mean(data["test"][-1] for data in runs["mle"])
    start = statistics.mean(data["test"][0] for data in runs["mle"])
    level = floor + NEAR * (start - floor)
    found.append(Metric("near the floor", level, "nats", len(runs["mle"])))
    for method, every in runs.items():
        labels: dict[str, Any] = {"method": method, "field": FIELDS[method]}
        rate = every[0]["learning_rate"]
        found.append(Metric("learning rate chosen", rate, "1", 1, labels=labels))
        ends = [data["test"][-1] for data in every]
        if None in ends:
            reason = f"{ends.count(None)} of {len(ends)} seeds left the numbers"
            found.append(Metric("test NLL", None, "nats", len(ends), labels=labels, reason=reason))
        else:
            found.append(over_seeds("test NLL", ends, "nats", labels))
        for unit in ("step", "seconds"):
            name, units = f"{unit} near the floor", {"step": "steps", "seconds": "s"}[unit]
            reached = [first_below(data, level, unit) for data in every]
            done = [value for value in reached if value is not None]
            if len(done) == len(reached):
                found.append(over_seeds(name, done, units, labels))
            else:
                reason = f"{len(reached) - len(done)} of {len(reached)} seeds did not get there"
                count = len(reached)
                found.append(Metric(name, None, units, count, labels=labels, reason=reason))
    return found


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw the likelihood of test rows over steps and over seconds."""
    drawn = {}
    for unit, label in (("step", "step"), ("seconds", "seconds of training")):
        lines = {}
        for method in settings["methods"]:
            every = chosen_runs(settings, raw, method)
            points = []
            for i in range(1, len(every[0]["step"])):
                values = [data["test"][i] for data in every]
                if None not in values:
                    place = statistics.mean(data[unit][i] for data in every)
                    points.append((place, statistics.mean(values), min(values), max(values)))
            if points:
                lines[LABELS[method]] = Line(*zip(*points, strict=True))
        source = "MNIST" if settings["source"] == "mnist" else "a stand-in for MNIST"
        title = f"A MADE with normal conditionals on {source}: test rows"
        figure = line_figure(
            lines, x=label, y="−log q(x), nats", title=title, log_y=False, known=LABELS["mle"]
        )
        (chart,) = figure.axes
        low, high = chart.get_ylim()
        # What diverges would press all others to the foot of the picture.
        start = max(data["test"][0] for data in raw.values() if data["test"][0] is not None)
        chart.set_ylim(low, min(high, start + 0.3 * abs(start - low)))
        drawn[f"nll-{unit}"] = figure
    return drawn


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say how CSM stands to the others at the end, and who comes near the floor first."""
    end = {one.labels["method"]: one for one in metrics if one.name == "test NLL"}
    near = {one.labels["method"]: one for one in metrics if one.name == "step near the floor"}
    said: list[Verdict] = []
    own = end["csm"].value
    if own is None:
        return [Verdict(False, f"CSM has no likelihood at the end: {end['csm'].reason}.")]
    # A stand-in tells that the experiment runs, nothing else.
    tells = settings["source"] == "mnist"
    for method, one in end.items():
        if method in ("mle", "csm"):
            continue
        if one.value is None:
            text = f"{LABELS[method]} has no likelihood at the end: {one.reason}."
            said.append(Verdict(True if tells else None, text))
            continue
        text = (
            f"After {settings['steps']:,} steps test rows have {own:.1f} nats under CSM,"
            f" {one.value:.1f} under {LABELS[method]} (lower is better)."
        )
        said.append(Verdict(own < one.value if tells else None, text))
    if (floor := end["mle"].value) is not None:
        text = f"CSM ends {own - floor:.1f} nats above maximum likelihood, {floor:.1f}."
        said.append(Verdict(None, text))
    for method, one in near.items():
        base = near["csm"].value
        if method in ("mle", "csm") or base is None:
            continue
        if one.value is None:
            text = f"CSM is near the floor after {base:,.0f} steps, {LABELS[method]} is not at all."
            said.append(Verdict(True if tells else None, text))
        else:
            text = (
                f"{LABELS[method]} is near the floor after {one.value:,.0f} steps, CSM after"
                f" {base:,.0f}."
            )
            said.append(Verdict(base < one.value if tells else None, text))
    return said


EXPERIMENT = Experiment(
    name="mnist-likelihood",
    measures_time=True,
    title="Likelihoods of MNIST by score matching",
    question="How near does each kind of score matching bring one MADE to maximum likelihood?",
    claims=[
        Claim("CSM converges quickly, without the difficulties of the others.", "Figure 3a"),
        Claim("DSM with less noise is less biased, but slower.", "Section 5.1, Figure 3a"),
        Claim("SSM is held back by the variance of its projections.", "Section 5.1, Figure 3a"),
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
)
