"""MADE with mixture conditionals, trained by maximum likelihood: the paper's likelihood baseline.

The context of scalar d holds the parameters of a mixture of K components on the standardised
scalar: logits a_k, means m_k and log-scales log h_k. With z_k = (x − m_k)/h_k and g the
log-density of the standard component,

    log q(x) = log Σ_k exp(a_k + l_k(x)) − log Σ_k exp(a_k),     l_k(x) = g(z_k) − log h_k
    logistic:  g(z) = z − 2 log(1 + eᶻ)
    gaussian:  g(z) = −z²/2 − ½ log 2π

The density is normalised, so that its scores are no freer than it is; they are closed forms all
the same, and composite score matching trains the model as well.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from arcsm.autoregressive import AutoregressiveModel, seeded
from arcsm.context import MADE
from arcsm.errors import InputError

# Components are at least e⁻⁷ standard deviations wide, so that the likelihood is bounded.
LOG_SCALE_MIN = -7.0


@dataclass(frozen=True)
class Mixture(ABC):
    """One-dimensional mixtures of K components; the parameters have one more axis than the batch.

    A subclass gives the standard component: g and its derivatives, its distribution, its draws.
    """

    logits: Float[Tensor, "*batch components"]
    mean: Float[Tensor, "*batch components"]
    log_scale: Float[Tensor, "*batch components"]

    @classmethod
    def from_context(cls, context: Float[Tensor, "*batch width"]) -> "Mixture":
        """Read the parameters from contexts of width 3K: logits, means, log-scales."""
        logits, mean, log_scale = context.chunk(3, -1)
        return cls(logits, mean, log_scale.clamp(min=LOG_SCALE_MIN))

    def log_prob(self, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return log q(x) = log Σ exp(a + l(x)) − log Σ exp(a)."""
        return self._log_joint(self._z(x)).logsumexp(-1) - self.logits.logsumexp(-1)

    def jet(
        self, x: Float[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Return the score and its derivative.

        With the responsibilities r = softmax(a + l): s = Σ r l', s' = Σ r (l'' + (l' − s)²). The
        last is Σ r (l'' + l'²) − s² without the difference of two large numbers.
        """
        z, inverse = self._z(x), torch.exp(-self.log_scale)
        share = self._log_joint(z).softmax(-1)
        first, second = self._derivatives(z)
        first, second = first * inverse, second * inverse.square()
        score = (share * first).sum(-1)
        return score, (share * (second + (first - score[..., None]).square())).sum(-1)

    def cdf(self, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return the probability of values up to x."""
        return (self.logits.softmax(-1) * self._standard_cdf(self._z(x))).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*batch"]:
        """Draw one value from each mixture: first a component, then a value of it."""
        weight = self.logits.softmax(-1)
        chosen = torch.multinomial(weight.flatten(0, -2), 1, generator=generator)
        chosen = chosen.view(*weight.shape[:-1], 1)
        mean, log_scale = (part.gather(-1, chosen)[..., 0] for part in (self.mean, self.log_scale))
        return mean + log_scale.exp() * self._standard_draws(mean, generator)

    def _z(self, x: Tensor) -> Tensor:
        return (x[..., None] - self.mean) * torch.exp(-self.log_scale)

    def _log_joint(self, z: Tensor) -> Tensor:
        return self.logits - self.log_scale + self._log_density(z)

    @staticmethod
    @abstractmethod
    def _log_density(z: Tensor) -> Tensor:
        """Return g(z)."""

    @staticmethod
    @abstractmethod
    def _derivatives(z: Tensor) -> tuple[Tensor, Tensor]:
        """Return g'(z) and g''(z)."""

    @staticmethod
    @abstractmethod
    def _standard_cdf(z: Tensor) -> Tensor:
        """Return ∫ exp g up to z."""

    @staticmethod
    @abstractmethod
    def _standard_draws(like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw from exp g, in the shape of `like`."""


class LogisticMixture(Mixture):
    """Mixture of logistic distributions."""

    @staticmethod
    def _log_density(z: Tensor) -> Tensor:
        # The default threshold, beyond which softplus(z) = z, would be off by 2e-9.
        return z - 2 * F.softplus(z, threshold=40)

    @staticmethod
    def _derivatives(z: Tensor) -> tuple[Tensor, Tensor]:
        step = torch.tanh(z / 2)
        return -step, (step.square() - 1) / 2

    @staticmethod
    def _standard_cdf(z: Tensor) -> Tensor:
        return z.sigmoid()

    @staticmethod
    def _standard_draws(like: Tensor, generator: torch.Generator | None) -> Tensor:
        uniform = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        # Draws are multiples of eps/2; 0 would be −∞, and stands for what lies below eps/2.
        return uniform.clamp(min=torch.finfo(like.dtype).eps / 4).logit()


class GaussianMixture(Mixture):
    """Mixture of normal distributions."""

    @staticmethod
    def _log_density(z: Tensor) -> Tensor:
        return -z.square() / 2 - math.log(2 * math.pi) / 2

    @staticmethod
    def _derivatives(z: Tensor) -> tuple[Tensor, Tensor]:
        return -z, -torch.ones_like(z)

    @staticmethod
    def _standard_cdf(z: Tensor) -> Tensor:
        return torch.special.ndtr(z)

    @staticmethod
    def _standard_draws(like: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


KINDS: dict[str, type[Mixture]] = {"logistic": LogisticMixture, "gaussian": GaussianMixture}


class MixtureMADE(AutoregressiveModel):
    """A density over D scalars as a chain of one-dimensional mixtures of `components` each.

    `kind` is "logistic", as in the paper, or "gaussian". Scores and densities are in the units of
    the data. With a `seed`, the weights are the same each time.

    >>> import torch
    >>> model = MixtureMADE(2, components=4, hidden=(16, 16), seed=0)
    >>> x = model.sample(3, generator=torch.Generator().manual_seed(0))
    >>> model.log_prob(x).shape
    torch.Size([3])
    """

    context: MADE

    def __init__(
        self,
        dims: int,
        *,
        components: int = 10,
        kind: str = "logistic",
        hidden: Sequence[int] | None = None,
        frequencies: int | None = None,
        order: str | Sequence[int] = "natural",
        condition_dims: int = 0,
        shared_units: bool = False,
        seed: int | None = None,
    ):
        if kind not in KINDS:
            raise InputError(f"expected a kind among {tuple(KINDS)}, got {kind!r}; choose one")
        if components < 1:
            raise InputError(f"expected at least one component, got {components}; choose more")
        with seeded(seed):
            context = MADE(
                dims,
                width=3 * components,
                hidden=hidden,
                frequencies=frequencies,
                order=order,
                condition_dims=condition_dims,
            )
        super().__init__(context, shared_units=shared_units)
        self.components, self.kind = components, kind
        # Components start side by side over the standardised data, so that they differ.
        start = torch.zeros(3, components)
        if components > 1:
            start[1], start[2] = torch.linspace(-1.5, 1.5, components), -1.0
        with torch.no_grad():
            context.output.bias.copy_(start.flatten().repeat(dims))

    @property
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""
        return {
            "dims": self.dims,
            "components": self.components,
            "kind": self.kind,
            "hidden": list(self.context.hidden),
            "frequencies": self.context.frequencies,
            "order": list(self.context.order),
            "condition_dims": self.context.condition_dims,
            "shared_units": self.shared_units,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MixtureMADE":
        """Build a model, its weights still random, from `config`."""
        return cls(**config)

    def conditionals(
        self,
        z: Float[Tensor, "rows dims"],
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> Mixture:
        """Return the conditionals of standardised rows."""
        return KINDS[self.kind].from_context(self.context(z, condition).to(z.dtype))

    def draw_noise(
        self, rows: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Nothing is random in the likelihood."""
        return ()

    def loss_terms(
        self,
        x: Float[Tensor, "rows dims"],
        noise: tuple[Tensor, ...] = (),
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        jitter: Float[Tensor, "rows dims"] | None = None,
    ) -> Float[Tensor, "rows"]:
        """Return −log q(x) of each row, in nats, in the units of the data.

        With `jitter` it is Σ_d −log q(x_d + jitter_d | x_<d).
        """
        z = self.to_standard(x)
        target = z if jitter is None else z + jitter / self.scale
        terms = self.conditionals(z, condition).log_prob(target) - self.scale.log()
        return -terms.sum(-1)

    def log_prob_terms(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return log q(x_d | x_<d) for every d, in nats, and its numerical error.

        The error is zero: the density is a closed form, exact up to rounding.
        """
        terms = self._terms(self.to_standard(self.rows(x)), condition)
        return terms, torch.zeros_like(terms)

    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> Float[Tensor, "rows"]:
        """Return log q(x) of each row, in nats, in the units of the data; differentiable."""
        return self._terms(self.to_standard(self.rows(x)), condition).sum(-1)

    def conditional_scores(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return s_d(x_<d, x_d) = ∂ log q(x_d | x_<d)/∂x_d and ∂s_d/∂x_d."""
        z = self.to_standard(self.rows(x))
        score, derivative = self.conditionals(z, condition).jet(z)
        return score / self.scale, derivative / self.scale.square()

    @torch.no_grad()
    def conditional_cdf(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> Float[Tensor, "rows dims"]:
        """Return the probability of values up to x_d given x_<d, for every d.

        Of rows drawn from the model these are independent and uniform.
        """
        z = self.to_standard(self.rows(x))
        return self.conditionals(z, condition).cdf(z)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> Float[Tensor, "rows dims"]:
        """Draw n rows, scalar after scalar along the order."""
        z = self.empty_rows(n)
        cursor = self.context.cursor(n, condition)
        for d in self.context.order:
            z[:, d] = KINDS[self.kind].from_context(cursor.context()).sample(generator)
            cursor.push(z[:, d])
        return z * self.scale + self.shift

    def _terms(self, z: Tensor, condition: Tensor | None) -> Float[Tensor, "rows dims"]:
        return self.conditionals(z, condition).log_prob(z) - self.scale.log()
