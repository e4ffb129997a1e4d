"""Six ways to the gradient of the entropy of q(z|x), behind one interface.

    surrogate = estimator.entropy_surrogate(z, x)       z (particles, batch, D), drawn from q

is a number whose *gradient* with respect to the sampler's parameters estimates that of the mean
entropy of q(·|x); its value means nothing, but for ELBO. Of all but ELBO it is −E Σ_d s_d z_d with
the scores s detached: ∇_φ H = −E[∇_z log q · ∇_φ z], and, for samplers of the form
z_d = h_d(ε_d, z_<d, x), the same with the conditional scores ∂ log q(z_d | z_<d, x)/∂z_d.

| estimator | scores | learns | sampler |
|---|---|---|---|
| `ELBOEntropy` | none: closed form | no | `GaussianEncoder` |
| `SteinEntropy` | joint, from the particles of one x | no | any |
| `SpectralEntropy` | joint, from the particles of one x | no | any |
| `SSMEntropy` | joint field trained by SSM | yes | any |
| `SSMAREntropy` | AR-CSM field trained by SSM | yes | autoregressive noise |
| `CSMEntropy` | AR-CSM field trained by CSM | yes | autoregressive noise |

One that learns is given draws to learn from by `update(z, x)`, once for each step of the sampler or
more often. x is what the posterior depends on, one vector for each entry of the batch, or None; of
an encoder of `arcsm.vae` it is `encoder.features(images)`.

For what rests on scores the density must vanish at the ends of its range: of draws that are uniform
between two ends they know nothing.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.checks import check_whole, is_real
from arcsm.errors import InputError, NonFiniteLossError
from arcsm.vae.encoders import GaussianEncoder, normal_entropy
from arcsm.vae.fields import AutoregressiveField, JointField
from arcsm.vae.kernels import SMALLEST_RIDGE, spectral_scores, stein_scores

Latents = Float[Tensor, "particles batch dims"]
Condition = Float[Tensor, "batch condition"] | None
Surrogate = Float[Tensor, ""]

# Of the steps of Adam that fields take: the encoder moves, and what its scores were is soon past.
SCORE_BETAS = (0.9, 0.99)
# A loss of score matching that is above this, for each latent, is no accident of a batch: without
# any scores it is 0, and what is learned makes it negative.
_LARGEST_LOSS = 1e4


class EntropyEstimator(nn.Module, ABC):
    """An estimator of the entropy gradient for one sampler, which it is given to look at.

    The sampler is any module that makes latents of noise, with an attribute `dims`.
    """

    name: str
    learns = False
    # Whether it is right for samplers of the form z_d = h_d(ε_d, z_<d, x) alone.
    needs_autoregressive_noise = False
    least_particles = 1

    def __init__(self, sampler: nn.Module):
        super().__init__()
        dims = getattr(sampler, "dims", None)
        if isinstance(dims, bool) or not isinstance(dims, Integral) or dims < 1:
            raise InputError(
                f"expected a sampler with an attribute dims, its number of latents, got {dims!r}"
                f" of a {type(sampler).__name__}; set it"
            )
        if self.needs_autoregressive_noise:
            check_autoregressive_noise(sampler, self.name)
        self.dims = int(dims)

    @abstractmethod
    def scores(self, z: Latents, x: Condition = None) -> Latents:
        """Return the estimated scores at z."""

    def entropy_surrogate(self, z: Latents, x: Condition = None) -> Surrogate:
        """Return a number whose gradient estimates that of the mean entropy of q(·|x)."""
        self.check(z, x)
        with torch.no_grad():
            scores = self.centred_scores(z.detach(), x)
        if not bool(scores.isfinite().all()):
            raise NonFiniteLossError(
                f"the scores of {self.name} are not finite, of latents up to"
                f" {float(z.detach().abs().max()):.3g}; look whether the sampler, or its estimator,"
                " has run away, and lower its learning rate"
            )
        return -(scores * z).sum(-1).mean()

    def centred_scores(self, z: Latents, x: Condition = None) -> Latents:
        """Return the scores, those that were learned less the mean of the x's other particles.

        True scores have mean 0, so that nothing is changed in expectation; but the error that all
        particles of an x share, a field that lags behind the encoder, goes. Further axes may stand
        in front.
        """
        scores = self.scores(z, x)
        return centred(scores) if self.learns else scores

    def update(self, z: Latents, x: Condition = None) -> float | None:
        """Learn from draws; return the loss before the step. Nothing where nothing is learned."""
        return None

    def set_learning_rate(self, rate: float) -> None:
        """Set the rate of further updates, where something is learned."""

    def check(self, z: Latents, x: Condition) -> None:
        """Refuse latents and x of another shape or kind, or too few particles."""
        if not isinstance(z, Tensor) or z.ndim != 3 or z.shape[-1] != self.dims or z.numel() == 0:
            raise InputError(
                f"expected latents of shape (particles, batch, {self.dims}), at least one of each,"
                f" got {_shape(z)}; add axes for particles and batch"
            )
        if len(z) < self.least_particles:
            raise InputError(
                f"expected at least {self.least_particles} particles for {self.name}, got"
                f" {len(z)}: it compares the draws of one x; draw more"
            )
        self.check_dtype(z, "latents")
        if not bool(z.isfinite().all()):
            raise InputError("expected finite latents, got NaN or infinity; look at the sampler")
        if x is not None:
            if not isinstance(x, Tensor) or x.ndim != 2 or len(x) != z.shape[1]:
                raise InputError(
                    f"expected x of shape ({z.shape[1]}, features), one vector for each entry of"
                    f" the batch, got {_shape(x)}; pass encoder.features(images), for instance"
                )
            self.check_dtype(x, "x")
            if not bool(x.isfinite().all()):
                raise InputError("expected finite x, got NaN or infinity; look for them")

    def check_dtype(self, values: Tensor, what: str) -> None:
        """Refuse numbers of another kind than those of the estimator."""
        weight = next(self.parameters(), None)
        if weight is not None and values.dtype != weight.dtype:
            raise InputError(
                f"expected {what} of {weight.dtype}, as the estimator is, got {values.dtype};"
                " convert one of them"
            )
        if not values.is_floating_point():
            raise InputError(f"expected {what} of real numbers, got {values.dtype}; convert them")


def centred(scores: Latents) -> Latents:
    """Return scores less the mean of the other particles; alone, a particle keeps its own."""
    count = scores.shape[-3]
    if count < 2:
        return scores
    return (scores - scores.mean(-3, keepdim=True)) * (count / (count - 1))


def check_autoregressive_noise(sampler: nn.Module, name: str) -> None:
    """Refuse samplers for which conditional scores do not give the entropy gradient."""
    if not getattr(sampler, "autoregressive_noise", False):
        raise InputError(
            f"expected for {name} a sampler of the form z_d = h_d(noise_d, z_<d, x), in which the"
            " noise of earlier latents enters only through these latents, got a"
            f" {type(sampler).__name__}, which does not say that it keeps to it: terms of the"
            " entropy gradient that conditional scores leave out would not vanish; use"
            " ImplicitEncoder, set autoregressive_noise = True on a sampler that has this form, or"
            " take SSM, Stein or Spectral, which allow any sampler"
        )


class ELBOEntropy(EntropyEstimator):
    """The closed form for a normal encoder; its surrogate is the entropy itself."""

    name = "ELBO"

    def __init__(self, sampler: nn.Module):
        super().__init__(sampler)
        if not isinstance(sampler, GaussianEncoder):
            raise InputError(
                "expected a GaussianEncoder for ELBO, whose entropy is a closed form, got a"
                f" {type(sampler).__name__}; take another estimator for implicit encoders"
            )
        self._encoder = (sampler,)  # not as a part: its parameters are not the estimator's

    def scores(self, z: Latents, x: Condition = None) -> Latents:
        """Return the scores of the normal density."""
        (encoder,) = self._encoder
        mean, log_scale = encoder.units(_needed(x))
        return (mean - z) * torch.exp(-2 * log_scale)

    def entropy_surrogate(self, z: Latents, x: Condition = None) -> Surrogate:
        """Return the mean entropy of q(·|x)."""
        self.check(z, x)
        return normal_entropy(self._encoder[0].units(_needed(x))[1]).mean()


class SteinEntropy(EntropyEstimator):
    """Scores at the draws of one x by Stein's identity, with a ridge (Li and Turner, 2018)."""

    name = "Stein"
    least_particles = 2

    def __init__(self, sampler: nn.Module, *, ridge: float = 1e-3):
        super().__init__(sampler)
        if not is_real(ridge) or not SMALLEST_RIDGE <= ridge < math.inf:
            raise InputError(
                f"expected a ridge of at least {SMALLEST_RIDGE:g}, got {ridge!r}: the kernel may be"
                " singular; 1e-3 is usual"
            )
        self.ridge = float(ridge)

    def scores(self, z: Latents, x: Condition = None) -> Latents:
        """Return the scores at z; further axes may stand in front."""
        return stein_scores(z.transpose(-3, -2), self.ridge).transpose(-3, -2)


