"""How noisy CSM and SSM are, as numbers and as gradients (Section 5.1, Figure 1b).

The variance is taken on one fixed field, over repeated batches of one size: with fresh rows each
time, as in training, and with one batch throughout, where all that is left is the variance of the
projections. CSM has none of that. A field is looked at as it starts, and when regression on the
known score has brought it to a tenth of its divergence: both fields are then as far from the truth,
and have as far to go.

SSM acts on the joint field, as in the paper, and on the autoregressive one (SSM-AR). There its
expectation over projections is CSM, since the Jacobian of conditional scores is triangular: its
trace is the sum of ∂s_d/∂x_d. The identity is measured.

With projections v ~ N(0, I), the variance reduced objective of a row has the variance
2‖(J + Jᵀ)/2‖² over v, which for the true score −x/s² is 2D/s⁴: it grows with the dimension.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.fields import (
    METHODS,
    Field,
    IsotropicGaussian,
    Method,
    fisher_divergence,
    make_field,
)
from arcsm.experiments.lines import Line, line_chart
from arcsm.experiments.summaries import over_seeds
from arcsm.objectives import Rows
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The fields at which variances are taken, and the rows that they are taken over.
STATES = ("untrained", "trained")
ROWS = ("fresh", "fixed")
# Standard errors of a mean that an identity may be off by, over all that is compared.
AGREES = 4.0

_METHODS = ["csm", "ssm", "ssm-vr", "ssm-ar", "ssm-vr-ar"]
_COMMON = {
    "assumed": "width, batch and the state of the field: the paper does not state them",
    "methods": _METHODS,
    "fields": {name: METHODS[name].field for name in _METHODS},
    "dims": 100,
    "std": 0.1,
    "trained_to": 0.1,
    "learning_rate": 6e-3,
    "held_out": 1000,
}
_FULL = {
    **_COMMON,
    "joint_width": 256,
    "batch": 128,
    "projections": [1, 2, 4, 8, 16, 32, 64],
    "repeats": 80,
    "most_regression_steps": 10_000,
    "seeds": [0, 1, 2],
}
BUDGETS: dict[str, Settings] = {
    "smoke": {
        **_COMMON,
        "dims": 5,
        "joint_width": 16,
        "batch": 16,
        "projections": [1, 4],
        "repeats": 12,
        "most_regression_steps": 1000,
        "held_out": 200,
        "seeds": [0],
    },
    "cpu": {
        **_COMMON,
        "joint_width": 256,
        "batch": 64,
        "projections": [1, 2, 4, 8, 16],
        "repeats": 60,
        "most_regression_steps": 5_000,
        "seeds": [0, 1, 2],
    },
    "gpu": _FULL,
    "paper": _FULL,
}


class RunningMoments:
    """Mean and variance of vectors that come one after another (Welford, 1962), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def add(self, value: Float[Tensor, "size"]) -> None:
        """Take one more vector in."""
        value = value.detach().double()
        self.count += 1
        before = value - self._mean
        self._mean = self._mean + before / self.count
        self._squares = self._squares + before * (value - self._mean)

    def trace(self) -> float:
        """Return the trace of the sample covariance."""
        return float(torch.as_tensor(self._squares).sum()) / (self.count - 1)

    def squared_norm(self) -> float:
        """Return ‖mean‖² of the vectors' distribution, without the share of the sample's noise.

        The norm of a mean of n vectors is too large by trace/n on average.
        """
        seen = float(torch.as_tensor(self._mean).square().sum())
        return seen - self.trace() / self.count


def regress(
    field: Field, truth: IsotropicGaussian, settings: Settings, generator: torch.Generator
) -> None:
    """Bring a field to a share of its Fisher divergence, by that itself: the truth is known here.

    It ends after a number of steps in any case; the divergence that is left is among the metrics.
    """
    optimizer = torch.optim.Adam(field.parameters(), lr=settings["learning_rate"])
    device = generator.device
    held_out = truth.sample(settings["held_out"], generator=generator, device=device)
    aim = settings["trained_to"] * _divergence(field, truth, held_out)
    for step in range(settings["most_regression_steps"]):
        if step % 10 == 0 and _divergence(field, truth, held_out) <= aim:
            return
        x = truth.sample(settings["batch"], generator=generator, device=device)
        loss = fisher_divergence(field(x), truth.score(x))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _divergence(field: Field, truth: IsotropicGaussian, x: Rows) -> float:
    return fisher_divergence(field(x), truth.score(x)).item()


