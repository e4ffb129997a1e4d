"""Can a model be trusted? What was looked at, and what to do where something is wrong.

`check_rows` looks at a model beside rows of data, `calibration` and `integrals` at one thing each.
Of the two densities that one network stands for (by flow and by quadrature) the canonical one has
to be right; of the other one is told, and it may show what the network has not learned.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.data.arrays import as_rows
from arcsm.errors import ArcsmError, InputError

# The chance that calibration is found wanting although the model is right, all columns together.
LEVEL = 0.01
LEAST_ROWS = 20
_NAMED = 3  # of the columns that are farthest off
_TOLERANCE = 0.01  # of an integral that should be 1
_SCALARS, _CONTEXTS = 32, 4  # conditionals that are integrated
_PIECES, _NODES = 64, 8
_CONDITIONALS = 3000  # that are normalised by quadrature, some 1 ms each
_AGREEMENT = 0.1  # nats per scalar up to which the two densities are one for most purposes
_ERROR = 0.01  # nats that arithmetic may cost a row
_FAR = 1e-6  # a probability beyond which a value does not belong to its distribution
_MOST_FAR = 0.01  # the share of rows that may have such a value
_MORE_TRAINING = "train for more steps, on more rows, or use a larger network"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: is it as it should be, a sentence, what to do, and numbers.

    What does not `matter` is no fault of the canonical density: a warning if it is not good.
    """

    name: str
    good: bool
    text: str
    advice: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    matters: bool = True

    def __str__(self) -> str:
        mark = "✓" if self.good else "✗" if self.matters else "!"
        advice = f" What to do: {self.advice}." if self.advice and not self.good else ""
        return f"{mark} {self.text}{advice}"


@dataclass(frozen=True)
class Report:
    """All that was found; `good` if nothing that matters is wrong."""

    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """Whether all is as it should be with the canonical density."""
        return all(finding.good for finding in self.findings if finding.matters)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), "Sound." if self.good else "Not sound."])

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        names = ", ".join(finding.name for finding in self.findings)
        raise InputError(f"expected a finding among {names}, got {name!r}; choose one")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return {"good": self.good, "findings": [asdict(finding) for finding in self.findings]}


def ks_distance(values: np.ndarray) -> float:
    """Return the largest distance of the values' distribution function from the uniform one."""
    ordered = np.sort(values)
    ranks = np.arange(len(values) + 1) / len(values)
    return float(max((ranks[1:] - ordered).max(), (ordered - ranks[:-1]).max()))


def ks_limit(rows: int, chance: float) -> float:
    """Return the distance that as many uniform values go beyond with a probability of `chance`."""
    from scipy.stats import kstwo

    return float(kstwo.isf(chance, rows))


def calibration(pit: Mapping[str, np.ndarray], what: str, *, name: str | None = None) -> Finding:
    """Say whether PIT values, by column, are uniform: the model is calibrated on `what`."""
    name, rows = name or f"calibration on {what}", len(next(iter(pit.values())))
    bad = [column for column, values in pit.items() if not np.isfinite(values).all()]
    if bad:
        text = f"Distribution functions on {what} are not finite numbers, of {bad[0]} for one."
        return Finding(name, False, text, "look for weights or rows that are out of all range")
    distances = {column: ks_distance(values) for column, values in pit.items()}
    # A limit for each column that all columns of a right model keep to but in one case of 100.
    limit = ks_limit(rows, LEVEL / len(pit))
    worst = sorted(distances, key=lambda column: -distances[column])
    beyond = [column for column in worst if distances[column] > limit]
    shown = ", ".join(f"{column} {distances[column]:.3f}" for column in (beyond or worst)[:_NAMED])
    more = f" and {len(beyond) - _NAMED} more" if len(beyond) > _NAMED else ""
    text = (
        f"Calibrated on {what}: chance allows each column a KS distance of {limit:.3f} with"
        f" {rows:,} rows; the largest: {shown}."
        if not beyond
        else f"Not calibrated on {what}: chance allows each column a KS distance of {limit:.3f}"
        f" with {rows:,} rows, and {len(beyond)} of {len(pit)} go beyond: {shown}{more}."
    )
    numbers = {"rows": rows, "limit": limit, "ks_distance": distances}
    return Finding(name, not beyond, text, _MORE_TRAINING if beyond else "", numbers)


