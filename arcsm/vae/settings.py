"""How VAEs are trained, and what a run has to tell of itself."""

from dataclasses import dataclass, field

from arcsm.errors import InputError
from arcsm.vae.estimators import ESTIMATORS


@dataclass(frozen=True)
class VAESettings:
    """How VAEs are trained; the values are those of the paper's set-up for MNIST.

    `particles` is how many latents of each image the entropy is estimated from, and
    `decoded` on how many of them the decoder is evaluated. `score_updates` counts the steps of
    the score estimator for each step of the autoencoder, and `head_start` those that it takes
    before the first one: scores that know nothing of q would drive latents out of their place.
    The paper takes scores from the estimator after its step; with `scores_before` they are those of
    the pass that the step is computed from, one step older, for a pass less. With an `average` of
    0.999, say, weights of encoder and decoder are averaged over some thousand steps before they are
    used: constant learning rates leave them restless. With `compile` the parts of a step are
    compiled first, which takes up to a minute. With `tf32` products of matrices on a GPU round what
    they multiply to 10 bits.
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
    capture: bool = True
    compile: bool = False
    tf32: bool = False

    def __post_init__(self) -> None:
        if self.method not in ESTIMATORS:
            raise InputError(
                f"expected a method among {', '.join(ESTIMATORS)}, got {self.method!r}; choose one"
            )
        counts = ("steps", "batch", "particles", "decoded", "score_updates", "evaluate_every")
        for name in counts:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"expected {name} of at least 1, got {value!r}; correct it")
        least = ESTIMATORS[self.method].least_particles
        if self.particles < max(least, self.decoded):
            raise InputError(
                f"expected at least {max(least, self.decoded)} particles for {self.method} with"
                f" {self.decoded} decoded, got {self.particles}; take more"
            )
        if not (self.learning_rate > 0 and self.score_learning_rate > 0):
            raise InputError("expected positive learning rates; correct these")
        if not 0 <= self.average < 1:
            raise InputError(
                f"expected an average from 0 (none) to less than 1, got {self.average}; correct it"
            )


@dataclass
class Curve:
    """Means over the steps since the point before: each value is a list with one for each run."""

    step: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: list[list[float]] = field(default_factory=list)
    score_loss: list[list[float]] = field(default_factory=list)
