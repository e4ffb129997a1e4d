"""What the tests compare with: densities in closed form, and numerical tools of their own."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from arcsm.conditional import TanhSum, TanhSumHead
from arcsm.conditional.protocol import Family

DOUBLE = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=DOUBLE)


@dataclass(frozen=True)
class GaussianMixture:
    """exp E(x) = exp(offset) Σ_k w_k N(x; m_k, s_k²), a conditional with every answer known.

    Parameters have the batch shape and one more axis, of components. The offset is the log of
    the normaliser that a quadrature has to find.
    """

    weight: Tensor
    mean: Tensor
    std: Tensor
    offset: float = 0.0

    def log_prob(self, x: Tensor) -> Tensor:
        return self._log_terms(x).logsumexp(-1)

    def cdf(self, x: Tensor) -> Tensor:
        z = (x[..., None] - self.mean[..., None, :]) / self.std[..., None, :]
        # erfc is exact in the tail, where ndtr rounds to 0.
        return (self.weight[..., None, :] * torch.erfc(-z / math.sqrt(2)) / 2).sum(-1)

    def log_mass(self, low: Tensor, high: Tensor) -> Tensor:
        """Return log P(low < x < high), by the tail of each component that is nearer."""
        mean, std = self.mean[..., None, :], self.std[..., None, :]
        a, b = (low[..., None] - mean) / std, (high[..., None] - mean) / std
        above = a + b > 0
        a, b = torch.where(above, -b, a), torch.where(above, -a, b)
        upper = torch.special.log_ndtr(b)
        part = upper + torch.log1p(-torch.exp(torch.special.log_ndtr(a) - upper))
        return (self.weight[..., None, :].log() + part).logsumexp(-1)

    def energy(self, x: Tensor) -> Tensor:
        return self.log_prob(x) + self.offset

    def jet(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share = self._log_terms(x).softmax(-1)
        precision = 1 / self.std[..., None, :].square()
        pull = -precision * (x[..., None] - self.mean[..., None, :])
        score = (share * pull).sum(-1)
        return score, (share * (pull.square() - precision)).sum(-1) - score.square()

    def score(self, x: Tensor) -> Tensor:
        return self.jet(x)[0]

    def bounds(self) -> tuple[Tensor, Tensor]:
        reach = 9 * self.std
        return (self.mean - reach).amin(-1), (self.mean + reach).amax(-1)

    def ceiling(self, x: Tensor) -> Tensor:
        low, high = x[..., :-1, None], x[..., 1:, None]
        nearest = torch.minimum(torch.maximum(self.mean[..., None, :], low), high)
        return self._log_terms_at(nearest).logsumexp(-1) + self.offset

    def normal(self) -> None:
        return None

    def double(self) -> "GaussianMixture":
        return GaussianMixture(
            self.weight.double(), self.mean.double(), self.std.double(), self.offset
        )

    def _log_terms(self, x: Tensor) -> Tensor:
        return self._log_terms_at(x[..., None])

    def _log_terms_at(self, x: Tensor) -> Tensor:
        z = (x - self.mean[..., None, :]) / self.std[..., None, :]
        log_scale = self.weight[..., None, :].log() - self.std[..., None, :].log()
        return log_scale - z.square() / 2 - math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class GaussianMixtureFamily:
    """The mixture convolved with N(0, σ²): exact conditionals at every noise level."""

    weight: Tensor
    mean: Tensor
    std: Tensor
    offset: float = 0.0

    def at(self, sigma: float) -> GaussianMixture:
        std = (self.std.square() + sigma**2).sqrt()
        return GaussianMixture(self.weight, self.mean, std, self.offset)

    def ladder(self, levels: Sequence[float]) -> list[GaussianMixture]:
        return [self.at(sigma) for sigma in levels]


def mixture_family(*components: tuple[float, float, float], offset: float = 0.0) -> Family:
    """Return the family, of batch shape (1,), with the given (weight, mean, std)."""
    weight, mean, std = torch.tensor([components], dtype=DOUBLE).unbind(-1)
    return GaussianMixtureFamily(weight, mean, std, offset)


NORMAL = mixture_family((1.0, 0.7, 0.8), offset=1.5)
LOPSIDED = mixture_family((0.3, -1.2, 0.25), (0.7, 0.9, 0.5), offset=-2.5)
THREE_MODES = mixture_family((0.5, -2.0, 0.3), (0.2, 0.0, 0.1), (0.3, 1.5, 0.4))
FAMILIES = {"normal": NORMAL, "lopsided": LOPSIDED, "three modes": THREE_MODES}


@dataclass(frozen=True)
class AutoregressiveMixture:
    """x_d | x_<d is a Gaussian mixture whose weights and means depend on x_<d.

    log w_dk = logit_dk + logit_slope_dk · x_<d + const, m_dk = mean_dk + mean_slope_dk · x_<d.
    With one component in each scalar it is a normal density with correlation.
    """

    mean: Tensor  # (dims, components)
    std: Tensor  # (dims, components)
    mean_slope: Tensor  # (dims, components, dims), of which the part before d is used
    logit: Tensor = field(default_factory=lambda: torch.zeros((), dtype=DOUBLE))
    logit_slope: Tensor = field(default_factory=lambda: torch.zeros((), dtype=DOUBLE))

    @property
    def dims(self) -> int:
        return len(self.mean)

    def conditionals(self, x: Tensor) -> GaussianMixture:
        """Return the conditionals of batch shape (rows, dims)."""
        earlier = torch.ones(self.dims, self.dims, dtype=DOUBLE).tril(-1)[:, None, :]
        mean = self.mean + torch.einsum("ne,dke->ndk", x, earlier * self.mean_slope)
        slope = (earlier * self.logit_slope).expand_as(self.mean_slope)
        weight = (self.logit + torch.einsum("ne,dke->ndk", x, slope)).softmax(-1)
        weight = weight.expand_as(mean)
        return GaussianMixture(weight, mean, self.std.expand_as(mean))

    def conditional_scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score, derivative = self.conditionals(x).jet(x[..., None])
        return score[..., 0], derivative[..., 0]

    def log_prob(self, x: Tensor) -> Tensor:
        return self.conditionals(x).log_prob(x[..., None])[..., 0].sum(-1)


def random_autoregressive(dims: int, components: int, seed: int) -> AutoregressiveMixture:
    g = seeded(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=DOUBLE)

    return AutoregressiveMixture(
        mean=draw(dims, components),
        std=0.6 + 0.6 * torch.rand((dims, components), generator=g, dtype=DOUBLE),
        mean_slope=0.5 * draw(dims, components, dims),
        logit=draw(dims, components),
        logit_slope=0.7 * draw(dims, components, dims),
    )


def correlated_gaussian(covariance: list[list[float]], mean: list[float]) -> AutoregressiveMixture:
    """Return N(mean, covariance) through its conditionals: the rows of the Cholesky factor."""
    factor = torch.linalg.cholesky(torch.tensor(covariance, dtype=DOUBLE))
    std = factor.diagonal()
    # x = m + L z, so that L⁻¹ (x − m) = z: row d of L⁻¹, times std_d, is x_d less its mean.
    slope = -(std[:, None] * torch.linalg.inv(factor)).tril(-1)
    centre = torch.tensor(mean, dtype=DOUBLE)
    shift = centre - slope @ centre
    return AutoregressiveMixture(shift[:, None], std[:, None], slope[:, None, :])


def random_head(
    scale: float, *, seed: int, steps: int = 16, depth: int = 1, normal_at: float | None = None
) -> TanhSumHead:
    """Return a head in float64 all of whose parameters are `scale` times normal numbers."""
    head = TanhSumHead(8, steps=steps, depth=depth, normal_at=normal_at).double()
    g = seeded(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=g, dtype=DOUBLE))
    return head.requires_grad_(False)


def steepest_head() -> TanhSumHead:
    """Return a head pushed as far as it goes: steep steps, all down, all in one place."""
    head = TanhSumHead(2, steps=8).double().requires_grad_(False)
    raw = torch.zeros(3, 8, dtype=DOUBLE)  # heights, slopes, centres
    raw[0], raw[1] = -1e6, 1e6
    head.output.weight.zero_()
    head.output.bias.copy_(torch.cat([raw.flatten(), torch.tensor([0.0, 1e6])]))
    return head


def random_conditionals(
    scale: float, sigma: float, *, count: int, seed: int = 0, normal_at: float | None = None
) -> TanhSum:
    """Return `count` conditionals of a random head at noise `sigma`."""
    head = random_head(scale, seed=seed, normal_at=normal_at)
    return head.family(normal(count, 8, seed=seed + 1)).at(sigma)


def one_of(conditional: TanhSum, index: int) -> TanhSum:
    """Return the conditional of one entry of the batch, of batch shape (1,)."""
    parts = (getattr(conditional, part.name) for part in fields(conditional))
    return TanhSum(*(value[index : index + 1] for value in parts))


def log_integral(
    log_density: Callable[[Tensor], Tensor],
    points: Tensor,
    *,
    tolerance: float = 1e-13,
    magnitude: float = 0.0,
) -> float:
    """Return log ∫ exp(log_density) from the first to the last of the points.

    Simpson's rule on the cells between the points, halved until each agrees with its halves to the
    tolerance (a share of the total), or to rounding where the density comes from numbers of the
    given magnitude. Points must include the tops of all peaks that are narrow against the cells.
    """
    points = points.unique()
    peak = log_density(points).max()
    settled = max(tolerance, 1e-15 * magnitude, 1e-15 * peak.abs().item())

    def height(x: Tensor) -> Tensor:
        return (log_density(x.flatten()) - peak).exp().reshape(x.shape)

    left, right = points[:-1], points[1:]
    ends = height(points)
    cells = torch.stack([left, right, ends[:-1], height((left + right) / 2), ends[1:]])
    total = torch.zeros((), dtype=DOUBLE)
    for _ in range(80):
        left, right, low, middle, high = cells
        width = right - left
        quarters = torch.stack([left + width / 4, right - width / 4])
        first, third = height(quarters)
        coarse = width / 6 * (low + 4 * middle + high)
        fine = width / 12 * (low + 4 * first + 2 * middle + 4 * third + high)
        # Halves of a cell must agree with it, and be accounted for in a sum that is already known.
        done = (fine - coarse).abs() <= settled * (total + fine.sum())
        total = total + (fine + (fine - coarse) / 15)[done].sum()
        if bool(done.all()):
            return (total.log() + peak).item()
        centre = (left + right) / 2
        halves = (
            torch.stack([left, centre, low, first, middle]),
            torch.stack([centre, right, middle, third, high]),
        )
        cells = torch.cat([half[:, ~done] for half in halves], 1)
    raise AssertionError("the integral did not settle")


def landmarks(conditional: TanhSum) -> Tensor:
    """Return sorted points, tops of all peaks among them, beyond which there is no mass.

    For a conditional of batch shape (1,). The score is close to linear but for the steps, so that
    it is looked at around every step at all distances, and bisected where it changes its sign.
    """
    sigma, offset = conditional.sigma, conditional.offset
    height, slope, centre = (
        getattr(conditional, name)[0] for name in ("height", "slope", "centre")
    )
    root = (1 + sigma.square()).sqrt()
    # Without the pull, which only draws inwards: |F| ≤ |m| + Σ|a|, and s = F/(σ√v) − x/v.
    end = (2 * root * (offset.abs() + height.abs().sum()) / sigma + 40 * root).item()
    distance = torch.logspace(-3, 3, 121, dtype=DOUBLE)
    distance = torch.cat([-distance, torch.zeros(1, dtype=DOUBLE), distance])
    near = (root * (centre[:, None] + distance / slope[:, None])).flatten()
    far = torch.linspace(-end, end, 2001, dtype=DOUBLE)
    points = torch.cat([near[near.abs() < end], far]).unique()
    score, _ = conditional.jet(points[None])
    top = (score[0, :-1] > 0) & (score[0, 1:] <= 0)
    low, high = points[:-1][top], points[1:][top]
    for _ in range(100):
        middle = (low + high) / 2
        rising = conditional.jet(middle[None])[0][0] > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return torch.cat([points, low, high]).unique()
