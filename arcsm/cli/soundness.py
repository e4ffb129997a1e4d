"""What `arcsm check` looks at: a model by itself, and a model beside data."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from arcsm.cli.options import number
from arcsm.cli.scoring import MeanLogDensity, chunks, located
from arcsm.cli.sources import Source
from arcsm.columns.checks import type_of
from arcsm.data import Table
from arcsm.plots.calibration import ks_distance
from arcsm.progress import Reporter
from arcsm.tabular import TabularModel

# The chance that a check of calibration fails although the model is right, all columns together.
LEVEL = 0.01
# More impossible rows than this share are not a few odd ones.
MOST_IMPOSSIBLE = 0.01
_TOLERANCE = 0.01  # of an integral that should be 1
_ROWS = 2000  # that calibration is looked at with: with more, no model would be good enough
_LEAST_ROWS = 20
_OWN_ROWS, _OWN_NUMBERS = 500, 50_000  # that are drawn from the model at most
_NAMED = 3  # of the columns that are farthest off
_SCALARS, _CONTEXTS = 32, 4  # conditionals that are integrated
_PIECES, _NODES = 64, 8


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is as it should be, a sentence, and numbers."""

    name: str
    good: bool
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def check_alone(model: TabularModel, seed: int) -> list[Finding]:
    """Look at a model without data: its samples, and that its conditionals are densities."""
    rows = max(100, min(_OWN_ROWS, _OWN_NUMBERS // model.columns.scalars))
    generator = torch.Generator(model.model.shift.device).manual_seed(seed)
    samples = model.sample(rows, generator=generator)
    log_density = model.log_prob(samples)
    possible = np.isfinite(log_density)
    types = {column["name"]: column["type"] for column in model.columns.config["columns"]}
    wrong = [name for name, kind in types.items() if type_of(samples[name]) != kind]
    findings = [
        Finding(
            "types",
            not wrong,
            f"{rows:,} samples have the types of the columns."
            if not wrong
            else f"Samples have other types than the columns: {', '.join(wrong)}.",
        ),
        Finding(
            "possible",
            bool(possible.all()),
            f"All of them are within the bounds, with a mean log-density of"
            f" {number(float(log_density.mean()))} nats."
            if possible.all()
            else f"{np.count_nonzero(~possible):,} of {rows:,} samples are impossible under the"
            " model itself.",
            {"rows": rows, "impossible_rows": int(np.count_nonzero(~possible))},
        ),
    ]
    if np.count_nonzero(possible) >= _LEAST_ROWS:
        own = samples.take(np.flatnonzero(possible))
        findings += _calibration(model, own, seed, "its own samples")
    findings.append(_integrals(model, samples.take(np.arange(min(_CONTEXTS, rows)))))
    return findings


def check_with(model: TabularModel, source: Source, seed: int, reporter: Reporter) -> list[Finding]:
    """Look at a model beside data: are the rows possible, are the conditionals calibrated?"""
    names, random, mean = model.columns.names, np.random.default_rng(seed), MeanLogDensity()
    kept: Table | None = None
    keys = np.empty(0)
    with reporter.rows("scoring") as advance:
        for start, chunk in chunks(source, model.columns):
            table = chunk.select(names)
            with located(source, start):
                log_density = model.log_prob(table)
            mean.add(log_density)
            # The rows with the smallest of random keys are a random sample of all that came.
            possible = table.take(np.isfinite(log_density))
            kept = possible if kept is None else Table.concat([kept, possible])
            keys = np.concatenate([keys, random.random(possible.rows)])
            smallest = np.argsort(keys)[:_ROWS]
            kept, keys = kept.take(smallest), keys[smallest]
            advance(chunk.rows)
    share = mean.impossible / mean.rows
    findings = [
        Finding(
            "data",
            share <= MOST_IMPOSSIBLE,
            str(mean),
            {
                "rows": mean.rows,
                "impossible_rows": mean.impossible,
                "mean_log_density": mean.mean,
            },
        )
    ]
    if kept is not None and kept.rows >= _LEAST_ROWS:
        findings += _calibration(model, kept, seed, "the data")
    return findings


def _calibration(model: TabularModel, table: Table, seed: int, what: str) -> list[Finding]:
    """Compare where values lie in their predicted distributions with where they should."""
    from scipy.stats import kstwo

    pit = model.pit(table, random=np.random.default_rng(seed))
    if not pit:
        return []
    distances = {name: ks_distance(values) for name, values in pit.items()}
    # A limit for each column that all columns of a right model keep to but in one case of 100.
    limit = float(kstwo.isf(LEVEL / len(pit), table.rows))
    worst = sorted(distances, key=lambda name: -distances[name])
    beyond = [name for name in worst if distances[name] > limit]
    shown = ", ".join(f"{name} {distances[name]:.3f}" for name in (beyond or worst)[:_NAMED])
    more = f" and {len(beyond) - _NAMED} more" if len(beyond) > _NAMED else ""
    text = (
        f"Calibrated on {what}: chance allows each column a KS distance of {limit:.3f} with"
        f" {table.rows:,} rows; the largest: {shown}."
        if not beyond
        else f"Not calibrated on {what}: chance allows each column a KS distance of {limit:.3f}"
        f" with {table.rows:,} rows, and {len(beyond)} of {len(pit)} go beyond: {shown}{more}."
    )
    numbers = {"rows": table.rows, "limit": limit, "ks_distance": distances}
    return [Finding(f"calibration on {what}", not beyond, text, numbers)]


def _integrals(model: TabularModel, rows: Table) -> Finding:
    """Integrate conditionals, between quantiles, and compare with the difference of those."""
    chain = copy.deepcopy(model.model).double()
    points = torch.from_numpy(model.columns.encode(rows).point).to(chain.shift)
    edges = torch.linspace(1e-3, 1 - 1e-3, _PIECES + 1, dtype=points.dtype, device=points.device)
    nodes, weights = (
        torch.from_numpy(part).to(points) for part in np.polynomial.legendre.leggauss(_NODES)
    )
    chosen = np.unique(np.linspace(0, chain.dims - 1, min(chain.dims, _SCALARS)).astype(int))
    farthest = 0.0
    for scalar in chosen.tolist():
        density = chain.conditional(points, scalar)
        ends = density.quantile(edges.expand(len(points), -1))
        low, half = ends[:, :-1, None], (ends[:, 1:] - ends[:, :-1])[..., None] / 2
        places = (low + half * (1 + nodes)).flatten(1)
        heights = density.log_prob(places).exp().unflatten(1, (_PIECES, _NODES))
        integral = (heights * half * weights).sum((1, 2))
        difference = (integral - (edges[-1] - edges[0])).abs().max().item()
        # A NaN is the farthest of all; max() would pass over it.
        farthest = max(farthest, difference if difference == difference else np.inf)
    return Finding(
        "integrals",
        farthest <= _TOLERANCE,
        f"Conditional densities integrate to 1, within {farthest:.1g}."
        if farthest <= _TOLERANCE
        else f"Conditional densities do not integrate to 1: one is off by {farthest:.2g}.",
        {"farthest": farthest if np.isfinite(farthest) else None},
    )
