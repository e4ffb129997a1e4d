"""The known densities are what they say: checked against scipy, torch and autograd."""

import math

import numpy as np
import pytest
import torch
from known import (
    FAMILIES,
    LOPSIDED,
    THREE_MODES,
    correlated_gaussian,
    log_integral,
    mixture_family,
    normal,
    random_autoregressive,
)
from scipy import stats


@pytest.mark.parametrize("sigma", [0.0, 0.3, 3.0])
def test_mixture_is_convolved_with_the_noise(sigma: float) -> None:
    x = np.linspace(-5, 5, 41)
    pdf, cdf = np.zeros_like(x), np.zeros_like(x)
    for weight, mean, std in [(0.3, -1.2, 0.25), (0.7, 0.9, 0.5)]:
        part = stats.norm(mean, math.hypot(std, sigma))
        pdf += weight * part.pdf(x)
        cdf += weight * part.cdf(x)
    density = LOPSIDED.at(sigma)
    points = torch.from_numpy(x)[None]
    np.testing.assert_allclose(density.log_prob(points)[0], np.log(pdf), rtol=1e-10)
    np.testing.assert_allclose(density.cdf(points)[0], cdf, rtol=1e-10)
    np.testing.assert_allclose(density.energy(points)[0], np.log(pdf) - 2.5, rtol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_mixture_jet_is_the_derivative_of_its_energy(name: str) -> None:
    density = FAMILIES[name].at(0.2)
    x = torch.linspace(-4, 4, 81, dtype=torch.float64)[None].requires_grad_()
    (slope,) = torch.autograd.grad(density.energy(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    score, derivative = density.jet(x)
    torch.testing.assert_close(score, slope, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(derivative, bend, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_mixture_bounds_and_ceiling(name: str) -> None:
    density = FAMILIES[name].at(0.1)
    low, high = density.bounds()
    assert density.cdf(low[:, None]).item() < 1e-15
    assert density.cdf(high[:, None]).item() > 1 - 1e-15
    edges = torch.sort(6 * normal(1, 30)).values
    inside = edges[..., :-1, None] + edges.diff()[..., None] * torch.linspace(0, 1, 201).double()
    energy = density.energy(inside.flatten(-2)).unflatten(-1, inside.shape[-2:])
    assert bool((energy <= density.ceiling(edges)[..., None] + 1e-12).all())


def test_chain_of_gaussians_is_the_joint_gaussian() -> None:
    covariance = [[1.0, 0.6, -0.3], [0.6, 2.0, 0.5], [-0.3, 0.5, 0.7]]
    mean = [0.5, -1.0, 2.0]
    x = normal(20, 3)
    expected = stats.multivariate_normal(mean, covariance).logpdf(x.numpy())
    chain = correlated_gaussian(covariance, mean)
    np.testing.assert_allclose(chain.log_prob(x), expected, rtol=1e-12)


def test_chain_of_mixtures_is_autoregressive_and_normalised() -> None:
    chain = random_autoregressive(2, 2, seed=1)
    x = normal(1, 2).requires_grad_()
    score, derivative = chain.conditional_scores(x)
    jacobian = torch.autograd.functional.jacobian(lambda x: chain.conditional_scores(x)[0][0], x)
    assert jacobian[0, 0, 1] == 0 and jacobian[1, 0, 0] != 0
    torch.testing.assert_close(jacobian[:, 0].diagonal(), derivative[0])
    (joint,) = torch.autograd.grad(chain.log_prob(x).sum(), x)
    torch.testing.assert_close(joint[0, 1], score[0, 1])  # the last scalar occurs once
    axis = torch.linspace(-9, 9, 361, dtype=torch.float64)
    mass = chain.log_prob(torch.cartesian_prod(axis, axis)).exp().sum() * 0.05**2
    assert mass == pytest.approx(1, abs=1e-9)


def test_integral_finds_what_scipy_knows() -> None:
    density = THREE_MODES.at(0.05)
    points = torch.linspace(-20, 20, 41, dtype=torch.float64)
    found = log_integral(lambda x: density.energy(x[None])[0] + 700, points)
    assert found == pytest.approx(700, abs=1e-10)
    narrow = mixture_family((0.5, -500.0, 0.01), (0.5, 500.0, 0.01)).at(0.0)
    tops = torch.tensor([-600.0, -500.0, 500.0, 600.0], dtype=torch.float64)
    assert log_integral(lambda x: narrow.energy(x[None])[0], tops) == pytest.approx(0, abs=1e-10)
