"""What `arcsm check` looks at: a model by itself, and a model beside data."""

import numpy as np
import torch

from arcsm.cli.options import number
from arcsm.cli.scoring import MeanLogDensity, chunks, located
from arcsm.cli.sources import Source
from arcsm.columns.checks import type_of
from arcsm.data import Table
from arcsm.progress import Reporter
from arcsm.soundness import LEAST_ROWS, Finding, calibration, integrals
from arcsm.tabular import TabularModel

# More impossible rows than this share are not a few odd ones.
MOST_IMPOSSIBLE = 0.01
_ROWS = 2000  # that calibration is looked at with: with more, no model would be good enough
_OWN_ROWS, _OWN_NUMBERS = 500, 50_000  # that are drawn from the model at most
_OWN_CONTEXTS = 4  # given which conditionals are integrated


def check_alone(model: TabularModel, seed: int) -> list[Finding]:
    """Look at a model without data: its samples, and that its conditionals are densities."""
    rows = max(100, min(_OWN_ROWS, _OWN_NUMBERS // model.columns.scalars))
    generator = torch.Generator(model.model.device).manual_seed(seed)
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
            numbers={"rows": rows, "impossible_rows": int(np.count_nonzero(~possible))},
        ),
    ]
    if np.count_nonzero(possible) >= LEAST_ROWS:
        own = samples.take(np.flatnonzero(possible))
        findings += _calibration(model, own, seed, "its own samples")
    points = torch.from_numpy(model.columns.encode(samples.take(np.arange(_OWN_CONTEXTS))).point)
    # Of an ensemble all members are looked at, and one that is wrong is told of.
    findings.append(min((integrals(m, points) for m in model.members), key=lambda f: f.good))
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
            numbers={
                "rows": mean.rows,
                "impossible_rows": mean.impossible,
                "mean_log_density": mean.mean,
            },
        )
    ]
    if kept is not None and kept.rows >= LEAST_ROWS:
        findings += _calibration(model, kept, seed, "the data")
    return findings


def _calibration(model: TabularModel, table: Table, seed: int, what: str) -> list[Finding]:
    """Compare where values lie in their predicted distributions with where they should."""
    evaluate = model.pit if model.order else model.pit_of_members
    pit = evaluate(table, random=np.random.default_rng(seed))
    return [calibration(pit, what)] if pit else []
