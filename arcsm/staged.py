"""The paper's staged scheme: one network for each noise level (Appendix C.2 and C.3).

`ARCSM` serves all noise levels with one network. The paper trains L of them, each on its own level
σ_i and started from the one before, and needs all of them to sample. This is that, as a reference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.conditional import TanhSum, annealed_langevin
from arcsm.conditional.head import HeadFamily
from arcsm.errors import InputError
from arcsm.model import ARCSM


class StagedARCSM(nn.Module):
    """L models of one ladder; stage i was trained at σ_i, and stage L stands for the density."""

    def __init__(self, stages: Sequence[ARCSM]):
        super().__init__()
        noise = stages[0].noise if stages else None
        if noise is None or noise.levels != len(stages):
            raise InputError(
                "expected one stage for each level of the ladder, got"
                f" {len(stages)} stages for {noise.levels if noise else 'no'} levels;"
                " train them with fit_staged"
            )
        self.stages = nn.ModuleList(stages)
        self.noise = noise

    @property
    def last(self) -> ARCSM:
        """The model of the smallest noise."""
        stage = self.stages[-1]
        assert isinstance(stage, ARCSM)
        return stage

    def conditional_scores(
        self, x: Float[Tensor, "rows dims"]
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return s_d and ∂s_d/∂x_d of the last stage."""
        return self.last.conditional_scores(x)

    def log_prob(self, x: Float[Tensor, "rows dims"]) -> Float[Tensor, "rows"]:
        """Return log q(x): the last stage normalised by quadrature, as no flow joins the stages."""
        return self.last.log_prob(x, method="quadrature")

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        langevin_steps: int = 20,
        langevin_step_size: float | None = None,
    ) -> Float[Tensor, "rows dims"]:
        """Draw n rows by annealed autoregressive Langevin dynamics, stage after stage.

        T = `langevin_steps` at each level, ε₀ = `langevin_step_size`, by default σ_L²/2.
        """
        last = self.last
        x = last.empty_rows(n)
        stages = [stage for stage in self.stages if isinstance(stage, ARCSM)]
        cursors = [stage.context.cursor(n) for stage in stages]
        ladder = self.noise.ladder()
        for d in last.context.order:
            families = [
                stage.head.family(cursor.context())
                for stage, cursor in zip(stages, cursors, strict=True)
            ]
            drawn = annealed_langevin(
                _StagedFamily(dict(zip(ladder, families, strict=True))),
                torch.randn(n, 1, generator=generator, dtype=x.dtype, device=x.device),
                ladder,
                steps=langevin_steps,
                step_size=langevin_step_size,
                generator=generator,
            )
            x[:, d] = drawn[:, 0] * last.scale[d] + last.centre(x, d)
            for cursor in cursors:
                cursor.push(last.context_input(x[:, d], d))
        return x


@dataclass(frozen=True)
class _StagedFamily:
    """Conditionals whose network depends on the noise level."""

    families: dict[float, HeadFamily]

    def at(self, sigma: float) -> TanhSum:
        """Return the conditional of the stage that was trained at `sigma`."""
        return self.families[sigma].at(sigma)

    def ladder(self, levels: Sequence[float]) -> Iterator[TanhSum]:
        """Return the conditionals of the stages that were trained at `levels`."""
        yield from map(self.at, levels)
