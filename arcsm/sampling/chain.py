"""The walk along the order: one scalar after another, each given those before it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional import Density, HeadFamily, Noise, TanhSumHead, annealed_langevin
from arcsm.conditional.fused import can_fuse, fused_quantile
from arcsm.conditional.recalibration import Recalibration
from arcsm.context import ContextNetwork
from arcsm.threads import even_sizes, limited_threads, map_pieces

# Rows of a walk that are worth another thread.
_ROWS_OF_A_THREAD = 512

Snap = Callable[[int, Tensor, Tensor], Tensor]


class TensorSnap(ABC):
    """A `Snap` that moves the values of all scalars alike: a graph can hold it.

    Two of them that are equal, and so their hashes, do the same.
    """

    @abstractmethod
    def move(self, value: Float[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """Return the values that those drawn stand for."""

    def __call__(self, d: int, value: Tensor, x: Tensor) -> Float[Tensor, "rows"]:
        """Return the values that those drawn for scalar d stand for."""
        return self.move(value)


class Chain(Protocol):
    """What is asked of a model to draw from it."""

    @property
    def dims(self) -> int:
        """The number of scalars."""

    context: ContextNetwork
    head: TanhSumHead
    noise: Noise
    flow_steps: int | None
    recalibration: Recalibration | None
    shift: Float[Tensor, "dims"]
    scale: Float[Tensor, "dims"]

    def centres(self, x: Float[Tensor, "rows dims"]) -> Float[Tensor, "#rows dims"]:
        """Return the 0 of the standardised units of each scalar."""

    def centre(self, x: Float[Tensor, "rows dims"], d: int) -> Float[Tensor, "#rows"]:
        """Return that of one scalar."""

    def context_inputs(self, x: Float[Tensor, "rows dims"]) -> Float[Tensor, "rows dims"]:
        """Return rows as the context network sees them."""

    def context_input(self, value: Float[Tensor, "rows"], d: int) -> Float[Tensor, "rows"]:
        """Return one scalar as the context network sees it."""

    def density_of(self, family: HeadFamily, method: str) -> Density:
        """Return the normalised conditionals of a family."""

    def conditionals_at_once(self, method: str) -> int:
        """Return how many conditionals to work on at one time."""


@dataclass(frozen=True)
class Draw:
    """How rows are drawn; `method` and `solver` are explained in `ARCSM.sample`."""

    method: str = "flow"
    solver: str = "sequential"
    block: int | None = None
    compile: bool | None = None
    snap: Snap | None = None
    langevin_steps: int = 20
    langevin_step_size: float | None = None


@dataclass(frozen=True)
class Request:
    """What one batch of rows is made from: noise, and values that are fixed.

    `uniform` has a column for each scalar, in the layout of the data; Langevin dynamics draws its
    own noise. `given` holds values of the first scalars of the order.
    """

    rows: int
    uniform: Float[Tensor, "rows dims"] | None
    given: Float[Tensor, "rows known"] | None
    condition: Float[Tensor, "rows condition_dims"] | None

    def split(self, rows: int) -> "Iterator[Request]":
        """Return requests for so many rows at a time, which together are this one."""
        whole = (self.uniform, self.given, self.condition)
        for start in range(0, self.rows, rows):
            end = min(start + rows, self.rows)
            yield Request(
                end - start, *(None if part is None else part[start:end] for part in whole)
            )

    def padded(self, rows: int) -> "Request":
        """Return a request for so many rows, of which the first are those of this one."""

        def longer(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            return torch.cat([part, part[-1:].expand(rows - len(part), -1)])

        return Request(rows, longer(self.uniform), longer(self.given), longer(self.condition))

    @property
    def known(self) -> int:
        """How many scalars are given."""
        return 0 if self.given is None else self.given.shape[1]

    def start(self, model: Chain) -> Float[Tensor, "rows dims"]:
        """Return rows in which what is given is filled in, and everything else is 0."""
        x = model.shift.new_zeros(self.rows, model.dims)
        if self.given is not None:
            x[:, list(model.context.order[: self.known])] = self.given
        return x


def walk(
    model: Chain,
    request: Request,
    how: Draw,
    generator: torch.Generator | None,
) -> Float[Tensor, "rows dims"]:
    """Draw the rows of one batch, scalar after scalar."""
    # Steps of few rows are too small to be shared by threads, which would wait for each other.
    with limited_threads(request.rows // _ROWS_OF_A_THREAD):
        return _walk(model, request, how, generator)


def _walk(
    model: Chain,
    request: Request,
    how: Draw,
    generator: torch.Generator | None,
) -> Float[Tensor, "rows dims"]:
    x = request.start(model)
    order = model.context.order
    cursor = model.context.cursor(request.rows, request.condition)
    for d in order[: request.known]:
        cursor.push(model.context_input(x[:, d], d))
    draw = _scalar_drawer(model, request, how, generator)
    for d in order[request.known :]:
        z = draw(cursor.context(), d)
        x[:, d] = z * model.scale[d] + model.centre(x, d)
        if how.snap is not None:
            x[:, d] = how.snap(d, x[:, d], x)
        cursor.push(model.context_input(x[:, d], d))
    return x


def quantiles(
    model: Chain,
    contexts: Float[Tensor, "entries width"],
    probability: Float[Tensor, "entries"],
    method: str,
) -> Float[Tensor, "entries"]:
    """Return the values, in standardised units, below which so much of each conditional lies."""
    sizes = even_sizes(len(contexts), model.conditionals_at_once(method), contexts.device)
    pieces = zip(contexts.split(sizes), probability[:, None].split(sizes), strict=True)
    drawn = map_pieces(
        lambda piece: model.density_of(model.head.family(piece[0]), method).quantile(piece[1]),
        list(pieces),
        contexts.device,
    )
    return torch.cat(drawn)[:, 0]


def _fuse(model: Chain, how: Draw) -> bool:
    """Say whether draws are fused unasked: on a GPU, where they can be, it always pays."""
    return model.shift.is_cuda and how.method == "flow" and can_fuse(model.head, model.noise)


def _scalar_drawer(
    model: Chain, request: Request, how: Draw, generator: torch.Generator | None
) -> Callable[[Tensor, int], Tensor]:
    """Return the function (context, d) ↦ standardised values drawn for scalar d."""
    if request.uniform is None:
        ladder = model.noise.ladder(model.noise.levels or 10)

        def by_langevin(context: Tensor, _: int) -> Tensor:
            start = torch.randn(
                request.rows, 1, generator=generator, dtype=context.dtype, device=context.device
            )
            return annealed_langevin(
                model.head.family(context),
                start,
                ladder,
                steps=how.langevin_steps,
                step_size=how.langevin_step_size,
                generator=generator,
            )[:, 0]

        return by_langevin
    uniform = request.uniform
    if how.compile or (how.compile is None and _fuse(model, how)):
        fused = fused_quantile(
            model.head, model.noise, steps=model.flow_steps, recalibration=model.recalibration
        )
        return lambda context, d: fused(context, uniform[:, d])
    return lambda context, d: quantiles(model, context, uniform[:, d], how.method)
