"""Whatever model lies in a directory: one way to read them all."""

import os
from pathlib import Path
from typing import Any

import torch

from arcsm import estimators
from arcsm.errors import CheckpointError
from arcsm.files import parse_json
from arcsm.images import ImageModel
from arcsm.shipped import directory_of
from arcsm.train import load_model, load_staged


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Any:
    """Return the estimator or the model in a directory, by what its config.json says it is.

    An `ARCSMDensity`, `ARCSMDetector` or `ARCSMImputer`, an `ImageModel`, a model of real scalars
    that `save_model` or `fit` wrote, or all stages of one that `fit_staged` wrote; `arcsm:digits`
    is the model of digits that comes with arcsm. Nothing is unpickled.

    >>> import tempfile, arcsm
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     arcsm.save_model(directory, arcsm.ARCSM.made(2, hidden=(8,)))
    ...     type(load(directory)).__name__
    'ARCSM'
    """
    folder = directory_of(path)
    if not (folder / "config.json").exists() and (folder / "stage-01").is_dir():
        return load_staged(folder).to(device)
    details = _details(folder)
    if "images" in details:
        return ImageModel.load(folder, device=device)
    if "table" not in details:
        return load_model(folder, device=device)
    table = details["table"]
    name = table.get("estimator") if isinstance(table, dict) else None
    kind = getattr(estimators, name, None) if name in estimators.__all__ else None
    if kind is None or not hasattr(kind, "load"):
        raise CheckpointError(
            f"expected an estimator of this release in {os.fspath(path)!r}, got {name!r}; load it"
            " with the release of arcsm that wrote it"
        )
    return kind.load(folder, device=str(device))


def _details(folder: Path) -> dict[str, Any]:
    """Return what was kept with a model beside its weights; what is damaged the loader tells."""
    try:
        description = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        return dict(description.get("details") or {})
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
