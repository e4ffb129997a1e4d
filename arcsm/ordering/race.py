"""A race between orders of the columns: small models, trained briefly, judged on held-out rows.

Every order can describe every density; what a network learns from some thousand rows depends on it
all the same, by some tenths of a nat to a few nats for a row. No rule that looks at the data alone
foresees which order is good, nor does the training loss, which adds up errors of scores and not of
densities. The held-out log-likelihood of a short training does, though far from surely:
benchmarks/orders.py measures how often.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.conditional.flow import fewest_steps
from arcsm.conditional.noise import suggest_sigma_min
from arcsm.data.arrays import as_training_rows
from arcsm.distributed import by_first
from arcsm.errors import InputError, NonFiniteLossError
from arcsm.model import ARCSM
from arcsm.ordering.rules import candidate_orders
from arcsm.threads import limited_threads, map_pieces
from arcsm.train import TrainConfig, fit, split_rows
from arcsm.train.inputs import check_spread, check_weights

# A short training sees some ten thousands of rows; more than these would be read once or never.
_MOST_ROWS = 10_000
# Of fewer rows those held out are a handful, and chance would decide.
_FEWEST_ROWS = 20
# Rows to judge by: a share of all, of small tables more, and not more than are needed.
_HELD_OUT, _FEW_HELD_OUT, _MOST_HELD_OUT = 0.15, 300, 500

_HIDDEN = (64, 64, 64)
_BATCH = 128
# Threads share one interpreter, which more of them would only wait for.
_AT_ONCE = 4
# Run whatever the time: one order alone is no race.
_ALWAYS = 2


@dataclass(frozen=True)
class Candidate:
    """An order that was tried.

    `log_prob` is its mean log-likelihood of the held-out rows, in nats; `error` the standard error
    of its difference to that of the natural order, on the same rows; `seconds` what it took.
    """

    name: str
    order: tuple[int, ...]
    log_prob: float
    error: float
    seconds: float


@dataclass(frozen=True)
class LearnedOrder:
    """The order that won, and how the race went.

    `candidates` are in the order in which they started, natural first; for those in `left_out`
    there was no time. Both are empty where there was nothing to choose.
    """

    order: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...]
    seconds: float


def learn_order(
    x: Any,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    spread: Any = None,
    cells: tuple[Any, Any] | None = None,
    weight: Any = None,
    seconds: float = 50.0,
    most: int = 20,
    steps: int = 300,
    learning_rate: float = 7e-3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> LearnedOrder:
    """Return the order of the columns of x that did best in short trainings.

    Up to `most` orders, natural, by rules and random, are each given to a small model that is
    trained for `steps` steps and judged by the exact log-likelihood of the same held-out rows. The
    best mean wins; the natural order, unless it is beaten. The model that is wanted in the end,
    larger and trained for longer, may have liked another order better: this one is better than a
    guess, not the best there is.

    `groups` are columns that stay together, in the order given, such as the digits of one
    category; those in no group stand alone. `spread` and `weight` are those of `fit`, `cells` those
    of `ARCSM.log_prob`: what is judged by its probability rather than its density, by default
    x ± spread. At most 10,000 rows take part, drawn at random.

    The most promising orders run first, and none is started that would not end within `seconds`;
    but two run in any case. On a CPU several run at a time, on one thread each. As long as the
    time suffices for all of them, the result depends on the seed alone. `progress` is told how
    many have finished, and out of how many, after each.
    """
    began = time.monotonic()
    _check_numbers(seconds, most, seed)
    rows = as_training_rows(x).cpu()
    weights = check_weights(weight, len(rows))
    spreads = check_spread(spread, rows)
    low, high = _check_cells(cells, rows, spreads)
    together = _check_groups(groups, rows.shape[1])

    drawn = torch.from_numpy(race_rows(len(rows), seed, weights.numpy()))
    rows, weights, low, high = rows[drawn], weights[drawn], low[drawn], high[drawn]
    # What is too rare to be among the rows drawn has nothing to tell, and comes last.
    varied = (rows != rows[0]).any(0).nonzero()[:, 0]
    place = {scalar: i for i, scalar in enumerate(varied.tolist())}
    racing = [group for group in together if any(scalar in place for scalar in group)]
    others = [group for group in together if group not in racing]
    natural_order = _joined(together)
    if len(racing) < 2 or len(rows) < _FEWEST_ROWS:
        return LearnedOrder(natural_order, (), (), time.monotonic() - began)

    inner = [[place[scalar] for scalar in group if scalar in place] for group in racing]
    rows, low, high = (part[:, varied].contiguous() for part in (rows, low, high))
    spreads = None if spreads is None else spreads.cpu()[drawn][:, varied].contiguous()
    # Other rows are held out, and other noise drawn, than in a training with the same seed.
    config = _short_training(len(rows), steps, learning_rate, int(seed) + 1)
    race = _Race(rows, weights, spreads, (low, high), config, began + seconds, progress)
    orders = candidate_orders(rows.numpy(), inner, most=most, seed=seed)
    # Of several processes one alone races: the others would run out of time at other orders.
    results = by_first(lambda: race.run([_joined(inner, order) for order in orders.values()]))

    def whole(order: tuple[int, ...]) -> tuple[int, ...]:
        natural = order == tuple(range(len(order)))
        return natural_order if natural else (*_joined(racing, order), *_joined(others))

    ran = [
        (name, whole(order), *result)
        for (name, order), result in zip(orders.items(), results, strict=True)
        if result is not None
    ]
    scores = _comparable(np.stack([score for _, _, score, _ in ran]))
    share = race.judged_weight / race.judged_weight.sum()
    candidates = tuple(
        Candidate(name, order, float(share @ own), _error(own - scores[0], share), took)
        for (name, order, _, took), own in zip(ran, scores, strict=True)
    )
    # Of equals the first, and the first is the natural order.
    best = max(candidates, key=lambda candidate: candidate.log_prob)
    left_out = tuple(n for n, result in zip(orders, results, strict=True) if result is None)
    return LearnedOrder(best.order, candidates, left_out, time.monotonic() - began)


def race_rows(count: int, seed: int, weight: np.ndarray | None = None) -> np.ndarray:
    """Return which of so many rows a race with this seed is run on; none of weight 0."""
    kept = np.arange(count) if weight is None else np.flatnonzero(weight > 0)
    if len(kept) <= _MOST_ROWS:
        return kept
    return np.random.default_rng(seed).permutation(kept)[:_MOST_ROWS]


class _Race:
    """Short trainings on the same rows, one for each order."""

    def __init__(
        self,
        rows: Tensor,
        weight: Tensor,
        spread: Tensor | None,
        cells: tuple[Tensor, Tensor],
        config: TrainConfig,
        end: float,
        progress: Callable[[int, int], None] | None,
    ):
        self._config = config
        held_out = split_rows(len(rows), config)[1]
        self._rows, self._weight, self._spread = rows, weight, spread
        self._judged = rows[held_out]
        self._cells = (cells[0][held_out], cells[1][held_out])
        self.judged_weight = weight[held_out].numpy()
        self._end, self._progress = end, progress
        self._lock = threading.Lock()
        self._started, self._finished, self._slowest = 0, 0, 0.0

    def run(self, orders: Sequence[tuple[int, ...]]) -> list[tuple[np.ndarray, float] | None]:
        """Return the log-densities of the judged rows, and the time, for each order.

        None for an order that would not have been done in time.
        """
        standard = (self._rows - self._rows.mean(0)) / self._rows.std(0)
        noise = Noise(sigma_min=suggest_sigma_min(standard, largest=0.01))
        # Made here: weights are drawn from a generator that threads would share.
        models = [
            ARCSM.made(
                self._rows.shape[1],
                hidden=_HIDDEN,
                frequencies=0,
                order=order,
                noise=noise,
                flow_steps=fewest_steps(noise),
                decorrelate=True,
                seed=self._config.seed,
            )
            for order in orders
        ]

        def train(model: ARCSM) -> tuple[np.ndarray, float] | None:
            if not self._may_start():
                return None
            start = time.monotonic()
            scores = self._train(model)
            took = time.monotonic() - start
            self._report(took, len(models))
            return scores, took

        with limited_threads(_AT_ONCE):
            return map_pieces(train, models, torch.device("cpu"))

    def _train(self, model: ARCSM) -> np.ndarray:
        try:
            with torch.enable_grad():
                fit(model, self._rows, self._config, weight=self._weight, spread=self._spread)
        except NonFiniteLossError:  # the others may do
            return np.full(len(self._judged), -math.inf)
        return model.log_prob(self._judged, cells=self._cells).double().numpy()

    def _may_start(self) -> bool:
        with self._lock:
            enough = time.monotonic() + self._slowest <= self._end
            if self._started >= _ALWAYS and not enough:
                return False
            self._started += 1
            return True

    def _report(self, took: float, count: int) -> None:
        with self._lock:
            self._slowest = max(self._slowest, took)
            self._finished += 1
            if self._progress is not None:
                self._progress(self._finished, count)


def _short_training(count: int, steps: int, learning_rate: float, seed: int) -> TrainConfig:
    share = min(max(_HELD_OUT, min(0.3, _FEW_HELD_OUT / count)), _MOST_HELD_OUT / count)
    return TrainConfig(
        steps=steps,
        batch_size=_BATCH,
        learning_rate=learning_rate,
        # A fifth, as the usual number of steps would be most of the run.
        warmup=steps // 5,
        validation=share,
        evaluate_every=20 if count < 500 else 50,
        seed=seed,
    )


def _joined(groups: Sequence[Sequence[int]], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the scalars of groups one after the other."""
    chosen = groups if order is None else [groups[place] for place in order]
    return tuple(scalar for group in chosen for scalar in group)


