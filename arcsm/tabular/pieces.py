"""How many rows are taken at one time, which bounds the memory whatever the number of rows."""

import hashlib
from collections.abc import Iterator

import torch

# Rows encoded and evaluated at one time.
ROWS = 16_384

# Numbers drawn at one time by a CPU: pieces of some seconds, so that a bar can show them.
_NUMBERS = 2**18


def rows_drawn_at_once(scalars: int, device: torch.device | str) -> int:
    """Return how many rows of so many scalars are drawn at one time."""
    if torch.device(device).type != "cpu":
        return ROWS  # more at a time are hardly slower there
    return min(ROWS, max(1, _NUMBERS // max(scalars, 1)))


def generators_of_pieces(
    generator: torch.Generator | None, pieces: int
) -> Iterator[torch.Generator | None]:
    """Yield a generator for each of several pieces that are drawn one by one, in any order.

    The first is `generator` itself; the others follow from its state and their number alone, so
    that a piece is the same whoever draws it, and whether the others are drawn at all. Without one
    all draw from torch's own, one after the other.
    """
    state = b"" if generator is None else generator.get_state().numpy().tobytes()
    for number in range(pieces):
        if generator is None or number == 0:
            yield generator
        else:
            digest = hashlib.sha256(state + f"/{number}".encode()).digest()
            own = torch.Generator(generator.device)
            yield own.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