def measure(
    field: Field,
    method: Method,
    truth: IsotropicGaussian,
    *,
    rows: str,
    batch: int,
    projections: int,
    repeats: int,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Return the objective of each repeat, and the moments of its gradient."""
    generator = torch.Generator(device).manual_seed(seed)
    x = truth.sample(batch, generator=generator, device=device)
    parameters = list(field.parameters())
    moments, losses = RunningMoments(), []
    for _ in range(repeats):
        if rows == "fresh":
            x = truth.sample(batch, generator=generator, device=device)
        loss = method.loss_of(field, x, projections=projections, generator=generator)
        gradients = torch.autograd.grad(loss, parameters)
        moments.add(torch.cat([gradient.flatten() for gradient in gradients]))
        losses.append(loss.item())
    return {
        "losses": losses,
        "gradient_trace": moments.trace(),
        "gradient_squared_norm": moments.squared_norm(),
    }


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return one piece for each method and seed."""
    return [
        Piece(f"{name}-{seed}", {"method": name, "field": METHODS[name].field, "seed": seed})
        for name in settings["methods"]
        for seed in settings["seeds"]
    ]


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Measure a method on one field in both states, with fresh and with fixed rows."""
    name, seed, device = piece.labels["method"], piece.labels["seed"], place.device
    method = METHODS[name]
    truth = IsotropicGaussian(settings["dims"], settings["std"])
    field = make_field(
        method.field, settings["dims"], joint_width=settings["joint_width"], seed=seed
    )
    field = field.to(device)
    # The same rows for all methods: a fixed batch is one and the same batch.
    random = torch.Generator(device).manual_seed(1000 + seed)
    held_out = truth.sample(settings["held_out"], generator=random, device=device)
    counts = settings["projections"] if method.objective == "ssm" else [0]
    work = len(STATES) * len(ROWS) * sum(counts or [1])
    found, done = [], 0
    for state in STATES:
        if state == "trained":
            regress(field, truth, settings, random)
        divergence = _divergence(field, truth, held_out)
        for rows in ROWS:
            for projections in counts:
                measured = measure(
                    field,
                    method,
                    truth,
                    rows=rows,
                    batch=settings["batch"],
                    projections=max(projections, 1),
                    repeats=settings["repeats"],
                    seed=seed,
                    device=device,
                )
                about = {"state": state, "rows": rows, "projections": projections}
                found.append({**about, "divergence": divergence, **measured})
                done += projections
                place.progress(done / max(work, 1))
    return {"method": name, "field": method.field, "seed": seed, "measured": found}


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return variances of objectives and gradients, how they fall, and how well SSM-AR is CSM."""
    found: list[Metric] = []
    for (method, state, rows, projections), every in _groups(raw).items():
        labels = {
            "method": method,
            "field": METHODS[method].field,
            "state": state,
            "rows": rows,
            "projections": projections,
        }
        if rows == "fresh" and projections <= 1:  # once for a field
            about = {name: labels[name] for name in ("method", "field", "state")}
            left = [one["divergence"] for one in every]
            found.append(over_seeds("Fisher divergence of the field", left, "1", about))
        variances = [statistics.variance(one["losses"]) for one in every]
        found.append(over_seeds("variance of the objective", variances, "1", labels))
        traces = [one["gradient_trace"] for one in every]
        found.append(over_seeds("variance of the gradient", traces, "1", labels))
        norms = [one["gradient_squared_norm"] for one in every]
        name = "variance of the gradient / its squared mean"
        if min(norms) > 0:
            shares = [trace / norm for trace, norm in zip(traces, norms, strict=True)]
            found.append(over_seeds(name, shares, "1", labels))
        else:
            reason = "the mean gradient is lost in its noise"
            found.append(Metric(name, None, "1", len(norms), labels=labels, reason=reason))
    return [*found, *_identity(raw), *_against_csm(found)]


def _identity(raw: Mapping[str, Raw]) -> list[Metric]:
    """Return by how many standard errors the mean of SSM-AR differs from CSM on the same batch."""
    groups = _groups(raw)
    found = []
    for (method, state, rows, projections), every in groups.items():
        exact = groups.get(("csm", state, rows, 0))
        if not method.endswith("-ar") or rows != "fixed" or exact is None:
            continue
        worst = 0.0
        for one, other in zip(every, exact, strict=True):
            error = statistics.stdev(one["losses"]) / math.sqrt(len(one["losses"]))
            worst = max(worst, abs(statistics.mean(one["losses"]) - other["losses"][0]) / error)
        labels = {"method": method, "state": state, "projections": projections}
        name = "mean of SSM-AR − CSM, in standard errors"
        found.append(Metric(name, worst, "1", len(every), labels=labels))
    return found


def _against_csm(found: Sequence[Metric]) -> list[Metric]:
    """Return the variances of SSM relative to those of CSM in the same state, with fresh rows."""
    ratios = []
    for name in ("variance of the objective", "variance of the gradient"):
        fresh = [one for one in found if one.name == name and one.labels["rows"] == "fresh"]
        own = {one.labels["state"]: one.value for one in fresh if one.labels["method"] == "csm"}
        for one in fresh:
            base = own.get(one.labels["state"])
            # Gradients of two fields have different parameters: not to be compared.
            same = one.labels["field"] == "autoregressive" or name.endswith("objective")
            if one.labels["method"] == "csm" or not base or one.value is None or not same:
                continue
            ratios.append(
                Metric(f"{name} / that of CSM", one.value / base, "1", one.n, labels=one.labels)
            )
    return ratios


def _groups(raw: Mapping[str, Raw]) -> dict[tuple[str, str, str, int], list[Mapping[str, Any]]]:
    """Return what was measured by method, state, rows and projections; seeds in their order."""
    groups: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = {}
    for data in sorted(raw.values(), key=lambda data: data["seed"]):
        for one in data["measured"]:
            key = data["method"], one["state"], one["rows"], one["projections"]
            groups.setdefault(key, []).append(one)
    return groups


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw variances over the number of projections; those of CSM are level lines."""
    from matplotlib.figure import Figure

    found = list(metrics(settings, raw))
    drawn: dict[str, Figure] = {}
    for key, name in (
        ("objective", "variance of the objective"),
        ("gradient", "variance of the gradient / its squared mean"),
    ):
        figure = Figure(figsize=(11.0, 4.2), layout="constrained")
        for i, state in enumerate(STATES):
            lines = {}
            for method in settings["methods"]:
                points = [
                    (one.labels["projections"], one.value)
                    for one in found
                    if one.name == name
                    and (one.labels["method"], one.labels["state"]) == (method, state)
                    and one.labels["rows"] == "fresh"
                    and one.value is not None
                ]
                if method == "csm":  # it has no projections: the same at any number of them
                    points = [(k, value) for k in settings["projections"] for _, value in points]
                if points:
                    lines[METHODS[method].label] = Line(*zip(*points, strict=True))
            line_chart(
                lines,
                x="projections",
                y="variance" if key == "objective" else "ratio",
                title=f"{name.capitalize()}, {state} field",
                doublings=True,
                ax=figure.add_subplot(1, 2, i + 1),
            )
        drawn[key] = figure
    return drawn


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say how much noisier SSM is, whether CSM is deterministic, and whether SSM-AR tends to it."""
    said: list[Verdict] = []
    exact = [
        one.value
        for one in metrics
        if one.name == "variance of the objective"
        and (one.labels["method"], one.labels["rows"]) == ("csm", "fixed")
        and one.value is not None
    ]
    if exact:
        text = f"On a fixed batch the variance of CSM is {max(exact):g}"
        said.append(Verdict(max(exact) == 0, f"{text} (deterministic: 0)."))
    for method in ("ssm", "ssm-vr-ar"):
        for state in STATES:
            ratios = {
                one.labels["projections"]: one.value
                for one in metrics
                if one.name == "variance of the objective / that of CSM"
                and (one.labels["method"], one.labels["state"]) == (method, state)
                and one.value is not None
            }
            if ratios:
                most = max(ratios)
                text = (
                    f"{METHODS[method].label}, {state} field: the objective varies"
                    f" {ratios[min(ratios)]:.3g} times as much as CSM with one projection, and"
                    f" {ratios[most]:.3g} times with {most}."
                )
                said.append(Verdict(ratios[min(ratios)] > 1, text))
    off = [one for one in metrics if one.name == "mean of SSM-AR − CSM, in standard errors"]
    if off:
        worst = max(one.value for one in off if one.value is not None)
        text = (
            f"The mean of SSM-AR over projections differs from CSM on the same batch by"
            f" {worst:.1f} standard errors in the worst of {sum(one.n for one in off)} cases"
            f" (equal: at most {AGREES:g})."
        )
        said.append(Verdict(worst <= AGREES, text))
    return said


EXPERIMENT = Experiment(
    name="objective-variance",
    title="Variance of CSM and SSM",
    question="How noisy are the objectives and their gradients, and how far do projections help?",
    claims=[
        Claim("SSM has a large variance from its random projections.", "Section 5.1, Figure 1b"),
        Claim("CSM is deterministic given the batch.", "Section 5.1"),
        Claim("SSM needs many projections to reduce its variance.", "Section 5.1"),
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
)
