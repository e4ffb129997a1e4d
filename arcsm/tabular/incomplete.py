"""Fitting a table with holes: one model for all orders, which learns from what is there."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.columns.continuous import Bounded, Real
from arcsm.columns.discrete import Grid
from arcsm.columns.incomplete import encode_incomplete_pieces, find_missing, learn_incomplete
from arcsm.data.table import Table
from arcsm.devices import check_device
from arcsm.errors import InputError
from arcsm.tabular.fitting import Settings
from arcsm.tabular.model import TabularModel
from arcsm.threads import limited_threads
from arcsm.train import History, Progress, fit

# As for tables without holes: conditionals in a batch that are worth another thread, and rows
# encoded at one time.
_WORK_OF_A_THREAD = 8192
_ROWS = 65_536

# So few rows are soon known by heart by a network of the usual size: on a set of 200 rows this one
# fills holes with less error, on one of 440 with as much.
_FEW_ROWS, _SMALL = 500, (64, 64)

# How far beyond the values seen others may lie, in ranges of the column.
_ROOM = 0.1


def fit_incomplete(
    table: Table,
    settings: Settings | None = None,
    *,
    missing: np.ndarray | None = None,
    kinds: Mapping[str, str | Mapping[str, Any]] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] | None = None,
) -> tuple[TabularModel, np.ndarray, History]:
    """Learn the columns of a table with holes, then a density of any of them given any others.

    Return the model, the ends between which its scalars lie, and the losses.

    `missing` says where the holes are, by default where values are NaN or None; `kinds` what single
    columns are (see `Columns.learn`). Rows without any value are left out. What the model learns is
    right where a hole is as likely whatever the value that is missing would have been, given what
    else the row knows.
    """
    settings = replace(settings or Settings(), order="any")
    check_device(device)
    missing = find_missing(table) if missing is None else missing
    some = ~missing.all(1)
    table, missing = table.take(some), missing[some]
    if table.rows < 2:
        raise InputError(
            f"expected at least two rows with a value in them, got {table.rows}; pass more of the"
            " data"
        )
    columns = learn_incomplete(table, missing, kinds=kinds)
    if columns.scalars == 0:
        raise InputError(
            "expected a column whose known values differ, got none: there is nothing to learn;"
            " pass more of the data"
        )
    shape = (table.rows, columns.scalars)
    points, spread = (np.empty(shape, dtype=np.float32) for _ in range(2))
    observed = np.empty(shape, dtype=bool)
    for piece, part in encode_incomplete_pieces(columns, table, missing, _ROWS):
        points[piece], spread[piece] = part.encoded.point, part.encoded.spread
        observed[piece] = part.observed
    # A row may hold constants alone.
    used = observed.any(1)
    points, spread, observed = points[used], spread[used], observed[used]
    config = settings.training(len(points), seed)
    if settings.hidden is None and len(points) < _FEW_ROWS and columns.scalars < 64:
        settings = replace(settings, hidden=_SMALL)
    # How far apart rows are can be seen from whole ones.
    whole = points[observed.all(1)]
    model = settings.model(columns, whole if len(whole) else points[:1], seed)
    assert isinstance(model, OrderAgnosticARCSM)
    model = model.with_linear(seed).to(device)
    with limited_threads(config.batch_size * columns.scalars // _WORK_OF_A_THREAD):
        history = fit(
            model,
            points,
            config,
            spread=spread if spread.any() else None,
            observed=None if observed.all() else observed,
            progress=progress,
        )
    reach = _reach(columns, table, missing)
    return TabularModel(columns, model), reach, history


def _reach(columns: Columns, table: Table, missing: np.ndarray) -> np.ndarray:
    """Return between which ends the scalars of numbers lie (scalars, 2), with some room.

    The room is a share of the range of the column, in its own units: in those of the scalars a
    heavy tail would be left far behind.
    """
    reach = np.tile([-np.inf, np.inf], (columns.scalars, 1))
    for place, name in enumerate(columns.names):
        kind, known = columns.kind(name), table[name][~missing[:, place]]
        if isinstance(kind, Real | Bounded | Grid):
            low, high = float(known.min()), float(known.max())
            room = _ROOM * (high - low)
            ends = kind.encode(name, np.array([low - room, high + room]))[0][0].point
            reach[columns.scalars_of(name)[0]] = ends
    return reach
