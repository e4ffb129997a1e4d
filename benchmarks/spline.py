"""The neural spline flow of zuko, trained for a given time on many rows, on a CPU or a GPU.

On a GPU the loss is compiled as a whole and replayed as a captured graph, rows stay on the device,
and no step waits for its predecessor: the flow is as fast as we could make it.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from arcsm.errors import ArcsmError, InputError

# Rows evaluated at one time.
PIECE = 16_384


@dataclass(frozen=True)
class SplineSettings:
    """An autoregressive flow of rational-quadratic splines on [−bound, bound], and its training."""

    transforms: int = 10
    hidden: tuple[int, ...] = (256, 256)
    bins: int = 8
    bound: float = 5.0
    batch: int = 4096
    learning_rate: float = 1e-3
    warmup: int = 200
    clip: float = 5.0
    ema: float = 0.999
    evaluate_every: int = 1000


@dataclass(frozen=True)
class SplineRun:
    """How a training went: `how` says whether the loss was compiled, `end` why it ended."""

    steps: int
    best_step: int
    seconds: float
    how: str
    end: str
    held_out: float


def make_flow(dims: int, settings: SplineSettings, seed: int) -> nn.Module:
    """Return an untrained flow: zuko's NSF, with a bound of the splines that can be chosen."""
    try:
        import zuko
    except ImportError as error:
        raise InputError(
            "expected zuko for the spline flow, got no such package;"
            " install it with: pip install 'arcsm[bench]', or put its folder on PYTHONPATH"
        ) from error

    # The checks of arguments wait for the device, several times in each step.
    torch.distributions.Distribution.set_default_validate_args(False)
    bins = settings.bins
    spline = partial(_spline_class(zuko.transforms.MonotonicRQSTransform), bound=settings.bound)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return zuko.flows.MAF(
            dims,
            transforms=settings.transforms,
            hidden_features=settings.hidden,
            univariate=spline,
            shapes=[(bins,), (bins,), (bins - 1,)],
        )


def train_flow(
    flow: Any,
    train: Tensor,
    held_out: Tensor,
    settings: SplineSettings,
    *,
    seconds: float,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
) -> SplineRun:
    """Train by maximum likelihood for `seconds`, compilation included.

    The learning rate warms up and falls to 0 along a cosine of the time spent. The averaged weights
    that did best on `held_out` are left in the flow.
    """
    device = train.device
    began = time.monotonic()
    generator = torch.Generator(device).manual_seed(seed)
    batch = min(settings.batch, len(train))
    optimiser = torch.optim.Adam(flow.parameters(), lr=settings.learning_rate, fused=True)
    parameters = list(flow.parameters())
    average = [parameter.detach().clone() for parameter in parameters]
    best, least, best_step, step = [p.clone() for p in average], math.inf, 0, 0
    loss_of, how = _compiled(flow, train[:batch])
    order, place, end = torch.empty(0, dtype=torch.long, device=device), 0, "time limit"
    while True:
        done = (time.monotonic() - began) / seconds
        if done < 1:
            if place + batch > len(order):
                order, place = torch.randperm(len(train), generator=generator, device=device), 0
            rate = min(1.0, (step + 1) / (settings.warmup + 1))
            rate *= 0.5 + 0.5 * math.cos(math.pi * done)
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * rate
            optimiser.zero_grad(set_to_none=True)
            loss_of(train[order[place : place + batch]]).backward()
            nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimiser.step()
            step, place = step + 1, place + batch
            decay = min(settings.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - decay)
        if done >= 1 or step % settings.evaluate_every == 0:
            validation = -_averaged_log_prob(flow, parameters, average, held_out)
            if progress is not None:
                progress(step, validation)
            if validation < least:
                best, least, best_step = [p.clone() for p in average], validation, step
            if not math.isfinite(validation):
                end = "the held-out likelihood was not finite"
            if done >= 1 or not math.isfinite(validation):
                break
    _copy(parameters, best)
    return SplineRun(step, best_step, time.monotonic() - began, how, end, -least)


@torch.no_grad()
def log_prob(flow: Any, x: Tensor) -> Tensor:
    """Return the log-density of each row, in nats."""
    return torch.cat([flow().log_prob(piece) for piece in x.split(PIECE)])


@torch.no_grad()
def sample(flow: Any, rows: int) -> Tensor:
    """Draw rows."""
    pieces = [min(PIECE, rows - start) for start in range(0, rows, PIECE)]
    return torch.cat([flow().sample((piece,)) for piece in pieces])


def _spline_class(base: Any) -> Any:
    """Return zuko's spline, its knots summed otherwise.

    Of the original, with cumsum, the compiler of torch makes wrong gradients in widths and heights.
    """

    class Spline(base):
        def __init__(
            self,
            widths: Tensor,
            heights: Tensor,
            derivatives: Tensor,
            bound: float,
            slope: float = 1e-3,
        ):
            torch.distributions.Transform.__init__(self)
            least, bins = math.log(slope), widths.shape[-1]
            before = torch.ones(bins + 1, bins, dtype=widths.dtype, device=widths.device).tril(-1)

            def knots(sizes: Tensor) -> Tensor:
                share = torch.softmax(sizes / (1 + (2 * sizes / least).abs()), -1)
                return bound * (2 * (share[..., None, :] * before).sum(-1) - 1)

            self.horizontal, self.vertical = knots(widths), knots(heights)
            inner = derivatives / (1 + (derivatives / least).abs())
            self.derivatives = nn.functional.pad(inner, (1, 1)).exp()

    return Spline


def _flow_log_prob(flow: Any, x: Tensor) -> Tensor:
    """Return flow().log_prob(x), without the containers of zuko that cannot be compiled."""
    total = x.new_zeros(len(x))
    for transform in flow.transform.transforms:
        x, slope = transform.meta(None, x).call_and_ladj(x)
        total = total + slope
    return total - (x.square() + math.log(2 * math.pi)).sum(-1) / 2


def _compiled(flow: Any, rows: Tensor) -> tuple[Callable[[Tensor], Tensor], str]:
    """Return the loss, compiled if the rows are on a GPU and that works, and say which it is."""

    def loss(x: Tensor) -> Tensor:
        return -_flow_log_prob(flow, x).mean()

    if rows.device.type != "cuda":
        return loss, "eager"
    try:
        compiled = torch.compile(loss, mode="reduce-overhead", fullgraph=True)
        _check_gradient(flow, compiled, loss, rows)
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        warnings.warn(
            f"torch.compile failed and the flow is trained without it: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
        return loss, "eager"
    finally:
        flow.zero_grad(set_to_none=True)
    return compiled, "compiled, captured graph"


def _check_gradient(
    flow: Any, compiled: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor], rows: Tensor
) -> None:
    """Refuse a compiled loss with another gradient than the loss itself."""
    gradients = []
    for function in (compiled, loss):
        flow.zero_grad(set_to_none=True)
        function(rows).backward()
        gradients.append(torch.cat([part.grad.flatten().clone() for part in flow.parameters()]))
    error = ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item()
    if not error < 0.03:  # products of matrices may be rounded to ten bits
        raise ArcsmError(f"expected the gradient of the loss, got one that is {error:.1%} off")


def _averaged_log_prob(
    flow: Any, parameters: list[nn.Parameter], average: list[Tensor], x: Tensor
) -> float:
    own = [parameter.detach().clone() for parameter in parameters]
    _copy(parameters, average)
    value = log_prob(flow, x).double().mean().item()
    _copy(parameters, own)
    return value


@torch.no_grad()
def _copy(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
