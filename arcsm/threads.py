"""Threads for work on many small tensors.

Two threads that share every small operation wait for each other thousands of times a second. On
an idle machine that costs little; on a busy one the wait is for a core that others use, and all of
it becomes tens of times as slow. Pieces that are worked off apart, one thread each, do not wait.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

# Conditionals that are worth a piece of their own.
_WORTH_A_PIECE = 512

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@contextmanager
def limited_threads(most: int) -> Iterator[None]:
    """Let torch use at most so many threads for an operation while the block runs."""
    former = torch.get_num_threads()
    torch.set_num_threads(max(1, min(former, most)))
    try:
        yield
    finally:
        torch.set_num_threads(former)


def even_sizes(count: int, most: int, device: torch.device) -> list[int]:
    """Return the sizes of pieces of at most `most` of `count` things, about equal.

    On a CPU there are as many pieces as keep all threads at work to the end, unless they would be
    too small to be worth it.
    """
    pieces = -(-count // most)
    if device.type == "cpu":
        threads = torch.get_num_threads()
        pieces = min(max(pieces, count // _WORTH_A_PIECE), -(-pieces // threads) * threads)
    pieces = max(1, pieces)
    return [(place + 1) * count // pieces - place * count // pieces for place in range(pieces)]


def map_pieces(
    function: Callable[[Piece], Result], pieces: Sequence[Piece], device: torch.device
) -> list[Result]:
    """Return function(piece) for all pieces, without gradients.

    On a CPU as many pieces at a time as torch has threads, each of them on one thread.
    """
    former = torch.get_num_threads()
    workers = min(former, len(pieces)) if device.type == "cpu" else 1

    def work(piece: Piece) -> Result:
        with torch.no_grad():  # whether gradients are kept is each thread's own affair
            return function(piece)

    if workers < 2:
        return [work(piece) for piece in pieces]
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, pieces))
    finally:
        # The last number set is also what threads begin with that torch has not met yet.
        torch.set_num_threads(former)
