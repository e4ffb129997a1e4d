"""Is a model of a table sound? By itself, and beside rows of data."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.columns.checks import type_of
from arcsm.data.table import Table
from arcsm.model import ARCSM
from arcsm.soundness import LEAST_ROWS, Finding, Report, calibration, check_rows, integrals
from arcsm.tabular.model import TabularModel

# More impossible rows than this share are not a few odd ones.
MOST_IMPOSSIBLE = 0.01
_ROWS = 2000  # that calibration is looked at with: with more, no model would be good enough
_OWN_ROWS, _OWN_NUMBERS = 500, 50_000  # that are drawn from the model at most
_OWN_CONTEXTS = 4  # given which conditionals are integrated
_CHAIN = ("heat equation", "precision")  # of what is found of a chain, what is new for a table
_CHAIN_ROWS = 500  # whose real values are looked at by flow and by quadrature


class MeanLogDensity:
    """The mean log-density over the rows that are possible, and how many are not."""

    def __init__(self) -> None:
        self.rows = self.impossible = 0
        self._total = self._weight = 0.0

    def add(self, log_density: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Count further rows."""
        possible = np.isfinite(log_density)
        weight = np.ones(len(log_density)) if weight is None else weight
        self.rows += len(log_density)
        self.impossible += int(np.count_nonzero(~possible))
        self._total += float((weight * np.where(possible, log_density, 0.0)).sum())
        self._weight += float(weight[possible].sum())

    @property
    def mean(self) -> float | None:
        """The mean, if a row is possible."""
        return self._total / self._weight if self._weight > 0 else None

    def __str__(self) -> str:
        if self.mean is None:
            return f"All {self.rows:,} rows are impossible under the model."
        text = (
            f"Mean log-density of {self.rows - self.impossible:,} rows: {_number(self.mean)} nats."
        )
        if self.impossible:
            text += (
                f" {self.impossible:,} more {'is' if self.impossible == 1 else 'are'} impossible"
                " under the model: a value outside its bounds, or another one where training saw a"
                " constant."
            )
        return text


def check_table(model: TabularModel, table: Table, *, seed: int = 0) -> Report:
    """Look at a model by itself and beside a table, best of rows that it was not trained on."""
    weights = check_weights(model)
    if not weights.good:
        return Report((weights,))
    beside = Beside(model, seed)
    beside.add(table)
    return Report((weights, *check_alone(model, seed, chain=False), *beside.findings()))


def check_weights(model: TabularModel) -> Finding:
    """Say how large a model is, and whether its weights are numbers."""
    state = model.model.state_dict()
    bad = [name for name, value in state.items() if not value.isfinite().all()]
    if bad:
        text = f"It has weights that are not finite numbers: {bad[0]}."
        return Finding("loads", False, text, "restore the directory from a copy, or train again")
    count = sum(parameter.numel() for parameter in model.model.parameters())
    text = f"It loads: {len(model.columns.names)} columns, {count:,} parameters."
    return Finding("loads", True, text)


def check_alone(model: TabularModel, seed: int, *, chain: bool = True) -> list[Finding]:
    """Look at a model without data: its samples, and that its conditionals are densities.

    Without `chain` the samples are not looked at by flow and by quadrature; `Beside` looks at the
    data so.
    """
    rows = max(100, min(_OWN_ROWS, _OWN_NUMBERS // model.columns.scalars))
    generator = torch.Generator(model.model.device).manual_seed(seed)
    given = None
    if model.columns.covariates:
        given = model.columns.draw_covariates(rows, np.random.default_rng(seed))
    samples = model.sample(rows, generator=generator, given=given)
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
            f" {_number(float(log_density.mean()))} nats."
            if possible.all()
            else f"{np.count_nonzero(~possible):,} of {rows:,} samples are impossible under the"
            " model itself.",
            numbers={"rows": rows, "impossible_rows": int(np.count_nonzero(~possible))},
        ),
    ]
    findings += _against(model, samples.take(possible), seed, "its own samples", chain=chain)
    encoded = model.columns.encode(samples.take(np.arange(_OWN_CONTEXTS)))
    points = torch.from_numpy(encoded.point)
    told = None if encoded.condition is None else torch.from_numpy(encoded.condition)
    # Of an ensemble all members are looked at, and one that is wrong is told of.
    findings.append(min((integrals(m, points, told) for m in model.members), key=lambda f: f.good))
    return findings


