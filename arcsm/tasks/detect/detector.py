"""Outlier scores from the conditional scores of a fitted model; higher is always more unusual.

Of a row, each model of the ensemble gives a score s_d for every column at every noise level σ: by
how much, and in which direction, the column is off what those before it in the order let expect,
seen at the scale σ. From these and from the density,

- "multiscale": the vector of σ s_d and σ² ∂s_d/∂x_d over three levels, all columns and all models,
  and beside them the row itself, as its scores would be if each column were normal and alone; of
  this the mean distance to its nearest neighbours among the vectors of training rows. The default.
  Scores see what does not fit together, their derivatives whether it lies on a mode or between two;
  the row itself sees what lies far out, or between clusters.
- "nll": −log q(x), in nats and in the units of the table.
- "csm": Σ ½ (σ s_d)² + σ² ∂s_d/∂x_d, the integrand of composite score matching (Eq. 5 of the
  paper), over few levels. A single pass of the first model alone, and the fastest.
- "typicality": |−log q(x) − its mean over training rows|: too likely is unusual as well.
- "h": −Σ s_d at the smallest level, minus the paper's h(x). Of images, the unusual ones have the
  smaller h; of tables it says little.

A value that a model has no place for (a category never seen, a constant that differs) is as rare as
training rows let expect by the estimate of Good and Turing: p = (m + 1)/(n + 1) of n rows if m of
them have a value that no other has. It adds to a row, which without it counts as a middling one at
least, as much as parts one training row in 1/p from the middle one, and what a column of its own
would add: −log p nats or, for scores and distances, those of a normal column at a deviation as
rare. So it is beyond all training rows if each value was seen twice, however far these reach.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from arcsm.columns.checks import check_same_columns
from arcsm.data.table import Table
from arcsm.errors import CheckpointError, InputError
from arcsm.model import ARCSM
from arcsm.tabular import TabularModel
from arcsm.tabular.given import with_copies
from arcsm.tabular.pieces import ROWS
from arcsm.tasks.detect.explain import SMOOTHING, VALUES, column_surprise, typical_values
from arcsm.tasks.detect.novel import Familiar, chance_of_new, frequent_values, make_familiar
from arcsm.tasks.detect.passes import scaled_jets, smoothed_terms

METHODS = ("auto", "multiscale", "nll", "csm", "typicality", "h")
DEFAULT = "multiscale"

# From coarser than the data to about as fine as a few hundred rows can show; more levels between
# these, or finer ones, told hardly more.
LEVELS = (2.0, 0.5, 0.12)
FEW_LEVELS = (1.0, 0.25)
NEIGHBOURS = 3
# Training rows whose vectors are kept: more of them hardly change what is near.
_REFERENCE = 4000
# A neighbour this much closer than they usually are is the row itself, and not counted: so training
# rows and others are judged alike.
_ITSELF = 1e-3
# Up to this many numbers are evaluated in double precision, in which it does not matter which other
# rows are in the batch.
_PRECISE = 20_000
# A value this many deviations out is as far as any; beyond, float32 would overflow.
_FARTHEST = 1e9
# Known values that are tried in the place of a new one, the most frequent ones.
_STAND_INS = 16
# No log-density is less than minus this: "impossible" would be no number to compare.
_LEAST_LOG = 1e30
# Numbers in the vectors that neighbours are searched for at one time.
_NUMBERS = 2**24


def check_method(method: Any) -> None:
    """Refuse a method that there is none of."""
    if method not in METHODS:
        raise InputError(
            f"expected a method among {', '.join(METHODS)}, got {method!r}; choose one of these"
        )


class Detector:
    """Outlier scores of rows under a model; built by `learn` from the model and training rows.

    `state` holds the arrays that were learned: all that, beside the model, a copy needs.
    """

    def __init__(self, model: TabularModel, method: str, state: Mapping[str, np.ndarray]):
        check_method(method)
        self.model, self.method, self.state = model, method, dict(state)
        try:
            for name in ("training_scores", "apart", "drop", "middle", "new", "surprise"):
                _ = self.state[name]
            self._values = {name: self.state[f"values.{name}"] for name in model.chained}
            needed = {
                "multiscale": ("reference", "spacing", "units", "neighbours", "levels"),
                "typicality": ("mean",),
            }
            for name in needed.get(self._method, ()):
                _ = self.state[name]
        except KeyError as error:
            raise CheckpointError(
                f"expected all that a detector has learned, got nothing called {error};"
                " restore it from a copy or fit it again"
            ) from error
        if self._method == "multiscale" and tuple(self.state["levels"].tolist()) != LEVELS:
            raise CheckpointError(
                f"expected a detector of the noise levels {LEVELS}, got one of"
                f" {tuple(self.state['levels'].tolist())}; fit it again, or use the release of"
                " arcsm that wrote it"
            )
        self._indices: dict[Any, Any] = {}

    @property
    def _method(self) -> str:
        return DEFAULT if self.method == "auto" else self.method

    @classmethod
    def learn(
        cls,
        model: TabularModel,
        table: Table,
        *,
        method: str = "auto",
        kept: np.ndarray | None = None,
        held_out: Sequence[int] | np.ndarray = (),
        neighbours: int = NEIGHBOURS,
        seed: int = 0,
    ) -> "Detector":
        """Take from training rows what the scores of other rows are compared with.

        `kept` tells (rows,) which of the rows the model was learned from, by default all; of these
        `held_out` are the places of those that its weights were not trained on. `neighbours` are
        those that "multiscale" takes the mean distance to. Rows that lie close to fewer others than
        that are unusual, so that more of them see through unusual rows that form a group.
        """
        check_method(method)
        normal = table if kept is None else table.take(kept)
        chosen = np.random.default_rng(seed).permutation(normal.rows)[:_REFERENCE]
        some = make_familiar(model.columns, normal.take(np.sort(chosen)))
        chance = chance_of_new(model.columns, normal)
        state = {
            "surprise": -np.log(chance),
            # Until the scores of the rows are known.
            **{name: np.zeros(1) for name in ("training_scores", "apart", "drop", "middle", "new")},
        }
        for name, values in typical_values(model, some.encoded.point).items():
            state[f"values.{name}"] = values
        if method in ("auto", "multiscale"):
            units = _units(some)
            reference = _vectors(model.members, units, some).astype(np.float32)
            # As large a share of the rows that are kept, but for the few that it takes anyway.
            count = max(NEIGHBOURS, -(-neighbours * len(reference) // normal.rows))
            state |= {"units": units, "reference": reference, "levels": np.array(LEVELS)}
            state |= {"spacing": np.array(_spacing(reference)), "neighbours": np.array(count)}
        if method == "typicality":
            state["mean"] = np.array(_nll(model, some).mean())
        detector = cls(model, method, state)
        detector._compare(table, detector._without_copies(some), chance, kept, held_out)
        return detector

    def _without_copies(self, known: Familiar) -> "Detector":
        """Return the detector that has one of equal training rows, all of which are `known`."""
        if self._method != "multiscale":
            return self
        first = np.unique(known.encoded.point, axis=0, return_index=True)[1]
        if len(first) in (1, len(known.encoded.point)):
            return self
        reference = self.state["reference"][np.sort(first)]
        spacing = np.array(_spacing(reference))
        state = {**self.state, "reference": reference, "spacing": spacing}
        return Detector(self.model, self.method, state)

    def _compare(
        self,
        table: Table,
        distinct: "Detector",
        chance: np.ndarray,
        kept: np.ndarray | None,
        held_out: Sequence[int] | np.ndarray,
    ) -> None:
        """Learn from the scores of training rows how much a new value of a column adds to one.

        Where rows repeat, training rows are near their copies, and others may not be: how unusual
        these are is told by the scores `apart`, as if there were no copies.
        """
        score, novel = self._score_known(table)
        apart = score if distinct is self else distinct._score_known(table)[0]
        normal = apart if kept is None else apart[kept]
        # New rows are a little more unusual than those that weights were trained on.
        seen = np.delete(normal, held_out)
        drop = np.median(normal[held_out]) - np.median(seen) if len(held_out) else 0.0
        middle = np.median(score)
        as_rare = np.maximum(np.quantile(apart, 1 - chance, method="higher") - middle, 0.0)
        alone = [_ALONE[self._method](share) for share in chance]
        self.state |= {
            "apart": apart,
            "drop": np.array(max(drop, 0.0)),
            "middle": np.array(middle),
            "new": as_rare + max(drop, 0.0) + alone,
        }
        self.state["training_scores"] = self._with_new_values(score, novel)

    def outlier_score(self, table: Table) -> np.ndarray:
        """Return a number for each row, the higher the more unusual (rows,)."""
        return self._with_new_values(*self._score_known(table))

    def _score_known(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of rows without their new values (rows,), and where there are such."""
        score, chains = _SCORES[self._method], self._chains(table.rows)
        scores, novel = [np.empty(0)], [np.empty((0, len(self.model.columns.names)), dtype=bool)]
        for piece in self._pieces(table):
            scores.append(score(self, piece, chains))
            novel.append(piece.novel)
        return np.concatenate(scores), np.concatenate(novel)

    def _with_new_values(self, score: np.ndarray, novel: np.ndarray) -> np.ndarray:
        least = np.maximum(score, self.state["middle"])
        return np.where(novel.any(1), least + novel @ self.state["new"], score)

    def explain(self, table: Table) -> np.ndarray:
        """Return the surprise of each column given the others, in nats (rows, columns)."""
        chains = self._chains(table.rows * VALUES)
        parts = [np.empty((0, len(self.model.columns.names)))]
        for piece in self._pieces(table):
            surprise = column_surprise(self.model, _points(piece), self._values, chains)
            parts.append(np.where(piece.novel, self.state["surprise"], surprise))
        return np.concatenate(parts)

    def _pieces(self, table: Table) -> Iterator[Familiar]:
        """Yield some rows at a time, once all of them were found to be complete."""
        columns = self.model.columns
        check_same_columns(table, {c["name"]: c["type"] for c in columns.config["columns"]})
        for start in range(0, table.rows, ROWS):
            some = make_familiar(columns, table.take(slice(start, start + ROWS)))
            yield _with_likely_values(self.model, some)

    def _chains(self, rows: int) -> list[ARCSM]:
        """Return the models in the precision that suits so many rows."""
        if rows * self.model.columns.scalars > _PRECISE:
            return self.model.members
        return [copy.deepcopy(chain).double() for chain in self.model.members]

    # The methods

    def _multiscale(self, piece: Familiar, chains: Sequence[ARCSM]) -> np.ndarray:
        vectors = _vectors(chains, self.state["units"], piece)
        pieces = np.array_split(vectors, max(1, -(-vectors.size // _NUMBERS)))
        index = self._index(vectors.dtype)
        distance = np.concatenate([index.kneighbors(some)[0] for some in pieces])
        itself = distance[:, 0] <= _ITSELF * float(self.state["spacing"])
        others = np.where(itself[:, None], distance[:, 1:], distance[:, :-1])
        return np.asarray(others.mean(1, dtype=np.float64))

    def _index(self, dtype: Any) -> Any:
        """Return the training rows' vectors, ready to be searched, in the precision asked for."""
        if dtype not in self._indices:
            reference = self.state["reference"].astype(dtype)
            self._indices[dtype] = _search(reference, int(self.state["neighbours"]))
        return self._indices[dtype]

    def _nll(self, piece: Familiar, chains: Sequence[ARCSM]) -> np.ndarray:
        return _nll(self.model, piece)

    def _typicality(self, piece: Familiar, chains: Sequence[ARCSM]) -> np.ndarray:
        return np.abs(_nll(self.model, piece) - float(self.state["mean"]))

    def _csm(self, piece: Familiar, chains: Sequence[ARCSM]) -> np.ndarray:
        score, bend = scaled_jets(chains[0], _tensor(piece, chains[0]), FEW_LEVELS)
        found = score.double().square() / 2 + bend
        return np.asarray(found.mean(1).sum(-1).cpu().numpy())

    def _h(self, piece: Familiar, chains: Sequence[ARCSM]) -> np.ndarray:
        total = np.zeros(len(piece.novel))
        for chain in chains:
            level = chain.noise.sigma_min
            score, _ = scaled_jets(chain, _tensor(piece, chain), [level])
            total -= (score.double()[:, 0].sum(-1) / level).cpu().numpy() / len(chains)
        return total


_SCORES: dict[str, Callable[[Detector, Familiar, Sequence[ARCSM]], np.ndarray]] = {
    "multiscale": Detector._multiscale,
    "nll": Detector._nll,
    "csm": Detector._csm,
    "typicality": Detector._typicality,
    "h": Detector._h,
}


def _mean_square(levels: Sequence[float]) -> float:
    """Return the mean over levels of (σ s)² of a standard normal column at 1: s = −1/(1 + σ²)."""
    return float(np.mean([(level / (1 + level**2)) ** 2 for level in levels]))


def _deviation(share: float) -> float:
    """Return the deviation that such a share of a normal column exceeds, on either side."""
    return -NormalDist().inv_cdf(share / 2)


# What a column of its own adds to each score if its value is one of such a share of rare values.
_ALONE: dict[str, Callable[[float], float]] = {
    "multiscale": lambda share: math.sqrt(2 * _mean_square(LEVELS)) * _deviation(share),
    "nll": lambda share: -math.log(share),
    "csm": lambda share: _mean_square(FEW_LEVELS) / 2 * _deviation(share) ** 2,
    "typicality": lambda share: -math.log(share),
    "h": _deviation,
}


def _with_likely_values(model: TabularModel, piece: Familiar) -> Familiar:
    """Let that known category stand in for a new one which the rest of the row makes likeliest.

    With another one the columns that depend on it would look as unusual.
    """
    table, columns = piece.table, model.columns
    for place, options in frequent_values(columns).items():
        rows = np.flatnonzero(piece.novel[:, place])
        if len(rows) == 0:
            continue
        name, tried = columns.names[place], options[:_STAND_INS]
        repeated = table.take(np.repeat(rows, len(tried)))
        others = Table({**repeated.columns, name: np.tile(tried, len(rows))})
        encoded = columns.encode(with_copies(columns, others)).point
        chain = model.members[0]
        points = torch.from_numpy(encoded).to(chain.device, chain.dtype)
        terms = smoothed_terms(chain, points, SMOOTHING).sum(-1).view(len(rows), len(tried))
        values = table.columns[name].astype(tried.dtype)
        values[rows] = tried[terms.argmax(1).cpu().numpy()]
        table = with_copies(columns, Table({**table.columns, name: values}))
    if table is piece.table:
        return piece
    return Familiar(table, columns.encode(table), piece.novel)


def _units(piece: Familiar) -> np.ndarray:
    """Return mean and standard deviation of each scalar (2, scalars)."""
    points = _points(piece)
    deviation = points.std(0)
    return np.stack([points.mean(0), np.where(deviation > 0, deviation, 1.0)])


def _vectors(chains: Sequence[ARCSM], units: np.ndarray, piece: Familiar) -> np.ndarray:
    """Return σ s_d and σ² ∂s_d/∂x_d of all levels and models, and the row itself (rows, entries).

    They are divided by the root of the number of levels and models, so that the distance of two
    rows does not depend on these.
    """
    share = 1 / math.sqrt(len(LEVELS) * len(chains))
    parts = []
    for chain in chains:
        for jet in scaled_jets(chain, _tensor(piece, chain), LEVELS):
            parts.append((jet * share).flatten(1).cpu().numpy())
    itself = (_points(piece) - units[0]) / units[1] * math.sqrt(_mean_square(LEVELS))
    return np.concatenate([*parts, itself.astype(parts[0].dtype)], axis=1)


def _search(reference: np.ndarray, neighbours: int) -> Any:
    """Return what finds a row's neighbours, and one more in case that one is the row itself."""
    from sklearn.neighbors import NearestNeighbors

    count = min(neighbours + 1, len(reference))
    return NearestNeighbors(n_neighbors=count, algorithm="brute").fit(reference)


def _spacing(reference: np.ndarray) -> float:
    """Return how far from each other neighbours usually are."""
    some = reference[:: max(1, len(reference) // 500)]
    return float(np.median(_search(reference, NEIGHBOURS).kneighbors(some)[0][:, -1]))


def _nll(model: TabularModel, piece: Familiar) -> np.ndarray:
    """Return −log q of each row; finite, though a number beyond all bounds may be large."""
    return -np.maximum(model.log_prob(piece.table), -_LEAST_LOG)


def _points(piece: Familiar) -> np.ndarray:
    return np.clip(piece.encoded.point, -_FARTHEST, _FARTHEST)


def _tensor(piece: Familiar, chain: ARCSM) -> torch.Tensor:
    return torch.from_numpy(_points(piece)).to(chain.device, chain.dtype)