def integrals(model: Any, points: Tensor, condition: Tensor | None = None) -> Finding:
    """Integrate conditionals, between quantiles, and compare with the difference of those.

    By the rule of Gauss and Legendre in float64, which shares nothing with the densities but their
    values; of up to 32 scalars, given the first 4 rows.
    """
    chain = copy.deepcopy(model).double()
    points = points[:_CONTEXTS].to(chain.shift)
    condition = None if condition is None else condition[:_CONTEXTS].to(points)
    edges = torch.linspace(1e-3, 1 - 1e-3, _PIECES + 1, dtype=points.dtype, device=points.device)
    nodes, weights = (
        torch.from_numpy(part).to(points) for part in np.polynomial.legendre.leggauss(_NODES)
    )
    chosen = np.unique(np.linspace(0, chain.dims - 1, min(chain.dims, _SCALARS)).astype(int))
    farthest = 0.0
    for scalar in chosen.tolist():
        density = chain.conditional(points, scalar, condition=condition)
        ends = density.quantile(edges.expand(len(points), -1))
        low, half = ends[:, :-1, None], (ends[:, 1:] - ends[:, :-1])[..., None] / 2
        places = (low + half * (1 + nodes)).flatten(1)
        heights = density.log_prob(places).exp().unflatten(1, (_PIECES, _NODES))
        integral = (heights * half * weights).sum((1, 2))
        difference = (integral - (edges[-1] - edges[0])).abs().max().item()
        # A NaN is the farthest of all; max() would pass over it.
        farthest = max(farthest, difference if difference == difference else math.inf)
    good = farthest <= _TOLERANCE
    text = (
        f"Conditional densities integrate to 1, within {farthest:.1g}."
        if good
        else f"Conditional densities do not integrate to 1: one is off by {farthest:.2g}."
    )
    advice = "load the weights anew, or train again" if not good else ""
    return Finding("integrals", good, text, advice, {"farthest": _number(farthest)})


