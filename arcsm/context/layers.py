"""What context networks of one hidden layer after another have in common."""

from collections.abc import Sequence

from torch import nn

from arcsm.errors import InputError


def layer_sizes(
    dims: int,
    width: int,
    hidden: Sequence[int] | None,
    frequencies: int | None,
    condition_dims: int,
) -> tuple[tuple[int, ...], int]:
    """Return the widths of the hidden layers and the number of frequencies, checked.

    The default is three layers of at least 128 units and one for each scalar, and 4 frequencies for
    fewer than 64 scalars, none from there on.
    """
    layers = (max(128, dims),) * 3 if hidden is None else tuple(hidden)
    waves = (4 if dims < 64 else 0) if frequencies is None else frequencies
    if min(dims, width, waves + 1, condition_dims + 1, *layers, len(layers)) < 1:
        raise InputError(
            "expected dims and width of at least 1, frequencies and condition_dims of at least"
            f" 0 and at least one positive hidden width, got dims={dims}, width={width},"
            f" frequencies={waves}, condition_dims={condition_dims}, hidden={layers};"
            " correct these"
        )
    return layers, waves


def condition_map(condition_dims: int, units: int) -> nn.Linear | None:
    """Return the map by which a condition enters a layer, None if there is no condition."""
    return nn.Linear(condition_dims, units, bias=False) if condition_dims else None
