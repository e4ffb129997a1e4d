"""What experiments on images share: the images, their features, a kept reference, and pictures."""

import base64
import gc
import hashlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.data.images import Images, load_images
from arcsm.data.images.decode import need_pillow
from arcsm.data.images.places import user_cache
from arcsm.errors import InputError
from arcsm.experiments.experiment import Settings
from arcsm.experiments.work import on_gpu
from arcsm.metrics import (
    FeatureStatistics,
    InceptionFeatures,
    feature_statistics,
    fid,
    kid,
    load_statistics,
    save_statistics,
)

# The weights of the network of FID, if they are not to come from a package.
WEIGHTS_VARIABLE = "ARCSM_FID_WEIGHTS"
STAND_IN = "stand-in"
# What the sets are called in titles and verdicts.
DATA = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "celeba": "CelebA",
    "celeba32": "CelebA 32×32",
}

Features = Callable[..., Tensor]


def load_data(told: Mapping[str, Any]) -> tuple[Images, Images]:
    """Return training and test images: a set by its name, at a size, or a stand-in for one."""
    if told["name"] == STAND_IN:
        every = stand_in(told["train"] + told["test"], told["side"], told["channels"])
        cut = told["train"]
        return (
            Images(every[:cut], None, STAND_IN, "train"),
            Images(every[cut:], None, STAND_IN, "test"),
        )
    train, test = (
        load_images(told["name"], part, size=told.get("size")) for part in ("train", "test")
    )
    return train, test


def stand_in(images: int, side: int, channels: int, seed: int = 0) -> np.ndarray:
    """Return bright squares on a dark ground, uint8 (images, side, side, channels)."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 80, size=(images, 1, 1, channels), dtype=np.uint8)
    pixels = np.tile(pixels, (1, side, side, 1))
    for image in pixels:
        size = random.integers(2, side // 2 + 1)
        top, left = random.integers(0, side - size + 1, size=2)
        image[top : top + size, left : left + size] = random.integers(120, 256, size=channels)
    return pixels


class RandomProjections:
    """Sums of pixels with random signs: cheap, and no measure of what people see."""

    def __init__(self, dims: int):
        self.dims = dims

    def __call__(
        self, images: np.ndarray, *, batch: int = 50, progress: Callable[..., object] | None = None
    ) -> Tensor:
        """Return features of uint8 images, as `InceptionFeatures` does."""
        rows = torch.from_numpy(images.reshape(len(images), -1)).float() / 255
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, (rows.shape[1], self.dims), generator=generator) * 2 - 1
        return rows @ signs.float() / rows.shape[1] ** 0.5


def load_features(settings: Settings, device: str) -> Features:
    """Return the network of FID, or its stand-in; refuse at once where the weights are missing."""
    dims = settings["features"]["dims"]
    if settings["features"]["network"] == STAND_IN:
        return RandomProjections(dims)
    path = os.environ.get(WEIGHTS_VARIABLE) or None
    try:
        return InceptionFeatures(path, device, dims=dims)
    except InputError as error:
        raise InputError(
            f"{error} (the environment variable {WEIGHTS_VARIABLE} is the path of such a file or"
            " folder)"
        ) from error


def name_features(settings: Settings) -> str:
    """Return what distances are measured by, for labels."""
    dims = settings["features"]["dims"]
    if settings["features"]["network"] == STAND_IN:
        return f"a stand-in: {dims} random projections of pixels"
    early = "" if dims == 2048 else ", an early layer: not to be compared with published values"
    return f"{dims} of the FID network{early}"


def reference_statistics(
    settings: Settings, images: Images, features: Features, device: str
) -> FeatureStatistics:
    """Return mean and covariance of the features of training images, and some features for KID.

    Those of the FID network are kept in the cache of the user, under a digest of the pixels.
    """
    pixels = images.pixels[: settings["reference_images"]]
    if settings["features"]["network"] == STAND_IN:
        return _statistics(settings, pixels, features, device)
    path = _reference_path(settings, images.name, pixels)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_statistics(path, _statistics(settings, pixels, features, device))
    return load_statistics(path, device=device)


def _statistics(
    settings: Settings, pixels: np.ndarray, features: Features, device: str
) -> FeatureStatistics:
    every = features(pixels, batch=settings["feature_batch"])
    found = feature_statistics(every.to(device))
    kept = every[: settings["kid"]["reference"]].clone()
    return replace(found, mean=found.mean.cpu(), covariance=found.covariance.cpu(), features=kept)


def _reference_path(settings: Settings, name: str, pixels: np.ndarray) -> Path:
    digest = hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()[:12]
    folder = settings["reference_folder"]
    place = user_cache() / "arcsm" / "features" if folder is None else Path(folder)
    parts = (name, len(pixels), settings["features"]["dims"], settings["kid"]["reference"], digest)
    return place / f"{'-'.join(map(str, parts))}.safetensors"


def distances(
    settings: Settings, pixels: np.ndarray, features: Features, reference: FeatureStatistics
) -> dict[str, float]:
    """Return FID and KID of images from the reference, and the deviation of KID among subsets."""
    device = reference.mean.device
    found = features(pixels, batch=settings["feature_batch"]).to(device)
    told = settings["kid"]
    mean, deviation = kid(
        found,
        reference,
        subsets=told["subsets"],
        subset_size=told["subset_size"],
        generator=torch.Generator().manual_seed(0),
    )
    return {"fid": fid(found, reference), "kid": mean, "kid_deviation": deviation}


def to_png(picture: np.ndarray) -> str:
    """Return one image, uint8 (height, width, channels), as the text of a PNG file in base 64."""
    need_pillow()
    from PIL import Image

    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def from_png(text: str) -> np.ndarray:
    """Return the image that `to_png` was given."""
    need_pillow()
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def forget_former_work(device: str) -> None:
    """Give back what earlier pieces compiled and allocated, and count memory anew.

    Compiled code of many models would otherwise exceed what torch keeps of one function, and the
    last of them would run uncompiled, without a word.
    """
    if "torch._dynamo" in sys.modules:  # else nothing was compiled, and loading it takes a second
        torch._dynamo.reset()
    gc.collect()
    if on_gpu(device):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: str) -> float | None:
    """Return the most memory that was in use at one time, since the work before was forgotten."""
    return torch.cuda.max_memory_allocated() / 2**30 if on_gpu(device) else None
