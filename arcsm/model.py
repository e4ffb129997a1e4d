"""ARCSM: an autoregressive conditional score model (Definition 1 of the paper).

A context network, a score head and noise levels, with the standardisation of the data. Scores and
densities are in the units of the data.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.autoregressive import AutoregressiveModel, seeded
from arcsm.conditional import (
    Density,
    FlowDensity,
    HeadFamily,
    Noise,
    QuadratureDensity,
    TanhSum,
    TanhSumHead,
)
from arcsm.conditional.head import SLOPE_LIMIT
from arcsm.context import MADE, ContextNetwork
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.objectives import (
    Perturbation,
    annealed_csm_terms,
    draw_perturbation,
    likelihood_terms,
)
from arcsm.sampling import METHODS, Draw, draw_batches
from arcsm.sampling.batches import check_draw
from arcsm.sampling.chain import Snap
from arcsm.soundness import Report, check_rows
from arcsm.threads import even_sizes, map_pieces

# Conditionals evaluated at one time. Fewer are dominated by the cost of calling torch; but if they
# have to be integrated, each needs some 100 kB.
_CHUNK, _CHUNK_TO_INTEGRATE = 8192, 2048

# Numbers that the context network may keep for the rows of one pass: some 128 MB.
_NUMBERS = 2**25

# Noise of this many standard deviations of the data makes any conditional as good as normal: of a
# skewness of 2 it leaves 0.18, 0.003 nats from a normal density, and less at 3, the default.
_NORMAL_FROM = 2.0

DENSITIES = ("flow", "quadrature")
OBJECTIVES = ("csm", "likelihood")


class ARCSM(AutoregressiveModel):
    """A density over D scalars as a chain of one-dimensional conditional scores.

    `density` names the canonical density, which `log_prob` evaluates and `sample` draws from:
    "flow" (σ_max by quadrature, then the probability flow), the default if there are several
    noise levels, or "quadrature" (at σ_min).

    >>> import torch
    >>> model = ARCSM.made(2, hidden=(16, 16), seed=0)
    >>> x = model.sample(3, generator=torch.Generator().manual_seed(0))
    >>> model.log_prob(x).shape
    torch.Size([3])
    """

    def __init__(
        self,
        context: ContextNetwork,
        head: TanhSumHead,
        noise: Noise,
        *,
        density: str | None = None,
        flow_steps: int | None = None,
        decorrelate: bool = False,
    ):
        super().__init__(context, decorrelate=decorrelate)
        if density is None:
            density = "quadrature" if noise.has_one_level else "flow"
        if density not in DENSITIES:
            raise InputError(f"expected a density among {DENSITIES}, got {density!r}; choose one")
        if density == "flow" and noise.has_one_level:
            raise InputError(
                'expected the density "quadrature" for a single noise level, got "flow", which'
                " leads from one level to another; choose it, or noise from a larger sigma_max"
            )
        if context.width != head.context_width:
            raise InputError(
                f"expected a head for contexts of width {context.width},"
                f" got one for {head.context_width}; build both with the same width"
            )
        self.head, self.noise = head, noise
        self.density, self.flow_steps = density, flow_steps

    @classmethod
    def made(
        cls,
        dims: int,
        *,
        hidden: Sequence[int] | None = None,
        width: int | None = None,
        frequencies: int | None = None,
        order: str | Sequence[int] = "natural",
        condition_dims: int = 0,
        steps: int | None = None,
        head_depth: int = 1,
        noise: Noise | None = None,
        density: str | None = None,
        flow_steps: int | None = None,
        decorrelate: bool = False,
        seed: int | None = None,
    ) -> "ARCSM":
        """Return a model on a MADE; with a `seed`, the same weights each time.

        `hidden`, `width` and `frequencies` are those of the MADE. With fewer than 64 columns the
        default is a generous head, 24 tanh `steps` from contexts 32 wide; from there on, where it
        would dominate the cost of a training step, 12 steps from contexts 16 wide.
        """
        noise = noise or Noise()
        normal_at = noise.sigma_max if noise.sigma_max >= _NORMAL_FROM else None
        if steps is None:
            steps = 24 if dims < 64 else 12
        if width is None:
            width = 32 if dims < 64 else 16
        with seeded(seed):
            context = MADE(
                dims,
                width=width,
                hidden=hidden,
                frequencies=frequencies,
                order=order,
                condition_dims=condition_dims,
            )
            head = TanhSumHead(width, steps=steps, depth=head_depth, normal_at=normal_at)
        return cls(
            context,
            head,
            noise,
            density=density,
            flow_steps=flow_steps,
            decorrelate=decorrelate,
        )

    @property
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""
        return {
            "context": {"kind": type(self.context).__name__, **self.context.config},
            "head": {"kind": type(self.head).__name__, **self.head.config},
            "noise": self.noise.config,
            "density": self.density,
            "flow_steps": self.flow_steps,
            "decorrelate": self.decorrelate,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ARCSM":
        """Build a model, its weights still random, from `config`."""
        context, head = dict(config["context"]), dict(config["head"])
        kinds: dict[str, Any] = {"MADE": MADE, "TanhSumHead": TanhSumHead}
        for part in (context, head):
            if part.get("kind") not in kinds:
                raise InputError(
                    f"expected a part among {', '.join(kinds)}, got {part.get('kind')!r};"
                    " load the model with the release of arcsm that wrote it"
                )
        return cls(
            kinds[context.pop("kind")](**context),
            kinds[head.pop("kind")](**head),
            Noise(**config["noise"]),
            density=config["density"],
            flow_steps=config["flow_steps"],
            decorrelate=config.get("decorrelate", False),
        )

    def conditionals(
        self,
        inputs: Float[Tensor, "rows dims"],
        sigma: Float[Tensor, "rows dims_or_1 levels"],
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> TanhSum:
        """Return the conditionals given context inputs, at several noise levels for each scalar."""
        context = self.context(inputs, condition)
        # The context may be computed in half precision; the head and its derivative may not.
        with torch.autocast(inputs.device.type, enabled=False):
            return self.head(context.to(inputs.dtype)[..., None, :], sigma)

    def draw_noise(
        self,
        rows: int,
        *,
        levels: int | None = None,
        stage: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Perturbation:
        """Draw the noise of a training step.

        With few columns several noise levels for each row cost next to nothing and steady the
        objective: by default 4 for up to 2 columns, falling to 1 from 8 columns on.
        """
        return draw_perturbation(
            rows,
            self.dims,
            self.noise,
            levels=max(1, min(4, 8 // self.dims)) if levels is None else levels,
            stage=stage,
            generator=generator,
            device=self.shift.device,
        )

    def loss_terms(
        self,
        x: Float[Tensor, "rows dims"],
        noise: Perturbation,
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        jitter: Float[Tensor, "rows dims"] | None = None,
        objective: str = "csm",
        mix: float = 0.5,
        tolerance: float = 1e-4,
    ) -> Float[Tensor, "rows"]:
        """Return the objective of each row: annealed CSM, in standardised units, or "likelihood".

        That is −log q(x) by quadrature, in nats, in the units of the data, each normaliser
        integrated to `tolerance` nats. It takes x as it is, without noise: what is trained is then
        the very density that is evaluated. `jitter` moves the targets x_d, not the contexts x_<d.
        """
        z = self.to_standard(x)
        target = z if jitter is None else z + jitter / self.scale
        if objective == "likelihood":
            sigma = self.noise.sigma_min
            context = self.context(self.context_inputs(x), condition)
            with torch.autocast(x.device.type, enabled=False):
                conditional = self.head.family(context.to(x.dtype)).at(sigma)
                narrowest = sigma / SLOPE_LIMIT**0.5
                terms = likelihood_terms(conditional, target, narrowest, tolerance=tolerance)
            return terms + self.scale.log().sum()
        if objective != "csm":
            raise InputError(
                f"expected an objective among {OBJECTIVES}, got {objective!r}; choose one"
            )
        return annealed_csm_terms(
            lambda inputs, sigma: self.conditionals(inputs, sigma, condition),
            target,
            self.noise,
            noise,
            mix=mix,
            inputs=self.context_inputs(x),
        )

    def conditional_scores(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        sigma: float | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return s_d(x_<d, x_d) and ∂s_d/∂x_d, at noise `sigma` (default σ_min) on x_d.

        `sigma` is in standardised units, the scores in those of the data.
        """
        rows = as_rows(x, dims=self.dims)
        condition = self.checked_condition(condition, len(rows))
        z, inputs = self._units(rows)
        sigma = self.noise.sigma_min if sigma is None else sigma
        if not sigma > 0:
            raise InputError(f"expected a positive sigma, got {sigma}; choose one above 0")
        levels = z.new_full((len(z), 1, 1), sigma)
        conditionals = self.conditionals(inputs, levels, condition)
        score, derivative = conditionals.jet(z[..., None, None])
        return score[..., 0, 0] / self.scale, derivative[..., 0, 0] / self.scale.square()

    @torch.no_grad()
    def log_prob_terms(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        only: Sequence[int] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return log q(x_d | x_<d) for every d, in nats, and an estimate of its numerical error.

        `cells` = (low, high) says of each entry between which values it is known to lie. Where
        low < high the term is the log of the probability of that cell, a difference of the exact
        CDF; an end may be infinite. The contexts see x itself. With `only` these scalars alone
        are evaluated, and the terms of the others are 0.
        """
        rows = as_rows(x, dims=self.dims)
        condition = self.checked_condition(condition, len(rows))
        low, high = (None, None) if cells is None else cells
        check_columns(only, self.dims)
        found = []
        for piece in self._pieces(len(rows)):
            ends = None if low is None or high is None else (low[piece], high[piece])
            given = None if condition is None else condition[piece]
            found.append(self._some_terms(rows[piece], ends, only, given, method))
        terms, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
        return terms, errors

    def _some_terms(
        self,
        rows: Float[Tensor, "rows dims"],
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None,
        only: Sequence[int] | None,
        condition: Float[Tensor, "rows condition_dims"] | None,
        method: str,
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return what `log_prob_terms` does, for as many rows as memory is meant for."""
        z, inputs = self._units(rows)
        contexts = self.context(inputs, condition).flatten(0, 1)
        terms = torch.zeros_like(z).flatten()
        errors = torch.zeros_like(terms)
        wanted = torch.ones_like(z, dtype=torch.bool)
        if only is not None:
            wanted[:] = False
            wanted[:, list(only)] = True

        def evaluate(
            where: Tensor, term: Callable[[Density, Tensor], tuple[Tensor, Tensor]], shift: Tensor
        ) -> None:
            def evaluate_some(some: Tensor) -> None:
                density = self.density_of(self.head.family(contexts[some]), method)
                found, error = term(density, some)
                terms[some] = (found + shift[some])[:, 0]
                errors[some] = error[:, 0]

            entries = (where & wanted.flatten()).nonzero()[:, 0]
            sizes = even_sizes(len(entries), self.conditionals_at_once(method), entries.device)
            map_pieces(evaluate_some, entries.split(sizes), entries.device)

        point, log_scale = z.reshape(-1, 1), self.scale.log().expand_as(z).reshape(-1, 1)
        inside_cell = torch.zeros_like(terms, dtype=torch.bool)
        if cells is not None:
            # In float64: a cell may be narrow beside the distance of its ends from 0.
            centres = self.centres(rows.to(self.shift.device, torch.float64)).double()
            low, high = (
                ((end.to(centres) - centres) / self.scale.double()).reshape(-1, 1) for end in cells
            )
            inside_cell = (low < high)[:, 0]
            # Across a narrow cell the density hardly changes, and the difference would be rounded.
            narrow = inside_cell & ((high - low)[:, 0] < self.noise.sigma_min / 8)
            middle, width = ((low + high) / 2).to(z.dtype), (high - low).log().to(z.dtype)
            low, high = low.to(z.dtype), high.to(z.dtype)
            evaluate(
                narrow,
                lambda density, some: density.log_prob_and_error(middle[some]),
                width,
            )
            evaluate(
                inside_cell & ~narrow,
                lambda density, some: density.log_mass_and_error(low[some], high[some]),
                torch.zeros_like(width),
            )
        evaluate(
            ~inside_cell,
            lambda density, some: density.log_prob_and_error(point[some]),
            -log_scale,
        )
        # Of what is too far out for floating point nothing is known but that.
        errors = errors.where(terms != -math.inf, math.inf)
        return terms.view_as(z), errors.view_as(z)

    @overload
    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
        return_error: Literal[False] = False,
    ) -> Float[Tensor, "rows"]: ...

    @overload
    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
        return_error: Literal[True],
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]: ...

    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
        return_error: bool = False,
    ) -> Float[Tensor, "rows"] | tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
        """Return log q(x) of each row, in nats, in the units of the data.

        Where `cells` are given their probability takes the place of the density. With
        `return_error` a pair: beside it an estimate, row by row, of the numerical error in nats
        (rounding, and what an integral leaves open), which 99 of 100 rows keep to.

        The density is nowhere 0. A log of −∞ says that a value is farther out than floating point
        can tell, some 1e19 deviations in float32, or a cell beyond all mass; its error is ∞.
        """
        terms, errors = self.log_prob_terms(x, cells=cells, condition=condition, method=method)
        return (terms.sum(-1), errors.sum(-1)) if return_error else terms.sum(-1)

    def check(
        self,
        data: Any,
        *,
        condition: Any = None,
        rows: int = 1000,
        seed: int = 0,
    ) -> Report:
        """Say in words whether the density can be trusted, beside rows it was not trained on.

        Are conditionals densities, are they calibrated on the data, do flow and quadrature agree,
        is arithmetic exact enough? `str` of the report has a line for each, and what to do.
        """
        return check_rows(self, data, condition=condition, rows=rows, seed=seed)

    @torch.no_grad()
    def conditional_cdf(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        at: Float[Tensor, "rows dims"] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
    ) -> Float[Tensor, "rows dims"]:
        """Return the probability of values up to x_d, or up to `at`, given x_<d, for every d.

        Of rows drawn from the model those of x are independent and uniform. `at` may be infinite.
        """
        rows = as_rows(x, dims=self.dims)
        condition = self.checked_condition(condition, len(rows))
        if at is not None:
            at = torch.as_tensor(at)
            if at.shape != rows.shape or bool(at.isnan().any()):
                raise InputError(
                    f"expected at of shape {tuple(rows.shape)} without NaN, got shape"
                    f" {tuple(at.shape)}{', with some' if at.shape == rows.shape else ''};"
                    " pass a value for each entry, which may be infinite"
                )
        found = []
        for piece in self._pieces(len(rows)):
            given = None if condition is None else condition[piece]
            up_to = None if at is None else at[piece]
            found.append(self._some_cdf(rows[piece], up_to, given, method))
        return torch.cat(found)

    def _some_cdf(
        self,
        rows: Float[Tensor, "rows dims"],
        at: Float[Tensor, "rows dims"] | None,
        condition: Float[Tensor, "rows condition_dims"] | None,
        method: str,
    ) -> Float[Tensor, "rows dims"]:
        """Return what `conditional_cdf` does, for as many rows as memory is meant for."""
        z, inputs = self._units(rows, at)
        contexts = self.context(inputs, condition).flatten(0, 1)
        point = z.reshape(-1, 1)
        finite = point.isfinite()
        sizes = even_sizes(len(point), self.conditionals_at_once(method), z.device)
        pieces = zip(contexts.split(sizes), point.where(finite, 0.0).split(sizes), strict=True)
        probability = torch.cat(
            map_pieces(
                lambda piece: self.density_of(self.head.family(piece[0]), method).cdf(piece[1]),
                list(pieces),
                z.device,
            )
        )
        return probability.where(finite, (point > 0).to(z.dtype)).view_as(z)

    def checked_condition(
        self, condition: Any, rows: int
    ) -> Float[Tensor, "rows condition_dims"] | None:
        """Return conditioning values for so many rows, as `rows` returns rows; None for none."""
        if condition is not None:
            condition = as_rows(condition, name="condition", dtype=self.shift.dtype)
            condition = condition.to(self.shift.device)
        self.context.check_condition(condition, rows)
        return condition

    def _pieces(self, rows: int) -> Iterator[slice]:
        """Yield rows by rows, as many at a time as the context network has memory for."""
        size = max(1, _NUMBERS // self.context.numbers_per_row)
        for start in range(0, rows, size):
            yield slice(start, start + size)

    def _units(
        self, rows: Float[Tensor, "rows dims"], at: Float[Tensor, "rows dims"] | None = None
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return rows, or `at`, in standardised units, and rows as the context network sees them.

        In float64, until they are standardised: of values far from 0, or of columns that are
        nearly copies, float32 would lose the digits that tell them apart.
        """
        wide = rows.to(self.shift.device, torch.float64)
        point = wide if at is None else at.to(wide)
        z = (point - self.centres(wide)) / self.scale
        inputs = self.context_inputs(wide)
        # Its square overflows, so that the log-density is −∞ all the same; but a context network
        # that is given infinity makes NaN of it, for all scalars.
        limit = torch.finfo(self.shift.dtype).max ** 0.75
        z = z.clamp(-limit, limit) if at is None else z
        return z.to(self.shift.dtype), inputs.clamp(-limit, limit).to(self.shift.dtype)

    @torch.no_grad()
    def conditional(
        self,
        x: Float[Tensor, "rows dims"],
        d: int,
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> "ScaledDensity":
        """Return the canonical density of scalar d given those before it, for each row of x.

        Of x only the scalars that precede d in the order matter.
        """
        if not 0 <= d < self.dims:
            raise InputError(f"expected d from 0 to {self.dims - 1}, got {d}; choose a column")
        rows = self.rows(x)
        condition = self.checked_condition(condition, len(rows))
        family = self.head.family(self.context(self.context_inputs(rows), condition)[:, d])
        centre = self.centre(rows, d)[:, None]
        return ScaledDensity(self.density_of(family, "auto"), centre, self.scale[d])

    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        given: Float[Tensor, "#rows known"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "rows dims"]:
        """Draw n rows; the options are those of `sample_batches`."""
        return torch.cat(
            list(
                self.sample_batches(
                    n, generator=generator, condition=condition, given=given, **options
                )
            )
        )

    def sample_batches(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        uniform: Float[Tensor, "rows dims"] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        given: Float[Tensor, "#rows known"] | None = None,
        method: str = "auto",
        solver: str = "sequential",
        block: int | None = None,
        batch_size: int | None = None,
        compile: bool | None = None,
        snap: Snap | None = None,
        langevin_steps: int = 20,
        langevin_step_size: float | None = None,
    ) -> Iterator[Float[Tensor, "batch dims"]]:
        """Draw n rows in batches of `batch_size`, by default as many as need some 256 MB.

        `method`: "auto" draws from the canonical density, the one of `log_prob`; "flow" and
        "quadrature" name one. Both are functions of `uniform` numbers, which are drawn from the
        generator unless they are given, one for each entry: `conditional_cdf` gives them back.
        "langevin" is the paper's annealed Langevin dynamics (Appendix C.3), with T =
        `langevin_steps` at each level of the ladder (10 levels if the noise is continuous) and
        ε₀ = `langevin_step_size`, by default σ_L²/2.

        `given` fixes the first scalars of the order (`context.order`), for each row or the same
        for all; the others are drawn given these, exactly.

        `solver`: "sequential" walks along the order, "jacobi" computes all scalars in parallel
        passes until none changes, "gauss-seidel" does so for `block` scalars at a time (64).

        `compile`: on a GPU the step is a captured graph unless it is False; on a CPU it is
        compiled if it is True, which takes some ten seconds, and pays in many small batches.

        `snap(d, drawn, x)` may move the values just drawn for scalar d, given the rows so far, to
        those that they stand for (of a column of whole numbers the nearest): contexts of later
        scalars see these.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InputError(f"expected a positive whole number of samples, got {n!r}; ask for 1")
        if method not in METHODS:
            raise InputError(f"expected a method among {METHODS}, got {method!r}; choose one")
        how = Draw(
            method=self.density if method == "auto" else method,
            solver=solver,
            block=64 if solver == "gauss-seidel" and block is None else block,
            compile=compile,
            snap=snap,
            langevin_steps=langevin_steps,
            langevin_step_size=langevin_step_size,
        )
        return draw_batches(
            self,
            n,
            how,
            uniform=uniform,
            given=given,
            condition=condition,
            batch_size=batch_size,
            generator=generator,
        )

    def conditionals_at_once(self, method: str) -> int:
        """Return how many conditionals to work on at one time."""
        kind = self.density if method == "auto" else method
        normal = kind == "flow" and self.head.normal_at is not None
        return _CHUNK if normal else _CHUNK_TO_INTEGRATE

    def density_of(self, family: HeadFamily, method: str = "auto") -> Density:
        """Return the normalised conditionals of a family of the head."""
        kind = self.density if method == "auto" else method
        if kind == "flow":
            check_draw(self, Draw(method="flow"))
            return FlowDensity(family, self.noise, steps=self.flow_steps)
        if kind == "quadrature":
            return QuadratureDensity(family, self.noise)
        raise InputError(f"expected a density among {DENSITIES}, got {kind!r}; choose one")


def check_columns(only: Sequence[int] | None, dims: int) -> None:
    """Refuse scalars to be evaluated alone that there are none of."""
    if only is not None and not set(only) <= set(range(dims)):
        raise InputError(
            f"expected columns from 0 to {dims - 1} in only, got {list(only)}; choose among these"
        )


class ScaledDensity:
    """One-dimensional densities of one column, in the units of the data."""

    def __init__(self, density: Density, shift: Tensor, scale: Tensor):
        self._density, self._shift, self._scale = density, shift, scale

    @torch.no_grad()
    def log_prob(self, x: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return log q(x) in nats."""
        return self._density.log_prob((x - self._shift) / self._scale) - self._scale.log()

    @torch.no_grad()
    def cdf(self, x: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return the probability of values up to x."""
        return self._density.cdf((x - self._shift) / self._scale)

    @torch.no_grad()
    def quantile(self, probability: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return x with cdf(x) = probability."""
        return self._density.quantile(probability) * self._scale + self._shift
