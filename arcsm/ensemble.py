"""Several models as one density, trained as one stacked model.

The density is the mean of the densities of the members, q(x) = 1/K Σ_k q_k(x). Members have the
same shape, so that a training step computes them side by side, each product of matrices for all of
them at once; each sees noise of its own and has its gradient clipped by itself, as if alone.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.autoregressive import TrainableModel, seeded
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.scoring import check_columns

# Numbers in the largest tensors of a pass over stacked members, on a CPU. Stacking saves calls of
# torch; beyond this size they count for little, and memory of that size goes back to the system
# after each operation, to be asked for, and zeroed, anew at the next.
_STACKED_ON_CPU = 2**16

_KINDS: dict[str, type[ARCSM]] = {"ARCSM": ARCSM, "OrderAgnosticARCSM": OrderAgnosticARCSM}

Rows = Float[Tensor, "rows dims"]
MemberRows = Float[Tensor, "members rows dims"]
Condition = Float[Tensor, "rows condition_dims"] | None


class Ensemble(TrainableModel):
    """The mean of the densities of models that differ in their orders and weights alone.

    >>> import torch
    >>> model = Ensemble.made(3, members=2, hidden=(16, 16), seed=0)
    >>> x = model.sample(5, generator=torch.Generator().manual_seed(0))
    >>> model.log_prob(x).shape
    torch.Size([5])
    """

    def __init__(self, members: Sequence[ARCSM]):
        super().__init__()
        if len(members) == 0:
            raise InputError("expected at least one member, got none; pass models to average")
        kind = type(members[0]).__name__
        if _KINDS.get(kind) is not type(members[0]):
            raise InputError(f"expected members among {', '.join(_KINDS)}, got {kind}")
        shape = _shape(members[0])
        for place, member in enumerate(members):
            if _shape(member) != shape:
                raise InputError(
                    "expected members that differ in their orders and weights alone, got member"
                    f" {place} of another shape than member 0; build all with the same options"
                )
        weights = [parameter for member in members for parameter in member.parameters()]
        if len({id(parameter) for parameter in weights}) < len(weights):
            raise InputError(
                "expected members with weights of their own, got some that share them; copy them"
            )
        self.members = nn.ModuleList(members)

    @classmethod
    def made(
        cls,
        dims: int,
        *,
        members: int | None = None,
        orders: str | Sequence[str | Sequence[int]] = "random",
        seed: int | None = None,
        **options: Any,
    ) -> "Ensemble":
        """Return an ensemble of models made by `ARCSM.made` with `options`.

        `orders` is "random", an order of its own for each member, "natural", or a list of one
        order for each. There are as many members as that list has orders, otherwise 4 by default.
        """
        if isinstance(orders, str):
            orders = [orders] * (4 if members is None else members)
        if members is not None and len(orders) != members:
            raise InputError(
                f"expected an order for each of {members} members, got {len(orders)};"
                " pass as many, or leave the number of members out"
            )
        with seeded(seed):
            return cls([ARCSM.made(dims, order=order, **options) for order in orders])

    @property
    def models(self) -> list[ARCSM]:
        """The members."""
        return [member for member in self.members if isinstance(member, ARCSM)]

    @property
    def dims(self) -> int:
        """The number of scalars."""
        return self.models[0].dims

    @property
    def condition_dims(self) -> int:
        """The number of conditioning values, 0 for none."""
        return self.models[0].condition_dims

    @property
    def order(self) -> tuple[int, ...] | None:
        """The order of all members, None if they differ."""
        orders = {member.context.order for member in self.models}
        return orders.pop() if len(orders) == 1 else None

    @property
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build an ensemble of the same shape."""
        return {
            "kind": type(self.models[0]).__name__,
            "members": [member.config for member in self.models],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Ensemble":
        """Build an ensemble, its weights still random, from `config`."""
        if config["kind"] not in _KINDS:
            raise InputError(
                f"expected members among {', '.join(_KINDS)}, got {config['kind']!r};"
                " load the model with the release of arcsm that wrote it"
            )
        return cls([_KINDS[config["kind"]].from_config(member) for member in config["members"]])

    def standardise(self, x: Rows, weight: Float[Tensor, "rows"] | None = None) -> None:
        """Set the standardised units of each member."""
        for member in self.models:
            member.standardise(x, weight)

    def draw_noise(self, rows: int, **options: Any) -> tuple[Tensor, ...]:
        """Draw noise for each member in turn; the members are the second axis of each tensor."""
        drawn = [member.draw_noise(rows, **options) for member in self.models]
        return type(drawn[0])(*(torch.stack(parts, 1) for parts in zip(*drawn, strict=True)))

    def loss_terms(
        self, x: Rows, noise: tuple[Tensor, ...], **options: Any
    ) -> Float[Tensor, "rows"]:
        """Return the mean over members of their training losses of each row."""
        models = self.models
        at_once = self._members_at_once(noise)
        terms = [
            self._stacked_terms(models[start : start + at_once], start, x, noise, options)
            for start in range(0, len(models), at_once)
        ]
        return torch.cat(terms).mean(0)

    def _members_at_once(self, noise: tuple[Tensor, ...]) -> int:
        models = self.models
        if self.device.type != "cpu":
            return len(models)
        # The largest tensors hold the steps of each conditional.
        numbers = max(part[:, 0].numel() for part in noise) * models[0].head.steps
        return max(1, min(len(models), _STACKED_ON_CPU // numbers))

    def _stacked_terms(
        self,
        models: list[ARCSM],
        start: int,
        x: Rows,
        noise: tuple[Tensor, ...],
        options: dict[str, Any],
    ) -> Float[Tensor, "members rows"]:
        kind: Any = type(noise)
        if len(models) == 1:
            own = kind(*(part[:, start] for part in noise))
            return models[0].loss_terms(x, own, **options)[None]
        # Buffers too, masks among them: they are what makes an order.
        tensors = [
            {f"model.{name}": value for name, value in (*m.named_parameters(), *m.named_buffers())}
            for m in models
        ]
        stacked = {name: torch.stack([each[name] for each in tensors]) for name in tensors[0]}
        objective = _Objective(models[0])

        def terms(state: dict[str, Tensor], parts: tuple[Tensor, ...]) -> Tensor:
            return functional_call(objective, state, (x, kind(*parts), options))

        mine = tuple(part[:, start : start + len(models)] for part in noise)
        return vmap(terms, in_dims=(0, 1))(stacked, mine)

    def clip_gradients(self, limit: float) -> Float[Tensor, ""]:
        """Make the gradient of each member that of its own loss, and clip it by itself.

        The loss of the ensemble is a mean, and holds 1/K of each. Returns the largest norm.
        """
        norms = []
        for member in self.models:
            gradients = [p.grad for p in member.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, float(len(self.members)))
            norms.append(member.clip_gradients(limit))
        return torch.stack(norms).max()

    @torch.no_grad()
    def log_prob_terms(
        self, x: Rows, *, only: Sequence[int] | None = None, **options: Any
    ) -> tuple[Rows, Rows]:
        """Return a term for every scalar, in nats, and an estimate of its numerical error.

        Where the members share one order it is log q(x_d | x_<d) of the mixture, in which members
        weigh by their densities of x_<d; the terms add up to `log_prob`.
        Of different orders no chain is made. The term of a scalar is then the mean of those that
        the members give it, each in its own order, weighed by their shares in the density of the
        row. These add up to more than `log_prob`: by log K less the entropy of the shares, from 0,
        where all members agree, to log K, where one of them is all of the density.
        `options` are those of `ARCSM.log_prob_terms`.
        """
        check_columns(only, self.dims)
        needed = needed_terms(self.order, only)
        each = [m.log_prob_terms(x, only=needed, **options) for m in self.models]
        terms, errors = (torch.stack(parts) for parts in zip(*each, strict=True))
        mixed, error = mix_terms(terms, errors, self.order)
        if only is not None:
            wanted = torch.zeros(self.dims, dtype=torch.bool, device=mixed.device)
            wanted[list(only)] = True
            mixed, error = mixed.where(wanted, 0.0), error.where(wanted, 0.0)
        return mixed, error

    @overload
    def log_prob(
        self, x: Rows, *, return_error: Literal[False] = False, **options: Any
    ) -> Float[Tensor, "rows"]: ...

    @overload
    def log_prob(
        self, x: Rows, *, return_error: Literal[True], **options: Any
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]: ...

    @torch.no_grad()
    def log_prob(
        self, x: Rows, *, return_error: bool = False, **options: Any
    ) -> Float[Tensor, "rows"] | tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
        """Return the log of the mean of the members' densities of each row, in nats.

        With `return_error` a pair: beside it an estimate of the numerical error. `options` are
        those of `ARCSM.log_prob`.
        """
        pairs = [member.log_prob(x, return_error=True, **options) for member in self.models]
        each, errors = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        log_prob = each.logsumexp(0) - math.log(len(each))
        return (log_prob, _weighed(log_shares(each).exp(), errors)) if return_error else log_prob

    @torch.no_grad()
    def conditional_cdf(
        self, x: Rows, *, condition: Condition = None, method: str = "auto", **options: Any
    ) -> Rows:
        """Return the probability of values up to x_d, or up to `at`, given x_<d, for every d.

        The members must share one order. `options` are those of `ARCSM.conditional_cdf`.
        """
        order = self.order
        if order is None:
            raise InputError(
                "expected members of one order for conditional probabilities, got different ones,"
                " which have no conditionals in common; build them with one order, or ask a member"
            )
        given: dict[str, Any] = {"condition": condition, "method": method}
        terms = torch.stack([m.log_prob_terms(x, **given)[0] for m in self.models])
        each = torch.stack([m.conditional_cdf(x, **given, **options) for m in self.models])
        return mix_cdf(each, terms, order)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        condition: Condition = None,
        method: str = "auto",
        given: Float[Tensor, "rows_or_1 k"] | None = None,
        weight: Float[Tensor, "rows_or_1 members"] | None = None,
        **options: Any,
    ) -> Rows:
        """Draw n rows, each from a member drawn at random; `options` are those of `ARCSM.sample`.

        Not among them is `uniform`: which member a row comes from is drawn as well.
        `given` fixes the first k scalars of the order, which then must be the same for all
        members; those that give them a higher density are drawn more often, in proportion, or in
        proportion to `weight` where more is known than a density tells: that of cells, say. A
        `snap` is called for the rows of one member at a time.
        """
        if "uniform" in options:
            raise InputError("expected a generator for an ensemble, got uniform; leave it out")
        models = self.models
        x = models[0].empty_rows(n)
        condition = models[0].checked_condition(condition, n)
        given = None if given is None else self._checked_given(given, n)
        if weight is not None:
            weight = self._checked_weight(weight, n).to(x)
        elif given is not None:
            weight = self._weights_given(given, condition, method)
        else:
            weight = x.new_ones(1, len(models))
        chosen = torch.multinomial(weight.expand(n, -1), 1, generator=generator)[:, 0]
        for place, member in enumerate(models):
            rows = (chosen == place).nonzero()[:, 0]
            if len(rows) == 0:
                continue
            if given is not None:
                options["given"] = given if len(given) == 1 else given[rows]
            x[rows] = member.sample(
                len(rows),
                generator=generator,
                condition=None if condition is None else condition[rows],
                method=method,
                **options,
            )
        return x

    def _checked_weight(self, weight: Any, n: int) -> Float[Tensor, "rows_or_1 members"]:
        weights = as_rows(weight, dims=len(self.members), name="weight", dtype=torch.float64)
        if len(weights) not in (1, n):
            raise InputError(
                f"expected weights for one row or for {n}, got {len(weights)} rows; pass one row"
                " for all, or one for each"
            )
        total = weights.sum(1, keepdim=True)
        if not bool(((weights >= 0).all(1, keepdim=True) & (total > 0)).all()):
            raise InputError(
                "expected weights of at least 0, and one above it in each row, got others; pass"
                " what the members are to be drawn in proportion to"
            )
        return weights / total

    def _checked_given(self, given: Any, n: int) -> Float[Tensor, "rows_or_1 k"]:
        given = as_rows(given, name="given", dtype=self.dtype).to(self.device)
        rows, k = given.shape
        if rows not in (1, n) or k > self.dims:
            raise InputError(
                f"expected given of 1 or {n} rows and at most {self.dims} columns, got shape"
                f" {tuple(given.shape)}; pass the first scalars of the order"
            )
        starts = {member.context.order[:k] for member in self.models}
        if len(starts) > 1:
            raise InputError(
                f"expected members whose orders start with the same {k} scalars, got"
                f" {', '.join(str(list(start)) for start in sorted(starts))};"
                " build the ensemble with orders in which what is given comes first"
            )
        return given

    def _weights_given(
        self, given: Float[Tensor, "rows_or_1 k"], condition: Condition, method: str
    ) -> Float[Tensor, "rows_or_1 members"]:
        """Return the probability of each member once the first scalars are known."""
        first = self.models[0].context.order[: given.shape[1]]
        rows = len(given) if condition is None else len(condition)
        x = self.models[0].shift.repeat(rows, 1)  # the other scalars do not matter
        x[:, list(first)] = given
        density = "auto" if method == "langevin" else method
        each = [
            member.log_prob_terms(x, only=first, condition=condition, method=density)[0].sum(-1)
            for member in self.models
        ]
        return log_shares(torch.stack(each)).exp().T


class _Objective(nn.Module):
    """The loss of a model as the forward pass of a module, for other weights to be put in."""

    def __init__(self, model: ARCSM):
        super().__init__()
        self.model = model

    def forward(self, x: Rows, noise: Any, options: dict[str, Any]) -> Float[Tensor, "rows"]:
        return self.model.loss_terms(x, noise, **options)


def _shape(model: ARCSM) -> tuple[Any, ...]:
    """Return all that members must have in common."""
    config = model.config
    config["context"] = {
        name: value for name, value in config["context"].items() if name != "order"
    }
    return type(model), config, model.device, model.dtype


def needed_terms(order: Sequence[int] | None, only: Sequence[int] | None) -> Sequence[int] | None:
    """Return of which scalars `mix_terms` needs the terms for those in `only`; None for all."""
    if order is None or only is None:
        return None
    return order[: max((order.index(d) + 1 for d in only), default=0)]


def mix_terms(
    terms: MemberRows, errors: MemberRows, order: Sequence[int] | None
) -> tuple[Rows, Rows]:
    """Return what `Ensemble.log_prob_terms` does, from terms and errors of the members.

    `order` is that of all members, None if they differ.
    """
    if order is None:
        share = log_shares(terms.sum(-1, keepdim=True)).exp()
        return _weighed(share, terms), _weighed(share, errors)
    before = _before(terms, order)
    prior, posterior = log_shares(before), log_shares(before + terms).exp()
    # To first order: of the term itself, and of the weights that rest on those before it.
    moved = (posterior - prior.exp()).abs()
    error = _weighed(posterior, errors) + _weighed(moved, _before(errors, order))
    return (prior + terms).logsumexp(0), error


def mix_cdf(cdf: MemberRows, terms: MemberRows, order: Sequence[int]) -> Rows:
    """Return conditional probabilities of the mixture from those, and the terms, of its members."""
    return _weighed(log_shares(_before(terms, order)).exp(), cdf)


def _before(values: MemberRows, order: Sequence[int]) -> MemberRows:
    """Return, for each scalar, the sum over those before it in the order."""
    place = torch.tensor(order, device=values.device)
    sums = torch.zeros_like(values)
    sums[..., place[1:]] = values[..., place].cumsum(-1)[..., :-1]
    return sums


def log_shares(log_density: Float[Tensor, "members *rest"]) -> Float[Tensor, "members *rest"]:
    """Return the logs of the members' shares in a density; equal ones where no member has any."""
    shares = log_density.log_softmax(0)
    return shares.where(log_density.logsumexp(0) > -math.inf, -math.log(len(shares)))


def _weighed(
    share: Float[Tensor, "members *#rest"], values: Float[Tensor, "members *rest"]
) -> Float[Tensor, "*rest"]:
    """Return Σ_k share_k values_k; where a share is 0 the value may be infinite."""
    return (share * values).where(share > 0, 0.0).sum(0)
