"""How many rows are taken at one time, which bounds the memory whatever the number of rows."""

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
