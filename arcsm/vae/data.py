"""Images for VAEs, all of them on the device, and batches drawn from them."""

import hashlib
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from arcsm.errors import InputError
from arcsm.vae.decoders import Decoder, binarise
from arcsm.vae.encoders import Encoder, check_finite, check_independence, check_noise

# Images by which networks are tried.
_FEW = 8


class ImageSource(ABC):
    """Images as bytes, from which batches are made as a likelihood needs them."""

    def __init__(self, pixels: UInt8[Tensor, "images ..."]):
        is_bytes = isinstance(pixels, Tensor) and pixels.dtype == torch.uint8
        if not is_bytes or pixels.ndim < 1 or pixels.numel() < 1:
            got = f"a {type(pixels).__name__}; arrays become torch.from_numpy(images)"
            if isinstance(pixels, Tensor):
                got = (
                    f"{pixels.dtype} {tuple(pixels.shape)}; images scaled to [0, 1] become"
                    " (255 * images).round().to(torch.uint8)"
                )
            raise InputError(
                f"expected images as a tensor of type uint8, levels 0 to 255, got {got}"
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

    def check_networks(
        self,
        encoder: Encoder,
        decoder: Decoder,
        autoregressive_for: str | None = None,
        trained_by: str = "latents_and_units",
    ) -> None:
        """Refuse networks that cannot take these images, by a few of them.

        Noise of a form other than the estimator of this name needs is refused, too, as far as
        derivatives show it, and units that do not hold what they are said to; and so are latents
        other than those that training asks for, by the method of the encoder that is called
        `trained_by`.
        """
        # From a generator of its own: those of a run draw what they would have drawn.
        generator = torch.Generator(self.pixels.device).manual_seed(0)
        x = self.draw(1, _FEW, generator)[0]
        decoder.check(x)
        for network in (encoder, decoder):
            kinds = {one.dtype for one in network.parameters()} - {x.dtype}
            if kinds:
                raise InputError(
                    f"expected networks of {x.dtype}, as images are, got a"
                    f" {type(network).__name__} with weights of {kinds.pop()}; convert it"
                )
        shape, count = tuple(x.shape), encoder.feature_dims
        size = (1, len(x), encoder.dims)
        eps = torch.randn(size, generator=generator, device=x.device).requires_grad_()
        try:
            features = encoder.features(x)
            fit = tuple(features.shape) == (len(x), count)
            z = encoder.latents(features, eps) if fit else None
        except NotImplementedError as error:
            raise InputError(
                "expected an encoder that says what r is in z = μ(x) + σ(x) r, got a"
                f" {type(encoder).__name__} that does not; override standard(features, extra, eps)"
            ) from error
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"expected images that the encoder takes, got some of shape {shape}: {error}; build"
                " the encoder for these images"
            ) from error
        if z is None:
            raise InputError(
                f"expected an encoder with features of shape ({len(x)}, {count}) of images of shape"
                f" {shape}, got features of shape {tuple(features.shape)}; build it for these"
                " images, or flatten them"
            )
        check_finite(z)
        likely = decoder.log_prob(x, z.detach())
        if likely.shape != z.shape[:2] or not bool(likely.isfinite().all()):
            got = "NaN or infinity" if likely.shape == z.shape[:2] else f"{tuple(likely.shape)}"
            raise InputError(
                "expected a decoder whose log_prob(x, z) is a finite number for each latent, of"
                f" shape {tuple(z.shape[:2])} here, got {got}; sum over the scalars of x, or look"
                " for NaN in its weights"
            )
        trained = getattr(encoder, trained_by)(features, eps)[0]
        if trained.shape != z.shape or not torch.allclose(trained, z, rtol=1e-3, atol=1e-4):
            raise InputError(
                f"expected latents of an encoder by {trained_by} that are those of latents, got"
                f" others of a {type(encoder).__name__}: it would be judged by latents that it was"
                " not trained for; override standard, or all of these methods"
            )
        if autoregressive_for is not None:
            check_noise(z, eps, autoregressive_for)
            if encoder.independent_in_units:
                check_independence(encoder, features, eps)

    @abstractmethod
    def made(self, levels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return images as the likelihood needs them."""


class BinaryImages(ImageSource):
    """Grey levels (images, pixels) as probabilities of 0 or 1, drawn anew for every batch."""

    def __init__(self, pixels: UInt8[Tensor, "images ..."]):
        super().__init__(pixels)
        largest = int(pixels.max())
        if largest <= 1:
            raise InputError(
                f"expected grey levels from 0 to 255, got none above {largest}: pixels that are"
                " binary already would be bright once in 255 times; multiply them by 255"
            )

    def made(self, levels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw pixels of 0 or 1."""
        return binarise(levels, generator=generator)


class ScaledImages(ImageSource):
    """Levels (images, channels, side, side) scaled to [−1, 1]."""

    def made(self, levels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Scale."""
        return levels.float() / 127.5 - 1
