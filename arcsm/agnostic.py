"""One model for every order: any columns given any others.

An `ARCSM` learns the conditionals of one order. Here the context network is told which scalars are
known, and is trained on sets drawn at random, as Uria, Murray and Larochelle proposed ("A Deep and
Tractable Density Estimator", 2014). If the orders are equally likely, so is each number i < D of
scalars that come before the next one, and each set of i scalars, and each of the D − i others is as
likely to be the next. With t_d(K) for the loss of scalar d given the scalars in K,

    E_order Σ_d t_d(x_<d) = D · E_i E_{|K| = i} 1/(D − i) Σ_{d ∉ K} t_d(K)

so that one set for each row gives an unbiased estimate of the loss over all D! orders.

Rows may have holes. Of a row of which only the scalars O are observed, n of them, the loss is the
mean over all n! orders of O, by the same formula with O and n for all scalars and D. The sets need
not be drawn anew: of the i scalars that come first in a random order of all D, those in O are the
first j in a random order of O. If i were uniform from 0 to D, then j would be uniform from 0 to n,
wherever the holes are, and each value would have the probability 1/(n + 1). But i = D, with which
j = n, is not drawn: each j < n has the probability (D + 1)/(D (n + 1)), and else nothing is left
to be learned. With L = K ∩ O

    E_order Σ_{d ∈ O} t_d(x_<d) = E_i E_K w_n · n/(n − j) Σ_{d ∈ O∖L} t_d(L) [j < n],
    w_n = D (n + 1)/((D + 1) n),

and without holes w_n = 1: nothing changes.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arcsm.autoregressive import seeded
from arcsm.conditional import Noise, TanhSumHead
from arcsm.context import SubsetNetwork
from arcsm.context.linear import learn_correlation
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation, annealed_csm_terms
from arcsm.scoring import ScaledDensity


class SubsetPerturbation(NamedTuple):
    """The noise of an annealed step, and which scalars of each row are known, as 0 and 1."""

    sigma: Float[Tensor, "rows 1 levels"]
    epsilon: Float[Tensor, "rows dims levels"]
    context_epsilon: Float[Tensor, "rows dims"]
    known: Float[Tensor, "rows dims"]


class OrderAgnosticARCSM(ARCSM):
    """An `ARCSM` that is trained for all orders at once and can use any of them.

    It evaluates and samples along the order that it was built with; `with_order` gives a model
    that uses another one, with the same weights. The densities of two orders agree as far as the
    network has learned them, not by construction. Likelihoods cost a pass of the network for each
    scalar. There is no `decorrelate`: what is left of a column depends on which ones precede it.

    >>> import torch
    >>> model = OrderAgnosticARCSM.made(3, hidden=(16, 16), seed=0)
    >>> x = torch.zeros(2, 3)
    >>> model.conditional(x, 1, given=[0, 2]).log_prob(torch.zeros(2, 1)).shape
    torch.Size([2, 1])
    >>> model.with_order([2]).context.order  # the others follow as they stood
    (2, 0, 1)
    """

    context: SubsetNetwork

    def __init__(
        self,
        context: SubsetNetwork,
        head: TanhSumHead,
        noise: Noise,
        *,
        density: str | None = None,
        flow_steps: int | None = None,
        decorrelate: bool = False,
    ):
        if decorrelate:
            raise InputError(
                "expected decorrelate=False for a model of all orders, got True: what others leave"
                " of a column depends on the order; leave it out"
            )
        if not isinstance(context, SubsetNetwork):
            raise InputError(
                "expected a SubsetNetwork, which serves all orders, got"
                f" {type(context).__name__}; build the model with OrderAgnosticARCSM.made"
            )
        super().__init__(context, head, noise, density=density, flow_steps=flow_steps)

    @classmethod
    def made(
        cls,
        dims: int,
        *,
        hidden: Sequence[int] | None = None,
        frequencies: int | None = None,
        order: str | Sequence[int] = "natural",
        condition_dims: int = 0,
        linear: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> "OrderAgnosticARCSM":
        """Return a model on a `SubsetNetwork`; `options` are the other ones of `ARCSM.made`.

        With `linear` the network is shown linear predictions of all that is unknown.
        """
        with seeded(seed):
            like = ARCSM.made(dims, hidden=(1,), **{"staircase": False, **options})
            context = SubsetNetwork(
                dims,
                width=like.context.width,
                hidden=hidden,
                frequencies=frequencies,
                order=order,
                condition_dims=condition_dims,
                linear=linear,
            )
        return cls._on(context, like)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "OrderAgnosticARCSM":
        """Build a model, its weights still random, from `config`."""
        context = dict(config["context"])
        if context.get("kind") != SubsetNetwork.__name__:
            raise InputError(
                f"expected a {SubsetNetwork.__name__} as the context, got {context.get('kind')!r};"
                " load the model with the release of arcsm that wrote it"
            )
        network = SubsetNetwork(**{name: context[name] for name in context if name != "kind"})
        like = {"kind": "MADE", "dims": network.dims, "width": network.width, "hidden": [1]}
        shaped = ARCSM.from_config({**config, "context": like})
        model = cls._on(network, shaped)
        model.recalibration = shaped.recalibration
        return model

    @classmethod
    def _on(cls, context: SubsetNetwork, like: ARCSM) -> "OrderAgnosticARCSM":
        """Return a model that differs from `like` in its context network alone."""
        return cls(
            context,
            like.head,
            like.noise,
            density=like.density,
            flow_steps=like.flow_steps,
            decorrelate=like.decorrelate,
        )

    def with_linear(self, seed: int | None = None) -> "OrderAgnosticARCSM":
        """Return an untrained model of this shape that is shown linear predictions."""
        with seeded(seed):
            context = SubsetNetwork(**{**self.context.config, "linear": True})
        return self._on(context, self)

    def with_order(self, order: str | Sequence[int]) -> "OrderAgnosticARCSM":
        """Return a model that uses another order, with the same weights, not a copy of them.

        To condition on some scalars let them come first; those that `order` does not name follow
        as they stand in the present one.
        """
        if not isinstance(order, str) and isinstance(order, Iterable):
            first = list(order)
            order = [*first, *(d for d in self.context.order if d not in first)]
        other = copy.copy(self)
        # A dictionary of its own, or the new context would become that of both.
        other._modules = {**self._modules, "context": self.context.with_order(order)}
        return other

    # Noise and loss are those of sets; nobody who holds an ARCSM makes noise by hand.
    def draw_noise(  # type: ignore[override]
        self, rows: int, *, generator: torch.Generator | None = None, **options: Any
    ) -> SubsetPerturbation:
        """Draw noise as `ARCSM` does, and for each row how many and which scalars are known."""
        noise = super().draw_noise(rows, generator=generator, **options)
        device = noise.epsilon.device
        count = torch.randint(self.dims, (rows, 1), generator=generator, device=device)
        lot = torch.rand((rows, self.dims), generator=generator, device=device)
        known = lot.argsort(1) < count  # where each scalar stands in an order of its row
        return SubsetPerturbation(*noise, known.to(noise.epsilon.dtype))

    @property
    def takes_holes(self) -> bool:
        """Whether entries of rows may be missing: they are among the scalars that are unknown."""
        return True

    @torch.no_grad()
    def standardise(
        self,
        x: Float[Tensor, "rows dims"],
        weight: Float[Tensor, "rows"] | None = None,
        observed: Bool[Tensor, "rows dims"] | None = None,
    ) -> None:
        """Set the standardised units from the (weighted) moments of what is observed."""
        if observed is None and not self.context.linear:
            super().standardise(x, weight)
            return
        if observed is None:
            observed = torch.ones_like(x, dtype=torch.bool)
        rows = x.double()
        high = rows.where(observed, -math.inf).amax(0)
        # By comparison: the standard deviation of equal numbers may be rounded away from 0.
        constant = (high <= rows.where(observed, math.inf).amin(0)).nonzero().flatten().tolist()
        if constant:
            raise InputError(
                "expected columns that vary where they are observed, got constant or empty columns"
                f" {constant}; leave them out"
            )
        share = observed.double() if weight is None else observed * weight.double()[:, None]
        share = share / share.sum(0)
        mean = (share * rows.where(observed, 0.0)).sum(0)
        self.recalibration = None
        self.shift.copy_(mean)
        away = (rows - mean).where(observed, 0.0)
        deviation = (share * away.square()).sum(0).sqrt()
        self.scale.copy_(deviation)
        if self.context.linear:
            found = learn_correlation(away / deviation, observed, weight)
            self.context.correlation.copy_(found)

    def loss_terms(  # type: ignore[override]
        self,
        x: Float[Tensor, "rows dims"],
        noise: SubsetPerturbation,
        *,
        observed: Bool[Tensor, "rows dims"] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        jitter: Float[Tensor, "rows dims"] | None = None,
        objective: str = "csm",
        mix: float = 0.5,
    ) -> Float[Tensor, "rows"]:
        """Return D/(D − i) times the annealed CSM terms of the D − i unknown scalars of each row.

        The mean over sets is the mean over all orders of what `ARCSM.loss_terms` returns. Where x
        is not `observed` its entry, any finite number, changes nothing, and orders are those of
        the scalars that are.
        """
        if objective != "csm":
            raise InputError(
                f"expected the objective 'csm' for a model of all orders, got {objective!r}; leave"
                " it out, or use an ARCSM"
            )
        sigma, epsilon, context_epsilon, known = noise
        if observed is not None:
            x, known = x.where(observed, self.shift), known * observed

        def conditionals(inputs: Tensor, levels: Float[Tensor, "rows 1 1 levels"]) -> Any:
            context = self.context.contexts(inputs, known, condition)
            with torch.autocast(inputs.device.type, enabled=False):
                return self.head(context.to(inputs.dtype)[:, None, :, None, :], levels)

        z = self.to_standard(x)
        target = z if jitter is None else z + jitter / self.scale
        # With an axis of one where the columns are summed over, they stay apart.
        terms = annealed_csm_terms(
            conditionals,
            target[:, None],
            self.noise,
            Perturbation(sigma[:, None], epsilon[:, None], context_epsilon),
            mix=mix,
            inputs=self.context_inputs(x),
        )
        unknown = 1 - known
        if observed is None:
            return self.dims * (terms * unknown).sum(1) / unknown.sum(1)
        unknown = unknown * observed
        n = observed.sum(1)
        # D (n + 1)/(D + 1), which is D exactly if n is; and a row without anything unknown is 0.
        factor = self.dims * (n + 1) / (self.dims + 1)
        return factor * (terms * unknown).sum(1) / unknown.sum(1).clamp(min=1)

    @torch.no_grad()
    def log_prob_over_orders(
        self,
        x: Float[Tensor, "rows dims"],
        orders: int,
        *,
        generator: torch.Generator | None = None,
        return_error: bool = False,
        **options: Any,
    ) -> Float[Tensor, "rows"] | tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
        """Return the log of the mean of the densities along so many random orders.

        The orders, the same for all rows, are drawn from `generator`. A mean of densities is a
        density too. `options` are those of `log_prob`. With `return_error` a pair: beside it the
        largest of the numerical errors along the orders, which that of the mean cannot exceed.
        """
        if not isinstance(orders, int) or isinstance(orders, bool) or orders < 1:
            raise InputError(f"expected a positive number of orders, got {orders!r}; ask for 1")
        device = None if generator is None else generator.device
        drawn = [
            torch.randperm(self.dims, generator=generator, device=device).tolist()
            for _ in range(orders)
        ]
        pairs = [
            self.with_order(order).log_prob(x, return_error=True, **options) for order in drawn
        ]
        each, errors = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        log_prob = each.logsumexp(0) - math.log(orders)
        return (log_prob, errors.amax(0)) if return_error else log_prob

    @torch.no_grad()
    def conditional(
        self,
        x: Float[Tensor, "rows dims"],
        d: int,
        *,
        given: Sequence[int] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> ScaledDensity:
        """Return the density of scalar d given exactly the scalars `given`, for each row of x.

        Of x only these matter. Without `given` they are those before d in the order.
        """
        if given is None:
            return super().conditional(x, d, condition=condition)
        if not {d, *given} <= set(range(self.dims)) or d in given:
            raise InputError(
                f"expected columns from 0 to {self.dims - 1}, d not among those given, got d={d}"
                f" and given={list(given)}; correct these"
            )
        rows = self.rows(x)
        condition = self.checked_condition(condition, len(rows))
        known = torch.zeros_like(rows, dtype=torch.bool)
        known[:, list(given)] = True
        context = self.context.contexts(self.context_inputs(rows), known, condition)[:, d]
        density = self.density_of(self.head.family(context))
        return ScaledDensity(density, self.centre(rows, d)[:, None], self.scale[d])
