"""Encoders: a normal one, a free implicit one, and one of the paper's form, sampled in one pass.

An encoder maps observations x and noise ε to latents z. What it sees of x is the output of a
*body*, one vector of features for each x, so that images of any kind serve; noise has one more axis
in front, of particles: ε (particles, batch, D) gives z (particles, batch, D).

The entropy gradient by conditional scores needs z_d = h_d(ε_d, z_<d, x), in which ε_<d enters only
through z_<d (Appendix D of the paper). An encoder that keeps to it says so by the attribute
`autoregressive_noise`. Derivatives can refute that, as z_d must not depend on the noise of later
latents (`check_noise`), but they cannot prove it: that earlier noise reaches z_d around z_<d they
do not show.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn

from arcsm.checks import check_whole
from arcsm.context.made import MaskedLinear
from arcsm.errors import InputError
from arcsm.vae.decoders import GROUPS, check_convolutions

# Of the rule by which the noise of implicit encoders is averaged.
_NODES = 8
# Added to the variance of a shape: noise that is bent to a constant stays one.
_LEAST_VARIANCE = 1e-4

Noise = Float[Tensor, "particles batch dims"]
Latents = Float[Tensor, "particles batch dims"]
Features = Float[Tensor, "batch features"]
Units = Float[Tensor, "batch dims"]
ConditionalUnits = Float[Tensor, "*particles batch dims"]
Hidden = Float[Tensor, "batch hidden"]


class Extra(NamedTuple):
    """What r is given of x beside its features, before any activation."""

    head: Hidden  # what the head says beside the units
    view: Hidden  # a first layer of r's own


class ConvolutionalBody(nn.Module):
    """Four strided convolutions that take 64 × 64 images to 4 × 4, as in DCGAN's discriminator.

    Groups of channels are normalised, not batches: an image's latents then are its own affair.
    """

    def __init__(self, channels: int = 3, *, width: int = 64, side: int = 64):
        super().__init__()
        channels, width, side = check_convolutions(channels, width, side)
        widths = [width, 2 * width, 4 * width, 8 * width]
        layers: list[nn.Module] = []
        for before, after in zip([channels, *widths], widths, strict=False):
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.GroupNorm(GROUPS, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers)
        self.features = widths[-1] * (side // 16) ** 2

    def forward(self, x: Float[Tensor, "batch channels side side"]) -> Features:
        """Return the features of each image, as one vector."""
        return self.layers(x).flatten(1)


class Encoder(nn.Module):
    """z = μ(x) + σ(x) r(ε, x): what is implicit about an encoder is r, in units that x sets.

    The units are no approximation, r may have any mean and width; but as they are known, a score
    estimator need not learn them, and is not left behind when they change.
    """

    autoregressive_noise = False
    # Whether latents, each in its conditional units, are independent of one another given x.
    independent_in_units = False

    def __init__(
        self,
        dims: int,
        features: int,
        hidden: int,
        body: nn.Module | None,
        *,
        extra: int = 0,
        view: int = 0,
    ):
        super().__init__()
        dims, features = check_whole(dims, "dims"), check_whole(features, "features")
        hidden = check_whole(hidden, "hidden")
        extra, view = check_whole(extra, "extra", 0), check_whole(view, "view", 0)
        self.dims, self.feature_dims = dims, features
        self.body = nn.Identity() if body is None else body
        # With a first layer for r's own view of x, of so many units: one product for both.
        self.from_x = nn.Linear(features, hidden + view)
        self.deeper = nn.Linear(hidden, hidden)
        # All that is read off the hidden units at once, as one product: μ, log σ, and what else r
        # needs of x.
        self.head = nn.Linear(hidden, 2 * dims + extra)

    def forward(self, x: Tensor, eps: Noise) -> Latents:
        """Return a latent for each particle and each x."""
        return self.latents(self.features(x), eps)

    def features(self, x: Tensor) -> Features:
        """Return what the encoder sees of x."""
        return self.body(x)

    def latents(self, features: Features, eps: Noise) -> Latents:
        """Return latents from features that are at hand."""
        return self.latents_and_units(features, eps)[0]

    def latents_and_units(self, features: Features, eps: Noise) -> tuple[Latents, Units, Units]:
        """Return latents, μ and log σ."""
        self._check_noise_shape(features, eps)
        mean, log_scale, extra = self._read(features)
        z = mean + log_scale.exp() * self.standard(features, extra, eps)
        return z, mean, log_scale

    def latents_and_conditional_units(
        self, features: Features, eps: Noise
    ) -> tuple[Latents, ConditionalUnits, ConditionalUnits]:
        """Return latents and what `conditional_units` says of them, which is at hand here."""
        return self.latents_and_units(features, eps)

    def units(self, features: Features) -> tuple[Units, Units]:
        """Return μ and log σ."""
        mean, log_scale, _ = self._read(features)
        return mean, log_scale

    def conditional_units(
        self, features: Features, z: Latents
    ) -> tuple[ConditionalUnits, ConditionalUnits]:
        """Return the middle and the log of the width of each z_d given z_<d and x.

        Those of x alone, unless an encoder knows better.
        """
        return self.units(features)

    def _check_noise_shape(self, features: Features, eps: Noise) -> None:
        if eps.ndim != 3 or eps.shape[1:] != (len(features), self.dims):
            raise InputError(
                f"expected noise of shape (particles, {len(features)}, {self.dims}), got"
                f" {tuple(eps.shape)}; draw torch.randn of that shape"
            )

    def _read(self, features: Features) -> tuple[Units, Units, Extra]:
        below, view = self.from_x(features).tensor_split((self.deeper.in_features,), -1)
        read = self.head(torch.tanh(self.deeper(torch.tanh(below))))
        mean, log_scale, more = read.tensor_split((self.dims, 2 * self.dims), -1)
        return mean, log_scale, Extra(more, view)

    def standard(self, features: Features, extra: Extra, eps: Noise) -> Latents:
        """Return r, latents in units of x."""
        raise NotImplementedError


class GaussianEncoder(Encoder):
    """q(z|x) = N(μ(x), diag σ(x)²), whose entropy is a closed form: the encoder of "ELBO"."""

    # Each z_d has its own noise, and none of that of others.
    autoregressive_noise = True
    independent_in_units = True

    def __init__(
        self, dims: int, features: int, *, hidden: int = 256, body: nn.Module | None = None
    ):
        super().__init__(dims, features, hidden, body)

    def standard(self, features: Features, extra: Extra, eps: Noise) -> Latents:
        """Return ε itself."""
        return eps

    def entropy(self, x: Tensor) -> Float[Tensor, "batch"]:
        """Return the entropy of q(·|x) in nats."""
        return normal_entropy(self.units(self.features(x))[1])


def normal_entropy(log_scale: Units) -> Float[Tensor, "*batch"]:
    """Return the entropy of normal densities with such deviations, in nats."""
    return log_scale.sum(-1) + log_scale.shape[-1] * (1 + math.log(2 * math.pi)) / 2


class FreeEncoder(Encoder):
    """r = ε + f(ε, x), any of ε in any of z: a network (features + D) → 256 → 256 → D.

    Its joint score is defined, so that SSM, Stein and Spectral may use it; its conditional scores
    do not give the entropy gradient.
    """

    def __init__(
        self, dims: int, features: int, *, hidden: int = 256, body: nn.Module | None = None
    ):
        super().__init__(dims, features, hidden, body, view=hidden)
        self.from_noise = nn.Linear(dims, hidden, bias=False)
        self.middle = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, dims)

    def standard(self, features: Features, extra: Extra, eps: Noise) -> Latents:
        """Return ε + f(ε, x)."""
        # One layer on both at once, without writing features beside each particle.
        h = torch.tanh(extra.view + self.from_noise(eps))
        return eps + self.output(torch.tanh(self.middle(h)))


class ImplicitEncoder(Encoder):
    """An implicit encoder of the paper's form z_d = h_d(ε_d, z_<d, x), in one pass.

        w_d = ε_d + Σ_k a_dk tanh(v_dk (ε_d − t_k) + b_dk)          a, v, b from x
        r_d = m_d(w_<d, x) + w_d exp c_d(w_<d, x),                  |c| < 3

    with w_d less its mean, and divided by its deviation, both given x: what is left to it is the
    shape. w_d need not be invertible in ε_d, and q has no density that could be written down. Given
    x and w_<d, r_d is increasing in w_d; hence w_<d is a function of z_<d and x, and ε_<d enters
    z_d only through z_<d. As m and c read w, not z, a masked network gives all of them at once:
    there is no walk along the latents. It has one hidden layer,

        g(x) tanh(a(x) W w + b(x))

    with b by a first layer of its own and by the deeper one that the shapes are read off, and a and
    g by the latter. How z_d follows z_<d is another matter for each x; by shifts alone a layer
    would be long in learning that.
    """

    autoregressive_noise = True
    independent_in_units = True  # in these, latents are w

    centres: Tensor
    nodes: Tensor
    shares: Tensor

    def __init__(
        self,
        dims: int,
        features: int,
        *,
        hidden: int = 256,
        bumps: int = 4,
        body: nn.Module | None = None,
    ):
        dims, hidden = check_whole(dims, "dims"), check_whole(hidden, "hidden")
        bumps = check_whole(bumps, "bumps", 0)
        extra = 3 * dims * bumps + 3 * hidden
        super().__init__(dims, features, hidden, body, extra=extra, view=hidden)
        self.bumps = bumps
        # Unit of degree m sees w_1 … w_m; output d sees units of degree d − 1 and less.
        place = torch.arange(dims)
        degrees = torch.arange(hidden) * dims // hidden
        self.from_latents = MaskedLinear(place + 1, degrees)
        self.output = MaskedLinear(degrees, place.repeat(2))
        self.register_buffer("centres", torch.linspace(-1.5, 1.5, bumps), persistent=False)
        # A rule for means over normal noise. What it lacks in digits is no error: w then is not
        # quite of mean 0 and deviation 1.
        nodes, shares = (torch.from_numpy(part).float() for part in hermegauss(_NODES))
        self.register_buffer("nodes", nodes[:, None, None], persistent=False)
        self.register_buffer("shares", (shares / shares.sum())[:, None, None], persistent=False)
        with torch.no_grad():
            # It begins near to independent normal latents, with slopes and gates near to 1. Shifts
            # have a bias by the view of x, and one is enough to begin with.
            shapes = slice(2 * dims, -3 * hidden)
            self.head.weight[shapes].mul_(0.5)
            self.head.bias[shapes].view(3, dims, bumps)[1] += 1
            self.head.bias[-3 * hidden :] = torch.tensor([1.0, 0, 1]).repeat_interleave(hidden)
            self.output.weight.mul_(0.1)
            self.output.bias.zero_()
            self.from_x.bias[hidden:] = self.from_latents.bias
            self.from_latents.register_parameter("bias", None)

    def standard(self, features: Features, extra: Extra, eps: Noise) -> Latents:
        """Return r."""
        w, move, log_stretch = self._parts(extra, eps)
        return torch.addcmul(move, w, log_stretch.exp())

    def latents_and_conditional_units(
        self, features: Features, eps: Noise
    ) -> tuple[Latents, ConditionalUnits, ConditionalUnits]:
        """Return latents, and the units in which z_d given z_<d and x is w_d."""
        self._check_noise_shape(features, eps)
        mean, log_scale, extra = self._read(features)
        w, move, log_stretch = self._parts(extra, eps)
        middle = torch.addcmul(mean, log_scale.exp(), move)
        log_width = log_scale + log_stretch
        return torch.addcmul(middle, w, log_width.exp()), middle, log_width

    def conditional_units(
        self, features: Features, z: Latents
    ) -> tuple[ConditionalUnits, ConditionalUnits]:
        """Return the units in which z_d given z_<d and x is w_d: found one latent after another."""
        mean, log_scale, extra = self._read(features)
        _, given = self._split(extra)
        w = torch.zeros_like(z)
        for d in range(self.dims):  # what is found with w_<d known is right up to z_d
            move, log_stretch = self._moves(w, given)
            middle, log_width = mean + log_scale.exp() * move, log_scale + log_stretch
            own = (z[..., d] - middle[..., d]) * torch.exp(-log_width[..., d])
            w = torch.cat([w[..., :d], own[..., None], w[..., d + 1 :]], -1)
        return middle, log_width

    def _parts(self, extra: Extra, eps: Noise) -> tuple[Latents, Latents, Latents]:
        """Return w, m and c."""
        shapes, given = self._split(extra)
        w = self._shaped(shapes, eps)
        return w, *self._moves(w, given)

    def _split(self, extra: Extra) -> tuple[Hidden, tuple[Hidden, Hidden, Hidden]]:
        """Return what x says of the shapes of noise, and a, b and g of the units that see w."""
        sizes = [3 * self.dims * self.bumps, *[self.deeper.out_features] * 3]
        shapes, slope, deep, gate = extra.head.split(sizes, -1)
        return shapes, (slope, deep + extra.view, gate)

    def _shaped(self, shapes: Hidden, eps: Noise) -> Latents:
        """Return w."""
        height, slope, shift = shapes.unflatten(-1, (3, self.dims, self.bumps)).unbind(-3)

        def bent(noise: Noise) -> Latents:
            gate = torch.tanh(slope * (noise[..., None] - self.centres) + shift)
            return noise + (height * gate).sum(-1)

        typical = bent(self.nodes)
        mean = (self.shares * typical).sum(-3)
        variance = (self.shares * (typical - mean).square()).sum(-3)
        return (bent(eps) - mean) * torch.rsqrt(variance + _LEAST_VARIANCE)

    def _moves(self, w: Latents, given: tuple[Hidden, Hidden, Hidden]) -> tuple[Latents, Latents]:
        """Return m and c."""
        slope, shift, gate = given
        seen = gate * torch.tanh(slope * self.from_latents(w) + shift)
        move, log_stretch = self.output(seen).chunk(2, -1)
        # Within e^±3: a latent is stretched by its forerunners, not torn.
        return move, 3 * torch.tanh(log_stretch / 3)


def check_finite(z: Latents) -> None:
    """Refuse latents that have left the numbers."""
    if not bool(z.isfinite().all()):
        raise InputError(
            "expected an encoder that draws finite latents, got NaN or infinity; look for them in"
            " its weights"
        )


def check_noise(z: Latents, eps: Noise, name: str = "CSM") -> None:
    """Refuse latents of which one depends on the noise of a later one.

    z are latents computed from the noise eps, which requires gradients. This takes one backward
    pass for each latent. To pass is no proof of z_d = h_d(ε_d, z_<d, x): earlier noise may still
    reach z_d around z_<d.

    >>> encoder, eps = ImplicitEncoder(2, 3, hidden=8), torch.randn(4, 5, 2, requires_grad=True)
    >>> check_noise(encoder(torch.randn(5, 3), eps), eps)
    """
    if z.shape != eps.shape or z.ndim != 3:
        raise InputError(
            "expected latents and noise of one shape (particles, batch, dims), got"
            f" {tuple(z.shape)} and {tuple(eps.shape)}; pass the noise that z was computed from"
        )
    if not z.numel():
        raise InputError(f"expected at least one latent, got {tuple(z.shape)}; draw some")
    slopes = _slopes(z, eps)
    if not bool(slopes.isfinite().all()):
        raise InputError(
            "expected latents with finite derivatives by the noise, got NaN or infinity; look at"
            " the sampler"
        )
    # Masks give zeros; what rounds by the way is within some units of each latent's last place.
    tolerance = 10 * torch.finfo(slopes.dtype).eps * slopes.amax(1, keepdim=True)
    wrong = (slopes.triu(1) > tolerance).nonzero().tolist()
    if wrong:
        d, e = wrong[0]
        raise InputError(
            f"expected latents z_d = h_d(ε_d, z_<d, x) for {name}, in which no z_d depends on the"
            f" noise of later latents, got a derivative of {slopes[d, e].item():.2g} of z_{d + 1}"
            f" by ε_{e + 1}: conditional scores would not give the entropy gradient; use"
            " ImplicitEncoder, order latents and noise so that none looks ahead, or take a method"
            " of joint scores (ssm, stein, spectral)"
        )


def check_independence(encoder: Encoder, features: Features, eps: Noise) -> None:
    """Refuse an encoder whose latents, in the units it gives, depend on the noise of others.

    That they do not is what `independent_in_units` says; the noise requires gradients.
    """
    z, middle, log_width = encoder.latents_and_conditional_units(features, eps)
    slopes = _slopes((z - middle) * torch.exp(-log_width), eps)
    # What cancels leaves something in single precision; what does not is far larger.
    others = slopes - slopes.diagonal().diag()
    d, e = divmod(int(others.argmax()), len(others))
    if not bool(others[d, e] <= 0.01 * slopes[d, d] + 0.001):
        raise InputError(
            "expected latents that are independent of one another given x, each in the units that"
            f" a {type(encoder).__name__} gives it, got a derivative of {others[d, e].item():.2g}"
            f" of the one of z_{d + 1} by ε_{e + 1}: scores would be learned without z_<d, and be"
            " wrong; set independent_in_units = False, or give units that hold what z_<d says, by"
            " conditional_units and latents_and_conditional_units"
        )


def _slopes(z: Latents, eps: Noise) -> Float[Tensor, "dims dims"]:
    """Return the largest |∂z_d/∂ε_e| over particles and batch."""
    rows = []
    if z.requires_grad and eps.requires_grad:
        for d in range(z.shape[-1]):
            only = torch.zeros_like(z)
            only[..., d] = 1
            (row,) = torch.autograd.grad(z, eps, only, retain_graph=True, allow_unused=True)
            if row is not None:
                rows.append(row.abs().amax((0, 1)))
    if not rows:
        raise InputError(
            "expected latents computed from noise that requires gradients, got none that depend on"
            " it; call eps.requires_grad_() first, then the sampler, without torch.no_grad()"
        )
    return torch.stack(rows)
