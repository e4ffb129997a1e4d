"""How VAEs are trained, and what a run has to tell of itself."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from arcsm.checks import check_flag, check_positive, check_whole, is_real
from arcsm.errors import InputError
from arcsm.vae.data import ImageSource
from arcsm.vae.decoders import Decoder
from arcsm.vae.encoders import Encoder
from arcsm.vae.estimators import ESTIMATORS


@dataclass(frozen=True)
class VAESettings:
    """How VAEs are trained; the values are those of the paper's set-up for MNIST.

    `particles` is how many latents of each image the entropy is estimated from, and `decoded` on
    how many of them the decoder is evaluated. `score_updates` counts the steps of the score
    estimator for each step of the autoencoder, at the `score_learning_rate`, whatever rate it has
    by itself, and `head_start` those that it takes before the first one: scores that know nothing
    of q would drive latents out of their place. The paper takes scores from the estimator after its
    step; with `scores_before` they are those of the pass that the step is computed from, one step
    older, for a pass less. With an `average` of 0.999, say, weights of encoder and decoder are
    averaged over some thousand steps before they are used: constant learning rates leave them
    restless. Over the last `decay` of the steps, a share, the learning rate of encoder and decoder
    falls to 0, linearly. With `compile` the parts of a step are compiled first, which takes up to a
    minute. With `tf32` products of matrices on a GPU round what they multiply to 10 bits.
    """

    method: str = "csm"
    steps: int = 100_000
    batch: int = 128
    particles: int = 4
    decoded: int = 1
    learning_rate: float = 1e-3
    score_learning_rate: float = 2e-4
    score_updates: int = 1
    head_start: int = 200
    evaluate_every: int = 5000
    scores_before: bool = False
    average: float = 0.0
    decay: float = 0.0
    capture: bool = True
    compile: bool = False
    tf32: bool = False

    def __post_init__(self) -> None:
        if self.method not in ESTIMATORS:
            raise InputError(
                f"expected a method among {', '.join(ESTIMATORS)}, got {self.method!r}; choose one"
            )
        counts = ("steps", "batch", "particles", "decoded", "score_updates", "evaluate_every")
        for name in (*counts, "head_start"):
            least = 0 if name == "head_start" else 1
            # As a plain int, which can be written: it may be one of NumPy's.
            object.__setattr__(self, name, check_whole(getattr(self, name), name, least))
        for name in ("learning_rate", "score_learning_rate"):
            check_positive(getattr(self, name), name)
        least = ESTIMATORS[self.method].least_particles
        if self.particles < max(least, self.decoded):
            raise InputError(
                f"expected at least {max(least, self.decoded)} particles for {self.method} with"
                f" {self.decoded} decoded, got {self.particles}; take more"
            )
        for name in ("average", "decay"):
            value = getattr(self, name)
            if not is_real(value):
                raise InputError(f"expected a number as {name}, got {value!r}; 0 is none")
        for name in ("scores_before", "capture", "compile", "tf32"):
            check_flag(getattr(self, name), name)
        if not 0 <= self.average < 1:
            raise InputError(
                f"expected an average from 0 (none) to less than 1, got {self.average}; correct it"
            )
        if not 0 <= self.decay <= 1:
            raise InputError(
                f"expected a decay from 0 (none) to 1 (all the time), got {self.decay}; correct it"
            )

    def rate_at(self, step: int) -> float:
        """Return the learning rate of encoder and decoder for a step, of which 0 is the first."""
        falling = self.decay * self.steps
        if not falling:
            return self.learning_rate
        return self.learning_rate * min(1.0, max(0, self.steps - step) / falling)


@dataclass
class Curve:
    """Means over the steps since the point before: each value is a list with one for each run.

    `loss` is −E log p(x, z) less the entropy surrogate, whose gradient alone has a meaning: for all
    methods but ELBO its value is no bound on log p(x), and methods are not to be compared by it.
    """

    step: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: list[list[float]] = field(default_factory=list)
    score_loss: list[list[float]] = field(default_factory=list)


def checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds of runs; refuse what is none."""
    try:
        found = tuple(operator.index(seed) for seed in seeds)
    except TypeError as error:
        raise InputError(
            "expected a sequence of whole numbers as seeds, one for each run, got"
            f" {seeds!r}; a single run has seeds=(0,)"
        ) from error
    if not found:
        raise InputError("expected at least one seed, got none; each run has one")
    if len(set(found)) < len(found):
        raise InputError(f"expected seeds that differ, got {found}; runs of one seed are no two")
    return found


def check_arguments(make: object, source: object, settings: object) -> None:
    """Refuse what runs cannot be made of."""
    wanted = (("source", source, ImageSource), ("settings", settings, VAESettings))
    for name, given, kind in wanted:
        if not isinstance(given, kind):
            raise InputError(
                f"expected as {name} arcsm.vae.{kind.__name__}, got a {type(given).__name__};"
                " images become BinaryImages or ScaledImages, and settings VAESettings"
            )
    if not callable(make):
        raise InputError(
            "expected a function that makes encoder, decoder and estimator of one run, got a"
            f" {type(make).__name__}; pass the function, not what it returns"
        )


def check_parts(parts: object, settings: VAESettings) -> None:
    """Refuse what is no encoder or decoder, another estimator, and unlike numbers of latents."""
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        got = f"{len(parts)} of them" if isinstance(parts, tuple | list) else type(parts).__name__
        raise InputError(
            f"expected make() to return an encoder, a decoder and an estimator, got {got};"
            " return all three"
        )
    encoder, decoder, estimator = parts
    for name, part, kind in (("encoder", encoder, Encoder), ("decoder", decoder, Decoder)):
        if not isinstance(part, kind):
            raise InputError(
                f"expected as {name} a module derived from arcsm.vae.{kind.__name__}, got a"
                f" {type(part).__name__}; derive it, or train it by entropy_surrogate in a loop of"
                " your own"
            )
    wanted = ESTIMATORS[settings.method]
    if type(estimator) is not wanted:
        raise InputError(
            f"expected the estimator of {settings.method}, a {wanted.__name__}, got a"
            f" {type(estimator).__name__}; let make() return it, or change the method"
        )
    if not encoder.dims == decoder.dims == estimator.dims:
        raise InputError(
            "expected one number of latents, got an encoder with"
            f" {encoder.dims}, a decoder with {decoder.dims} and an estimator for"
            f" {estimator.dims}; let make() build them with the same"
        )
