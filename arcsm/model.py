"""ARCSM: an autoregressive conditional score model (Definition 1 of the paper).

A context network, a score head and noise levels, with the standardisation of the data. Scores and
densities are in the units of the data.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.autoregressive import seeded
from arcsm.conditional import (
    Noise,
    TanhSum,
    TanhSumHead,
)
from arcsm.conditional.flow import check_flow_steps
from arcsm.conditional.head import SLOPE_LIMIT
from arcsm.conditional.recalibration import Recalibration
from arcsm.context import MADE, ContextNetwork, PixelCNN
from arcsm.context.pixels import SIZES
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.objectives import (
    Perturbation,
    annealed_csm_terms,
    draw_perturbation,
    likelihood_terms,
)
from arcsm.sampling import METHODS, Draw, draw_batches
from arcsm.sampling.chain import Snap
from arcsm.scoring import DENSITIES, ScoredChain
from arcsm.soundness import Report, check_rows

# Noise of this many standard deviations of the data makes any conditional as good as normal: of a
# skewness of 2 it leaves 0.18, 0.003 nats from a normal density, and less at 3, the default.
_NORMAL_FROM = 2.0

OBJECTIVES = ("csm", "likelihood")


class ARCSM(ScoredChain):
    """A density over D scalars as a chain of one-dimensional conditional scores.

    `density` names the canonical density, which `log_prob` evaluates and `sample` draws from:
    "flow" (σ_max by quadrature, then the probability flow), the default if there are several
    noise levels, or "quadrature" (at σ_min). `recalibrate` corrects the flow by held-out rows.

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
        shared_units: bool = False,
        recalibration: Recalibration | None = None,
    ):
        super().__init__(context, decorrelate=decorrelate, shared_units=shared_units)
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
        check_flow_steps(flow_steps)
        self.head, self.noise = head, noise
        self.density, self.flow_steps = density, flow_steps
        self.recalibration = recalibration

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
        staircase: bool | None = None,
        noise: Noise | None = None,
        density: str | None = None,
        flow_steps: int | None = None,
        decorrelate: bool = False,
        shared_units: bool = False,
        seed: int | None = None,
    ) -> "ARCSM":
        """Return a model on a MADE; with a `seed`, the same weights each time.

        `hidden`, `width` and `frequencies` are those of the MADE. With fewer than 64 columns the
        default is a generous head, 24 tanh `steps` from contexts 32 wide; from there on, where it
        would dominate the cost of a training step, 12 steps from contexts 16 wide. The generous
        head begins as a `staircase`, the other one does not.
        """
        noise = noise or Noise()
        if steps is None:
            steps = 24 if dims < 64 else 12
        if width is None:
            width = 32 if dims < 64 else 16
        if staircase is None:
            staircase = dims < 64
        with seeded(seed):
            context = MADE(
                dims,
                width=width,
                hidden=hidden,
                frequencies=frequencies,
                order=order,
                condition_dims=condition_dims,
            )
            head = TanhSumHead(
                width,
                steps=steps,
                depth=head_depth,
                normal_at=_normal_at(noise),
                staircase=staircase,
            )
        return cls(
            context,
            head,
            noise,
            density=density,
            flow_steps=flow_steps,
            decorrelate=decorrelate,
            shared_units=shared_units,
        )

    @classmethod
    def pixelcnn(
        cls,
        shape: tuple[int, int, int],
        *,
        size: str = "small",
        width: int = 64,
        steps: int = 16,
        head_depth: int = 1,
        dropout: float = 0.0,
        noise: Noise | None = None,
        density: str | None = None,
        flow_steps: int | None = None,
        seed: int | None = None,
        **sizes: Any,
    ) -> "ARCSM":
        """Return a model of pictures of `shape` (height, width, channels) on a PixelCNN++.

        Its rows are pictures, flattened with channels innermost, and all scalars share their units.
        `size` is one of `SIZES`, from "tiny" to "paper"; `sizes` (filters, blocks, levels) take the
        place of single ones of its numbers.
        """
        if size not in SIZES:
            raise InputError(
                f"expected a size among {', '.join(SIZES)}, got {size!r}; choose one of these"
            )
        noise = noise or Noise()
        with seeded(seed):
            context = PixelCNN(shape, width=width, dropout=dropout, **{**SIZES[size], **sizes})
            head = TanhSumHead(width, steps=steps, depth=head_depth, normal_at=_normal_at(noise))
        return cls(context, head, noise, density=density, flow_steps=flow_steps, shared_units=True)

    @property
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""
        corrected = {}
        if self.recalibration is not None:
            corrected["recalibration"] = self.recalibration.config
        return {
            "context": {"kind": type(self.context).__name__, **self.context.config},
            "head": {"kind": type(self.head).__name__, **self.head.config},
            "noise": self.noise.config,
            "density": self.density,
            "flow_steps": self.flow_steps,
            "decorrelate": self.decorrelate,
            "shared_units": self.shared_units,
            **corrected,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ARCSM":
        """Build a model, its weights still random, from `config`."""
        context, head = dict(config["context"]), dict(config["head"])
        kinds: dict[str, Any] = {"MADE": MADE, "PixelCNN": PixelCNN, "TanhSumHead": TanhSumHead}
        for part in (context, head):
            if part.get("kind") not in kinds:
                raise InputError(
                    f"expected a part among {', '.join(kinds)}, got {part.get('kind')!r};"
                    " load the model with the release of arcsm that wrote it"
                )
        corrected = config.get("recalibration")
        return cls(
            kinds[context.pop("kind")](**context),
            kinds[head.pop("kind")](**head),
            Noise(**config["noise"]),
            density=config["density"],
            flow_steps=config["flow_steps"],
            decorrelate=config.get("decorrelate", False),
            shared_units=config.get("shared_units", False),
            recalibration=None if corrected is None else Recalibration(**corrected),
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
        points: int | None = None,
        stage: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Perturbation:
        """Draw the noise of a training step.

        With few columns several noise levels for each row, and several points at each, cost next
        to nothing and steady the objective: by default 4 levels for up to 2 columns, falling to 1
        from 8 columns on, and 4 points for up to 8 columns, 1 for more. (On few rows the unrest of
        a single point is a help: it keeps the network from learning them by heart.)
        """
        return draw_perturbation(
            rows,
            self.dims,
            self.noise,
            levels=max(1, min(4, 8 // self.dims)) if levels is None else levels,
            points=(4 if self.dims <= 8 else 1) if points is None else points,
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


def _normal_at(noise: Noise) -> float | None:
    """Return the noise level from which on conditionals are normal, if there is one."""
    return noise.sigma_max if noise.sigma_max >= _NORMAL_FROM else None
