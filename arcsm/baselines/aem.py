"""The autoregressive energy machine (Nash and Durkan, 2019): log Z by importance sampling.

Context and energy are those of `ARCSM`, at one noise level; what differs is how they are trained.
The normaliser of each conditional is estimated from S draws of a proposal, a MADE with mixtures of
logistics that learns by maximum likelihood at the same time:

    log Z ≈ log (1/S) Σ_s exp E(z_s)/p(z_s),    z_s ~ p

The gradient of the energy does not reach the proposal, nor the other way round. By Jensen's
inequality the estimate is too low on average, and the likelihood too high.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.autoregressive import AutoregressiveModel, seeded
from arcsm.baselines.mixture_made import LogisticMixture, Mixture, MixtureMADE
from arcsm.conditional import TanhSum, TanhSumHead
from arcsm.context import MADE
from arcsm.errors import InputError

# Energies evaluated at one time.
_CHUNK = 2**17


class Draws(NamedTuple):
    """Uniform numbers that make draws of a proposal: which component, and where in it."""

    component: Float[Tensor, "rows dims samples"]
    place: Float[Tensor, "rows dims samples"]


class AEM(AutoregressiveModel):
    """A density over D scalars by tanh-sum energies, normalised by importance sampling.

    `sigma` is the width, in standardised units, of the narrowest detail; `components` are those of
    the proposal. With a `seed`, the weights are the same each time.

    >>> import torch
    >>> model = AEM(2, hidden=(16, 16), seed=0)
    >>> x = model.sample(3, generator=torch.Generator().manual_seed(0))
    >>> model.log_prob(x).shape
    torch.Size([3])
    """

    context: MADE

    def __init__(
        self,
        dims: int,
        *,
        sigma: float = 0.01,
        steps: int = 24,
        width: int = 32,
        components: int = 10,
        hidden: Sequence[int] | None = None,
        frequencies: int | None = None,
        order: str | Sequence[int] = "natural",
        condition_dims: int = 0,
        seed: int | None = None,
    ):
        if not 0 < sigma < math.inf:
            raise InputError(f"expected a positive sigma, got {sigma}; choose one above 0")
        network: dict[str, Any] = {
            "hidden": hidden,
            "frequencies": frequencies,
            "order": order,
            "condition_dims": condition_dims,
        }
        with seeded(seed):
            super().__init__(MADE(dims, width=width, **network))
            self.head = TanhSumHead(width, steps=steps)
            # The same order: it may have been drawn.
            network["order"] = self.context.order
            self.proposal = MixtureMADE(dims, components=components, **network)
        self.sigma = sigma

    @property
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""
        return {
            "dims": self.dims,
            "sigma": self.sigma,
            "steps": self.head.steps,
            "width": self.head.context_width,
            "components": self.proposal.components,
            "hidden": list(self.context.hidden),
            "frequencies": self.context.frequencies,
            "order": list(self.context.order),
            "condition_dims": self.context.condition_dims,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AEM":
        """Build a model, its weights still random, from `config`."""
        return cls(**config)

    @torch.no_grad()
    def standardise(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
    ) -> None:
        """Set the standardised units from the (weighted) moments of the columns."""
        super().standardise(x, weight)
        self.proposal.standardise(x, weight)

    def draw_noise(
        self, rows: int, *, samples: int = 20, generator: torch.Generator | None = None
    ) -> Draws:
        """Draw what the proposal's draws for a training step are made of."""
        _check_samples(samples, usual=20)
        shape = (2, rows, self.dims, samples)
        return Draws(*torch.rand(shape, generator=generator, device=self.shift.device))

    def conditionals(
        self,
        z: Float[Tensor, "rows dims"],
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> TanhSum:
        """Return the energies of standardised rows."""
        context = self.context(z, condition)
        with torch.autocast(z.device.type, enabled=False):
            return self._energies(context.to(z.dtype))

    def loss_terms(
        self,
        x: Float[Tensor, "rows dims"],
        noise: Draws,
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        jitter: Float[Tensor, "rows dims"] | None = None,
    ) -> Float[Tensor, "rows"]:
        """Return −log q(x) of each row, as estimated, plus −log p(x) of the proposal.

        In nats, in the units of the data. `jitter` moves the targets x_d, not the contexts x_<d.
        """
        z = self.to_standard(x)
        target = z if jitter is None else z + jitter / self.scale
        proposal = self.proposal.conditionals(z, condition)
        energies = self.conditionals(z, condition)
        log_z = _log_weights(energies, proposal, noise)[1].logsumexp(-1)
        log_z = log_z - math.log(noise.place.shape[-1])
        log_prob = energies.energy(target[..., None])[..., 0] - log_z
        terms = log_prob + proposal.log_prob(target) - 2 * self.scale.log()
        return -terms.sum(-1)

    @torch.no_grad()
    def log_prob_terms(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        samples: int = 1000,
        seed: int = 0,
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return log q(x_d | x_<d) for every d, in nats, and its Monte Carlo standard error."""
        _check_samples(samples, usual=1000)
        z = self.to_standard(self.rows(x))
        generator = torch.Generator(z.device).manual_seed(seed)
        size = max(1, _CHUNK // (samples * self.dims))
        found = []
        for start in range(0, len(z), size):
            piece = slice(start, start + size)
            some = None if condition is None else condition[piece]
            energies = self.conditionals(z[piece], some)
            draws = self.draw_noise(len(z[piece]), samples=samples, generator=generator)
            draws = Draws(*(part.to(z.dtype) for part in draws))
            log_weight = _log_weights(energies, self.proposal.conditionals(z[piece], some), draws)[
                1
            ]
            log_z = log_weight.logsumexp(-1) - math.log(samples)
            weight = (log_weight - log_z[..., None]).exp()  # of mean 1
            error = weight.var(-1, correction=0).div(samples).sqrt()
            energy = energies.energy(z[piece][..., None])[..., 0]
            found.append((energy - log_z - self.scale.log(), error))
        terms, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
        return terms, errors

    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        samples: int = 1000,
        seed: int = 0,
        return_error: bool = False,
    ) -> Float[Tensor, "rows"] | tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
        """Return log q(x) of each row, in nats, in the units of the data.

        Its normalisers are estimates, from so many `samples` each; with `return_error` a pair,
        the second their standard error.
        """
        terms, errors = self.log_prob_terms(x, condition=condition, samples=samples, seed=seed)
        if return_error:
            return terms.sum(-1), errors.square().sum(-1).sqrt()
        return terms.sum(-1)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        samples: int = 100,
    ) -> Float[Tensor, "rows dims"]:
        """Draw n rows: of so many draws of the proposal one is taken, by its importance weight."""
        _check_samples(samples, usual=100)
        z = self.empty_rows(n)
        cursor = self.context.cursor(n, condition)
        other = self.proposal.context.cursor(n, condition)
        for d in self.context.order:
            proposal = LogisticMixture.from_context(other.context())
            noise = torch.rand((2, n, samples), generator=generator, dtype=z.dtype, device=z.device)
            draws, log_weight = _log_weights(
                self._energies(cursor.context()), proposal, Draws(*noise)
            )
            chosen = torch.multinomial(log_weight.softmax(-1), 1, generator=generator)
            z[:, d] = draws.gather(-1, chosen)[:, 0]
            cursor.push(z[:, d])
            other.push(z[:, d])
        return z * self.scale + self.shift

    def _energies(self, context: Float[Tensor, "*batch width"]) -> TanhSum:
        return self.head.family(context).at(self.sigma)


def _check_samples(samples: object, *, usual: int) -> None:
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise InputError(
            f"expected a positive number of samples, got {samples!r}; {usual} is usual"
        )


def _log_weights(
    energies: TanhSum, proposal: Mixture, noise: Draws
) -> tuple[Float[Tensor, "*batch samples"], Float[Tensor, "*batch samples"]]:
    """Return draws z of the proposal, and E(z) − log p(z), of which E alone has a gradient."""
    with torch.no_grad():
        upto = proposal.logits.softmax(-1).cumsum(-1)
        chosen = torch.searchsorted(upto, noise.component.contiguous()).clamp(
            max=upto.shape[-1] - 1
        )
        mean, log_scale = (part.gather(-1, chosen) for part in (proposal.mean, proposal.log_scale))
        # 0 and 1 would be infinite, and stand for what lies beyond the next numbers.
        epsilon = torch.finfo(mean.dtype).eps
        draws = mean + log_scale.exp() * noise.place.clamp(epsilon / 4, 1 - epsilon / 2).logit()
        spread = type(proposal)(
            *(part[..., None, :] for part in (proposal.logits, proposal.mean, proposal.log_scale))
        )
        log_p = spread.log_prob(draws)
    return draws, energies.energy(draws) - log_p
