"""Models of images on disk: weights and settings in one directory."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from arcsm.autoregressive import TrainableModel
from arcsm.errors import CheckpointError, InputError
from arcsm.files import atomic_directory, parse_json
from arcsm.images.model import ImageModel
from arcsm.images.settings import ImageSettings
from arcsm.model import ARCSM
from arcsm.shipped import directory_of
from arcsm.staged import StagedARCSM
from arcsm.train import History, holds_model, read_model, save_model


def save_images_model(
    directory: str | os.PathLike[str], model: ImageModel, *, half: bool = False
) -> None:
    """Write a model to a directory of its own, as a whole or not at all."""
    target = Path(directory)
    if target.is_dir() and any(target.iterdir()) and not holds_model(target):
        raise InputError(
            f"expected a new directory or that of a model, got {os.fspath(directory)!r}, which"
            " holds other files; choose another path"
        )
    with atomic_directory(directory) as folder:
        write_images_model(folder, model, half=half)


def write_images_model(folder: Path, model: ImageModel, *, half: bool = False) -> None:
    """Write the files of a model into a folder; of one in stages those before the last apart."""
    last = model.density
    if isinstance(last, StagedARCSM):
        for number, stage in enumerate(last.stages, start=1):
            if isinstance(stage, ARCSM) and stage is not last.last:
                save_model(_stage(folder, number), stage, half=half)
        last = last.last
    if not isinstance(last, TrainableModel):
        raise InputError(f"expected a model that can be kept, got {type(last).__name__}")
    details = {
        "shape": list(model.shape),
        "name": model.name,
        "settings": model.settings.config,
        "prepared": dict(model.prepared),
        "history": None if model.history is None else asdict(model.history),
    }
    save_model(folder, last, details={"images": details}, half=half)


def load_images_model(
    directory: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> ImageModel:
    """Read what `save_images_model` wrote, or a model that comes with arcsm."""
    density: Any
    density, details = read_model(directory_of(directory), device=device)
    images = (details or {}).get("images")
    if images is None:
        raise CheckpointError(
            f"expected a model of images in {os.fspath(directory)!r}, got one of other data;"
            " check the path"
        )
    try:
        settings = ImageSettings(**images["settings"])
        if settings.staged:
            density = StagedARCSM([*_earlier_stages(Path(directory), density, device), density])
        history = images["history"]
        if history is not None:
            for curve in ("training", "validation"):
                history[curve] = [(step, loss) for step, loss in history[curve]]
            history = History(**history)
        height, width, channels = images["shape"]
        return ImageModel(
            density.eval(),
            (height, width, channels),
            settings,
            name=images["name"],
            history=history,
            prepared=images["prepared"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"expected a model of images of this release in {os.fspath(directory)!r}, got one that"
            f" does not fit: {error}; load it with the release of arcsm that wrote it"
        ) from error


def holds_images_model(directory: str | os.PathLike[str]) -> bool:
    """Say whether a directory is that of a model of images, without reading its weights."""
    try:
        description = parse_json((Path(directory) / "config.json").read_text(encoding="utf-8"))
        return "images" in (description.get("details") or {})
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _earlier_stages(
    directory: Path, last: TrainableModel, device: torch.device | str
) -> list[ARCSM]:
    """Return the networks of all stages but the last."""
    levels = last.noise.levels if isinstance(last, ARCSM) else None
    stages = []
    for number in range(1, levels or 1):
        stage, _ = read_model(_stage(directory, number), device=device)
        if not isinstance(stage, ARCSM):
            raise InputError(f"a {type(stage).__name__} as stage {number}")
        stages.append(stage)
    return stages


def _stage(directory: Path, number: int) -> Path:
    return directory / f"stage-{number:02d}"
