"""The paper's denoisers (Section 5.4): Langevin dynamics from a noisy image, and a single step."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional import Noise, annealed_langevin
from arcsm.errors import InputError
from arcsm.images.cells import PixelSnap
from arcsm.images.settings import PAPER_RANGE
from arcsm.model import ARCSM

# Levels of the ladder where the noise of a model is continuous.
_LEVELS = 10

Clean = Callable[[Tensor, int], Tensor]


def langevin_ladder(
    chain: ARCSM, start: float | None = None, end: float | None = None
) -> list[float]:
    """Return the levels of the model from `start` down; None starts in the middle.

    `start` and `end` are σ of pixels from −1 to 1, the levels are in standardised units. With an
    `end` there are ten levels from the one to the other, which a model of all noise levels has.
    """
    if end is not None:
        unit, noise = PAPER_RANGE * float(chain.scale[0]), chain.noise
        first, last = (start or 0.0) / unit, end / unit
        known = noise.levels is None and noise.sigma_min <= last < first <= noise.sigma_max
        if not known:
            raise InputError(
                "expected Langevin dynamics from a start down to an end within the noise of a"
                f" model that has no ladder of its own, got {start} and {end}; correct them, or"
                " leave out the end"
            )
        return Noise(first, last).ladder(_LEVELS)
    ladder = chain.noise.ladder(chain.noise.levels or _LEVELS)
    if start is None:
        return ladder[len(ladder) // 2 :]
    unit = PAPER_RANGE * float(chain.scale[0])
    least, most = ladder[-1] * unit, ladder[0] * unit
    if not least * (1 - 1e-6) <= start <= most * (1 + 1e-6):
        raise InputError(
            f"expected a start from σ = {least:.3g} to {most:.3g}, the levels of the model, got"
            f" {start:g}; choose one of these"
        )
    return [level for level in ladder if level <= start / unit * (1 + 1e-6)]


def by_langevin(
    chain: ARCSM,
    noisy: Float[Tensor, "images scalars"],
    ladder: list[float],
    *,
    steps: int,
    step_size: float | None,
    snapped: bool,
    generator: torch.Generator | None,
) -> Float[Tensor, "images scalars"]:
    """Move each scalar by annealed Langevin dynamics from where it was, given those moved before.

    Every scalar is moved, also those that were not spoiled. The result is a draw from the model
    near the noisy image, as near as the dynamics has not mixed: neither what the noise was nor
    later scalars enter. ε₀ = `step_size` is in the paper's units.
    """
    epsilon = None
    if step_size is not None:
        epsilon = step_size / (PAPER_RANGE * float(chain.scale[0])) ** 2

    def clean(context: Tensor, d: int) -> Tensor:
        z = (noisy[:, d : d + 1] - chain.shift[d]) / chain.scale[d]
        moved = annealed_langevin(
            chain.head.family(context),
            z,
            ladder,
            steps=steps,
            step_size=epsilon,
            generator=generator,
        )
        return moved[:, 0] * chain.scale[d] + chain.shift[d]

    return _walk(chain, len(noisy), clean, snapped=snapped)


def by_single_step(
    chain: ARCSM, noisy: Float[Tensor, "images scalars"], scale: float, *, snapped: bool
) -> Float[Tensor, "images scalars"]:
    """Return posterior means x̃ + σ² s(x̃, σ) of each scalar given those cleaned before it.

    `scale` is the σ of level/255. It is the mean of the smoothed conditional that the model has
    learned, in which black is spread below 0: what leaves the range is brought back to its end.
    Later scalars are not used.
    """
    sigma = scale / float(chain.scale[0])
    noise = chain.noise
    if not sigma <= noise.sigma_max * (1 + 1e-6):
        reach = noise.sigma_max * float(chain.scale[0]) * PAPER_RANGE
        raise InputError(
            f"expected noise up to σ = {reach:.3g} (for pixels from -1 to 1), the largest of the"
            f" model, got {scale * PAPER_RANGE:g}; choose another method, or train with more noise"
        )
    # Below the least level there is next to nothing to correct.
    at = max(sigma, noise.sigma_min)

    def clean(context: Tensor, d: int) -> Tensor:
        z = (noisy[:, d : d + 1] - chain.shift[d]) / chain.scale[d]
        score = chain.head.family(context).at(at).score(z)
        return (z + sigma**2 * score)[:, 0] * chain.scale[d] + chain.shift[d]

    return _walk(chain, len(noisy), clean, snapped=snapped)


@torch.no_grad()
def _walk(
    chain: ARCSM, images: int, clean: Clean, *, snapped: bool
) -> Float[Tensor, "images scalars"]:
    """Clean scalar by scalar; contexts see what was cleaned, `snapped` to levels or as it is."""
    found = chain.empty_rows(images)
    snap, cursor = PixelSnap(), chain.context.cursor(images)
    for d in range(chain.dims):
        value = clean(cursor.context(), d)
        found[:, d] = value.clamp(0, 1)
        seen = snap.move(value) if snapped else value
        cursor.push(chain.context_input(seen, d))
    return found
