"""What to train on images and how long, with defaults for two CPU cores and for one large GPU."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from arcsm.devices import has_bfloat16
from arcsm.errors import InputError
from arcsm.train import TrainConfig

NETWORKS = ("made", "tiny", "small", "base", "paper")
METHODS = ("csm", "likelihood")
NOISES = ("fine", "paper")

# Digits and clothes have a left and a right.
_NOT_MIRRORED = ("mnist", "fashion-mnist")
# The paper's pixels lie between −1 and 1, ours between 0 and 1: its σ is this many of ours.
PAPER_RANGE = 2.0
# Levels of the paper's ladder; its first and last σ, in the paper's units, of MNIST and of others.
PAPER_LEVELS = 10
_PAPER_SIGMA = {"mnist": (1.0, 0.04)}
_OTHER_SIGMA = (0.2, 0.04)
# Langevin steps T at each level.
_PAPER_STEPS = {"mnist": 20}
_OTHER_STEPS = 10
# The share of a limited time that is kept for the recalibration.
_TO_RECALIBRATE = 0.05
# Images that are held out, at most: of fewer the loop would draw the noise several times.
_HELD_OUT, _HELD_OUT_SHARE = 2048, 0.05


@dataclass(frozen=True)
class _Budget:
    """What suits a network: images in a batch, steps, the learning rate, the averaging."""

    batch: int
    steps: int
    learning_rate: float
    ema: float


# Tiny: less than a quarter of an hour on two idle CPU cores. The others: for one large GPU.
_BUDGETS = {
    "made": _Budget(128, 20_000, 1e-3, 0.999),
    "tiny": _Budget(32, 2_800, 3e-3, 0.998),
    "small": _Budget(64, 20_000, 1e-3, 0.999),
    "base": _Budget(64, 30_000, 1e-3, 0.999),
    "paper": _Budget(64, 60_000, 3e-4, 0.9995),
}


@dataclass(frozen=True)
class ImageSettings:
    """How to fit images; None leaves the choice to the images, the network and the device.

    `network`: "made", or a PixelCNN++ from "tiny" (0.5 million parameters, for a CPU; the default
    there) over "small" (the default on a GPU) and "base" to "paper". `options` take the place of
    what belongs to that size: filters, blocks, levels; or hidden of a MADE.

    `method`: "csm", composite score matching, or "likelihood": a MADE with normal conditionals,
    or PixelCNN++ with its discretised mixtures of logistics.

    `noise`: "fine" spreads every level over its cell and smooths by next to nothing, so that the
    model gives exact probabilities of levels; "paper" is the paper's way, dequantised pixels with
    a ladder of 10 levels, with `staged` one network for each of them. `langevin_steps` T and
    `langevin_step_size` ε₀, in the paper's units of pixels from −1 to 1, are those of sampling by
    Langevin dynamics: by default T = 20 for MNIST and 10 for others, and ε₀ = σ_L²/2. (Names of
    the paper's figures have ε₀ = 2e-5, T = 20 for MNIST, 8e-5 and 5 for CIFAR-10, 5e-4 and 50 for
    CelebA.) `draws` is the number of noise levels for each image of a step, `points` that of noisy
    values of each pixel at a level, which steady the loss for little; `mix` is the share of
    denoising score matching in the loss, ½ unless the noise is the paper's. `recalibrate` corrects
    the widths of conditionals by the held-out images when the training is over, by default where
    the noise is fine.

    `flips` mirrors images at random, by default those of all sets but MNIST and Fashion-MNIST.
    `upside_down` turns them top to bottom at random, too: samples then may stand on their heads,
    but a denoiser that looks at an image and its mirror images sees all sides of a pixel.
    `max_seconds` limits the whole: a twentieth of it is kept for the recalibration, and for the
    last look at the held-out images as long as the one before took. Limits of less than a minute
    or so are exceeded by these two. `steps`, `batch`, `learning_rate`, `ema`, `validation` (the
    share of images that is held out), `evaluate_every`, `bfloat16`, `compile` and `seed` are those
    of `TrainConfig`; compiling is for GPUs by default, half precision for these and, with a
    PixelCNN++, for CPUs that have it.
    """

    network: str | None = None
    method: str = "csm"
    noise: str = "fine"
    staged: bool = False
    flips: bool | None = None
    upside_down: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    draws: int = 1
    points: int = 4
    mix: float | None = None
    recalibrate: bool | None = None
    langevin_steps: int | None = None
    langevin_step_size: float | None = None
    steps: int | None = None
    max_seconds: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    ema: float | None = None
    validation: float | None = None
    evaluate_every: int | None = None
    bfloat16: bool | None = None
    compile: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("network", NETWORKS), ("method", METHODS), ("noise", NOISES)):
            value = getattr(self, name)
            if value not in known and not (name == "network" and value is None):
                raise InputError(
                    f"expected {name} among {', '.join(known)}, got {value!r}; choose one"
                )
        if self.method == "likelihood" and self.noise != "fine":
            raise InputError(
                "expected the noise of score matching with method 'csm' alone, got noise"
                f" {self.noise!r} with method {self.method!r}; leave one of them out"
            )
        if self.staged and self.noise != "paper":
            raise InputError(
                "expected staged with the noise 'paper', whose levels are the stages, got noise"
                f" {self.noise!r}; choose that noise, or leave staged out"
            )
        if self.recalibrate and not self._can_recalibrate:
            raise InputError(
                "expected recalibrate with method 'csm' and the noise 'fine' alone, got it with"
                f" method {self.method!r} and noise {self.noise!r}; leave it out"
            )
        size, steps = self.langevin_step_size, self.langevin_steps
        checks = {
            "draws": _is_count(self.draws),
            "points": _is_count(self.points),
            "mix": self.mix is None or (_is_number(self.mix) and 0 <= self.mix <= 1),
            "dropout": _is_number(self.dropout) and 0 <= self.dropout < 1,
            "langevin_steps": steps is None or _is_count(steps),
            "langevin_step_size": size is None or (_is_number(size) and 0 < size < math.inf),
            "batch": self.batch is None or _is_count(self.batch),
        }
        for name, good in checks.items():
            if not good:
                raise InputError(
                    f"expected {name} in its range, got {getattr(self, name)!r};"
                    " see the documentation of ImageSettings"
                )

    def filled(self, name: str, device: torch.device | str) -> "ImageSettings":
        """Return settings in which nothing is left open, for the images called `name`."""
        gpu = torch.device(device).type == "cuda"
        network = self.network or ("small" if gpu else "tiny")
        budget = _BUDGETS[network]
        steps = budget.steps if self.steps is None else self.steps

        def choose(told: Any, default: Any) -> Any:
            return default if told is None else told

        return replace(
            self,
            network=network,
            flips=choose(self.flips, name not in _NOT_MIRRORED),
            # Where the paper is followed, its own objective.
            mix=choose(self.mix, 0.0 if self.noise == "paper" else 0.5),
            recalibrate=choose(self.recalibrate, self._can_recalibrate),
            langevin_steps=choose(self.langevin_steps, _PAPER_STEPS.get(name, _OTHER_STEPS)),
            steps=steps,
            batch=choose(self.batch, budget.batch),
            learning_rate=choose(self.learning_rate, budget.learning_rate),
            ema=choose(self.ema, budget.ema),
            evaluate_every=choose(self.evaluate_every, max(1, min(500, steps // 4))),
            bfloat16=choose(self.bfloat16, gpu or (network != "made" and has_bfloat16(device))),
            compile=choose(self.compile, gpu),
        )

    @property
    def _can_recalibrate(self) -> bool:
        return self.method == "csm" and self.noise == "fine"

    def training(self, images: int) -> TrainConfig:
        """Return the configuration of the training loop, of settings that are filled in."""
        told = {
            name: getattr(self, name)
            for name in ("learning_rate", "ema", "evaluate_every", "bfloat16", "compile", "seed")
        }
        share = min(_HELD_OUT_SHARE, _HELD_OUT / images)
        stages = PAPER_LEVELS if self.staged else 1
        scored = self.method == "csm"
        steps = -(-(self.steps or 1) // stages)
        trained = 1 - _TO_RECALIBRATE if self.recalibrate else 1.0
        seconds = None if self.max_seconds is None else trained * self.max_seconds / stages
        return TrainConfig(
            steps=steps,
            batch_size=self.batch or 1,
            max_seconds=seconds,
            warmup=min(200, steps // 10),
            validation=share if self.validation is None else self.validation,
            # A look at the state of the run is worth as much as one at the held-out images.
            checkpoint_every=told["evaluate_every"],
            noise={"levels": self.draws, "points": self.points} if scored else {},
            objective={"mix": self.mix} if scored else {},
            **told,
        )

    def paper_sigma(self, name: str) -> tuple[float, float]:
        """Return σ₁ and σ_L of the paper's ladder for the images called `name`, in its units."""
        return _PAPER_SIGMA.get(name, _OTHER_SIGMA)

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as JSON can hold them."""
        return {**asdict(self), "options": dict(self.options)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
