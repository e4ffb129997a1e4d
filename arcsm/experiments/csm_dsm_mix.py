"""Composite or denoising score matching at σ > 0, or a mix of both: which gradient varies least?

At noise σ the CSM term ½s² + ∂s/∂x̃ (Eq. 5, annealed as in Appendix C.2) and the DSM term
½s² + s·ε/σ of one scalar have the same expectation, by Stein's identity E[s ε/σ] = E[∂s/∂x̃], and so
has any mix (1 − m)·CSM + m·DSM. Their gradients vary differently. With V_c and V_d the traces of
their covariances over the parameters and C that of the covariance between them,

    V(m) = (1 − m)² V_c + m² V_d + 2 m (1 − m) C,      m* = (V_c − C)/(V_c + V_d − 2C).

For normal data of variance 1 and the score −a·x̃ at its optimum a = 1/(1 + σ²) the gradients in a
have V_c = 2, V_d = 1/σ², C = 0; hence m* = 2σ²/(1 + 2σ²), a rule that needs no fitting and is
judged beside the fitted weights. All objectives act on the autoregressive field of one AR-CSM,
at a few points of its training; weights are fitted on other batches than those they are judged on.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.data import TOYS, get_toy, load_sklearn
from arcsm.errors import InputError
from arcsm.experiments.experiment import (
    Claim,
    Experiment,
    Piece,
    Place,
    Raw,
    Settings,
    Verdict,
)
from arcsm.experiments.summaries import over_seeds
from arcsm.experiments.ticks import plain_log_ticks
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation
from arcsm.results import Metric
from arcsm.train import TrainConfig, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEST_MIX, VARIANCE, OVERALL = (
    "mix of least variance",
    "gradient variance against half-and-half",
    "gradient variance of all levels against half-and-half",
)
CHOICES = ("csm", "dsm", "rule", "fitted")
HALF = 0.5  # what ARCSM.loss_terms does if nothing is said


@dataclass(frozen=True)
class Moments:
    """Traces of the covariances of two gradients: of each, of both, and ‖mean‖² of each."""

    csm: float
    dsm: float
    both: float
    mean_csm: float
    mean_dsm: float

    def variance(self, mix: float) -> float:
        """Return V(m)."""
        return (1 - mix) ** 2 * self.csm + mix**2 * self.dsm + 2 * mix * (1 - mix) * self.both

    @property
    def best_mix(self) -> float:
        """The weight of least variance in [0, 1]."""
        # The denominator is the variance of the difference of the two.
        apart = self.csm + self.dsm - 2 * self.both
        return min(max((self.csm - self.both) / apart, 0.0), 1.0) if apart > 0 else HALF


def rule(sigma: float) -> float:
    """Return the weight that is best for normal data of variance 1: 2σ²/(1 + 2σ²)."""
    return 2 * sigma**2 / (1 + 2 * sigma**2)


def moments(draw: Callable[[], tuple[Tensor, Tensor]], count: int) -> Moments:
    """Return the moments of pairs of gradients, one vector each, from `count` draws of them."""
    if count < 2:
        raise InputError(f"expected at least 2 draws for a variance, got {count}; take more")
    # Differences to the first draw: sums of squares of large means would lose the small spread.
    first = draw()
    sums = [torch.zeros_like(part, dtype=torch.float64) for part in first]
    products = torch.zeros(3, dtype=torch.float64, device=first[0].device)
    for _ in range(count - 1):
        pairs = [now.double() - then.double() for now, then in zip(draw(), first, strict=True)]
        for total, part in zip(sums, pairs, strict=True):
            total += part
        products += torch.stack([pairs[0] @ pairs[0], pairs[1] @ pairs[1], pairs[0] @ pairs[1]])
    csm, dsm, both = (
        (product - one @ other / count).item() / (count - 1)
        for product, one, other in zip(
            products, (sums[0], sums[1], sums[0]), (sums[0], sums[1], sums[1]), strict=True
        )
    )
    means = [
        (then.double() + total / count).square().sum().item()
        for then, total in zip(first, sums, strict=True)
    ]
    return Moments(csm, dsm, both, *means)


def gradients(
    model: ARCSM, x: Tensor, sigma: float, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the gradients of CSM and of DSM on the same rows with the same noise, as vectors."""
    device = model.device
    # On the CPU, so that all devices see the same rows and the same noise.
    rows = torch.randint(len(x), (batch,), generator=generator)
    normal = torch.randn((batch, model.dims, 2), generator=generator)
    noise = Perturbation(
        torch.full((batch, 1, 1), sigma, device=device, dtype=model.dtype),
        normal[..., :1].to(device, model.dtype),
        normal[..., 1].to(device, model.dtype),
    )
    parameters = list(model.parameters())
    found = []
    for mix in (0.0, 1.0):
        loss = model.loss_terms(x[rows.to(x.device)].to(device, model.dtype), noise, mix=mix).mean()
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([part.flatten() for part in parts]))
    return found[0], found[1]


