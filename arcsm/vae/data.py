"""Images for VAEs, all of them on the device, and batches drawn from them."""

import hashlib
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from arcsm.errors import InputError
from arcsm.vae.decoders import binarise


class ImageSource(ABC):
    """Images as bytes, from which batches are made as a likelihood needs them."""

    def __init__(self, pixels: UInt8[Tensor, "images ..."]):
        if not isinstance(pixels, Tensor) or pixels.dtype != torch.uint8 or len(pixels) < 1:
            got = f"{pixels.dtype} {tuple(pixels.shape)}" if isinstance(pixels, Tensor) else pixels
            raise InputError(
                f"expected images as a tensor of type uint8, levels 0 to 255, got {got}; images"
                " scaled to [0, 1] become (255 * images).round().to(torch.uint8)"
            )
        self.pixels = pixels
        self.digest = hashlib.sha256(pixels.cpu().contiguous().numpy().data).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: torch.device | str) -> "ImageSource":
        """Move the images to a device."""
        self.pixels = self.pixels.to(device)
        return self

    def draw(
        self, runs: int, batch: int, generator: torch.Generator
    ) -> Float[Tensor, "runs batch ..."]:
        """Return a batch for each run, every image drawn independently of the others."""
        chosen = torch.randint(
            len(self.pixels), (runs * batch,), generator=generator, device=self.pixels.device
        )
        made = self.made(self.pixels.index_select(0, chosen), generator)
        return made.unflatten(0, (runs, batch))

    @abstractmethod
    def made(self, levels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return images as the likelihood needs them."""


class BinaryImages(ImageSource):
    """Grey levels (images, pixels) as probabilities of 0 or 1, drawn anew for every batch."""

    def made(self, levels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw pixels of 0 or 1."""
        return binarise(levels, generator=generator)


class ScaledImages(ImageSource):
    """Levels (images, channels, side, side) scaled to [−1, 1]."""

    def made(self, levels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Scale."""
        return levels.float() / 127.5 - 1