class Beside:
    """A model beside data that come in pieces: are they possible, are conditionals calibrated?"""

    def __init__(self, model: TabularModel, seed: int) -> None:
        self._model, self._seed, self._mean = model, seed, MeanLogDensity()
        self._random = np.random.default_rng(seed)
        self._kept: Table | None = None
        self._keys = np.empty(0)

    def add(self, table: Table) -> None:
        """Look at further rows, with the columns of the model."""
        log_density = self._model.log_prob(table)
        self._mean.add(log_density)
        # The rows with the smallest of random keys are a random sample of all that came.
        possible = table.take(np.isfinite(log_density))
        kept = possible if self._kept is None else Table.concat([self._kept, possible])
        keys = np.concatenate([self._keys, self._random.random(possible.rows)])
        smallest = np.argsort(keys)[:_ROWS]
        self._kept, self._keys = kept.take(smallest), keys[smallest]

    def findings(self) -> list[Finding]:
        """Return what was found."""
        mean, share = self._mean, self._mean.impossible / max(self._mean.rows, 1)
        good = share <= MOST_IMPOSSIBLE
        data = Finding(
            "data",
            good,
            str(mean),
            "" if good else "leave these rows out, or train on rows like them",
            {
                "rows": mean.rows,
                "impossible_rows": mean.impossible,
                "mean_log_density": mean.mean,
            },
        )
        if self._kept is None:
            return [data]
        return [data, *_against(self._model, self._kept, self._seed, "the data", chain=True)]


def _against(
    model: TabularModel, table: Table, seed: int, what: str, *, chain: bool
) -> list[Finding]:
    """Look at where possible rows lie in their predicted distributions, and how these are found."""
    if table.rows < LEAST_ROWS:
        text = (
            f"Calibration on {what} was not looked at: of {table.rows} possible rows, fewer than"
            f" {LEAST_ROWS}, nothing could be said."
        )
        numbers = {"rows": table.rows}
        return [Finding(f"calibration on {what}", False, text, "", numbers, matters=False)]
    evaluate = model.pit if model.order else model.pit_of_members
    found = calibration(evaluate(table, random=np.random.default_rng(seed)), what)
    return [found, *(_chain(model, table, seed, found.good) if chain else [])]


def _chain(model: TabularModel, table: Table, seed: int, calibrated: bool) -> list[Finding]:
    """Compare flow and quadrature where values are real numbers, and look at the arithmetic."""
    encoded = model.columns.encode(table)
    # What stands for a cell has no density there that two ways could agree on.
    real = np.flatnonzero((encoded.low == encoded.high).all(0)).tolist()
    if not real:
        return []
    rows = max(LEAST_ROWS, min(_CHAIN_ROWS, _OWN_NUMBERS // model.columns.scalars))
    first = _Part(model.members[0], real)
    report = check_rows(first, encoded.point, condition=encoded.condition, rows=rows, seed=seed)
    found = [finding for finding in report.findings if finding.name in _CHAIN]
    # A member alone need not be calibrated where the mean of all is; that is looked at elsewhere.
    found = [
        replace(f, matters=f.matters and not (f.name == "heat equation" and calibrated))
        for f in found
    ]
    count = len(model.members)
    if count > 1:
        about = f"Of {count} models the first: "
        found = [replace(f, text=f"{about}{f.text[0].lower()}{f.text[1:]}") for f in found]
    return found


class _Part:
    """A chain of which only some terms count, for `check_rows`; rows are those of the whole."""

    def __init__(self, chain: ARCSM, scalars: Sequence[int]) -> None:
        self._chain, self._scalars = chain, list(scalars)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_chain":  # a copy asks before there is one
            raise AttributeError(name)
        return getattr(self._chain, name)

    def double(self) -> "_Part":
        return _Part(self._chain.double(), self._scalars)

    def log_prob_terms(self, points: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        terms, errors = self._chain.log_prob_terms(points, only=self._scalars, **options)
        return terms[:, self._scalars], errors[:, self._scalars]

    def conditional_cdf(self, points: Tensor, **options: Any) -> Tensor:
        return self._chain.conditional_cdf(points, **options)[:, self._scalars]


def _number(value: float) -> str:
    """Return a number for people, with a minus sign."""
    digits = 3 if math.isfinite(value) and abs(value) < 1e5 else 0
    return f"{value:.{digits}f}".replace("-", "−")