class SpectralEntropy(EntropyEstimator):
    """Scores at the draws of one x by eigenvectors of the kernel (Shi, Sun and Zhu, 2018)."""

    name = "Spectral"
    least_particles = 2

    def __init__(self, sampler: nn.Module, *, share: float = 0.99):
        super().__init__(sampler)
        if not is_real(share) or not 0 < share < 1:
            raise InputError(
                f"expected a share above 0 and below 1, got {share!r}: the last eigenvectors are"
                " noise; 0.99 is usual"
            )
        self.share = float(share)

    def scores(self, z: Latents, x: Condition = None) -> Latents:
        """Return the scores at z; further axes may stand in front."""
        return spectral_scores(z.transpose(-3, -2), self.share).transpose(-3, -2)


class LearnedEntropy(EntropyEstimator):
    """Scores of a field that is trained on draws, by Adam with the paper's rate.

    A sampler with a method `units(x)`, as encoders have, that returns μ and log σ of the units it
    works in, spares the field to learn them: it then follows at once where the sampler goes. For
    conditional scores they may depend on z_<d as well, by a method `conditional_units(x, z)`. A
    sampler whose latents, each in these units, are independent of one another given x says so by
    the attribute `independent_in_units`: the field then has no network of earlier latents.
    """

    learns = True
    # Whether it is taught along one random direction for each draw.
    sliced = False
    kind: type[AutoregressiveField] | type[JointField]

    def __init__(
        self,
        sampler: nn.Module,
        condition_dims: int = 0,
        *,
        width: int = 256,
        layers: int = 2,
        learning_rate: float = 2e-4,
    ):
        super().__init__(sampler)
        condition_dims = check_whole(condition_dims, "condition_dims", 0)
        # Without x there is nothing that units could be asked of: the field learns them.
        self._conditional = condition_dims > 0
        self.follow(sampler)
        options: dict[str, Any] = {"width": width, "layers": layers}
        if self._conditional_units is not None and getattr(sampler, "independent_in_units", False):
            options["sees_earlier"] = False
        self.field = self.kind(
            self.dims, condition_dims, learns_units=not self._knows_units, **options
        )
        _check_rate(learning_rate)
        self.learning_rate, self._updates = learning_rate, 0
        self._optimizer: torch.optim.Optimizer | None = None

    def follow(self, sampler: nn.Module) -> None:
        """Take the units of a sampler, the one it is for or a copy of that."""
        # In tuples, and so not as parts: the sampler's parameters are not the estimator's.
        self._units: tuple[Callable[..., Any]] | None = None
        self._conditional_units: tuple[Callable[..., Any]] | None = None
        if not self._conditional:
            return
        units = getattr(sampler, "units", None)
        if callable(units):
            self._units = (units,)
        conditional = getattr(sampler, "conditional_units", None)
        if self.needs_autoregressive_noise and callable(conditional):
            self._conditional_units = (conditional,)

    def scores(self, z: Latents, x: Condition = None) -> Latents:
        """Return the scores that were learned."""
        return self.field(z, x, self._units_of(z, x))

    def scores_in(self, z: Latents, x: Condition, mean: Tensor, log_scale: Tensor) -> Latents:
        """Return the scores that were learned, in units that are at hand."""
        return self.field(z, x, (mean, log_scale))

    def loss_and_scores(
        self,
        z: Latents,
        x: Condition,
        direction: Latents | None,
        mean: Tensor | None = None,
        log_scale: Tensor | None = None,
    ) -> tuple[Surrogate, Latents]:
        """Return the objective of the field on draws, which are detached, and its scores.

        SSM has normal noise for a direction, CSM none.
        """
        units = None if mean is None or log_scale is None else (mean, log_scale)
        return self.field.objective(z, x, direction, units)

    def set_learning_rate(self, rate: float) -> None:
        """Set the rate of further updates; 0 leaves the field as it is."""
        _check_rate(rate)
        self.learning_rate = rate
        for group in [] if self._optimizer is None else self._optimizer.param_groups:
            group["lr"] = rate

    @torch.enable_grad()
    def update(self, z: Latents, x: Condition = None) -> float | None:
        """Take a step of Adam on draws; return the loss before it."""
        self.check(z, x)
        if self._optimizer is None:  # at the first step: the module may have been moved before
            self._optimizer = torch.optim.Adam(
                self.parameters(), lr=self.learning_rate, betas=SCORE_BETAS
            )
        self.field.place(z)
        # Drawn by all: methods that are compared from one seed then are given the same draws.
        noise = torch.randn_like(z)
        direction = noise if self.sliced else None
        loss, _ = self.loss_and_scores(z, x, direction, *(self._units_of(z, x) or ()))
        value = loss.item()
        if has_diverged(value, self.dims):
            raise diverged(self.name, self._updates + 1)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._updates += 1
        return value

    @property
    def _knows_units(self) -> bool:
        return (self._conditional_units or self._units) is not None

    @torch.no_grad()
    def _units_of(self, z: Latents, x: Condition) -> tuple[Tensor, Tensor] | None:
        if not self._knows_units:
            return None
        self.field.check_condition(x)
        if self._conditional_units is not None:
            mean, log_scale = self._conditional_units[0](_needed(x), z)
        else:
            assert self._units is not None
            mean, log_scale = self._units[0](_needed(x))
        return mean, log_scale


