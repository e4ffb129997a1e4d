"""Noise levels: geometric ladders, uniform in log σ, and a σ_min suited to the data."""

import itertools
import json
import math

import pytest
import torch
from known import normal, seeded
from scipy import stats

from arcsm.conditional import Noise, suggest_sigma_min
from arcsm.errors import InputError


@pytest.mark.parametrize("levels", [2, 3, 10, 57])
def test_ladder_is_geometric(levels: int) -> None:
    ladder = Noise(5.0, 0.02, levels=levels).ladder()
    assert len(ladder) == levels and ladder[0] == 5.0 and ladder[-1] == 0.02
    ratio = (5.0 / 0.02) ** (1 / (levels - 1))
    for above, below in itertools.pairwise(ladder):
        assert above / below == pytest.approx(ratio, rel=1e-12)


def test_ladder_of_one_level_and_of_another_count() -> None:
    assert Noise(0.5, 0.5, levels=1).ladder() == [0.5]
    assert Noise(3.0, 0.5, levels=1).ladder() == [0.5]
    assert Noise(1.0, 0.01).ladder(3) == pytest.approx([1.0, 0.1, 0.01])
    assert Noise(1.0, 0.01, levels=7).ladder(2) == [1.0, 0.01]


def test_continuous_noise_needs_a_count() -> None:
    with pytest.raises(InputError, match=r"expected a count of levels .* got none"):
        Noise().ladder()


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_a_ladder_needs_a_positive_whole_count(count: float) -> None:
    with pytest.raises(InputError, match=rf"expected a .*count.* got {count}"):
        Noise().ladder(count)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "0.1", None])
@pytest.mark.parametrize("name", ["sigma_max", "sigma_min"])
def test_sigma_must_be_positive_and_finite(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"expected a positive finite {name}, got {value!r}"):
        Noise(**{name: value})


@pytest.mark.parametrize("levels", [0, -3, 1.5, "ten"])
def test_levels_must_be_a_positive_whole_number(levels: object) -> None:
    with pytest.raises(InputError, match=f"expected a whole number of levels .* got {levels!r}"):
        Noise(levels=levels)


@pytest.mark.parametrize(
    ("largest", "smallest", "levels"),
    [(0.1, 1.0, None), (1.0, 1.0, None), (1.0, 1.0, 2), (0.1, 1.0, 1)],
)
def test_sigma_max_must_exceed_sigma_min(
    largest: float, smallest: float, levels: int | None
) -> None:
    with pytest.raises(
        InputError, match=f"expected sigma_max > sigma_min, got {largest} and {smallest}"
    ):
        Noise(largest, smallest, levels=levels)


def test_continuous_draws_are_uniform_in_log_sigma() -> None:
    drawn = Noise(3.0, 0.01).draw((5000,), generator=seeded())
    place = (drawn.double() / 0.01).log() / math.log(300)
    assert stats.kstest(place.numpy(), "uniform").pvalue > 0.01
    assert drawn.min().item() >= 0.01 * (1 - 1e-6) and drawn.max().item() <= 3.0 * (1 + 1e-6)


def test_draws_from_a_ladder_are_uniform_over_its_levels() -> None:
    noise = Noise(3.0, 0.01, levels=5)
    drawn = noise.draw((50, 20, 5), generator=seeded())
    assert drawn.shape == (50, 20, 5)
    levels, counts = drawn.unique(return_counts=True)
    torch.testing.assert_close(levels.flip(0), torch.tensor(noise.ladder()))
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_seeds_reproduce() -> None:
    for noise in (Noise(), Noise(levels=4)):
        draw = [noise.draw((20,), generator=seeded(seed)) for seed in (1, 1, 2)]
        assert torch.equal(draw[0], draw[1]) and not torch.equal(draw[0], draw[2])


def test_config_makes_the_noise_anew() -> None:
    for noise in (Noise(2.0, 0.1), Noise(2.0, 0.1, levels=6)):
        assert Noise(**json.loads(json.dumps(noise.config))) == noise


def lattice(spacing: float, dims: int, side: int) -> torch.Tensor:
    axis = spacing * torch.arange(side, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * dims).view(-1, dims)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_suggestion_is_twice_the_spacing_per_coordinate(dims: int) -> None:
    """On a lattice neighbours are one spacing apart: a spacing/√dims per coordinate."""
    x = lattice(0.05, dims, 12)
    expected = 0.05 / math.sqrt(dims) * 2
    assert suggest_sigma_min(x, smallest=1e-9, largest=9.0) == pytest.approx(expected, rel=1e-9)


def test_suggestion_stays_between_its_limits() -> None:
    assert suggest_sigma_min(lattice(10.0, 2, 8)) == 0.02
    assert suggest_sigma_min(lattice(1e-5, 2, 8)) == 0.002
    assert suggest_sigma_min(lattice(10.0, 2, 8), largest=0.5) == 0.5
    assert suggest_sigma_min(lattice(1e-5, 2, 8), smallest=0.001) == 0.001


@pytest.mark.parametrize("dims", [2, 5, 20])
def test_suggestion_is_the_median_over_all_rows(dims: int) -> None:
    """Against distances from differences: a row's distance to itself must not count."""
    x = normal(500, dims) + 3
    distance = (x[:, None] - x[None]).square().sum(-1).sqrt().fill_diagonal_(math.inf)
    expected = distance.amin(1).median().item() / math.sqrt(dims) * 2
    found = suggest_sigma_min(x, smallest=1e-9, largest=9.0)
    assert found == pytest.approx(expected, rel=1e-9)


def test_copies_say_nothing_of_spacing() -> None:
    x = lattice(0.05, 2, 12)
    doubled = torch.cat([x, x])
    assert suggest_sigma_min(doubled) == pytest.approx(suggest_sigma_min(x), rel=1e-9)
    assert suggest_sigma_min(torch.ones(10, 2)) == 0.02


def test_suggestion_for_many_rows_looks_at_some() -> None:
    x = torch.randn((9000, 2), generator=seeded())
    nearest = torch.cdist(
        x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).fill_diagonal_(math.inf)
    expected = nearest.amin(1).median().item() / math.sqrt(2) * 2
    found = suggest_sigma_min(x, smallest=1e-9, largest=9.0)
    assert found == pytest.approx(expected, rel=0.05)
