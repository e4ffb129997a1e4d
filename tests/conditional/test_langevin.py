"""Langevin dynamics: the paper's rule, and the law that its discretisation settles in."""

import math

import pytest
import torch
from known import FAMILIES, NORMAL, mixture_family, normal, seeded
from scipy import stats

from arcsm.conditional import Noise, annealed_langevin, surviving_offset
from arcsm.errors import InputError


def test_rule_is_that_of_the_paper() -> None:
    """x ← x + ε/2 s + √ε z with ε = ε₀ σ_i²/σ_L² (Appendix C.3), scalar by scalar."""
    family, ladder = FAMILIES["lopsided"], Noise(1.0, 0.1, levels=4).ladder()
    start = normal(1, 3, seed=2)
    found = annealed_langevin(family, start, ladder, steps=5, step_size=3e-3, generator=seeded(7))
    g = seeded(7)
    x = start[0].tolist()
    for sigma in ladder:
        epsilon = 3e-3 * sigma**2 / ladder[-1] ** 2
        for _ in range(5):
            z = torch.randn((1, 3), generator=g, dtype=torch.float64)[0].tolist()
            for i in range(3):
                value = torch.tensor([[x[i]]], dtype=torch.float64)
                score = family.at(sigma).jet(value)[0].item()
                x[i] = x[i] + epsilon / 2 * score + math.sqrt(epsilon) * z[i]
    assert found[0].tolist() == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize("relative_step", [0.02, 0.5, 1.5])
def test_stationary_law_on_a_normal_density(relative_step: float) -> None:
    """x ← (1 − ε/2τ²) x + √ε z is stationary at the variance V = (1 − ε/2τ²)² V + ε.

    That is V = τ²/(1 − ε/4τ²), where τ² is the variance of the density smoothed by σ.
    """
    sigma, mean = 0.3, 0.7
    variance = 0.8**2 + sigma**2
    epsilon = relative_step * variance
    # Long enough for the start, at most 30 standard deviations off, to be forgotten.
    steps = math.ceil(math.log(1e4) / -math.log(abs(1 - relative_step / 2)))
    start = 5 * torch.randn((1, 4000), generator=seeded(1), dtype=torch.float64)
    draws = annealed_langevin(
        NORMAL, start, [sigma], steps=steps, step_size=epsilon, generator=seeded(2)
    )
    stationary = stats.norm(mean, math.sqrt(variance / (1 - relative_step / 4)))
    assert stats.kstest(draws[0].numpy(), stationary.cdf).pvalue > 0.01
    if relative_step > 1:  # the test is sharp enough to tell it from the density itself
        smoothed = stats.norm(mean, math.sqrt(variance))
        assert stats.kstest(draws[0].numpy(), smoothed.cdf).pvalue < 0.01


def test_small_steps_sample_a_mixture() -> None:
    family = mixture_family((0.4, -0.8, 0.4), (0.6, 0.9, 0.5))
    exact = family.at(0.3)
    start = torch.randn((1, 3000), generator=seeded(3), dtype=torch.float64)
    draws = annealed_langevin(family, start, [0.3], steps=1500, step_size=0.01, generator=seeded(4))
    test = stats.kstest(draws[0].numpy(), lambda x: exact.cdf(torch.from_numpy(x)[None])[0].numpy())
    assert test.pvalue > 0.01


def test_annealing_reaches_modes_that_the_last_level_alone_does_not() -> None:
    family = mixture_family((0.5, -3.0, 0.1), (0.5, 3.0, 0.1))
    start = torch.full((1, 400), 3.0, dtype=torch.float64)
    options = {"steps": 40, "step_size": 0.5 * 0.1**2}
    alone = annealed_langevin(family, start, [0.1] * 12, generator=seeded(), **options)
    assert bool((alone > 0).all())
    ladder = Noise(6.0, 0.1, levels=12).ladder()
    annealed = annealed_langevin(family, start, ladder, generator=seeded(), **options)
    assert 0.35 < (annealed < 0).double().mean().item() < 0.65


def test_start_is_left_alone_and_seeds_reproduce() -> None:
    start = normal(1, 5)
    kept = start.clone()
    options = {"steps": 3, "step_size": 1e-2}
    first = annealed_langevin(NORMAL, start, [0.5, 0.1], generator=seeded(1), **options)
    again = annealed_langevin(NORMAL, start, [0.5, 0.1], generator=seeded(1), **options)
    other = annealed_langevin(NORMAL, start, [0.5, 0.1], generator=seeded(2), **options)
    assert torch.equal(start, kept) and torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("ladder", "steps", "step_size"),
    [
        ([], 5, 0.1),
        ([1.0], 0, 0.1),
        ([1.0], 5, 0.0),
        ([1.0], 5, -1.0),
        ([1.0], 5, math.inf),
        ([1.0], 5, math.nan),
    ],
)
def test_bad_settings_are_refused(ladder: list[float], steps: int, step_size: float) -> None:
    with pytest.raises(
        InputError,
        match=rf"expected at least one level.* got {len(ladder)} levels, steps={steps}, step_size=",
    ):
        annealed_langevin(NORMAL, normal(1, 2), ladder, steps=steps, step_size=step_size)


def test_surviving_offset_is_what_survives() -> None:
    """Two starts, the same noise, on a point smoothed by σ: their difference only contracts."""
    ladder = Noise(2.0, 0.1, levels=5).ladder()
    point = mixture_family((1.0, 0.4, 1e-9))
    settings = {"steps": 7, "step_size": 0.1**2 / 3}
    near, far = torch.zeros(1, 1).double(), torch.full((1, 1), 5.0).double()
    ends = [
        annealed_langevin(point, x, ladder, generator=seeded(), **settings) for x in (near, far)
    ]
    share = (ends[1] - ends[0]).item() / 5.0
    assert surviving_offset(ladder, **settings) == pytest.approx(abs(share), rel=1e-9)


@pytest.mark.parametrize(
    ("step_size", "share"), [(2.0, 0.0), (1.0, 0.5**6), (4.0, 1.0), (6.0, 2.0**6)]
)
def test_surviving_offset_in_closed_form(step_size: float, share: float) -> None:
    """|1 − ε₀/2σ_L²| to the power of all steps; steps beyond 4σ_L² blow offsets up."""
    assert surviving_offset([3.0, 1.0], steps=3, step_size=step_size) == pytest.approx(share)