def check_rows(
    model: Any,
    data: Any,
    *,
    condition: Any = None,
    rows: int = 1000,
    seed: int = 0,
) -> Report:
    """Look at a model with two densities beside rows of data, best such as it has not seen.

    Up to `rows` of them, drawn by `seed`, are looked at: with very many no model would be good
    enough. What cannot be computed is a finding too. A model of a single noise level has the
    density by quadrature alone, and there is nothing to compare it with.
    """
    points = as_rows(data, dims=model.dims, name="data")
    if len(points) < LEAST_ROWS:
        raise InputError(
            f"expected at least {LEAST_ROWS} rows of data, got {len(points)}; fewer show nothing"
        )
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < LEAST_ROWS:
        raise InputError(f"expected rows of at least {LEAST_ROWS}, got {rows!r}; 1000 is usual")
    if condition is not None:
        condition = as_rows(condition, name="condition", dtype=model.shift.dtype)
    model.context.check_condition(condition, len(points))
    chosen = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:rows]
    points = points[chosen.to(points.device)].to(model.shift.device)
    if condition is not None:
        condition = condition[chosen.to(condition.device)].to(model.shift.device)
    if not all(bool(part.isfinite().all()) for part in model.state_dict().values()):
        text = "The weights are not finite numbers."
        return Report((Finding("weights", False, text, "load them anew, or train again"),))
    # A single noise level has no flow, which leads from one level to another.
    one = model.noise.has_one_level
    other = None if one else "quadrature" if model.density == "flow" else "flow"
    few = max(LEAST_ROWS, _CONDITIONALS // model.dims)
    methods = [name for name in (model.density, other) if name is not None]
    seen = {name: len(points) if name == "flow" else few for name in methods}
    views = {name: _View.of(model, points[:n], condition, name, n) for name, n in seen.items()}
    findings = [_attempt("integrals", lambda: integrals(model, points, condition))]
    findings += _calibrations(views, model.density, other)
    if other is not None:
        findings.append(_agreement(views, model.density, other, findings[1].good))
    findings += [_outside(views[model.density]), _precision(views[model.density])]
    return Report(tuple(findings))


@dataclass(frozen=True)
class _View:
    """The data as one of the densities sees them, or the reason why it does not."""

    terms: np.ndarray
    error: np.ndarray
    cdf: np.ndarray
    failure: str = ""

    @classmethod
    def of(
        cls, model: Any, points: Tensor, condition: Tensor | None, method: str, rows: int
    ) -> "_View":
        condition = None if condition is None else condition[:rows]
        try:
            terms, error = model.log_prob_terms(points, condition=condition, method=method)
            cdf = model.conditional_cdf(points, condition=condition, method=method)
        except ArcsmError as reason:
            nothing = np.empty((0, model.dims))
            return cls(nothing, nothing, nothing, f"The density by {method} fails: {reason}.")
        return cls(*(part.double().cpu().numpy() for part in (terms, error, cdf)))


def _attempt(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except ArcsmError as reason:
        return Finding(name, False, f"It cannot be computed: {reason}.", _MORE_TRAINING)


def _calibrations(views: Mapping[str, _View], canonical: str, other: str | None) -> list[Finding]:
    """Compare where values lie in their predicted distributions with where they should."""
    found = {}
    for method, view in views.items():
        name = f"calibration by {method}"
        if view.failure:
            found[method] = Finding(name, False, view.failure, _MORE_TRAINING)
        else:
            pit = {f"column {d}": view.cdf[:, d] for d in range(view.cdf.shape[1])}
            found[method] = calibration(pit, f"the data by {method}", name=name)
    own = found[canonical]
    if other is None:
        return [own]
    foreign, advice = found[other], own.advice
    if not own.good and foreign.good:
        advice = (
            f'set model.density = "{other}", which is calibrated on these rows, or {_MORE_TRAINING}'
        )
    hint = "" if foreign.good else f'stay with the canonical density, "{canonical}"'
    if not own.good and not foreign.good:
        hint = foreign.advice
    return [
        Finding(own.name, own.good, own.text, advice, own.numbers),
        Finding(foreign.name, foreign.good, foreign.text, hint, foreign.numbers, matters=False),
    ]


def _agreement(
    views: Mapping[str, _View], canonical: str, other: str, canonical_is_calibrated: bool
) -> Finding:
    """Compare the two densities, which are one if the scores obey the heat equation in σ."""
    name, matters = "heat equation", not canonical_is_calibrated
    for view in views.values():
        if view.failure:
            text = f"Flow and quadrature cannot be compared. {view.failure}"
            return Finding(name, False, text, _MORE_TRAINING, matters=matters)
    count = min(len(view.terms) for view in views.values())
    own, foreign = views[canonical], views[other]
    with np.errstate(invalid="ignore"):  # of two infinities
        difference = np.abs(own.terms[:count] - foreign.terms[:count])
    moved = np.abs(own.cdf[:count] - foreign.cdf[:count])
    mean, worst, mass = difference.mean(), difference.max(), moved.mean()
    numbers = {
        "rows": count,
        "mean_difference": _number(mean),
        "worst_difference": _number(worst),
        "mean_mass_moved": _number(mass),
        "worst_mass_moved": _number(moved.max()),
    }
    if not np.isfinite(difference).all():
        text = "Flow and quadrature cannot be compared: log-densities are not finite numbers."
        return Finding(name, False, text, _MORE_TRAINING, numbers, matters)
    size = (
        f"differ by {mean:.2g} nats per scalar on average ({worst:.2g} at worst), and"
        f" {100 * mass:.2g} % of the mass lies on another side of a value"
    )
    if mean <= _AGREEMENT:
        text = f"The network obeys the heat equation in σ: flow and quadrature {size}."
        return Finding(name, True, text, "", numbers, matters)
    text = f"The network does not obey the heat equation in σ: flow and quadrature {size}."
    advice = (
        f'trust the canonical density, "{canonical}", which is calibrated'
        if canonical_is_calibrated
        else _MORE_TRAINING
    )
    return Finding(name, False, text, advice, numbers, matters)


def _outside(view: _View) -> Finding:
    """Count the rows with a value at the very end of its predicted distribution."""
    if view.failure:
        return Finding("range", False, view.failure, _MORE_TRAINING)
    inside = (view.cdf >= _FAR) & (view.cdf <= 1 - _FAR)  # a NaN is not inside
    bad = np.flatnonzero(~inside.all(1))
    share = len(bad) / len(view.cdf)
    good = share <= _MOST_FAR
    text = (
        f"{len(bad):,} of {len(view.cdf):,} rows have a value that the model holds to be next to"
        " impossible."
    )
    advice = "ask whether these rows are like those that the model was trained on"
    return Finding("range", good, text, "" if good else advice, {"share": share})


def _precision(view: _View) -> Finding:
    """Look at the numerical error of the log-density."""
    if view.failure:
        return Finding("precision", False, view.failure, _MORE_TRAINING)
    error, log_prob = view.error.sum(1), view.terms.sum(1)
    if not (np.isfinite(error).all() and np.isfinite(log_prob).all()):
        count = int((~(np.isfinite(error) & np.isfinite(log_prob))).sum())
        text = f"{count:,} of {len(error):,} rows have a log-density that is not a finite number."
        return Finding("precision", False, text, "look at rows and weights that are far out")
    usual, most = float(np.quantile(error, 0.99)), float(error.max())
    good = usual <= _ERROR
    text = f"Arithmetic is exact to {usual:.1g} nats for 99 of 100 rows, at worst to {most:.1g}."
    advice = "" if good else "compute in float64 (model.double()), or use a larger sigma_min"
    numbers = {"error_99": usual, "worst_error": most}
    return Finding("precision", good, text, advice, numbers)


def _number(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return float(value) if math.isfinite(value) else None
