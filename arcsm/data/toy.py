"""Two-dimensional toy distributions that can be sampled and whose log-density is known.

Every set is a frozen dataclass derived from :class:`Toy`; the instances with the default
parameters are in :data:`TOYS` and are looked up by :func:`get_toy`. Three densities are closed
forms made of Gaussians (rings, pinwheel, eight Gaussians), one is piecewise constant
(checkerboard), and two are integrals along a curve (two moons, two spirals), for which a
Gauss-Legendre rule is used that is accurate to rounding wherever the density is not negligible.

    >>> import torch
    >>> toy = get_toy("rings")
    >>> x = toy.sample(4, generator=torch.Generator().manual_seed(0))
    >>> x.shape, toy.log_prob(x).shape
    (torch.Size([4, 2]), torch.Size([4]))
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

NODES_PER_PANEL = 16
# Points times mixture components handled at once: 4 MiB in float64 for each temporary.
CHUNK_ELEMENTS = 2**19


@dataclass(frozen=True)
class Toy(ABC):
    """A distribution on R² with a sampler and an exact log-density."""

    name: ClassVar[str]

    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "n 2"]:
        """Draw n independent points, on the generator's device (CPU without a generator).

        The draw is made in float64 and then rounded, so that one seed gives the same points in
        every dtype.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n <= 0:
            raise ValueError(f"expected n to be a positive int, got {n!r}")
        if not dtype.is_floating_point:
            raise ValueError(f"expected a floating-point dtype, got {dtype}")
        return self._draw(n, _Random(generator)).to(dtype)

    def log_prob(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        """Return log p(x) in nats, in the dtype and on the device of x.

        The computation is in float64. A finite value below the range of the dtype of x becomes
        the lowest finite number of that dtype; -inf is only returned outside the support. The
        result is differentiable in x, but memory is bounded only if no gradient is recorded.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"expected x to be a floating-point tensor, got {got}")
        if x.ndim != 2 or x.shape[1] != 2:
            raise ValueError(f"expected x of shape (n, 2), got {tuple(x.shape)}")
        # MPS devices have no float64.
        device = torch.device("cpu") if x.device.type == "mps" else x.device
        log_p = self._log_density(x.to(device=device, dtype=torch.float64))
        representable = log_p.clamp(min=torch.finfo(x.dtype).min)
        return torch.where(log_p.isneginf(), log_p, representable).to(x)

    @abstractmethod
    def _draw(self, n: int, random: "_Random") -> Float[Tensor, "n 2"]:
        """Draw n points in float64."""

    @abstractmethod
    def _log_density(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        """Log-density of float64 points."""


@dataclass(frozen=True)
class _TwoBlurredCurves(Toy):
    """A curve and its point reflection, each with probability ½, blurred by a Gaussian.

    x = c(t) + noise·ε with t = T·u^(1/k), u ~ U(0, 1), so t has the density k·t^(k-1)/T^k:

        p(x) = ½ Σ_c ∫₀^T N(x; c(t), noise²·I) k t^(k-1)/T^k dt.
    """

    noise: float = 0.1
    nodes_per_noise: int = 8  # quadrature nodes per length `noise` along a curve

    t_max: ClassVar[float]
    power: ClassVar[int]  # k
    reflection: ClassVar[tuple[float, float]]  # the second curve is this minus the first

    def __post_init__(self) -> None:
        _require_positive(noise=self.noise, nodes_per_noise=self.nodes_per_noise)

    @abstractmethod
    def _first_curve(self, t: Float[Tensor, " m"]) -> Float[Tensor, "m 2"]:
        """The points c(t) of the first curve."""

    def _draw(self, n: int, random: "_Random") -> Float[Tensor, "n 2"]:
        first = self._first_curve(self.t_max * random.uniform(n) ** (1 / self.power))
        is_first = random.integers(2, n)[:, None] == 0
        centres = torch.where(is_first, first, first.new_tensor(self.reflection) - first)
        return centres + self.noise * random.normal(n, 2)

    def _log_density(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        t, weights = _gauss_legendre(self._panel_edges())
        weights = 0.5 * weights * self.power * t ** (self.power - 1) / self.t_max**self.power
        first = self._first_curve(t)
        centres = torch.cat([first, first.new_tensor(self.reflection) - first])
        return _log_gaussian_mixture(x, centres, weights.log().repeat(2), self.noise)

    def _panel_edges(self) -> np.ndarray:
        """Values of t that cut the curve into pieces of equal length.

        The edges need not be exact, so the arc length is that of a polygon.
        """
        t = torch.from_numpy(np.linspace(0.0, self.t_max, 1001))
        steps = torch.linalg.vector_norm(self._first_curve(t).diff(dim=0), dim=1).numpy()
        arc_length = np.concatenate([[0.0], steps.cumsum()])
        nodes = arc_length[-1] / self.noise * self.nodes_per_noise
        panels = math.ceil(nodes / NODES_PER_PANEL)
        return np.interp(np.linspace(0.0, arc_length[-1], panels + 1), arc_length, t.numpy())


@dataclass(frozen=True)
class TwoMoons(_TwoBlurredCurves):
    """Two interleaved half circles of radius 1, blurred (the geometry of scikit-learn).

    c(t) = (cos t, sin t) and c(t) = (1 - cos t, ½ - sin t) with t ~ U(0, π):

        p(x) = ½ Σ_c ∫₀^π N(x; c(t), noise²·I) dt/π.
    """

    name: ClassVar[str] = "two-moons"
    t_max: ClassVar[float] = math.pi
    power: ClassVar[int] = 1
    reflection: ClassVar[tuple[float, float]] = (1.0, 0.5)

    def _first_curve(self, t: Float[Tensor, " m"]) -> Float[Tensor, "m 2"]:
        return torch.stack([t.cos(), t.sin()], dim=1)


@dataclass(frozen=True)
class TwoSpirals(_TwoBlurredCurves):
    """Two spiral arms, opposite to each other, blurred.

    c(t) = ±(-cos t, sin t)·t/3 with t = T·√u, u ~ U(0, 1), T = 3π:

        p(x) = ½ Σ_c ∫₀^T N(x; c(t), noise²·I) 2t/T² dt.
    """

    name: ClassVar[str] = "two-spirals"
    t_max: ClassVar[float] = 3 * math.pi
    power: ClassVar[int] = 2
    reflection: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def _first_curve(self, t: Float[Tensor, " m"]) -> Float[Tensor, "m 2"]:
        return torch.stack([-t.cos(), t.sin()], dim=1) * t[:, None] / 3


@dataclass(frozen=True)
class Rings(Toy):
    """Concentric circles of equal weight, blurred.

    x = R·(cos φ, sin φ) + noise·ε with φ ~ U(0, 2π) and R uniform among K radii. With r = |x|,

        p(x) = 1/K Σ_R exp(-(r² + R²) / 2 noise²) I₀(r R / noise²) / (2π noise²).
    """

    name: ClassVar[str] = "rings"
    noise: float = 0.08
    radii: tuple[float, ...] = (0.75, 1.5, 2.25, 3.0)

    def __post_init__(self) -> None:
        _require_positive(noise=self.noise)
        if len(self.radii) == 0:
            raise ValueError("expected at least one radius, got none")
        for radius in self.radii:
            _require_positive(radii=radius)

    def _draw(self, n: int, random: "_Random") -> Float[Tensor, "n 2"]:
        angle = 2 * math.pi * random.uniform(n)
        radii = torch.tensor(self.radii, dtype=torch.float64, device=angle.device)
        radius = radii[random.integers(len(self.radii), n)]
        circles = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
        return circles + self.noise * random.normal(n, 2)

    def _log_density(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        r = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        radii = x.new_tensor(self.radii)
        variance = self.noise**2
        # I₀(z) = exp(z)·i0e(z): the exponential completes the square, so nothing overflows.
        log_i0e = torch.special.i0e(r * radii / variance).log()
        log_terms = log_i0e - (r - radii).square() / (2 * variance)
        return log_terms.logsumexp(dim=1) - math.log(2 * math.pi * variance * len(self.radii))


@dataclass(frozen=True)
class Pinwheel(Toy):
    """Gaussian blades around the origin, twisted.

    A blade is y = scale·(1 + radial_std·ε₁, tangential_std·ε₂). Blade k of K is rotated by the
    angle 2πk/K + twist·|y|. Rotation keeps |y|, so the map is inverted by rotating back by
    2πk/K + twist·|x|, and as each circle is turned as a whole it preserves area:

        p(x) = 1/K Σ_k p_blade(Rot(-2πk/K - twist·|x|) x).
    """

    name: ClassVar[str] = "pinwheel"
    arms: int = 5
    radial_std: float = 0.3
    tangential_std: float = 0.1
    scale: float = 2.0
    twist: float = 0.4  # radians per unit of radius

    def __post_init__(self) -> None:
        if not isinstance(self.arms, int):
            raise ValueError(f"expected arms to be an int, got {self.arms!r}")
        _require_positive(arms=self.arms, scale=self.scale)
        _require_positive(radial_std=self.radial_std, tangential_std=self.tangential_std)
        if not math.isfinite(self.twist):
            raise ValueError(f"expected twist to be finite, got {self.twist!r}")

    def _draw(self, n: int, random: "_Random") -> Float[Tensor, "n 2"]:
        radial, tangential = random.normal(n, 2).unbind(dim=1)
        blade = torch.complex(1 + self.radial_std * radial, self.tangential_std * tangential)
        blade = self.scale * blade
        arm = random.integers(self.arms, n).double()
        angle = 2 * math.pi / self.arms * arm + self.twist * blade.abs()
        return torch.view_as_real(blade * torch.polar(torch.ones_like(angle), angle))

    def _log_density(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        arm = torch.arange(self.arms, dtype=torch.float64, device=x.device)
        point = torch.complex(x[:, :1], x[:, 1:])
        angle = 2 * math.pi / self.arms * arm + self.twist * point.abs()
        blade = point * torch.polar(torch.ones_like(angle), -angle) / self.scale
        radial = (blade.real - 1) / self.radial_std
        tangential = blade.imag / self.tangential_std
        normaliser = 2 * math.pi * self.scale**2 * self.radial_std * self.tangential_std * self.arms
        return (-0.5 * (radial**2 + tangential**2)).logsumexp(dim=1) - math.log(normaliser)


@dataclass(frozen=True)
class EightGaussians(Toy):
    """Eight isotropic Gaussians of equal weight at equal angles on a circle.

        p(x) = ⅛ Σ_k N(x; radius·(cos kπ/4, sin kπ/4), noise²·I).

    >>> EightGaussians().log_prob(torch.zeros(1, 2, dtype=torch.float64))
    tensor([-31.7584], dtype=torch.float64)
    """

    name: ClassVar[str] = "eight-gaussians"
    noise: float = 0.5 / math.sqrt(2)
    radius: float = 4 / math.sqrt(2)

    def __post_init__(self) -> None:
        _require_positive(noise=self.noise, radius=self.radius)

    def _centres(self) -> Float[Tensor, "8 2"]:
        angle = math.pi / 4 * torch.arange(8, dtype=torch.float64)
        return self.radius * torch.stack([angle.cos(), angle.sin()], dim=1)

    def _draw(self, n: int, random: "_Random") -> Float[Tensor, "n 2"]:
        mode = random.integers(8, n)
        return self._centres().to(mode.device)[mode] + self.noise * random.normal(n, 2)

    def _log_density(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        log_weights = torch.full((8,), -math.log(8), dtype=torch.float64)
        return _log_gaussian_mixture(x, self._centres(), log_weights, self.noise)


@dataclass(frozen=True)
class Checkerboard(Toy):
    """Uniform on 8 of the 16 squares of side 2 that tile [-4, 4]².

    Square (i, j) = [2i, 2i + 2] × [2j, 2j + 2] with -2 ≤ i, j < 2 is occupied if i + j is even;
    p(x) = 1/32 on the occupied squares, edges included, and 0 elsewhere.

    >>> Checkerboard().log_prob(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    tensor([-3.4657,    -inf])
    """

    name: ClassVar[str] = "checkerboard"

    def _draw(self, n: int, random: "_Random") -> Float[Tensor, "n 2"]:
        column = random.integers(4, n) - 2
        row = 2 * random.integers(2, n) - 2 + column % 2
        return 2 * (torch.stack([column, row], dim=1) + random.uniform(n, 2))

    def _log_density(self, x: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        # A sample may be rounded onto the far edge of its square, and must stay in the support:
        # a point on an edge therefore counts as a member of the squares on both sides.
        above, below = (x / 2).floor(), (x / 2).ceil() - 1
        occupied = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for i in (above[:, 0], below[:, 0]):
            for j in (above[:, 1], below[:, 1]):
                on_board = (i >= -2) & (i < 2) & (j >= -2) & (j < 2)
                occupied |= on_board & ((i + j) % 2 == 0)
        log_p = x.new_full((len(x),), -math.log(32)).masked_fill(~occupied, -math.inf)
        return log_p.masked_fill(x.isnan().any(dim=1), math.nan)


class _Random:
    """Float64 random numbers from one generator, on its device."""

    def __init__(self, generator: torch.Generator | None) -> None:
        device = torch.device("cpu") if generator is None else generator.device
        self._options: dict[str, Any] = {"generator": generator, "device": device}

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, **self._options)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, **self._options)

    def integers(self, high: int, n: int) -> Tensor:
        return torch.randint(high, (n,), **self._options)


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"expected {name} to be positive and finite, got {value!r}")


def _gauss_legendre(edges: np.ndarray) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Nodes and weights of the composite Gauss-Legendre rule on the panels between the edges.

    Unlike the trapezoidal rule it loses nothing at the ends, where the curves stop abruptly.
    """
    unit_nodes, unit_weights = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    nodes, weights = middle + half * unit_nodes, half * unit_weights
    return torch.from_numpy(nodes.ravel()), torch.from_numpy(weights.ravel())


def _log_gaussian_mixture(
    x: Float[Tensor, "n 2"],
    centres: Float[Tensor, "m 2"],
    log_weights: Float[Tensor, " m"],
    noise: float,
) -> Float[Tensor, " n"]:
    """Return log Σ_m w_m N(x; c_m, noise²·I), a bounded number of points at a time."""
    variance = noise**2
    # |x - c|² = |x|² - 2 x·c + |c|² turns the pairwise part into one matrix product.
    offsets = (log_weights - centres.square().sum(dim=1) / (2 * variance)).to(x.device)
    slopes = (centres / variance).T.to(x.device)
    rows = max(1, CHUNK_ELEMENTS // len(centres))
    pairwise = [torch.addmm(offsets, part, slopes).logsumexp(dim=1) for part in x.split(rows)]
    squared_norm = x.square().sum(dim=1) / (2 * variance)
    return torch.cat(pairwise) - squared_norm - math.log(2 * math.pi * variance)


TOYS: dict[str, Toy] = {
    toy.name: toy
    for toy in (TwoMoons(), Rings(), TwoSpirals(), Pinwheel(), EightGaussians(), Checkerboard())
}


def get_toy(name: str) -> Toy:
    """Look a toy distribution up by its name.

    >>> get_toy("two-moons").noise
    0.1
    """
    if name not in TOYS:
        raise ValueError(f"expected the name of a toy set, one of {list(TOYS)}, got {name!r}")
    return TOYS[name]
