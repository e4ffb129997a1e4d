"""Entries that are spread over their cells: as targets, anew at every step, and not as contexts."""

import numpy as np
import pytest
import torch
from torch import Tensor
from training_runs import KINDS, build, draw, happened, quick, same_bits

from arcsm.baselines import MixtureMADE
from arcsm.errors import CheckpointError
from arcsm.model import ARCSM
from arcsm.train import fit
from arcsm.train.loop import _Data, _generator


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
    data = _Data(x, torch.ones(60), None, spread, torch.arange(60).flip(0), device, dtype)
    chosen = torch.randperm(60)[:24]
    whole, *parts = (
        data.jitter(chosen, _generator(0, "jitter", 5), share)
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