class CSMEntropy(LearnedEntropy):
    """AR-CSM field, trained by composite score matching: the paper's."""

    name = "CSM"
    needs_autoregressive_noise = True
    kind = AutoregressiveField


class SSMEntropy(LearnedEntropy):
    """Joint field, trained by sliced score matching (Song et al., 2019), variance reduced."""

    name = "SSM"
    sliced = True
    kind: type[AutoregressiveField] | type[JointField] = JointField


class SSMAREntropy(SSMEntropy):
    """AR-CSM field, trained by sliced score matching: its optimum is that of CSM."""

    name = "SSM-AR"
    needs_autoregressive_noise = True
    kind = AutoregressiveField


def has_diverged(loss: float, dims: int) -> bool:
    """Say whether a loss of score matching tells that nothing is learned any more."""
    return not loss <= _LARGEST_LOSS * dims


def diverged(name: str, step: int) -> NonFiniteLossError:
    """Return the error of a score estimator that has left the numbers, or is about to."""
    return NonFiniteLossError(
        f"the score estimator of {name} diverged at its step {step}: its loss is far above 0, which"
        " it is without any scores, or not a number; lower its learning rate, or that of a sampler"
        " whose draws run away"
    )


ESTIMATORS: dict[str, type[EntropyEstimator]] = {
    "elbo": ELBOEntropy,
    "stein": SteinEntropy,
    "spectral": SpectralEntropy,
    "ssm": SSMEntropy,
    "ssm-ar": SSMAREntropy,
    "csm": CSMEntropy,
}