def _comparable(scores: np.ndarray) -> np.ndarray:
    """Return log-densities, those that are none as the lowest that any order gave any row.

    Left out, a row would favour the order that fails on it; as it is, it would decide alone.
    """
    finite = np.isfinite(scores)
    lowest = scores[finite].min() if finite.any() else 0.0
    return np.where(finite, scores, lowest)


def _error(difference: np.ndarray, share: np.ndarray) -> float:
    """Return the standard error of a weighted mean."""
    centred = difference - share @ difference
    count = len(difference)
    return float(np.sqrt(np.sum((share * centred) ** 2) * count / max(count - 1, 1)))


def _check_numbers(seconds: Any, most: Any, seed: Any) -> None:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not seconds > 0:
        raise InputError(f"expected a positive number of seconds, got {seconds!r}; correct it")
    for name, value, least in (("most", most, 1), ("seed", seed, 0)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise InputError(
                f"expected {name} as a whole number of at least {least}, got {value!r}; correct it"
            )


def _check_cells(
    cells: tuple[Any, Any] | None, rows: Tensor, spread: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the ends of what each entry stands for; equal ends for a value that is exact."""
    point = rows.double()
    if cells is None:
        width = torch.zeros_like(point) if spread is None else spread.cpu().double()
        return point - width, point + width
    low, high = (torch.as_tensor(end, dtype=torch.float64).cpu() for end in cells)
    if low.shape != rows.shape or high.shape != rows.shape or not bool((low <= high).all()):
        raise InputError(
            f"expected cells as two arrays of shape {tuple(rows.shape)}, the first nowhere above"
            f" the second, got shapes {tuple(low.shape)} and {tuple(high.shape)}; pass (low, high)"
        )
    return low, high


def _check_groups(groups: Sequence[Sequence[int]] | None, dims: int) -> list[tuple[int, ...]]:
    """Return groups that hold each scalar once, by their first scalars."""
    told = [tuple(group) for group in groups or ()]
    named = [scalar for group in told for scalar in group]
    if len(set(named)) < len(named) or not set(named) <= set(range(dims)) or () in told:
        raise InputError(
            f"expected groups of columns among 0 … {dims - 1}, none of them in two, got"
            f" {[list(group) for group in told]}; list each column once at most"
        )
    alone = [(scalar,) for scalar in range(dims) if scalar not in set(named)]
    return sorted([*told, *alone], key=min)
