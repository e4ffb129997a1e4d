"""Fitting a table: which network, how long, from the number of rows and columns alone."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import torch

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.conditional import Noise
from arcsm.conditional.flow import fewest_steps
from arcsm.conditional.noise import suggest_sigma_min
from arcsm.context import resolve_order
from arcsm.data.table import Table
from arcsm.devices import check_device
from arcsm.distributed import join
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.tabular.chains import Chains
from arcsm.tabular.model import TabularModel
from arcsm.tabular.ordering import names_of, race_columns, seconds_left
from arcsm.threads import limited_threads
from arcsm.train import History, Progress, TrainConfig, fit
from arcsm.train.checkpoint import build, read_tensors
from arcsm.train.state import STATE_FILE

# Rows among which neighbours are looked for.
_NEIGHBOURS = 100_000
# Of an ensemble: each is a network of its own, and far fewer are as good.
_MOST_MODELS = 100

# Conditionals in a batch that are worth another thread.
_WORK_OF_A_THREAD = 8192

# Rows encoded at one time.
_ROWS = 65_536

ORDERS = ("natural", "random", "auto", "any")

# Of each setting that is a number, if it is given: what it is in words, its type and its range.
_NUMBERS: dict[str, tuple[str, type | UnionType, Callable[[Any], bool]]] = {
    "max_steps": ("a whole number, 1 or more", int, lambda steps: steps >= 1),
    "max_seconds": ("a number above 0", int | float, lambda seconds: 0 < seconds < math.inf),
    "batch_size": ("a whole number, 1 or more", int, lambda rows: rows >= 1),
    "learning_rate": ("a number above 0", int | float, lambda rate: 0 < rate < math.inf),
    "validation_fraction": (
        "a share of the rows, 0 or more and below 1",
        int | float,
        lambda share: 0 <= share < 1,
    ),
}


@dataclass(frozen=True)
class Settings:
    """How to fit a table; None leaves the choice to the number of rows and columns.

    `order` is the order of the columns: "natural", "random", "auto" (learned from the rows), their
    names, or "any", one model for all orders. `ensemble` models are trained side by side and their
    densities averaged: the first in this order, the others in random ones, or all in this order if
    it is a list of names. `hidden` lists the widths of the network. A share `validation_fraction`
    of the rows is held out to tell when to stop. `max_seconds` is for learning the order and
    training together. The columns `conditional_on` are covariates: the density is that of the
    others given these, and all models of an ensemble then have the same order.
    """

    order: str | Sequence[str] = "natural"
    ensemble: int = 1
    hidden: Sequence[int] | None = None
    max_steps: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    validation_fraction: float | None = None
    conditional_on: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.order, str) and self.order not in ORDERS:
            raise InputError(
                f"expected an order among {', '.join(ORDERS)}, or a list of names, got"
                f" {self.order!r}; choose one of these"
            )
        whole = isinstance(self.ensemble, int | np.integer) and not isinstance(self.ensemble, bool)
        if not whole or not 1 <= self.ensemble <= _MOST_MODELS:
            raise InputError(
                f"expected ensemble as a number of models, 1 to {_MOST_MODELS}, got"
                f" {self.ensemble!r}; correct it"
            )
        for name, (words, kind, fits) in _NUMBERS.items():
            told = getattr(self, name)
            value = told.item() if isinstance(told, np.generic) else told
            number = isinstance(value, kind) and not isinstance(value, bool)
            if value is not None and not (number and fits(value)):
                raise InputError(f"expected {name} as {words}, got {told!r}; correct it")
            object.__setattr__(self, name, value)
        if self.conditional_on and self.order in ("any", "auto"):
            raise InputError(
                f"expected the order natural, random, or a list of names with covariates, got"
                f" {self.order!r}; choose one of these"
            )
        if self.order == "any" and self.ensemble > 1:
            raise InputError(
                f'expected one model for order="any", got ensemble={self.ensemble}; leave one of'
                " the two out"
            )

    def model(
        self,
        columns: Columns,
        points: np.ndarray,
        seed: int,
        *,
        learned: Sequence[str] | None = None,
    ) -> Chains:
        """Return an untrained model for the scalars of `columns`.

        `learned` is the order that "auto" stands for.
        """
        rows, scalars = points.shape
        # Only of one or two columns are so many rows close enough for fewer to tell less.
        some = points[:: max(1, rows // _NEIGHBOURS)].astype(np.float64)
        deviation = some.std(0)
        standard = (some - some.mean(0)) / np.where(deviation > 0, deviation, 1.0)
        noise = Noise(sigma_min=suggest_sigma_min(torch.from_numpy(standard), largest=0.01))
        options: dict[str, Any] = {
            "hidden": (max(128, scalars),) * 3 if self.hidden is None else tuple(self.hidden),
            # Heads are what many columns spend their time on: the smaller ones of the core then.
            "width": 32 if scalars < 64 else None,
            "steps": 24 if scalars < 64 else None,
            # Waves let contexts change quickly with a value. Of one or two columns and many rows
            # that can be learned; otherwise it is what overfits first.
            "frequencies": 4 if scalars <= 2 and rows >= 2000 else 0,
            "noise": noise,
            # Some thousandths of a nat from more of them, and faster by a fifth.
            "flow_steps": fewest_steps(noise),
            "seed": seed,
        }
        if columns.condition_dims:
            options["condition_dims"] = columns.condition_dims
            # Of few rows a smaller network learns as much, three times as fast.
            if self.hidden is None and rows < 2000:
                options["hidden"] = (max(64, 2 * scalars),) * 2
        if self.order == "any":
            return OrderAgnosticARCSM.made(scalars, **options)
        orders = self._scalar_orders(columns, seed, learned)
        if self.ensemble > 1:
            return Ensemble.made(scalars, orders=orders, decorrelate=True, **options)
        return ARCSM.made(scalars, order=orders[0], decorrelate=True, **options)

    def training(self, rows: int, seed: int) -> TrainConfig:
        """Return the configuration of the training loop.

        The fewer rows there are, the sooner a network knows them by heart, and the more closely
        it has to be watched.
        """
        batch_size = (128 if rows < 20_000 else 512) if self.batch_size is None else self.batch_size
        epochs = 20 * rows // batch_size
        steps = 2000 if rows < 2000 else min(max(epochs, 5000), 20_000)
        return TrainConfig(
            steps=steps if self.max_steps is None else self.max_steps,
            batch_size=batch_size,
            learning_rate=7e-3 if self.learning_rate is None else self.learning_rate,
            # Some thousand rows tell as well as more when to stop, and are evaluated often.
            validation=min(0.15, 5000 / rows)
            if self.validation_fraction is None
            else self.validation_fraction,
            evaluate_every=20 if rows < 500 else 50 if rows < 5000 else 100,
            patience=12,
            max_seconds=self.max_seconds,
            warmup=100,
            seed=seed,
            # The unrest of single points keeps few rows from being learned by heart.
            noise={"points": 1 if rows < 2000 else 4},
        )

    def _scalar_orders(
        self, columns: Columns, seed: int, learned: Sequence[str] | None
    ) -> list[list[int]]:
        """Return the order of the scalars in each model; those of one column stay together."""
        names = [name for name in columns.names if columns.scalars_of(name)]
        generator = torch.Generator().manual_seed(seed)

        def drawn(order: str) -> list[str]:
            return [names[i] for i in resolve_order(order, len(names), generator=generator)]

        told = learned if self.order == "auto" else self.order
        if told is None:
            raise InputError(
                'expected the learned order for order="auto", got none; learn it first'
            )
        first = drawn(told) if isinstance(told, str) else _named(told, names, columns)
        # Who names the columns wants that order, and the conditionals that it has; so does who
        # asks for predictions.
        same = not isinstance(self.order, str) or len(self.conditional_on) > 0
        others = [first if same else drawn("random") for _ in range(1, self.ensemble)]
        return [
            [scalar for name in chosen for scalar in columns.scalars_of(name)]
            for chosen in (first, *others)
        ]


def fit_table(
    table: Table,
    settings: Settings | None = None,
    *,
    kinds: Mapping[str, str | Mapping[str, Any]] | None = None,
    weight: np.ndarray | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    racing: Callable[[int, int], None] | None = None,
) -> tuple[TabularModel, History]:
    """Learn the columns of `table`, then a density over them.

    `kinds` says of single columns what they are (see `Columns.learn`). With a `directory` the
    state of the training is kept there, and `resume` goes on from it. `progress` is called after
    each look at the held-out rows; `racing`, while an order is learned, with the number of orders
    that were tried and of all that are to be.
    """
    settings = settings or Settings()
    check_device(device)
    processes = join(device)
    if weight is not None:
        counted = np.flatnonzero(weight > 0)
        table, weight = table.take(counted), weight[counted]
    covariates = check_conditional_on(settings.conditional_on, table)
    columns = Columns.learn(table, kinds=kinds, weight=weight, covariates=covariates)
    if columns.scalars == 0 and covariates:
        raise InputError(
            f"expected a column to model given {covariates}, got none: each of the others is"
            " constant, or a line in one of these; condition on fewer columns"
        )
    if columns.scalars == 0:
        raise InputError(
            f"expected rows that differ, got {table.rows} equal ones: each column is constant,"
            " and a constant has no density; pass more of the data"
        )
    points, spread, condition = _training_arrays(columns, table)
    config = settings.training(table.rows, seed)
    if settings.batch_size is None:  # a number that all processes can share
        each = -(-config.batch_size // processes.size)
        config = replace(config, batch_size=each * processes.size)
    learned, race = None, None
    if settings.order == "auto":
        earlier = _earlier_run(directory, columns) if resume and directory is not None else None
        if earlier is None:
            race = race_columns(settings, columns, points, spread, weight, seed, progress=racing)
            learned, limit = names_of(columns, race.order), None
        else:
            learned, limit = earlier
        if settings.max_seconds is not None and race is not None:
            config = replace(config, max_seconds=seconds_left(settings.max_seconds, race.seconds))
        elif settings.max_seconds is not None:
            # The race of that run may have left it less time.
            left = seconds_left(settings.max_seconds)
            config = replace(config, max_seconds=left if limit is None else min(left, limit))
    model = settings.model(columns, points, seed, learned=learned).to(device)
    with limited_threads(config.batch_size * columns.scalars // _WORK_OF_A_THREAD):
        history = fit(
            model,
            points,
            config,
            weight=weight,
            condition=condition,
            spread=spread if spread.any() else None,
            directory=directory,
            resume=resume,
            progress=progress,
        )
    tabular = TabularModel(columns, model)
    tabular.race = race
    return tabular, history


def check_conditional_on(covariates: Sequence[str], table: Table) -> list[str]:
    """Return the covariates, in the order of the table; refuse names that are none."""
    unknown = [name for name in covariates if name not in table.columns]
    if unknown:
        raise InputError(
            f"expected covariates among the columns {list(table.names)}, got {unknown}; correct"
            " the names"
        )
    if len(set(covariates)) < len(covariates):
        raise InputError(f"expected each covariate once, got {list(covariates)}; leave one out")
    if table.names and set(covariates) == set(table.names):
        raise InputError(
            f"expected a column that is no covariate, got all of {list(table.names)} as"
            " covariates; leave out those to be predicted"
        )
    return [name for name in table.names if name in covariates]


def _named(order: Sequence[str], names: Sequence[str], columns: Columns) -> list[str]:
    """Return an order of the columns in the chain, of which `names` are all there are."""
    # Constant and duplicated columns have no place in the chain; naming them is harmless.
    chosen = [name for name in order if name in names]
    known = set(columns.names)
    if sorted(chosen) != sorted(names) or not known.issuperset(order):
        raise InputError(
            f"expected an order that names each of the columns {list(names)} once, got"
            f" {list(order)}; list them all"
        )
    return chosen


def _earlier_run(
    directory: str | os.PathLike[str], columns: Columns
) -> tuple[list[str], float | None] | None:
    """Return the order and the time limit of a run of this table in a directory, if any."""
    path = Path(directory) / STATE_FILE
    if not path.exists():
        return None
    header = read_tensors(path)[1]
    model = build(header)
    if not isinstance(model, ARCSM | Ensemble) or model.dims != columns.scalars:
        return None  # `fit` says what is wrong
    order = TabularModel(columns, TabularModel(columns, model).members[0]).order
    return list(order), header.get("training", {}).get("config", {}).get("max_seconds")


def _training_arrays(
    columns: Columns, table: Table
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return points, spreads and features of covariates in single precision."""
    points, spread = (np.empty((table.rows, columns.scalars), dtype=np.float32) for _ in range(2))
    condition = np.empty((table.rows, columns.condition_dims), dtype=np.float32)
    for piece, encoded in columns.encode_pieces(table, _ROWS):
        points[piece], spread[piece] = encoded.point, encoded.spread
        if encoded.condition is not None:
            condition[piece] = encoded.condition
    return points, spread, condition if columns.condition_dims else None
