"""Fitting a table: which network, how long, from the number of rows and columns alone."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from arcsm.columns import Columns
from arcsm.conditional import Noise
from arcsm.conditional.flow import fewest_steps
from arcsm.conditional.noise import suggest_sigma_min
from arcsm.context import resolve_order
from arcsm.data.table import Table
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.tabular.model import TabularModel
from arcsm.threads import limited_threads
from arcsm.train import History, Progress, TrainConfig, fit

# Rows among which neighbours are looked for.
_NEIGHBOURS = 100_000

# Conditionals in a batch that are worth another thread.
_WORK_OF_A_THREAD = 8192

# Rows encoded at one time.
_ROWS = 65_536


@dataclass(frozen=True)
class Settings:
    """How to fit a table; None leaves the choice to the number of rows and columns.

    `order` is the order of the columns: "natural", "random", or their names. `hidden` lists the
    widths of the network. A share `validation` of the rows is held out to tell when to stop.
    """

    order: str | Sequence[str] = "natural"
    hidden: Sequence[int] | None = None
    max_steps: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    validation: float | None = None

    def model(self, columns: Columns, points: np.ndarray, seed: int) -> ARCSM:
        """Return an untrained model for the scalars of `columns`."""
        rows, scalars = points.shape
        # Only of one or two columns are so many rows close enough for fewer to tell less.
        some = points[:: max(1, rows // _NEIGHBOURS)].astype(np.float64)
        deviation = some.std(0)
        standard = (some - some.mean(0)) / np.where(deviation > 0, deviation, 1.0)
        noise = Noise(sigma_min=suggest_sigma_min(torch.from_numpy(standard), largest=0.01))
        hidden = (max(128, scalars),) * 3 if self.hidden is None else tuple(self.hidden)
        return ARCSM.made(
            scalars,
            hidden=hidden,
            # Heads are what many columns spend their time on: the smaller ones of the core then.
            width=32 if scalars < 64 else None,
            steps=24 if scalars < 64 else None,
            # Waves let contexts change quickly with a value. Of one or two columns and many rows
            # that can be learned; otherwise it is what overfits first.
            frequencies=4 if scalars <= 2 and rows >= 2000 else 0,
            order=self._scalar_order(columns, seed),
            noise=noise,
            # Some thousandths of a nat from more of them, and faster by a fifth.
            flow_steps=fewest_steps(noise),
            decorrelate=True,
            seed=seed,
        )

    def training(self, rows: int, seed: int) -> TrainConfig:
        """Return the configuration of the training loop.

        The fewer rows there are, the sooner a network knows them by heart, and the more closely
        it has to be watched.
        """
        batch_size = (128 if rows < 20_000 else 512) if self.batch_size is None else self.batch_size
        epochs = 20 * rows // max(batch_size, 1)
        steps = 2000 if rows < 2000 else min(max(epochs, 5000), 20_000)
        return TrainConfig(
            steps=steps if self.max_steps is None else self.max_steps,
            batch_size=batch_size,
            learning_rate=7e-3 if self.learning_rate is None else self.learning_rate,
            # Some thousand rows tell as well as more when to stop, and are evaluated often.
            validation=min(0.15, 5000 / rows) if self.validation is None else self.validation,
            evaluate_every=20 if rows < 500 else 50 if rows < 5000 else 100,
            patience=12,
            max_seconds=self.max_seconds,
            warmup=100,
            seed=seed,
        )

    def _scalar_order(self, columns: Columns, seed: int) -> list[int]:
        """Return the order of the scalars; those of one column stay together."""
        names = [name for name in columns.names if columns.scalars_of(name)]
        if isinstance(self.order, str):
            generator = torch.Generator().manual_seed(seed)
            places = resolve_order(self.order, len(names), generator=generator)
            chosen = [names[place] for place in places]
        else:
            # Constant and duplicated columns have no place in the chain; naming them is harmless.
            chosen = [name for name in self.order if name in names]
            known = set(columns.names)
            if sorted(chosen) != sorted(names) or not known.issuperset(self.order):
                raise InputError(
                    f"expected an order that names each of the columns {names} once, got"
                    f" {list(self.order)}; list them all"
                )
        return [scalar for name in chosen for scalar in columns.scalars_of(name)]


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
) -> tuple[TabularModel, History]:
    """Learn the columns of `table`, then a density over them.

    `kinds` says of single columns what they are (see `Columns.learn`). With a `directory` the
    state of the training is kept there, and `resume` goes on from it.
    """
    settings = settings or Settings()
    check_device(device)
    if weight is not None:
        counted = np.flatnonzero(weight > 0)
        table, weight = table.take(counted), weight[counted]
    columns = Columns.learn(table, kinds=kinds, weight=weight)
    if columns.scalars == 0:
        raise InputError(
            f"expected rows that differ, got {table.rows} equal ones: each column is constant,"
            " and a constant has no density; pass more of the data"
        )
    points, spread = _training_arrays(columns, table)
    model = settings.model(columns, points, seed).to(device)
    config = settings.training(table.rows, seed)
    with limited_threads(config.batch_size * columns.scalars // _WORK_OF_A_THREAD):
        history = fit(
            model,
            points,
            config,
            weight=weight,
            spread=spread if spread.any() else None,
            directory=directory,
            resume=resume,
            progress=progress,
        )
    return TabularModel(columns, model), history


def check_device(device: torch.device | str) -> None:
    """Refuse a device that torch does not know or cannot use."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"expected a device that torch can use here, got {str(device)!r} ({reason}); use cpu"
        ) from error


def _training_arrays(columns: Columns, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return points and spreads in single precision: all that training needs of the table."""
    points, spread = (np.empty((table.rows, columns.scalars), dtype=np.float32) for _ in range(2))
    for piece, encoded in columns.encode_pieces(table, _ROWS):
        points[piece], spread[piece] = encoded.point, encoded.spread
    return points, spread
