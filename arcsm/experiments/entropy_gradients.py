"""Bias and variance of the entropy gradients by five estimators, where the truth is known.

The samplers are z = A(e^a (ε + b sinh ε)) with a unit lower triangle A: for b = 0 a normal density,
else one with heavy, bent conditionals; of a narrow one every second latent is, given the others, a
twentieth as wide. The entropy is a closed form but for an integral over one normal variable,
whatever A is, and so is its gradient in a, b and A. Stein and Spectral have only the particles of
the moment; fields are trained beforehand, for as many steps each. ELBO, the sixth way, has a closed
form, and no error.

The bias is relative to the norm of the gradient, and so is the deviation of one estimate; with
`n` particles for one posterior.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from arcsm.autoregressive import seeded
from arcsm.experiments.experiment import Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.lines import Line, line_figure
from arcsm.experiments.summaries import over_seeds
from arcsm.experiments.vae_budgets import METHODS
from arcsm.results import Metric
from arcsm.vae import EntropyEstimator, make_estimator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By how much they are bent, and the log of how much narrower every second latent is.
SAMPLERS = {"normal": (0.0, 0.0), "bent": (0.4, 0.0), "narrow": (0.0, 3.0)}
BIAS, SPREAD = "relative bias", "relative deviation of an estimate"

_COMMON = {
    "dims": 4,
    "methods": [method for method in METHODS if method != "elbo"],
    "samplers": list(SAMPLERS),
    "particles": [10, 30, 100, 300],
    "estimates": 400,
    "width": 64,
    "training_steps": 3000,
    "training_batch": 256,
    "learning_rate": 3e-3,
    "seeds": [0, 1, 2],
}
BUDGETS: dict[str, Settings] = {
    "smoke": {
        **_COMMON,
        "dims": 2,
        "particles": [5, 20],
        "estimates": 20,
        "width": 8,
        "training_steps": 10,
        "training_batch": 32,
        "seeds": [0],
    },
    "cpu": _COMMON,
}


class WarpedSampler(nn.Module):
    """Latents whose entropy is known; ε_<d enters z_d only through z_<d."""

    autoregressive_noise = True

    below: Tensor

    def __init__(self, dims: int, bend: float = 0.0, narrowing: float = 0.0):
        super().__init__()
        self.dims = dims
        narrower = narrowing * (torch.arange(dims) % 2)
        self.log_scale = nn.Parameter(torch.linspace(-0.4, 0.4, dims) - narrower)
        self.bend = nn.Parameter(torch.full((dims,), bend))
        self.mixing = nn.Parameter(torch.full((dims, dims), 0.7))
        self.register_buffer("below", torch.tril(torch.ones(dims, dims), -1))

    def forward(self, eps: Tensor) -> Tensor:
        """Return z."""
        u = torch.exp(self.log_scale) * (eps + self.bend * torch.sinh(eps))
        return u + u @ (self.mixing * self.below).T

    def entropy(self) -> Tensor:
        """Return the entropy: that of ε, and the mean log of how much each coordinate stretches."""
        nodes = torch.linspace(-9, 9, 2001, dtype=torch.float64)
        weight = torch.exp(-nodes.square() / 2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
        stretch = torch.log(1 + self.bend.double()[:, None] * torch.cosh(nodes))
        normal = self.dims * (1 + math.log(2 * math.pi)) / 2
        return normal + (stretch * weight).sum() + self.log_scale.double().sum()

    def gradient(self, value: Tensor) -> Tensor:
        """Return the gradient of a value in all parameters, as one vector."""
        own = list(self.parameters())
        found = torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found]).detach()


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return a piece for each sampler, method and seed."""
    return [
        Piece(f"{sampler}.{method}.{seed}", {"sampler": sampler, "method": method, "seed": seed})
        for sampler in settings["samplers"]
        for method in settings["methods"]
        for seed in settings["seeds"]
    ]


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Return bias and deviation of the estimates over numbers of particles."""
    name, method, seed = (piece.labels[key] for key in ("sampler", "method", "seed"))
    with seeded(seed):
        sampler = WarpedSampler(settings["dims"], *SAMPLERS[name])
        exact = sampler.gradient(sampler.entropy()).double()
        learned = method in ("ssm", "ssm-ar", "csm")
        options = {"width": settings["width"]} if learned else {}
        estimator = make_estimator(method, sampler, **options)
        _teach(settings, estimator, sampler, place)
        found: dict[str, list[float]] = {"particles": [], "bias": [], "deviation": []}
        for particles in settings["particles"]:
            estimates = []
            for _ in range(settings["estimates"]):
                z = sampler(torch.randn(particles, 1, sampler.dims))
                estimates.append(sampler.gradient(estimator.entropy_surrogate(z)).double())
            every = torch.stack(estimates)
            found["particles"].append(particles)
            found["bias"].append(((every.mean(0) - exact).norm() / exact.norm()).item())
            found["deviation"].append((every.var(0).sum().sqrt() / exact.norm()).item())
    return {"sampler": name, "method": method, "seed": seed, **found}


def _teach(
    settings: Settings, estimator: EntropyEstimator, sampler: WarpedSampler, place: Place
) -> None:
    """Train a field, with a rate that falls to 0; nothing is done where nothing is learned."""
    if not estimator.learns:
        return
    steps = settings["training_steps"]
    for step in range(steps):
        estimator.set_learning_rate(settings["learning_rate"] * (1 - step / steps))
        with torch.no_grad():
            z = sampler(torch.randn(settings["training_batch"], 1, sampler.dims))
        estimator.update(z)
        place.progress(step / steps)


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return bias and deviation for each number of particles, over seeds."""
    found = []
    for sampler in settings["samplers"]:
        for method in settings["methods"]:
            runs = [raw[f"{sampler}.{method}.{seed}"] for seed in settings["seeds"]]
            for i, particles in enumerate(settings["particles"]):
                labels = {"sampler": sampler, "method": method, "particles": particles}
                for name, key in ((BIAS, "bias"), (SPREAD, "deviation")):
                    found.append(over_seeds(name, [one[key][i] for one in runs], "1", labels))
    return found


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw bias and deviation over the number of particles."""
    drawn = {}
    for sampler in settings["samplers"]:
        for key, told in (("bias", BIAS), ("deviation", SPREAD)):
            lines = {}
            for method in settings["methods"]:
                runs = [raw[f"{sampler}.{method}.{seed}"] for seed in settings["seeds"]]
                columns = list(zip(*(one[key] for one in runs), strict=True))
                lines[METHODS[method]] = Line(
                    settings["particles"],
                    [statistics.mean(column) for column in columns],
                    [min(column) for column in columns],
                    [max(column) for column in columns],
                )
            drawn[f"{key}-{sampler}"] = line_figure(
                lines, x="particles", y=told, title=f"Entropy gradients of a {sampler} sampler"
            )
    return drawn


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say whose bias is least at the largest number of particles."""
    most = settings["particles"][-1]
    said = []
    for sampler in settings["samplers"]:
        bias = {
            one.labels["method"]: one.value or 0.0
            for one in metrics
            if one.name == BIAS
            and one.labels["sampler"] == sampler
            and one.labels["particles"] == most
        }
        listed = ", ".join(f"{METHODS[method]} {value:.3f}" for method, value in bias.items())
        text = f"With {most} particles of a {sampler} sampler the relative bias is: {listed}."
        kernels = min(bias["stein"], bias["spectral"])
        tells = settings["training_steps"] >= 1000
        said.append(Verdict(bias["csm"] <= kernels if tells else None, text))
    return said


EXPERIMENT = Experiment(
    name="entropy-gradients",
    title="Entropy gradients where the truth is known",
    question="How far are five estimators of the entropy gradient from the exact one?",
    claims=[],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
)
