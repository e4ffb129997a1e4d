"""Models of tables on disk: the columns are kept with the weights, in one directory."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from arcsm.columns import Columns
from arcsm.ensemble import Ensemble
from arcsm.errors import CheckpointError
from arcsm.model import ARCSM
from arcsm.tabular.model import TabularModel
from arcsm.train import read_model, save_model


def save_tabular(
    directory: str | os.PathLike[str], tabular: TabularModel, *, details: Mapping[str, Any]
) -> None:
    """Write a model and its columns to a directory, with `details` that JSON can hold."""
    table = {"columns": tabular.columns.config, **details}
    save_model(directory, tabular.model, details={"table": table})


def load_tabular(
    directory: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[TabularModel, Mapping[str, Any]]:
    """Read what `save_tabular` wrote: the model and the details."""
    model, details = read_model(directory, device=device)
    table = (details or {}).get("table")
    if table is None or not isinstance(model, ARCSM | Ensemble):
        raise CheckpointError(
            f"expected the model of a table in {os.fspath(directory)!r}, got a model without"
            " columns; load it with arcsm.load"
        )
    try:
        return TabularModel(Columns.from_config(table["columns"]), model), table
    # A description that someone has changed fails anywhere.
    except Exception as error:
        raise CheckpointError(
            f"expected columns that fit the model in {os.fspath(directory)!r}, got others"
            f" ({type(error).__name__}: {error});"
            " restore the directory from a copy or train again"
        ) from error
