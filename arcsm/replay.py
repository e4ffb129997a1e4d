"""Work that is the same each time: compiled, and on a GPU replayed as a captured graph.

Launching many small kernels one by one takes the host longer than the GPU needs to work them off.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

# Times that work is done kernel by kernel before it is captured: the first ones compile, allocate,
# and choose among algorithms.
WARM_UP = 3

T = TypeVar("T")


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
        self._work, self._generators, self._lost = work, generators, lost
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: T

    def __call__(self) -> T:
        """Do the work."""
        if self.captures and self._graph is None:
            if self._done < WARM_UP:
                self._done += 1
                return self._beside()
            self._capture()
        if self._graph is None:
            return self._work()
        self._graph.replay()
        return self._found

    @property
    def replays(self) -> bool:
        """Whether there is a graph by now."""
        return self._graph is not None

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
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph):
                self._found = self._work()
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"a step cannot be captured as a graph: {reason}", stacklevel=4)
            self.captures = False
            if self._lost is not None:
                self._lost()
        else:
            self._graph = graph


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function with a memory of its own.

    What was compiled is remembered by code, a few variants of it: those of one stack would drive
    out those of another.
    """

    def own(*arguments: Any) -> Any:
        return function(*arguments)

    own.__code__ = own.__code__.replace()
    return torch.compile(own, dynamic=False)
