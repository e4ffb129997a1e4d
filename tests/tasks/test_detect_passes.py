"""What one chain says of rows, against Gaussian chains whose every answer is a closed form."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from arcsm.columns import Columns
from arcsm.conditional import Noise
from arcsm.data.table import Table, as_table
from arcsm.model import ARCSM
from arcsm.tabular import TabularModel
from arcsm.tasks.detect.explain import SMOOTHING, VALUES, column_surprise, typical_values
from arcsm.tasks.detect.passes import scaled_jets, smoothed_terms


def gaussian_chain(x: Tensor, order: list[int], monkeypatch: pytest.MonkeyPatch) -> ARCSM:
    """Return a chain in which x_d − c_d(x_<d) is N(0, scale_d²), c_d a linear regression."""
    monkeypatch.setattr("arcsm.autoregressive._NARROW", math.inf)  # regress every column
    chain = ARCSM.made(
        x.shape[1], hidden=(8,), order=order, decorrelate=True, noise=Noise(3.0, 0.01), seed=0
    ).double()
    chain.head.normal_at = None
    chain.standardise(x)
    with torch.no_grad():
        chain.head.output.weight.zero_()
        chain.head.output.bias.zero_()
        chain.head.output.bias[-1] = -30.0
    return chain


def correlated(rows: int = 400, dims: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(dims, dims, generator=generator, dtype=torch.float64)
    x = torch.randn(rows, dims, generator=generator, dtype=torch.float64)
    return x @ mixing * 2 + 5


def log_normal(z: Tensor, variance: float) -> Tensor:
    return -z.square() / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)


ORDERS = [[0, 1, 2], [2, 0, 1]]


@pytest.mark.parametrize("order", ORDERS)
def test_scores_at_all_levels(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = correlated()
    chain = gaussian_chain(x, order, monkeypatch)
    levels = [0.02, 0.5, 2.0]
    scores, bends = scaled_jets(chain, x[:50], levels)
    assert scores.shape == bends.shape == (50, 3, 3)
    z = chain.to_standard(x[:50])
    for place, level in enumerate(levels):
        variance = 1 + level**2
        torch.testing.assert_close(scores[:, place], -z * level / variance, rtol=1e-4, atol=1e-5)
        expected = torch.full_like(z, -(level**2) / variance)
        torch.testing.assert_close(bends[:, place], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_densities_of_noisy_values(
    order: list[int], sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = correlated()
    chain = gaussian_chain(x, order, monkeypatch)
    expected = log_normal(chain.to_standard(x[:50]), 1 + sigma**2) - chain.scale.log()
    found = smoothed_terms(chain, x[:50], sigma)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=5e-3)  # of the flow's steps
    some = smoothed_terms(chain, x[:50], sigma, only=[2, 0])
    torch.testing.assert_close(some, found[:, [2, 0]])


def test_less_noise_than_was_trained_is_the_least_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = correlated()
    chain = gaussian_chain(x, [0, 1, 2], monkeypatch)
    torch.testing.assert_close(
        smoothed_terms(chain, x[:5], 1e-6), smoothed_terms(chain, x[:5], 0.01)
    )


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = correlated()
    chain = ARCSM.made(3, hidden=(16,), seed=0).double()
    whole, terms = scaled_jets(chain, x, [0.1, 1.0]), smoothed_terms(chain, x, 0.1)
    monkeypatch.setattr("arcsm.tasks.detect.passes._CONDITIONALS", 50)
    torch.testing.assert_close(scaled_jets(chain, x, [0.1, 1.0]), whole)
    torch.testing.assert_close(smoothed_terms(chain, x, 0.1), terms)


def tabular(x: Tensor, order: list[int], monkeypatch: pytest.MonkeyPatch) -> TabularModel:
    names = {f"x{i}": "real" for i in range(x.shape[1])}
    columns = Columns.learn(as_table(x.numpy()), kinds=names)
    points = torch.from_numpy(columns.encode(as_table(x.numpy())).point)
    return TabularModel(columns, gaussian_chain(points, order, monkeypatch))


@pytest.mark.parametrize("order", ORDERS)
def test_surprise_given_all_others(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = correlated()
    model = tabular(x, order, monkeypatch)
    (chain,) = model.members
    points = torch.from_numpy(model.columns.encode(as_table(x.numpy())).point)
    values = typical_values(model, points.numpy())
    found = column_surprise(model, points[:8].numpy(), values)

    def log_density(rows: Tensor) -> Tensor:
        variance = 1 + SMOOTHING**2
        return log_normal(chain.to_standard(rows), variance).sum(-1) - chain.scale.log().sum()

    for column in range(3):
        others = points[:8].repeat_interleave(VALUES, 0)
        others[:, column] = torch.from_numpy(values[f"x{column}"][:, 0]).repeat(8)
        mean = log_density(others).view(8, VALUES).logsumexp(1) - math.log(VALUES)
        expected = mean - log_density(points[:8])
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-2, atol=5e-2)


def test_one_order_is_enough_to_find_a_column_that_others_contradict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the order x0, x1 the first column has no term that sees the other one."""
    first = torch.randn(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(400, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.cat([first + 0.1 * noise, noise[:, :1]], 1)  # three of one kind, and one alone
    model = tabular(x, [0, 1, 2, 3], monkeypatch)
    points = torch.from_numpy(model.columns.encode(as_table(x.numpy())).point)
    values = typical_values(model, points.numpy())
    for column in range(3):
        row = torch.zeros(1, 4, dtype=torch.float64)
        row[0, column] = 1.5  # not far out by itself
        found = column_surprise(model, row.numpy(), values)[0]
        assert found.argmax() == column and found[column] > 10


def test_typical_values_weigh_as_much_as_they_are_frequent() -> None:
    random = np.random.default_rng(0)
    town = np.array(["Bern"] * 75 + ["Chur"] * 25, dtype=object)[random.permutation(100)]
    table = Table({"town": town, "height": random.normal(size=100)})
    columns = Columns.learn(table)
    model = TabularModel(columns, ARCSM.made(2, hidden=(8,), seed=0))
    values = typical_values(model, columns.encode(table).point)
    town_code = columns.encode(table).point[town == "Bern"][0, 0]
    assert (values["town"][:, 0] == town_code).mean() == 0.75
    assert (np.diff(values["height"][:, 0]) >= 0).all()
    assert np.median(values["height"]) == pytest.approx(np.median(table["height"]), abs=0.1)
