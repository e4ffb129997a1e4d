"""Rows of a walk that are replaced by copies of others go on as if they had been those always."""

from collections.abc import Callable

import pytest
import torch
from known import normal

from arcsm.context import MADE, ContextNetwork, PixelCNN, SubsetNetwork

NETWORKS: dict[str, Callable[[], ContextNetwork]] = {
    "made": lambda: MADE(7, width=3, hidden=(16, 24, 24), order="random"),
    "made, conditional": lambda: MADE(5, width=3, hidden=(16, 16), condition_dims=2),
    "subset": lambda: SubsetNetwork(6, width=3, hidden=(16, 16), order="random"),
    "subset, conditional": lambda: SubsetNetwork(5, width=3, hidden=(16,), condition_dims=2),
    "pixels": lambda: PixelCNN((6, 5, 3), width=4, filters=(4, 6), blocks=1, levels=2),
    "grey pixels": lambda: PixelCNN((7, 4, 1), width=4, filters=(4, 6, 5), blocks=2, levels=3),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_taken_again_and_again_have_the_contexts_of_the_forward_pass(name: str) -> None:
    network = NETWORKS[name]().double().requires_grad_(False)
    with torch.no_grad():  # so that every layer shows
        for place, parameter in enumerate(network.parameters()):
            parameter += 0.3 * normal(*parameter.shape, seed=place)
    n = 5
    x = normal(n, network.dims, seed=1)
    condition = normal(n, network.condition_dims, seed=2) if network.condition_dims else None
    generator = torch.Generator().manual_seed(3)
    cursor = network.cursor(n, condition)
    for d in network.order:
        rows = torch.randint(n, (n,), generator=generator)
        x = x[rows]
        condition = None if condition is None else condition[rows]
        x[:, d] = normal(n, seed=10 + d)  # what comes next differs again
        cursor.take(rows)
        expected = network(x, condition)[:, d]
        torch.testing.assert_close(cursor.context(), expected, rtol=1e-9, atol=1e-9)
        cursor.push(x[:, d])
