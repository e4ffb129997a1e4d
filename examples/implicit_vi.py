"""Variational inference with an implicit posterior, beside a normal one and a flow.

The posterior is any module that makes latents of noise; the entropy gradient comes from a score
estimator of `arcsm.vae`. The ten lines that matter are those of `fit_implicit`.

    python examples/implicit_vi.py

prints, for a banana and for a Bayesian logistic regression, how far each posterior is from the
truth, which is known on a grid.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from arcsm.vae import make_estimator

LogDensity = Callable[[Tensor], Tensor]
Fit = Callable[[LogDensity, int], Callable[[int], Tensor]]


class Folded(nn.Module):
    """z_1 = f(ε_1), z_2 = g(z_1) + e^{h(z_1)} ε_2: noise reaches z_2 only through z_1."""

    dims, autoregressive_noise = 2, True

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
        self.second = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, eps: Tensor) -> Tensor:
        """Return latents."""
        z1 = eps[..., :1] + self.first(eps[..., :1])
        move, log_scale = self.second(z1).chunk(2, -1)
        return torch.cat([z1, move + torch.exp(log_scale) * eps[..., 1:]], -1)


def fit_implicit(log_density: LogDensity, steps: int = 1500) -> Callable[[int], Tensor]:
    """Fit an implicit posterior to an unnormalised log-density; return what draws from it."""
    sampler = Folded()
    estimator = make_estimator("csm", sampler, width=64, learning_rate=2e-3)
    optimizer = torch.optim.Adam(sampler.parameters(), lr=2e-3)
    for _ in range(steps):
        z = sampler(torch.randn(256, 1, 2))
        estimator.update(z)
        loss = -log_density(z).mean() - estimator.entropy_surrogate(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda count: sampler(torch.randn(count, 1, 2))[:, 0].detach()


def fit_normal(log_density: LogDensity, steps: int = 1500) -> Callable[[int], Tensor]:
    """Fit a normal posterior with independent coordinates: mean-field variational inference."""
    mean, log_scale = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([mean, log_scale], lr=1e-2)
    for _ in range(steps):
        z = mean + log_scale.exp() * torch.randn(256, 2)
        loss = -log_density(z).mean() - log_scale.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda count: (mean + log_scale.exp() * torch.randn(count, 2)).detach()


def fit_flow(log_density: LogDensity, steps: int = 1500) -> Callable[[int], Tensor]:
    """Fit a flow of two affine couplings, one for each coordinate."""
    networks = nn.ModuleList(
        nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2)) for _ in range(4)
    )
    optimizer = torch.optim.Adam(networks.parameters(), lr=2e-3)

    def push(eps: Tensor) -> tuple[Tensor, Tensor]:
        z, stretch = eps, torch.zeros(len(eps))
        for network in networks:
            move, log_scale = network(z[:, :1]).chunk(2, -1)
            z = torch.cat([move + log_scale.exp() * z[:, 1:], z[:, :1]], -1)
            stretch = stretch + log_scale[:, 0]
        return z, stretch

    for _ in range(steps):
        z, stretch = push(torch.randn(256, 2))
        loss = -(log_density(z) + stretch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda count: push(torch.randn(count, 2))[0].detach()


def banana(z: Tensor) -> Tensor:
    """Return the log-density of a bent normal distribution, up to a constant."""
    return -z[..., 0].square() / 2 - (z[..., 1] - z[..., 0].square() + 1).square() / (2 * 0.3**2)


def logistic_regression(seed: int = 0) -> LogDensity:
    """Return the log-posterior of two weights, correlated and skewed, from a few labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 1, generator=generator) + 0.3 * torch.randn(12, 2, generator=generator)
    y = (x @ torch.tensor([1.5, 1.5]) > 0).float()

    def log_density(z: Tensor) -> Tensor:
        logits = z @ x.T
        likelihood = (y * logits - nn.functional.softplus(logits)).sum(-1)
        return likelihood - z.square().sum(-1) / (2 * 3**2)

    return log_density


def divergence(log_density: LogDensity, draws: Tensor, cells: int = 40) -> float:
    """Return half the total difference of mass, on a grid, of draws and the true density."""
    edges = torch.linspace(-9, 9, cells + 1)
    fine = torch.linspace(-9, 9, 8 * cells + 1)
    fine = (fine[1:] + fine[:-1]) / 2
    points = torch.cartesian_prod(fine, fine)
    mass = torch.softmax(log_density(points), 0).view(cells, 8, cells, 8).sum((1, 3))
    place = torch.bucketize(draws, edges) - 1
    inside = ((place >= 0) & (place < cells)).all(1)
    counts = torch.zeros(cells, cells)
    counts.index_put_(place[inside].unbind(1), torch.tensor(1.0), accumulate=True)
    outside = 1 - inside.float().mean().item()
    return (mass - counts / len(draws)).abs().sum().item() / 2 + outside / 2


FITS: dict[str, Callable[..., Callable[[int], Tensor]]] = {
    "normal": fit_normal,
    "flow": fit_flow,
    "implicit": fit_implicit,
}


def compare(
    log_density: LogDensity, *, steps: int = 1500, draws: int = 20_000, seed: int = 0
) -> dict[str, float]:
    """Return the distance of each kind of posterior from the truth: 0 is the same, 1 is apart."""
    found = {}
    for name, fit in FITS.items():
        torch.manual_seed(seed)
        value = divergence(log_density, fit(log_density, steps)(draws))
        found[name] = value if math.isfinite(value) else 1.0
    return found


if __name__ == "__main__":
    for title, density in (
        ("banana", banana),
        ("logistic regression", logistic_regression()),
    ):
        found = compare(density)
        print(f"{title:20}", "  ".join(f"{name} {value:.3f}" for name, value in found.items()))
