"""Entries that are spread over their cells: as targets, anew at every step, and not as contexts."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from training_runs import KINDS, build, draw, happened, quick, same_bits

from arcsm.baselines import MixtureMADE
from arcsm.errors import CheckpointError
from arcsm.model import ARCSM
from arcsm.train import fit
from arcsm.train.batches import TrainingRows, seeded_generator


def widths(n: int = 60) -> np.ndarray:
    """Spreads that differ from entry to entry, half of them 0."""
    spread = np.random.default_rng(7).uniform(0.1, 2, size=(n, 2)).astype(np.float32)
    spread[::2, 1] = 0
    return spread


@pytest.fixture
def calls(monkeypatch) -> dict[bool, list[tuple[Tensor, Tensor | None]]]:
    """The rows and the jitter of each call of a loss, in training (True) and in evaluation."""
    seen: dict[bool, list[tuple[Tensor, Tensor | None]]] = {True: [], False: []}

    def watch(kind):
        original = kind.loss_terms

        def loss_terms(self, x, noise=(), *, jitter=None, **options):
            seen[self.training].append((x, jitter))
            return original(self, x, noise, jitter=jitter, **options)

        monkeypatch.setattr(kind, "loss_terms", loss_terms)

    watch(ARCSM)
    watch(MixtureMADE)
    return seen


def spread_of(rows: Tensor) -> Tensor:
    """Return the widths that belong to rows of draw(60)."""
    place = {tuple(row): index for index, row in enumerate(draw(60).tolist())}
    return torch.from_numpy(widths()[[place[tuple(row)] for row in rows.tolist()]])


@pytest.mark.parametrize("kind", KINDS)
def test_jitter_fills_the_spread_of_its_row(kind, calls):
    fit(build(kind), draw(60), quick(steps=200, evaluate_every=100), spread=widths())
    places = []
    for x, jitter in calls[True] + calls[False]:
        width = spread_of(x)  # which fails where x is not a row as it was given
        assert jitter.dtype == x.dtype
        assert bool((jitter.abs() <= width).all())
        assert not jitter[width == 0].any()
        places.append((jitter / width)[width > 0])
    place = torch.cat(places).double()
    # Uniform on (−1, 1): mean 0, variance 1/3, to four standard errors of some thousand draws.
    error = len(place) ** -0.5
    assert abs(place.mean().item()) < 4 * error * 3**-0.5
    assert abs(place.square().mean().item() - 1 / 3) < 4 * error * (4 / 45) ** 0.5
    assert place.min().item() < -0.99 and place.max().item() > 0.99


def test_jitter_differs_in_training_and_is_the_same_in_evaluation(calls):
    fit(build("ARCSM"), draw(60), quick(steps=10, batch_size=1000), spread=widths())
    drawn = {}
    for x, jitter in calls[True]:
        for row, value in zip(x.tolist(), jitter.tolist(), strict=True):
            drawn.setdefault(tuple(row), set()).add(tuple(value))
    assert all(len(values) == 10 for values in drawn.values())
    (first, jitter), (second, again) = calls[False]
    assert torch.equal(first, second) and torch.equal(jitter, again)
    # And repeated rows of an evaluation lie in different places.
    assert len({tuple(value) for value in jitter.tolist()}) > 2000


@pytest.mark.parametrize("kind", KINDS)
def test_seed_fixes_every_bit(kind):
    one, same, other, plain = (build(kind) for _ in range(4))
    histories = [
        fit(model, draw(60), quick(seed=seed), spread=widths())
        for model, seed in ((one, 3), (same, 3), (other, 4))
    ]
    fit(plain, draw(60), quick(seed=3))
    assert same_bits(one, same)
    assert happened(histories[0]) == happened(histories[1])
    assert not same_bits(one, other)
    assert not same_bits(one, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spread_of_zero_is_none(kind):
    one, other = build(kind), build(kind)
    a = fit(one, draw(60), quick(), spread=np.zeros((60, 2), np.float32))
    b = fit(other, draw(60), quick())
    assert same_bits(one, other)
    assert happened(a) == happened(b)


def test_columns_are_standardised_by_the_rows_themselves():
    one, other = build("ARCSM"), build("ARCSM")
    fit(one, draw(60), quick(), spread=100 * widths())
    fit(other, draw(60), quick())
    assert torch.equal(one.shift, other.shift) and torch.equal(one.scale, other.scale)


def test_shares_of_processes_are_parts_of_one_jitter():
    device, dtype = torch.device("cpu"), torch.float64
    x, spread = (torch.from_numpy(part).to(dtype) for part in (draw(60), widths()))
    data = TrainingRows(
        x, torch.ones(60), None, spread, None, torch.arange(60).flip(0), device, dtype
    )
    chosen = torch.randperm(60)[:24]
    whole, *parts = (
        data.jitter(data.x[chosen], chosen, seeded_generator(0, "jitter", 5), share)
        for share in (slice(0, 24), slice(0, 12), slice(12, 24))
    )
    assert torch.equal(torch.cat(parts), whole)
    assert bool((whole.abs() <= spread.flip(0)[chosen]).all())


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_goes_on_to_the_same_bits(kind, tmp_path):
    def interrupt(state):
        if state.step == 10:
            raise KeyboardInterrupt

    model, whole = build(kind), build(kind)
    expected = fit(whole, draw(60), quick(), spread=widths())
    with pytest.raises(KeyboardInterrupt):
        fit(model, draw(60), quick(), spread=widths(), directory=tmp_path, progress=interrupt)
    for spread in (None, 2 * widths(), np.zeros_like(widths())):
        with pytest.raises(CheckpointError, match="got one on other data"):
            fit(build(kind), draw(60), quick(), spread=spread, directory=tmp_path, resume=True)
    again = build(kind, seed=5)
    history = fit(again, draw(60), quick(), spread=widths(), directory=tmp_path, resume=True)
    assert same_bits(again, whole)
    assert happened(history) == happened(expected)


@dataclasses.dataclass(frozen=True)
class Lopsided:
    """Spreads rows from 1 below to 2 above them; those above 0 by nothing."""

    def __call__(self, rows):
        some = (rows <= 0).to(rows.dtype)
        return some, 2 * some


def test_a_rule_says_how_far_below_and_above_rows_are_spread():
    x = torch.randn(4000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = TrainingRows(
        x, torch.ones(4000), None, None, Lopsided(), torch.arange(4000), torch.device("cpu"),
        torch.float64,
    )  # fmt: skip
    jitter = data.jitter(x, torch.arange(4000), seeded_generator(0, "jitter", 1), slice(None))
    assert bool((jitter[x > 0] == 0).all())
    spread = jitter[x <= 0]
    assert spread.min().item() == pytest.approx(-1, abs=0.01)
    assert spread.max().item() == pytest.approx(2, abs=0.01)
    assert spread.mean().item() == pytest.approx(0.5, abs=4 * 3 / math.sqrt(12 * len(spread)))


def test_a_rule_of_equal_widths_is_an_array_of_them():
    @dataclasses.dataclass(frozen=True)
    class Even:
        def __call__(self, rows):
            width = torch.full_like(rows, 0.3)
            return width, width

    one, other, third = (build("ARCSM") for _ in range(3))
    fit(one, draw(60), quick(), spread=Even())
    fit(other, draw(60), quick(), spread=np.full((60, 2), 0.3, np.float32))
    fit(third, draw(60), quick())
    torch.testing.assert_close([*one.parameters()], [*other.parameters()], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(next(one.parameters()), next(third.parameters()))
