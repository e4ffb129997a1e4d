"""Linear predictions of columns from any others."""

import itertools

import numpy as np
import torch
from known import normal, seeded

from arcsm.context.linear import (
    conditional_means,
    learn_correlation,
    regressions_along,
)

CORRELATION = torch.tensor(
    [[1.0, 0.8, -0.5, 0.1], [0.8, 1.0, -0.3, 0.2], [-0.5, -0.3, 1.0, 0.4], [0.1, 0.2, 0.4, 1.0]],
    dtype=torch.float64,
)


def expected(v: np.ndarray, known: list[int], d: int) -> float:
    """Return the mean of column d, by the textbook."""
    c = CORRELATION.numpy()
    return float(np.linalg.solve(c[np.ix_(known, known)], c[known, d]) @ v[known]) if known else 0.0


def test_means_given_any_columns() -> None:
    patterns = list(itertools.product((False, True), repeat=4))
    v = normal(len(patterns), 4)
    mean = conditional_means(CORRELATION, v, torch.tensor(patterns))
    for row, pattern in enumerate(patterns):
        given = [d for d in range(4) if pattern[d]]
        told = [0.0 if d in given else expected(v[row].numpy(), given, d) for d in range(4)]
        np.testing.assert_allclose(mean[row], told, atol=1e-12)


def test_regressions_along_an_order() -> None:
    v = normal(1, 4)
    for order in itertools.permutations(range(4)):
        means = torch.einsum("d,pde->pe", v[0], regressions_along(CORRELATION, order))
        for place in range(4):
            given = list(order[:place])
            told = [0.0 if d in given else expected(v[0].numpy(), given, d) for d in range(4)]
            np.testing.assert_allclose(means[place], told, atol=1e-12)


def test_correlations_are_learned_from_rows_with_holes() -> None:
    """Column 1 is missing where column 0 is high: what is left of it alone is not its spread."""
    root = torch.linalg.cholesky(CORRELATION)
    v = normal(4000, 4) @ root.T
    whole = torch.ones_like(v, dtype=torch.bool)
    torch.testing.assert_close(
        learn_correlation(v, whole), torch.from_numpy(np.corrcoef(v.T.numpy())), atol=0.01, rtol=0
    )
    observed = torch.rand(v.shape, generator=seeded()) < 0.8
    observed[:, 0] = True
    observed[:, 1] = v[:, 0] < 0.3
    shown = v.where(observed, 0.0)
    mean = shown.sum(0) / observed.sum(0)
    deviation = ((shown - mean).square() * observed).sum(0).div(observed.sum(0)).sqrt()
    learned = learn_correlation((v - mean) / deviation, observed)
    # Of the rows in which both are known the correlation of 0 and 1 is far from 0.8.
    both = v[observed[:, 1]]
    assert np.corrcoef(both[:, 0], both[:, 1])[0, 1] < 0.7
    torch.testing.assert_close(learned, CORRELATION, atol=0.05, rtol=0)


def test_few_rows_are_not_believed() -> None:
    """Of 12 rows of 10 independent columns correlations by accident are shrunk to next to none."""
    v = normal(12, 10)
    v = (v - v.mean(0)) / v.std(0, correction=0)
    learned = learn_correlation(v, torch.ones_like(v, dtype=torch.bool))
    raw = v.T @ v / 12
    off = ~torch.eye(10, dtype=torch.bool)
    assert learned[off].abs().max() < 0.35 * raw[off].abs().max()
    assert torch.equal(learned.diagonal(), torch.ones(10, dtype=torch.float64)) or torch.allclose(
        learned.diagonal(), torch.ones(10, dtype=torch.float64)
    )