def _pieces(settings: Settings) -> list[Piece]:
    return [
        Piece(f"{name}.{seed}", {"set": name, "seed": seed})
        for seed in settings["seeds"]
        for name in settings["sets"]
    ]


def _rows(name: str, rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    if name in TOYS:
        return get_toy(name).sample(rows, generator=generator)
    # Pixels of 0 … 16, made continuous.
    x = torch.from_numpy(load_sklearn(name).to_numpy()).float()
    return x + torch.rand(x.shape, generator=generator)


def _run(settings: Settings, piece: Piece, place: Place) -> Raw:
    name, seed = piece.labels["set"], piece.labels["seed"]
    x = _rows(name, settings["rows"], seed)
    noise = Noise(sigma_min=settings["sigma_min"])
    hidden = (settings["hidden"],) * settings["depth"]
    model = ARCSM.made(x.shape[1], hidden=hidden, noise=noise, seed=seed).to(place.device)
    model.standardise(x.to(place.device))
    steps, points = settings["steps"], settings["points"]
    config = TrainConfig(
        steps=steps,
        batch_size=settings["batch"],
        warmup=min(200, steps // 10),
        evaluate_every=math.gcd(*(round(point * steps) for point in points)),
        seed=seed,
    )
    sigmas = noise.ladder(settings["levels"])
    found: list[dict[str, Any]] = []
    total = len(points) * len(sigmas)

    def measure(step: int) -> None:
        levels = []
        for index, sigma in enumerate(sigmas):
            parts = {}
            for part, offset in (("fit", 1), ("judge", 2)):
                # Other batches for fitting than for judging, and other ones at every point.
                generator = torch.Generator().manual_seed(
                    offset + 10 * (index + 100 * (step + 1_000_000 * seed))
                )
                parts[part] = vars(
                    moments(
                        lambda sigma=sigma, generator=generator: gradients(  # type: ignore[misc]
                            model, x, sigma, settings["gradient batch"], generator
                        ),
                        settings["gradients"],
                    )
                )
            levels.append({"sigma": sigma, **parts})
            place.progress((len(found) * len(sigmas) + index + 1) / total)
        found.append({"step": step, "levels": levels})

    wanted = {round(point * steps) for point in points}
    if 0 in wanted:
        measure(0)
    fit(
        model,
        x,
        config,
        progress=lambda progress: measure(progress.step) if progress.step in wanted else None,
    )
    return {
        "field": "autoregressive",
        "dims": model.dims,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "points": found,
    }


def _choice(name: str, sigma: float, fitted: float) -> float:
    return {"csm": 0.0, "dsm": 1.0, "half": HALF, "rule": rule(sigma), "fitted": fitted}[name]


def _metrics(settings: Settings, raws: Mapping[str, Raw]) -> list[Metric]:
    metrics = []
    for name in settings["sets"]:
        runs = [raws[f"{name}.{seed}"] for seed in settings["seeds"]]
        for index, point in enumerate(settings["points"]):
            labels = {"set": name, "trained": point}
            overall: dict[str, list[float]] = {choice: [] for choice in CHOICES}
            for run in runs:
                levels = run["points"][index]["levels"]
                sums = {choice: _all_levels(levels, choice) for choice in (*CHOICES, "half")}
                for choice in CHOICES:
                    overall[choice].append(sums[choice] / sums["half"])
            metrics += [
                over_seeds(OVERALL, values, "1", {**labels, "choice": choice})
                for choice, values in overall.items()
            ]
            for level, at in enumerate(runs[0]["points"][index]["levels"]):
                here = [run["points"][index]["levels"][level] for run in runs]
                labelled = {**labels, "sigma": round(at["sigma"], 5)}
                weights = [Moments(**one["fit"]).best_mix for one in here]
                metrics.append(over_seeds(BEST_MIX, weights, "1", labelled))
                for choice in CHOICES:
                    ratios = [_ratio(one, choice) for one in here]
                    metrics.append(
                        over_seeds(VARIANCE, ratios, "1", {**labelled, "choice": choice})
                    )
    return metrics


def _ratio(level: Mapping[str, Any], choice: str) -> float:
    judge, fitted = Moments(**level["judge"]), Moments(**level["fit"]).best_mix
    return judge.variance(_choice(choice, level["sigma"], fitted)) / judge.variance(HALF)


def _all_levels(levels: Iterable[Mapping[str, Any]], choice: str) -> float:
    """Return the variance of the annealed objective's gradient within its noise levels.

    The loss of a level already has its weight. What varies between levels is the mean gradient,
    which is the same for all choices.
    """
    return sum(
        Moments(**level["judge"]).variance(
            _choice(choice, level["sigma"], Moments(**level["fit"]).best_mix)
        )
        for level in levels
    )


def _verdicts(settings: Settings, metrics: Sequence[Metric]) -> list[Verdict]:
    def values(name: str, choice: str) -> list[float]:
        return [
            metric.value
            for metric in metrics
            if metric.name == name
            and metric.labels["choice"] == choice
            and metric.value is not None
        ]

    best = values(VARIANCE, "fitted")
    verdicts = []
    for choice, told in (("csm", "CSM alone"), ("dsm", "DSM alone"), (None, "half-and-half")):
        rival = [1.0] * len(best) if choice is None else values(VARIANCE, choice)
        gains = [theirs / ours for theirs, ours in zip(rival, best, strict=True)]
        verdicts.append(
            Verdict(
                geometric_mean(gains) > 1,
                f"The gradient of {told} varies {geometric_mean(gains):.2f} times as much as that"
                f" of the fitted mix, as a geometric mean over {len(gains)} noise levels, points of"
                f" training and sets (from {min(gains):.2f} to {max(gains):.3g} times).",
            )
        )
    fitted, ruled = values(OVERALL, "fitted"), values(OVERALL, "rule")
    verdicts.append(
        Verdict(
            geometric_mean(fitted) < 1,
            "Over all noise levels together, as training weighs them, the fitted mix leaves"
            f" {geometric_mean(fitted):.2f} of the variance of half-and-half"
            f" ({min(fitted):.2f} to {max(fitted):.2f}), the rule 2σ²/(1 + 2σ²) without any fitting"
            f" {geometric_mean(ruled):.2f} ({min(ruled):.2f} to {max(ruled):.2f}).",
        )
    )
    return verdicts


def _figures(settings: Settings, raws: Mapping[str, Raw]) -> dict[str, "Figure"]:
    from matplotlib.figure import Figure

    from arcsm.plots.canvas import add_title, dress, label_axes
    from arcsm.plots.palette import DATA, INK, MODEL, RULE, SCORE, SEVERAL

    sets, points = settings["sets"], settings["points"]
    figure = Figure(figsize=(max(3.1 * len(sets), 6.2), 6.0), layout="constrained")
    panels = figure.subplots(2, len(sets), squeeze=False, sharex=True, sharey="row")
    looks = {"csm": (MODEL, "CSM"), "dsm": (SCORE, "DSM"), "fitted": (INK, "fitted mix")}
    for column, name in enumerate(sets):
        runs = [raws[f"{name}.{seed}"]["points"] for seed in settings["seeds"]]
        above, below = panels[:, column]
        for ax in (above, below):
            dress(ax)
            ax.set_xscale("log")
            ax.grid(color=RULE, linewidth=0.7)
        last = [run[-1]["levels"] for run in runs]
        sigmas = [level["sigma"] for level in last[0]]
        for choice, (colour, label) in looks.items():
            ratios = [[_ratio(level, choice) for level in levels] for levels in last]
            for one in ratios:
                above.plot(sigmas, one, color=colour, linewidth=0.8, alpha=0.4)
            middle = [geometric_mean(at) for at in zip(*ratios, strict=True)]
            above.plot(sigmas, middle, color=colour, linewidth=2)
            # The ladder falls: DSM varies most at its end, CSM at its beginning.
            at, side, up = {
                "csm": (0, "right", 5),
                "dsm": (-1, "left", 5),
                "fitted": (len(sigmas) // 3, "center", -16),
            }[choice]
            above.annotate(
                label, (sigmas[at], middle[at]), xytext=(0, up), textcoords="offset points",
                ha=side, color=colour, fontsize=9,
            )  # fmt: skip
        above.axhline(1.0, color=DATA, linewidth=1.2, linestyle=(0, (5, 1.5)))
        above.set_yscale("log")
        plain_log_ticks(above.yaxis)
        add_title(above, name)
        for index, (point, colour) in enumerate(zip(points, SEVERAL[2:], strict=False)):
            weights = [
                mean(Moments(**run[index]["levels"][at]["fit"]).best_mix for run in runs)
                for at in range(len(sigmas))
            ]
            below.plot(sigmas, weights, "o-", color=colour, linewidth=1.8, markersize=3.5,
                       label=f"{point:.0%} of training")  # fmt: skip
        below.plot(sigmas, [rule(sigma) for sigma in sigmas], color=DATA, linewidth=1.5,
                   linestyle=(0, (5, 1.5)), label="2σ²/(1 + 2σ²)")  # fmt: skip
        below.set_ylim(-0.03, 1.03)
        label_axes(below, "noise level σ", "DSM's weight of least variance" if not column else "")
        label_axes(above, "", "gradient variance ÷ half-and-half" if not column else "")
    plain_log_ticks(panels[1, 0].xaxis, dense=False)
    panels[1, 0].legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left")
    return {"mix": figure}


def _budget(seeds: Iterable[int], **changes: Any) -> dict[str, Any]:
    return {
        "seeds": list(seeds),
        "sets": ["two-moons", "checkerboard", "digits"],
        "rows": 20_000,
        "steps": 2000,
        "points": [0.0, 0.1, 1.0],
        "batch": 256,
        "hidden": 64,
        "depth": 3,
        "sigma_min": 0.01,
        "levels": 9,
        "gradients": 128,
        "gradient batch": 32,
        **changes,
    }


EXPERIMENT = Experiment(
    name="csm-dsm-mix",
    title="Composite, denoising, or a mix of both",
    question="At noise σ both have the same optimum: whose gradient varies least, and how much less"
    " than half of each, which is the default, does the best mix vary?",
    claims=(
        Claim(
            "The noisy levels are trained by composite score matching alone. (Mixes are not in the"
            " paper.)",
            "Appendix C.2",
        ),
    ),
    budgets={
        "smoke": _budget(
            [0], sets=["two-moons"], rows=500, steps=20, points=[0.0, 1.0], batch=64, hidden=16,
            levels=3, gradients=12,
        ),
        "cpu": _budget(range(3)),
        "gpu": _budget(range(3), steps=4000, gradients=256),
        "paper": _budget(range(10), steps=10_000, hidden=128, gradients=512),
    },
    pieces=_pieces,
    run=_run,
    metrics=_metrics,
    figures=_figures,
    verdicts=_verdicts,
)  # fmt: skip
