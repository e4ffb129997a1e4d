"""log p(x) of a decoder by annealed importance sampling (Neal, 2001) with Hamiltonian moves.

Chains go from the prior, or a normal density near the posterior, to the posterior along
p_β(z) ∝ p₀(z)^{1−β} [p(z) p(x|z)]^β, β from 0 to 1 in steps of a sigmoid (Wu et al., 2017). The
mean of their weights is unbiased for p(x), so that its log is a lower bound in expectation, if the
steps of the moves are set beforehand. Chains that go backwards from an exact draw of the posterior,
which simulated data come with, give an upper bound (Grosse et al., 2015): the gap between both
bounds the error.

Steps of the moves follow the acceptance of the chains of each image towards a target. As a step
then depends on where these chains have been, moves leave p_β only nearly as it is: the mean of the
weights is not strictly unbiased, nor are the bounds strict, though they are the nearer to it the
slower steps adapt. With an adaptation of 1, steps stay as they are, and both hold. All images of a
batch and all their chains move together.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arcsm.checks import check_flag, check_positive, check_whole
from arcsm.devices import matmul_precision
from arcsm.errors import InputError
from arcsm.replay import Replayed, compiled
from arcsm.vae.decoders import Decoder, log_prior

# Images of which fewer chains carry the weight are estimated by hardly more than one of them; among
# this share of all images that is no accident.
_FEW_CHAINS = 2
_MANY_IMAGES = 0.1

Chains = Float[Tensor, "chains batch dims"]
Weights = Float[Tensor, "chains batch"]


@dataclass(frozen=True)
class Normal:
    """Normal densities, one for each x: mean and a lower triangular root of the covariance."""

    mean: Float[Tensor, "batch dims"]
    root: Float[Tensor, "batch dims dims"]

    def __post_init__(self) -> None:
        mean, root = self.mean, self.root
        if mean.ndim != 2 or root.shape != (*mean.shape, mean.shape[-1]):
            raise InputError(
                "expected a mean of shape (batch, dims) and a root of shape (batch, dims, dims),"
                f" got {tuple(mean.shape)} and {tuple(root.shape)}; give each x its own"
            )
        kinds = [(one.dtype, one.device) for one in (mean, root)]
        if kinds[0] != kinds[1] or not mean.is_floating_point():
            raise InputError(
                "expected mean and root to be floating-point numbers of one type on one device, got"
                f" {mean.dtype} on {mean.device} and {root.dtype} on {root.device}; convert them"
            )
        finite = mean.isfinite().all() & root.isfinite().all()
        # Densities read the lower triangle alone, draws all of the root.
        triangular = (root.triu(1) == 0).all()
        positive = (root.diagonal(dim1=-2, dim2=-1) > 0).all()
        sound = torch.stack([finite, triangular, positive]).tolist()
        faults = (
            "NaN or infinity",
            "entries above the diagonal",
            "a diagonal that is not positive",
        )
        for good, fault in zip(sound, faults, strict=True):
            if not good:
                raise InputError(
                    "expected a finite mean and, as the root of a covariance, a lower triangular"
                    f" matrix with a positive diagonal, got {fault}; take"
                    " torch.linalg.cholesky(covariance)"
                )

    def sample(self, count: int, generator: torch.Generator | None) -> Chains:
        """Draw."""
        shape = (count, *self.mean.shape)
        eps = torch.randn(shape, generator=generator, device=self.mean.device)
        return self.mean + (self.root @ eps.to(self.mean)[..., None])[..., 0]

    def log_prob(self, z: Chains) -> Weights:
        """Return the log-density."""
        u = torch.linalg.solve_triangular(
            self.root, (z - self.mean).movedim(0, -1), upper=False
        ).movedim(-1, 0)
        return log_prior(u) - self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@dataclass(frozen=True)
class AISSettings:
    """How chains are annealed; the values are those of the paper's set-up.

    With `tf32` the gradients that moves follow are products of matrices rounded to 10 bits, on a
    GPU. What is estimated has all digits: moves are accepted, and chains weighted, by densities in
    full precision, and for any gradient that is a function of z a move leaves p_β as it is. With
    `compile` the decoder's density is compiled first, for these gradients, which pays for thousands
    of chains.
    """

    chains: int = 16
    temperatures: int = 1000
    leapfrog: int = 10
    target: float = 0.65
    first_step: float = 0.1
    adaptation: float = 1.02  # the factor of a step after each move
    steepness: float = 4.0  # of the sigmoid of inverse temperatures
    tf32: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("chains", "temperatures", "leapfrog"):
            check_whole(getattr(self, name), name)
        for name in ("target", "first_step", "adaptation", "steepness"):
            check_positive(getattr(self, name), name)
        if self.target >= 1 or self.adaptation < 1:
            raise InputError(
                "expected a target of less than 1 and an adaptation of at least 1, got"
                f" {self.target} and {self.adaptation}; correct these"
            )
        for name in ("tf32", "compile"):
            check_flag(getattr(self, name), name)

    def betas(self) -> list[float]:
        """Return the inverse temperatures, from 0 to 1."""

        def sigmoid(t: float) -> float:
            # As a hyperbolic tangent a steep one does not overflow, and a flat one is a line.
            return math.tanh(self.steepness * (t - 0.5))

        steps = range(self.temperatures + 1)
        return [(sigmoid(i / self.temperatures) / sigmoid(1) + 1) / 2 for i in steps]


@dataclass(frozen=True)
class AISEstimate:
    """What annealing says of each x.

    `log_likelihood` is a lower bound in expectation, an upper one where chains went backwards; both
    but nearly, unless the adaptation of steps is 1.
    `effective` is how many of the chains carry the weight, `acceptance` the share of moves
    accepted, and `stuck` says whose chains rejected every move: their estimate is that of plain
    importance sampling from the start, and not to be relied on.
    """

    log_likelihood: Float[Tensor, "batch"]
    effective: Float[Tensor, "batch"]
    acceptance: Float[Tensor, "batch"]
    stuck: Bool[Tensor, "batch"]


def ais(
    decoder: Decoder,
    x: Tensor,
    settings: AISSettings | None = None,
    *,
    start: Normal | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[float], None] | None = None,
) -> AISEstimate:
    """Estimate log p(x) of each x, in nats; chains start from the prior unless told otherwise."""
    settings = _checked(decoder, x, settings, start)
    z = _begin(decoder, x, settings, start, generator)
    return _anneal(decoder, x, z, settings, start, generator, progress, backwards=False)


def reverse_ais(
    decoder: Decoder,
    x: Tensor,
    z: Float[Tensor, "batch dims"],
    settings: AISSettings | None = None,
    *,
    start: Normal | None = None,
    generator: torch.Generator | None = None,
) -> AISEstimate:
    """Bound log p(x) from above, for x drawn from p(x|z) with z drawn from the prior.

    Such a z is an exact draw of the posterior of x.
    """
    settings = _checked(decoder, x, settings, start)
    if not isinstance(z, Tensor) or z.shape != (len(x), decoder.dims):
        raise InputError(
            f"expected the latents that x was drawn from, of shape ({len(x)}, {decoder.dims}), got"
            f" {tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__}; simulate x with"
            " decoder.sample(z)"
        )
    if not bool(z.isfinite().all()):
        raise InputError("expected finite latents, got NaN or infinity; draw them from the prior")
    chains = z.expand(settings.chains, *z.shape)
    return _anneal(decoder, x, chains, settings, start, generator, None, backwards=True)


def _checked(
    decoder: Decoder, x: Tensor, settings: AISSettings | None, start: Normal | None
) -> AISSettings:
    """Return the settings, the usual ones if there are none; refuse what does not fit."""
    check_decoder(decoder)
    if settings is not None and not isinstance(settings, AISSettings):
        raise InputError(
            f"expected settings of AIS, got a {type(settings).__name__}; make them with"
            " AISSettings(chains=…, temperatures=…)"
        )
    decoder.check(x)
    if start is not None:
        check_proposal(start, decoder, x, "start")
    return settings or AISSettings()


def check_decoder(decoder: Decoder) -> None:
    """Refuse what is no decoder."""
    if not isinstance(decoder, Decoder):
        raise InputError(
            "expected a decoder, a module derived from arcsm.vae.Decoder with dims, shape and"
            f" log_prob, got a {type(decoder).__name__}; derive it"
        )


def check_proposal(normal: Normal, decoder: Decoder, x: Tensor, name: str) -> None:
    """Refuse densities that are not one for each x, on the latents of the decoder."""
    fits = isinstance(normal, Normal) and normal.mean.shape == (len(x), decoder.dims)
    if not fits:
        got = tuple(normal.mean.shape) if isinstance(normal, Normal) else type(normal).__name__
        raise InputError(
            f"expected as {name} a Normal with a mean of shape ({len(x)}, {decoder.dims}), one for"
            f" each image, got {got}; make it of the same images: normal_proposal(encoder, x)"
        )


def check_numbers(logs: Weights) -> None:
    """Refuse a decoder that says NaN, or more than any density, of some latents."""
    if logs.ndim != 2:
        raise InputError(
            "expected a decoder whose log_prob is of shape (particles, batch), one number for each"
            f" latent, got {tuple(logs.shape)}; sum over the scalars of x"
        )
    bad = (logs.isnan() | logs.isposinf()).any(0)
    if bool(bad.any()):
        raise InputError(
            "expected a decoder that gives log p(x|z) as a number, got NaN or infinity for"
            f" {int(bad.sum())} of {len(bad)} images; look for NaN or infinity in its weights"
        )


def _begin(
    decoder: Decoder,
    x: Tensor,
    settings: AISSettings,
    start: Normal | None,
    generator: torch.Generator | None,
) -> Chains:
    if start is not None:
        return start.sample(settings.chains, generator)
    shape = (settings.chains, len(x), decoder.dims)
    like = next(decoder.parameters(), x)  # one without weights works in the type of x
    return torch.randn(shape, generator=generator, device=x.device).to(like.dtype)


def _anneal(
    decoder: Decoder,
    x: Tensor,
    z: Chains,
    settings: AISSettings,
    start: Normal | None,
    generator: torch.Generator | None,
    progress: Callable[[float], None] | None,
    *,
    backwards: bool,
) -> AISEstimate:
    weights = [parameter for parameter in decoder.parameters() if parameter.requires_grad]
    for parameter in weights:  # only the latents' gradients are wanted
        parameter.requires_grad_(False)
    try:
        return _walk(decoder, x, z, settings, start, generator, progress, backwards)
    finally:
        for parameter in weights:
            parameter.requires_grad_(True)


def _walk(
    decoder: Decoder,
    x: Tensor,
    z: Chains,
    settings: AISSettings,
    start: Normal | None,
    generator: torch.Generator | None,
    progress: Callable[[float], None] | None,
    backwards: bool,
) -> AISEstimate:
    def parts(z: Chains, likelihood: Weights) -> tuple[Weights, Weights]:
        """Return log p₀(z), and the log of what leads from there to the posterior."""
        if start is None:
            return log_prior(z), likelihood
        first = start.log_prob(z)
        return first, log_prior(z) + likelihood - first

    quick = compiled(decoder.log_prob) if settings.compile else decoder.log_prob
    walk = _Walk(
        lambda z: parts(z, decoder.log_prob(x, z)),
        lambda z: parts(z, quick(x, z)),
        z,
        settings,
        generator,
        backwards=backwards,
    )
    betas = settings.betas()
    advance = Replayed(walk.advance, z.device, generators=[generator] if generator else [])
    order = range(settings.temperatures, 0, -1) if backwards else range(1, len(betas))
    for done, t in enumerate(order):
        walk.set_beta(betas[t], betas[t - 1])
        advance()
        if progress is not None and done % 50 == 0:
            progress(done / settings.temperatures)
    check_numbers(walk.log_weight)
    total = walk.log_weight.logsumexp(0)
    log_mean = total - math.log(settings.chains)
    found = AISEstimate(
        -log_mean if backwards else log_mean,
        torch.exp(2 * total - (2 * walk.log_weight).logsumexp(0)),
        walk.accepted / settings.temperatures,
        walk.accepted == 0,
    )
    _warn(found, settings)
    return found


def _warn(found: AISEstimate, settings: AISSettings) -> None:
    """Say so where estimates are not to be relied on."""
    images, stuck = len(found.stuck), int(found.stuck.sum())
    few = int((found.effective < _FEW_CHAINS).sum()) if settings.chains >= 4 * _FEW_CHAINS else 0
    what = None
    if stuck:
        what = f"the AIS chains of {stuck} of {images} images rejected every move"
    elif few > _MANY_IMAGES * images:
        what = (
            f"of {few} of {images} images fewer than {_FEW_CHAINS} of {settings.chains} AIS chains"
            f" carry the weight, with {found.acceptance.mean():.0%} of moves accepted"
        )
    if what is not None:
        warnings.warn(
            f"{what}: their log-likelihoods are not to be relied on; take more temperatures, or"
            " another first_step: a lower one where few moves are accepted, a higher one where"
            " nearly all are",
            stacklevel=5,
        )


Heights = tuple[Weights, Weights]
Slopes = tuple[Chains, Chains]


class _Walk:
    """Chains at some β, which Hamiltonian moves carry on; all that changes is changed in place.

    It is given log p₀ and the log of the rest as functions of z, once as they are, and once for
    their gradients alone.
    """

    def __init__(
        self,
        parts: Callable[[Chains], Heights],
        parts_for_slopes: Callable[[Chains], Heights],
        z: Chains,
        settings: AISSettings,
        generator: torch.Generator | None,
        *,
        backwards: bool,
    ):
        self._parts, self._parts_for_slopes = parts, parts_for_slopes
        self._settings, self._generator = settings, generator
        self._backwards = backwards
        self.z = z.detach().clone()
        self.log_weight = z.new_zeros(z.shape[:2])
        self.accepted = z.new_zeros(z.shape[1])  # moves of all chains of an image, in shares
        self._length = z.new_full((z.shape[1], 1), settings.first_step)
        self._beta, self._change = z.new_zeros(()), z.new_zeros(())
        first, ratio = self._look(self.z)
        check_numbers(ratio)  # else all moves would be rejected, which looks like too long steps
        pull, push = self._slopes(self.z)
        self._heights_here: Heights = (first.clone(), ratio.clone())
        self._slopes_here: Slopes = (pull.clone(), push.clone())

    def set_beta(self, beta: float, before: float) -> None:
        """Say at which β the next move is, and which is a step nearer to 0."""
        self._beta.fill_(beta)
        self._change.fill_(beta - before)

    def advance(self) -> None:
        """Move once. Weights follow β: before a move to a larger one, after it otherwise."""
        ratio = self._heights_here[1]
        if not self._backwards:
            self.log_weight += self._change * ratio
        share = self._move()
        if self._backwards:
            self.log_weight -= self._change * ratio
        self.accepted += share
        bolder = (share > self._settings.target)[:, None]
        factor = self._settings.adaptation
        self._length.copy_(torch.where(bolder, self._length * factor, self._length / factor))

    @torch.no_grad()
    def _look(self, z: Chains) -> Heights:
        """Return both parts of the log-density at z."""
        with matmul_precision("highest"):
            return self._parts(z)

    def _slopes(self, z: Chains) -> Slopes:
        """Return the gradients of both parts at z."""
        with torch.enable_grad(), matmul_precision("high" if self._settings.tf32 else None):
            z = z.detach().requires_grad_()
            first, ratio = self._parts_for_slopes(z)
            (pull,) = torch.autograd.grad(first.sum(), z, retain_graph=True)
            (push,) = torch.autograd.grad(ratio.sum(), z)
        return pull, push

    def _move(self) -> Float[Tensor, "batch"]:
        """Propose once for each chain; return the share that moved."""
        z, length, beta = self.z, self._length, self._beta
        noise = torch.randn(z.shape, generator=self._generator, device=z.device).to(z.dtype)
        momentum = noise + length / 2 * _at(beta, self._slopes_here)
        at, slopes = z, self._slopes_here
        for leap in range(self._settings.leapfrog):
            at = at + length * momentum
            slopes = self._slopes(at)
            last = leap == self._settings.leapfrog - 1
            momentum = momentum + (length / 2 if last else length) * _at(beta, slopes)
        heights = self._look(at)
        gain = _at(beta, heights) - _at(beta, self._heights_here)
        gain = gain + (noise.square() - momentum.square()).sum(-1) / 2
        uniform = torch.rand(gain.shape, generator=self._generator, device=z.device).to(z.dtype)
        # What has left the numbers compares as false, and stays.
        goes = uniform.log() < gain
        here, there = (z, *self._slopes_here, *self._heights_here), (at, *slopes, *heights)
        for old, new in zip(here, there, strict=True):
            old.copy_(torch.where(goes if old.ndim == 2 else goes[..., None], new, old))
        return goes.to(z.dtype).mean(0)


def _at(beta: Tensor, parts: tuple[Tensor, Tensor]) -> Tensor:
    """Return what two parts of the log-density are together at β."""
    return parts[0] + beta * parts[1]
