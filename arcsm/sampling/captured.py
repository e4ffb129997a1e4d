"""The step of a walk as one CUDA graph, captured once and replayed for every scalar."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.conditional.fused import can_fuse, fused_quantile
from arcsm.context import MADE
from arcsm.context.walk import MADEWalk
from arcsm.devices import on_device
from arcsm.sampling.chain import Chain, Draw, Request, TensorSnap

# The fewest rows that a graph is made for, and how many graphs of a model are kept.
_FEWEST, _GRAPHS = 64, 2


def can_capture(model: Chain, how: Draw) -> bool:
    """Say whether the walk of a model is a fixed sequence of kernels on a GPU."""
    return (
        model.shift.is_cuda
        and how.method == "flow"
        and how.solver == "sequential"
        and (how.snap is None or isinstance(how.snap, TensorSnap))
        and can_fuse(model.head, model.noise)
        and isinstance(model.context, MADE)
    )


def captured_walk(
    model: Chain, request: Request, snap: TensorSnap | None = None
) -> Float[Tensor, "rows dims"]:
    """Draw the rows of one batch; graphs are kept for further batches.

    They are captured for numbers of rows that are powers of 2, the last two of them being kept:
    those of whole batches and of what is left over.
    """
    assert isinstance(model, nn.Module)  # to be kept as long as the model is
    size = max(_FEWEST, 1 << (request.rows - 1).bit_length())
    # A graph reads the weights wherever they lay, so that it follows changes in place. What lay
    # there is kept with it, lest other weights come to the same place.
    weights = [part.detach() for part in (*model.parameters(), *model.buffers())]
    places = [part.data_ptr() for part in weights]
    key = (places, model.noise, model.flow_steps, snap)
    kept = _KEPT.get(model)
    if kept is None or kept.key != key:
        kept = _KEPT[model] = _Kept(key, weights, {})
    walk = kept.walks.pop(size, None)
    if walk is None:
        while len(kept.walks) >= _GRAPHS:  # before the next one takes its memory
            del kept.walks[next(iter(kept.walks))]
        walk = _CapturedWalk(model, size, snap)
    kept.walks[size] = walk  # the last one used is the last to go
    return walk.draw(model, request.padded(size))[: request.rows]


class _CapturedWalk:
    """Buffers of a fixed size, and the graph that moves them on by one scalar."""

    def __init__(self, model: Chain, rows: int, snap: TensorSnap | None):
        assert isinstance(model.context, MADE)
        self._walk = MADEWalk(model.context, rows)
        self._x = model.shift.new_zeros(rows, model.dims)
        self._uniform = torch.zeros_like(self._x)
        self._position = torch.zeros(1, dtype=torch.long, device=self._x.device)
        order = torch.tensor(model.context.order, device=self._x.device)
        quantile = fused_quantile(
            model.head, model.noise, steps=model.flow_steps, recalibration=model.recalibration
        )
        # The graph goes on reading from where these lie. (Not of the model itself: a reference to
        # it from here would keep it for good.)
        self._read = (order, quantile)

        def step() -> None:
            d = order.index_select(0, self._position)
            uniform = self._uniform.index_select(1, d)[:, 0]
            z = quantile(self._walk.context(self._position), uniform)
            centre = model.centres(self._x).expand_as(self._x).index_select(1, d)[:, 0]
            value = z * model.scale.index_select(0, d) + centre
            if snap is not None:
                value = snap.move(value)
            self._x.index_copy_(1, d, value[:, None])
            seen = model.context_inputs(self._x).index_select(1, d)[:, 0]
            self._walk.push(self._position, seen)
            self._position += 1

        with on_device(self._x.device):  # not always the current one
            # Twice on another stream, as graphs ask for: the first time compiles.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._position.zero_()
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            self._position.zero_()
            with torch.cuda.graph(self._graph):
                step()

    def draw(self, model: Chain, request: Request) -> Float[Tensor, "rows dims"]:
        assert request.uniform is not None
        self._walk.restart(request.condition)
        self._x.copy_(request.start(model))
        self._uniform.copy_(request.uniform)
        self._position.zero_()
        for d in model.context.order[: request.known]:
            self._walk.push(self._position, model.context_input(self._x[:, d], d))
            self._position += 1
        for _ in range(model.dims - request.known):
            self._graph.replay()
        return self._x.clone()


@dataclass(frozen=True)
class _Kept:
    """The graphs of a model, by their rows, and the weights that they read."""

    key: object
    weights: list[Tensor]
    walks: dict[int, _CapturedWalk]


_KEPT: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()
