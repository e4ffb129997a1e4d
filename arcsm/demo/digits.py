"""The second half of the demonstration: scikit-learn's 8 × 8 digits, real data in 64 dimensions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from sklearn.datasets import load_digits
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.demo.rivals import Rival, gaussian_mixture, kernel_density
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation
from arcsm.progress import Reporter
from arcsm.tasks import denoise
from arcsm.train import Progress, TrainConfig, fit

PEAK = 16.0  # the largest value of a pixel
SIDE = 8


@dataclass(frozen=True)
class DigitsSizes:
    """How much of everything."""

    held_out: int = 400
    validation: int = 140
    copies: int = 20
    steps: int = 2_000
    hidden: tuple[int, ...] = (256,)
    shown: int = 60
    denoised: int = 10
    sigma: float = 3.0  # of the noise to be removed
    unusual: int = 8
    components: tuple[int, ...] = (1, 2, 5, 10, 20, 40, 80)
    bandwidths: tuple[float, ...] = tuple(np.geomspace(0.2, 1.0, 9).tolist())
    scored: int = 400  # rows of each fold on which a bandwidth is judged


@dataclass(frozen=True)
class DigitsResult:
    """All that the page shows of the digits; images are rows of 64 pixels."""

    training_rows: int
    real: Float[ndarray, "shown 64"]
    generated: Float[ndarray, "shown 64"]
    sigma: float
    clean: Float[ndarray, "denoised 64"]
    noisy: Float[ndarray, "denoised 64"]
    denoised: Float[ndarray, "denoised 64"]
    psnr_noisy: float
    psnr_denoised: float
    unusual: Float[ndarray, "unusual 64"]
    unusual_labels: Int[ndarray, "unusual"]
    unusual_log_prob: Float[ndarray, "unusual"]
    excess: Float[ndarray, "unusual 64"]  # surprise beyond that pixel's median, in nats
    training: list[tuple[int, float]]
    validation: list[tuple[int, float]]
    settings: dict[str, object]
    log_prob: Float[ndarray, "held_out"]
    rivals: list[Rival]


def run_digits(sizes: DigitsSizes, seed: int, reporter: Reporter) -> DigitsResult:
    """Train on the digits, then generate, denoise and find the unusual ones."""
    # Not the split on which the settings were chosen; of so few digits some are in both.
    generator = torch.Generator().manual_seed(1_000_003 + seed)
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=generator)
    pixels, labels = torch.from_numpy(images).float()[order], labels[order.numpy()]
    held_out = _dequantised(pixels[: sizes.held_out], generator)
    rest = pixels[sizes.held_out :]
    # sigma / (the smallest scale of a pixel) must lie within the noise levels. Pixels that are
    # always 0 have the scale of the dequantisation, 1/√12.
    noise = Noise(math.ceil(sizes.sigma * math.sqrt(12) * 1.1), 0.02)
    model = ARCSM.made(pixels.shape[1], hidden=sizes.hidden, noise=noise, seed=seed)
    config = TrainConfig(
        steps=sizes.steps,
        batch_size=128,
        learning_rate=5e-3,
        warmup=min(50, sizes.steps // 10),
        ema=0.99,
        # The copies of a digit must not be split between training and validation: see _Watch.
        validation=0.0,
        evaluate_every=max(1, sizes.steps // 60),
        seed=seed,
    )
    # With a single draw of the dequantisation the network learns that draw by heart.
    learned = rest[sizes.validation :]
    copies = torch.cat([_dequantised(learned, generator) for _ in range(sizes.copies)])
    with reporter.training("training on the digits", sizes.steps) as progress:
        unseen = _dequantised(rest[: sizes.validation], generator)
        watch = _Watch(model, copies[: sizes.validation], unseen, progress)
        fit(model, copies, config, progress=watch)
    with reporter.stage("likelihood of the digits"):
        terms, _ = model.log_prob_terms(held_out)
        log_prob = terms.sum(1)
        excess = terms.median(0).values - terms
        unusual = log_prob.argsort()[: sizes.unusual]
    with reporter.stage("generating and denoising digits"):
        generated = model.sample(sizes.shown, generator=generator)
        noisy = held_out + sizes.sigma * torch.randn(held_out.shape, generator=generator)
        denoised = denoise(model, noisy, sizes.sigma)
    with reporter.stage("mixture and kernel density of the digits"):
        plain = _dequantised(rest, generator).double().numpy()
        plain_held_out = held_out.double().numpy()
        rivals = [
            gaussian_mixture(plain, plain_held_out, components=sizes.components, seed=seed),
            kernel_density(plain, plain_held_out, bandwidths=sizes.bandwidths, scored=sizes.scored),
        ]
    some = slice(0, sizes.denoised)
    return DigitsResult(
        training_rows=len(learned),
        real=held_out[: sizes.shown].numpy(),
        generated=generated.numpy(),
        sigma=sizes.sigma,
        clean=held_out[some].numpy(),
        noisy=noisy[some].numpy(),
        denoised=denoised[some].numpy(),
        psnr_noisy=_psnr(noisy, held_out),
        psnr_denoised=_psnr(denoised, held_out),
        unusual=held_out[unusual].numpy(),
        unusual_labels=labels[: sizes.held_out][unusual.numpy()],
        unusual_log_prob=log_prob[unusual].numpy(),
        excess=excess[unusual].numpy(),
        training=watch.training,
        validation=watch.validation,
        settings={"model": model.config, "training": config},
        log_prob=log_prob.numpy(),
        rivals=rivals,
    )


class _Watch:
    """A progress callback that scores digits trained on, and others of which no copy is.

    `fit` splits rows, not digits: with several copies of each, its own validation would know
    every digit. The noise is the same for both and at each call, so that losses can be compared.
    """

    def __init__(
        self,
        model: ARCSM,
        trained: Float[Tensor, "rows dims"],
        unseen: Float[Tensor, "rows dims"],
        progress: Callable[[Progress], None],
    ):
        self._model, self._progress = model, progress
        self._rows = torch.cat([trained, trained, unseen, unseen])
        generator = torch.Generator().manual_seed(0)
        noise = model.draw_noise(len(self._rows) // 2, generator=generator)
        self._noise = Perturbation(*(torch.cat([part, part]) for part in noise))
        self.training: list[tuple[int, float]] = []
        self.validation: list[tuple[int, float]] = []

    @torch.no_grad()
    def __call__(self, progress: Progress) -> None:
        terms = self._model.loss_terms(self._rows, self._noise)
        for losses, part in zip((self.training, self.validation), terms.chunk(2), strict=True):
            losses.append((progress.step, part.mean().item()))
        self._progress(progress)


def _dequantised(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Add U[0, 1) to whole numbers: whoever knows the sum knows the number."""
    return pixels + torch.rand(pixels.shape, generator=generator)


def _psnr(image: Tensor, clean: Tensor) -> float:
    return 10 * math.log10(PEAK**2 / (image - clean).square().mean().item())
