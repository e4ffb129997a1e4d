"""Work that is the same each time: compiled, and on a GPU replayed as a captured graph.

Launching many small kernels one by one takes the host longer than the GPU needs to work them off.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from arcsm.devices import on_device

# Times that work is done kernel by kernel before it is captured: the first ones compile, allocate,
# and choose among algorithms.
WARM_UP = 3
# Of the stream that graphs are captured on: what work does beside it, on streams of the usual
# priority, 0, gives way.
_PRIORITY = -1
# Sums of fewer terms are written out by compilers: as parts of what they are sums of, and of what
# reads them, they are no kernels of their own.
_UNROLLED = 17

T = TypeVar("T")
U = TypeVar("U")


class Replayed(Generic[T]):
    """Calls `work`, which reads and writes tensors that stay where they are.

    On a GPU, and where it is `wanted`, calls after the first few replay a graph; tensors that are
    returned are then those of the capture, written anew by each call. Random numbers may come from
    the default generator and from `generators`. Work that cannot be captured is done kernel by
    kernel, with a warning; `captures` says which it is. Before it goes on `lost` is called: the
    generators may believe that they are still being captured.
    """

    def __init__(
        self,
        work: Callable[[], T],
        device: torch.device | str,
        *,
        wanted: bool = True,
        generators: Sequence[torch.Generator] = (),
        lost: Callable[[], None] | None = None,
    ):
        self.captures = wanted and torch.device(device).type == "cuda"
        self._device = device
        self._work, self._generators, self._lost = work, generators, lost
        self._done = 0
        self._again: Callable[[], T] | None = None
        self._stream: torch.cuda.Stream | None = None  # that its graphs are captured on

    def __call__(self) -> T:
        """Do the work."""
        with on_device(self._device):
            if self.captures and self._again is None:
                if self._done < WARM_UP:
                    self._done += 1
                    return self._beside()
                self._capture()
            return self._work() if self._again is None else self._again()

    @property
    def replays(self) -> bool:
        """Whether there is a graph by now."""
        return self._again is not None

    def _beside(self) -> T:
        """Work on another stream than the default one, which cannot be captured."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = self._work()
        torch.cuda.current_stream().wait_stream(stream)
        return found

    def _capture(self) -> None:
        """Make the graph, in which nothing is done yet; if that fails, give it up."""
        self._stream = torch.cuda.Stream(priority=_PRIORITY)
        try:
            self._again = self._captured()
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"a step cannot be captured as a graph: {reason}", stacklevel=4)
            self.captures = False
            if self._lost is not None:
                self._lost()

    def _captured(self) -> Callable[[], T]:
        """Return the work as a graph."""
        graph, found = self._graph_of(self._work)

        def again() -> T:
            graph.replay()
            return found

        return again

    def _graph_of(self, work: Callable[[], U]) -> tuple[torch.cuda.CUDAGraph, U]:
        """Return a graph, and what the work has returned: tensors that replaying writes anew."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self._stream):
            found = work()
        return graph, found


class ReplayedAround(Replayed[None]):
    """Work in the middle of which the host has a part: two graphs, and that part between them.

    `before` returns what the others are given; `between` leaves what it finds in tensors that stay
    where they are. Either both graphs can be captured, or all is done kernel by kernel.
    """

    def __init__(
        self,
        before: Callable[[], U],
        between: Callable[[U], None],
        after: Callable[[U], None],
        device: torch.device | str,
        *,
        wanted: bool = True,
        generators: Sequence[torch.Generator] = (),
        lost: Callable[[], None] | None = None,
    ):
        def work() -> None:
            begun = before()
            between(begun)
            after(begun)

        super().__init__(work, device, wanted=wanted, generators=generators, lost=lost)
        self._parts: tuple[Callable[..., Any], ...] = (before, between, after)

    def _captured(self) -> Callable[[], None]:
        """Return the work as two graphs; a backward pass is on the stream where its forward was."""
        before, between, after = self._parts
        first, begun = self._graph_of(before)
        second, _ = self._graph_of(lambda: after(begun))

        def again() -> None:
            first.replay()
            between(begun)
            second.replay()

        return again


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function with a memory of its own.

    What was compiled is remembered by code, a few variants of it: those of one stack would drive
    out those of another.
    """

    def own(*arguments: Any) -> Any:
        return function(*arguments)

    own.__code__ = own.__code__.replace()
    return torch.compile(own, dynamic=False, options={"unroll_reductions_threshold": _UNROLLED})
