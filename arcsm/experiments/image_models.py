"""Models of images that several pieces of an experiment share: trained once, then kept."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from arcsm.data.images import Images
from arcsm.data.images.places import user_cache
from arcsm.experiments.image_budgets import ENDLESS
from arcsm.experiments.work import on_gpu
from arcsm.images import ImageModel, ImageSettings, fit_images
from arcsm.images.settings import PAPER_LEVELS
from arcsm.shipped import directory_of
from arcsm.tasks.images.mirrors import MIRRORED

# Steps before a training whose time is limited, so that compiling does not count.
_WARM_UP_STEPS = 4


def trained_model(
    told: Mapping[str, Any],
    train: Images,
    *,
    method: str,
    seed: int,
    device: str,
    folder: str | None,
    progress: Callable[[float], None],
) -> tuple[ImageModel, Path]:
    """Return a model of images, and the directory that keeps it.

    `told` has "directory", that of a model which is used as it is, or the name of one that comes
    with arcsm, or None; else "settings", "train_seconds" and "mirrored", the mirrored copies that
    are trained on. Models are kept in `folder`, by default in the cache of the user, under a digest
    of what they were trained by, and of the images. Of processes that want the same model one
    trains it, and the others wait.
    """
    if told["directory"] is not None:
        place = directory_of(told["directory"])
        return ImageModel.load(place, device=device), place
    place = _place(told, train, method, seed, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f".{place.name}.lock")):
        if not place.is_dir():
            settings = ImageSettings(
                method=method,
                seed=seed,
                steps=ENDLESS,
                max_seconds=told["train_seconds"],
                **told["settings"][method],
            )
            if on_gpu(device):  # else nothing is compiled
                warm_up(train, settings, _WARM_UP_STEPS, device)
            model = fit_images(
                with_mirrored(train, told["mirrored"]),
                settings,
                device=device,
                progress=lambda now: progress(now.done),
                prepared={MIRRORED: list(told["mirrored"])},
            )
            keep_model(model, told, train, method=method, seed=seed, folder=folder)
    return ImageModel.load(place, device=device), place


def keep_model(
    model: ImageModel,
    told: Mapping[str, Any],
    train: Images,
    *,
    method: str,
    seed: int,
    folder: str | None,
) -> None:
    """Keep a model where `trained_model`, told the same, finds it."""
    place = _place(told, train, method, seed, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    model.save(place)


def warm_up(train: Images, told: ImageSettings, steps: int, device: str) -> None:
    """Take the first steps of the training with another model, for the sake of the compiler."""
    stages = PAPER_LEVELS if told.staged else 1
    batch = told.filled(train.name, device).batch or 1
    few = replace(train, pixels=train.pixels[: 4 * batch], labels=None)
    fit_images(few, replace(told, steps=stages * steps, max_seconds=None), device=device)


def with_mirrored(images: Images, mirrored: list[str]) -> Images:
    """Return the images and, after them, copies of them, upside down and from left to right."""
    pixels = images.pixels
    if "up-down" in mirrored:
        pixels = np.concatenate([pixels, pixels[:, ::-1]])
    if "left-right" in mirrored:
        pixels = np.concatenate([pixels, pixels[:, :, ::-1]])
    return Images(np.ascontiguousarray(pixels), None, images.name, images.part, images.note)


def _place(
    told: Mapping[str, Any], train: Images, method: str, seed: int, folder: str | None
) -> Path:
    known = {
        "settings": told["settings"][method],
        "train_seconds": told["train_seconds"],
        "mirrored": told["mirrored"],
        "method": method,
        "seed": seed,
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=list).encode())
    digest.update(np.ascontiguousarray(train.pixels).data)
    base = user_cache() / "arcsm" / "models" if folder is None else Path(folder)
    return base / f"{train.name}-{method}-{seed}-{digest.hexdigest()[:12]}"
