"""Toy distributions: the densities are normalised, and the samplers draw from them."""

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from arcsm.data import toy as toy_module
from arcsm.data.toy import (
    TOYS,
    Checkerboard,
    EightGaussians,
    Pinwheel,
    Rings,
    Toy,
    TwoMoons,
    TwoSpirals,
    get_toy,
)

CELLS = 24
# (x from, x to, y from, y to) reaches seven noise widths beyond the noise-free set, so the mass
# outside is below 1e-11; the edges of the checkerboard's 24 cells are on those of its squares.
BOXES = {
    "two-moons": (-1.75, 2.75, -1.25, 1.75),
    "rings": (-3.75, 3.75, -3.75, 3.75),
    "two-spirals": (-3.9, 3.9, -3.9, 3.9),
    "pinwheel": (-6.5, 6.5, -6.5, 6.5),
    "eight-gaussians": (-5.5, 5.5, -5.5, 5.5),
    "checkerboard": (-4.0, 4.0, -4.0, 4.0),
}
# Errors of the quadrature below: largest where the noise is narrow (rings, spirals) and where |x|
# has its kink (pinwheel).
MASS_TOLERANCE = {
    "two-moons": 1e-12,
    "rings": 1e-8,
    "two-spirals": 1e-9,
    "pinwheel": 1e-8,
    "eight-gaussians": 1e-12,
    "checkerboard": 1e-14,
}
GAUSSIAN = [name for name in TOYS if name != "checkerboard"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points_of(toy: Toy, n: int = 200) -> Tensor:
    """Samples, and points scattered around them where the density is low."""
    x = toy.sample(n, generator=seeded(), dtype=torch.float64)
    return torch.cat([x, x + 0.5 * torch.randn(n, 2, generator=seeded(1), dtype=torch.float64)])


@cache
def cell_probabilities(name: str) -> np.ndarray:
    """Probability of each of the CELLS × CELLS cells of the box, by Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    x_from, x_to, y_from, y_to = BOXES[name]
    width, height = (x_to - x_from) / CELLS, (y_to - y_from) / CELLS
    steps = np.arange(CELLS)[:, None] + (nodes + 1) / 2
    xs, ys = x_from + width * steps.ravel(), y_from + height * steps.ravel()
    grid = torch.from_numpy(np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1).reshape(-1, 2))
    density = TOYS[name].log_prob(grid).exp().numpy().reshape(CELLS, 8, CELLS, 8)
    return np.einsum("iajb,a,b->ij", density, weights, weights) * width * height / 4


@pytest.mark.parametrize("name", TOYS)
def test_density_integrates_to_one(name: str) -> None:
    assert cell_probabilities(name).sum() == pytest.approx(1.0, abs=MASS_TOLERANCE[name])


# Single cells see a wrong width, blocks of 6 × 6 cells see a small shift of weight.
@pytest.mark.parametrize("block", [1, 6])
@pytest.mark.parametrize("name", TOYS)
def test_samples_follow_density(name: str, block: int) -> None:
    n, blocks = 50_000, CELLS // block
    x_from, x_to, y_from, y_to = BOXES[name]
    x = TOYS[name].sample(n, generator=seeded(), dtype=torch.float64).numpy()
    counts, _, _ = np.histogram2d(
        x[:, 0], x[:, 1], bins=blocks, range=[[x_from, x_to], [y_from, y_to]]
    )
    probabilities = cell_probabilities(name).reshape(blocks, block, blocks, block).sum(axis=(1, 3))
    expected = n * probabilities
    # Cells too empty for the chi-square approximation are pooled with all that is outside.
    full = expected >= 5
    observed = np.append(counts[full], n - counts[full].sum())
    expected = np.append(expected[full], n - expected[full].sum())
    if expected[-1] < 5:
        assert observed[-1] <= 20
        observed, expected = observed[:-1], expected[:-1]
    freedom = len(expected) - 1
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


def rotated(x: Tensor, angle: float) -> Tensor:
    cos, sin = math.cos(angle), math.sin(angle)
    return x @ torch.tensor([[cos, sin], [-sin, cos]], dtype=x.dtype)


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("two-moons", lambda x: torch.tensor([1.0, 0.5], dtype=x.dtype) - x),
        ("rings", lambda x: rotated(x, 1.234)),
        ("rings", lambda x: x.flip(1)),
        ("two-spirals", lambda x: -x),
        ("pinwheel", lambda x: rotated(x, 2 * math.pi / 5)),
        ("eight-gaussians", lambda x: rotated(x, math.pi / 4)),
        ("eight-gaussians", lambda x: x * torch.tensor([1.0, -1.0], dtype=x.dtype)),
        ("checkerboard", lambda x: x.flip(1)),
        ("checkerboard", lambda x: -x),
    ],
)
def test_symmetry(name: str, transform: Callable[[Tensor], Tensor]) -> None:
    toy = TOYS[name]
    x = points_of(toy)
    torch.testing.assert_close(toy.log_prob(transform(x)), toy.log_prob(x), rtol=1e-11, atol=1e-11)


def test_twisted_pinwheel_is_not_mirror_symmetric() -> None:
    x = points_of(Pinwheel())
    mirror = torch.tensor([1.0, -1.0], dtype=torch.float64)
    straight, twisted = Pinwheel(twist=0.0), Pinwheel()
    torch.testing.assert_close(straight.log_prob(x * mirror), straight.log_prob(x))
    assert (twisted.log_prob(x * mirror) - twisted.log_prob(x)).abs().max() > 1


def mean_of_gaussians(x: Tensor, centres: Tensor, noise: float) -> Tensor:
    squared = (x[:, None] - centres).square().sum(dim=2) / noise**2
    return (-0.5 * squared).logsumexp(dim=1) - math.log(2 * math.pi * noise**2 * len(centres))


def midpoints(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def test_two_moons_agree_with_a_mean_over_the_arcs() -> None:
    t = math.pi * midpoints(80_000)
    outer = torch.stack([t.cos(), t.sin()], dim=1)
    inner = torch.stack([1 - t.cos(), 1 - t.sin() - 0.5], dim=1)
    x = points_of(TwoMoons(), n=10)
    expected = mean_of_gaussians(x, torch.cat([outer, inner]), 0.1)
    torch.testing.assert_close(TwoMoons().log_prob(x), expected, rtol=0, atol=1e-5)


def test_two_spirals_agree_with_a_mean_over_the_arms() -> None:
    t = 3 * math.pi * midpoints(80_000).sqrt()
    arm = torch.stack([-t.cos() * t / 3, t.sin() * t / 3], dim=1)
    x = points_of(TwoSpirals(), n=10)
    expected = mean_of_gaussians(x, torch.cat([arm, -arm]), 0.1)
    torch.testing.assert_close(TwoSpirals().log_prob(x), expected, rtol=0, atol=1e-5)


def test_rings_agree_with_a_mean_over_the_circles() -> None:
    angle = 2 * math.pi * midpoints(2_000)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    centres = torch.cat([radius * circle for radius in (0.75, 1.5, 2.25, 3.0)])
    x = torch.cat([points_of(Rings(), n=10), torch.zeros(1, 2, dtype=torch.float64)])
    expected = mean_of_gaussians(x, centres, 0.08)
    torch.testing.assert_close(Rings().log_prob(x), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("curves", [TwoMoons, TwoSpirals])
def test_doubling_the_nodes_changes_nothing(
    curves: type[TwoMoons] | type[TwoSpirals], noise: float
) -> None:
    toy = curves(noise=noise)
    doubled = dataclasses.replace(toy, nodes_per_noise=2 * toy.nodes_per_noise)
    near = toy.sample(300, generator=seeded(), dtype=torch.float64)
    away = near + 5 * noise * torch.randn(300, 2, generator=seeded(1), dtype=torch.float64)
    x = torch.cat([near, away])
    log_p = doubled.log_prob(x)
    not_negligible = log_p > -100
    assert not_negligible.float().mean() > 0.9
    assert (toy.log_prob(x) - log_p)[not_negligible].abs().max() < 1e-6
    coarse = dataclasses.replace(toy, nodes_per_noise=1)
    assert noise > 0.1 or (coarse.log_prob(x) - log_p)[not_negligible].abs().max() > 1e-6


@pytest.mark.parametrize("name", TOYS)
def test_generator_decides_the_samples(name: str) -> None:
    toy = TOYS[name]
    x = toy.sample(50, generator=seeded(3))
    assert x.shape == (50, 2)
    assert x.dtype == torch.float32
    assert torch.equal(x, toy.sample(50, generator=seeded(3)))
    assert torch.equal(x, toy.sample(50, generator=seeded(3), dtype=torch.float64).float())
    assert not torch.equal(x, toy.sample(50, generator=seeded(4)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        assert torch.equal(x, toy.sample(50))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", TOYS)
def test_log_prob_keeps_the_dtype(name: str, dtype: torch.dtype) -> None:
    toy = TOYS[name]
    x = toy.sample(100, generator=seeded(), dtype=dtype)
    log_p = toy.log_prob(x)
    assert log_p.shape == (100,)
    assert torch.equal(log_p, toy.log_prob(x.double()).to(dtype))
    assert log_p.dtype == dtype
    assert toy.log_prob(x[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", GAUSSIAN)
def test_far_points_are_finite_and_improbable(name: str, dtype: torch.dtype) -> None:
    far = torch.tensor([[300.0, 0.0], [-300.0, 200.0], [6e4, -6e4]], dtype=dtype)
    if dtype != torch.float16:
        far = torch.cat([far, 1e15 * far])
    log_p = TOYS[name].log_prob(far)
    assert log_p.isfinite().all()
    assert (log_p < -1e4).all()


@pytest.mark.parametrize("name", TOYS)
def test_nan_is_passed_on(name: str) -> None:
    x = torch.tensor([[math.nan, 1.0], [1.0, 1.0]])
    assert TOYS[name].log_prob(x).isnan().tolist() == [True, False]


@pytest.mark.parametrize("name", GAUSSIAN)
def test_log_prob_is_differentiable(name: str) -> None:
    toy = TOYS[name]
    x = toy.sample(5, generator=seeded(), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(toy.log_prob, (x,))


def test_chunks_do_not_change_log_prob(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = TwoMoons()
    x = points_of(toy, n=50)
    at_once = toy.log_prob(x)
    monkeypatch.setattr(toy_module, "CHUNK_ELEMENTS", 2_000)
    torch.testing.assert_close(toy.log_prob(x), at_once)


def test_checkerboard_support() -> None:
    inside = torch.tensor([[1, 1], [3, 3], [-1, -1], [-3, 1], [1, -3], [4, 4], [2, 3.9], [-4, 1]])
    outside = torch.tensor(
        [[1, -1], [3, 1], [-3, 3.5], [1, 3], [4.01, 3], [-4, 3.9], [-1e9, math.inf]]
    )
    toy = Checkerboard()
    assert (toy.log_prob(inside.double()) == -math.log(32)).all()
    assert toy.log_prob(outside).isneginf().all()


def test_rounded_checkerboard_samples_stay_in_the_support() -> None:
    x = Checkerboard().sample(20_000, generator=seeded(), dtype=torch.float16)
    assert (x == 2).any()
    assert Checkerboard().log_prob(x).isfinite().all()


def test_noise_free_shapes() -> None:
    n, tiny = 200, 1e-9
    moons = TwoMoons(noise=tiny).sample(n, generator=seeded(), dtype=torch.float64)
    outer = (moons.norm(dim=1) - 1).abs() + moons[:, 1].clamp(max=0).abs()
    shifted = moons - torch.tensor([1.0, 0.5], dtype=torch.float64)
    inner = (shifted.norm(dim=1) - 1).abs() + shifted[:, 1].clamp(min=0)
    assert torch.minimum(outer, inner).max() < 1e-7

    rings = Rings(noise=tiny).sample(n, generator=seeded(), dtype=torch.float64).norm(dim=1)
    assert set(rings.mul(1000).round().div(1000).tolist()) == {0.75, 1.5, 2.25, 3.0}

    spirals = TwoSpirals(noise=tiny).sample(n, generator=seeded(), dtype=torch.float64)
    t = 3 * spirals.norm(dim=1)
    arm = torch.stack([-t.cos(), t.sin()], dim=1) * t[:, None] / 3
    distances = torch.stack([(spirals - arm).norm(dim=1), (spirals + arm).norm(dim=1)])
    assert distances.min(dim=0).values.max() < 1e-7
    assert t.max() < 3 * math.pi + 1e-7

    modes = EightGaussians(noise=tiny).sample(n, generator=seeded(), dtype=torch.float64)
    assert {tuple(m) for m in (modes * math.sqrt(2)).mul(100).round().int().tolist()} == {
        (400, 0), (283, 283), (0, 400), (-283, 283), (-400, 0), (-283, -283), (0, -400), (283, -283)
    }  # fmt: skip


@pytest.mark.parametrize("n", [0, -3, 2.0, "4", None, True])
def test_sample_rejects_bad_counts(n: object) -> None:
    with pytest.raises(ValueError, match="expected n to be a positive int, got"):
        TwoMoons().sample(n)  # type: ignore[arg-type]


def test_sample_rejects_integer_dtype() -> None:
    with pytest.raises(ValueError, match=r"floating-point dtype, got torch\.int64"):
        TwoMoons().sample(3, dtype=torch.int64)


@pytest.mark.parametrize("shape", [(2,), (3, 1), (3, 3), (1, 3, 2)])
@pytest.mark.parametrize("name", TOYS)
def test_log_prob_rejects_bad_shapes(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected x of shape \(n, 2\), got \("):
        TOYS[name].log_prob(torch.zeros(shape))


def test_log_prob_rejects_what_is_not_a_floating_tensor() -> None:
    with pytest.raises(ValueError, match=r"floating-point tensor, got torch\.int64"):
        Rings().log_prob(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="floating-point tensor, got list"):
        Rings().log_prob([[0.0, 0.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("toy_class", "values"),
    [
        (TwoMoons, {"noise": 0.0}),
        (TwoMoons, {"nodes_per_noise": 0}),
        (Rings, {"noise": -0.1}),
        (Rings, {"radii": ()}),
        (Rings, {"radii": (1.0, -2.0)}),
        (TwoSpirals, {"noise": math.nan}),
        (Pinwheel, {"arms": 0}),
        (Pinwheel, {"arms": 2.5}),
        (Pinwheel, {"radial_std": 0.0}),
        (Pinwheel, {"tangential_std": math.inf}),
        (Pinwheel, {"scale": -1.0}),
        (Pinwheel, {"twist": math.nan}),
        (EightGaussians, {"noise": 0.0}),
        (EightGaussians, {"radius": 0.0}),
    ],
)
def test_bad_parameters(toy_class: type[Toy], values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected .*, got"):
        toy_class(**values)


def test_get_toy() -> None:
    assert list(TOYS) == list(BOXES)
    for name, toy in TOYS.items():
        assert get_toy(name) is toy
        assert toy.name == name
    with pytest.raises(ValueError, match=r"one of \['two-moons', .*'checkerboard'\], got 'moons'"):
        get_toy("moons")