def make_estimator(
    method: str, sampler: nn.Module, condition_dims: int = 0, **options: Any
) -> EntropyEstimator:
    """Return the estimator of a name among `ESTIMATORS` for a sampler; refuse one it cannot serve.

    >>> from arcsm.vae import ImplicitEncoder
    >>> make_estimator("csm", ImplicitEncoder(4, 10), 10).name
    'CSM'
    """
    if method not in ESTIMATORS:
        raise InputError(
            f"expected a method among {', '.join(ESTIMATORS)}, got {method!r}; choose one"
        )
    kind = ESTIMATORS[method]
    known = [name for name in inspect.signature(kind).parameters if name != "sampler"]
    for name in options:
        if name not in known:
            raise InputError(
                f"expected options of {method} among {', '.join(known) or 'none'}, got {name!r};"
                " leave it out"
            )
    if kind.learns:
        return kind(sampler, condition_dims, **options)  # type: ignore[call-arg]
    return kind(sampler, **options)


def _check_rate(rate: object) -> None:
    if not is_real(rate) or not 0 <= rate < math.inf:  # type: ignore[operator]
        raise InputError(f"expected a learning rate of 0 or more, got {rate!r}; correct it")


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _needed(x: Condition) -> Tensor:
    if x is None:
        raise InputError("expected x for an encoder, got none; pass what it sees")
    return x
