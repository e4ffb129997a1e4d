"""The parts of benchmarks/power.py that decide what its numbers mean."""

import math
import sys
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arcsm.conditional import Noise
from arcsm.data.sets import PowerSplit
from arcsm.errors import ArcsmError
from arcsm.model import ARCSM
from arcsm.train import TrainConfig, fit

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
power, readings, spline = map(import_module, ("power", "readings", "spline"))

MEAN, SCALE = np.array([3.0, -2.0]), np.array([2.0, 5.0])


def make_split(step: float, rows: int = 2000) -> tuple[PowerSplit, np.ndarray]:
    """Return a measured column beside an exact one, standardised, and what was measured."""
    random = np.random.default_rng(0)
    measured = np.floor(random.normal(MEAN[0], SCALE[0], size=rows) / step) * step
    exact = random.normal(MEAN[1], SCALE[1], size=rows)
    noisy = np.column_stack([measured + step * random.uniform(size=rows), exact])
    x = (noisy - MEAN) / SCALE
    split = PowerSplit(x, x, x, np.array([step, 0.0]) / SCALE, MEAN, SCALE)
    return split, measured


def small_model(seed: int = 0, sigma_min: float = 0.05) -> ARCSM:
    return ARCSM.made(2, hidden=(16, 16), noise=Noise(sigma_min=sigma_min), seed=seed)


# Readings

POINTS = 57  # of the exact column, when it is integrated over


@pytest.mark.parametrize("step", [0.001, 0.7, 1.0])
def test_cells_are_those_that_were_measured(step: float) -> None:
    split, measured = make_split(step)
    cells = readings.recover_cells(split.train, split)
    np.testing.assert_allclose(cells.low[:, 0] * SCALE[0] + MEAN[0], measured, atol=1e-9)
    np.testing.assert_allclose(cells.high - cells.low, np.tile(split.quanta, (2000, 1)), atol=1e-12)
    np.testing.assert_allclose(cells.middle, (cells.low + cells.high) / 2)
    assert ((cells.low <= split.train) & (split.train <= cells.high)).all()
    for part in (cells.low, cells.middle, cells.high):
        np.testing.assert_array_equal(part[:, 1], split.train[:, 1])


def grid(split: PowerSplit, inside: float) -> tuple[np.ndarray, float]:
    """Return a row at `inside` of every cell, for evenly spaced values of the exact column."""
    step = split.quanta[0] * split.scale[0]
    reading = np.arange(math.floor(-11 / step), math.ceil(17 / step)) * step
    first = (reading + inside * step - MEAN[0]) / SCALE[0]
    second, width = np.linspace(-7, 7, POINTS, retstep=True)
    return np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2), float(width)


def test_density_of_cells_integrates_to_one_and_is_even_inside_them() -> None:
    split, _ = make_split(1.0)
    models = [small_model(0), small_model(1)]
    rows, width = grid(split, 0.3)
    density = np.exp(readings.cell_log_prob(models, rows, split))
    assert density.sum() * split.quanta[0] * width == pytest.approx(1, abs=2e-3)
    elsewhere, _ = grid(split, 0.8)
    np.testing.assert_allclose(
        np.exp(readings.cell_log_prob(models, elsewhere, split)), density, rtol=1e-4
    )


def test_density_at_points_sees_the_middles_of_the_columns_before() -> None:
    split, _ = make_split(1.0)
    model, x = small_model(), split.test[:200]
    shown = readings.recover_cells(x, split).middle
    # By the first column at the value itself, by the second where the first is a middle.
    first, _ = model.log_prob_terms(torch.from_numpy(x).float())
    second, _ = model.log_prob_terms(
        torch.from_numpy(np.column_stack([shown[:, 0], x[:, 1]])).float()
    )
    expected = first[:, 0] + second[:, 1]
    found = readings.point_log_prob([model], x, split)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    assert np.abs(found - model.log_prob(torch.from_numpy(x).float()).numpy()).max() > 1e-3


def test_both_densities_of_a_trained_model_are_near_the_truth() -> None:
    split, _ = make_split(0.1)
    cells = readings.recover_cells(split.train, split)
    spread = np.broadcast_to(split.quanta / 2, cells.middle.shape)
    model = small_model(sigma_min=0.01)
    config = TrainConfig(steps=120, batch_size=256, learning_rate=0.02, warmup=10, ema=0.9)
    fit(model, cells.middle, config, spread=spread)
    x = split.test[:200]
    even = readings.cell_log_prob([model], x, split)
    points = readings.point_log_prob([model], x, split)
    # Across cells as narrow as these the density hardly changes.
    assert np.abs(even - points).max() < 0.3 and abs(even.mean() - points.mean()) < 0.01
    truth = -(x**2 / 2 + math.log(2 * math.pi) / 2).sum(1)
    assert abs((truth - even).mean()) < 0.1


def test_models_are_mixed_in_equal_parts() -> None:
    split, _ = make_split(1.0)
    models, x = [small_model(0), small_model(1)], split.test[:50]
    for function in (readings.cell_log_prob, readings.point_log_prob):
        each = [np.exp(function([model], x, split)) for model in models]
        np.testing.assert_allclose(
            np.exp(function(models, x, split)), (each[0] + each[1]) / 2, rtol=1e-4
        )


def test_samples_are_those_of_the_density_of_cells() -> None:
    split, _ = make_split(1.0)
    models, drawn_rows = [small_model(0), small_model(1)], 4000
    x = readings.draw(models, drawn_rows, split, seed=0).numpy()
    assert x.shape == (drawn_rows, 2) and np.isfinite(x).all()
    drawn = readings.recover_cells(x, split)
    # The share of every cell, and where in its cell a value lies.
    rows, width = grid(split, 0.5)
    mass = np.exp(readings.cell_log_prob(models, rows, split)).reshape(-1, POINTS).sum(1)
    mass *= split.quanta[0] * width
    edges = np.append(rows[::POINTS, 0] - split.quanta[0] / 2, np.inf)
    share = np.histogram(x[:, 0], edges)[0] / drawn_rows
    assert (np.abs(share - mass) < 4 * np.sqrt(mass / drawn_rows) + 2e-3).all()
    place = (x[:, 0] - drawn.low[:, 0]) / split.quanta[0]
    assert abs(place.mean() - 0.5) < 4 / math.sqrt(12 * drawn_rows)
    assert place.std() == pytest.approx(1 / math.sqrt(12), rel=0.05)


def test_samples_of_a_column_follow_the_middles_of_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split, _ = make_split(1.0)
    model, seen = small_model(), []
    monkeypatch.setattr(
        model, "context_input", lambda value, d: seen.append((d, value.clone())) or value
    )
    readings.draw([model], 100, split, seed=0)
    pushed = next(value for d, value in seen if d == 0).double().numpy()
    cells = readings.recover_cells(np.column_stack([pushed, pushed]), split)
    np.testing.assert_allclose(pushed, cells.middle[:, 0], atol=1e-6)


# The record


def test_likelihood_is_a_mean_with_its_interval_or_none() -> None:
    metric = power.likelihood_metric(np.array([1.0, 2.0, 3.0, 6.0]), {"method": "arcsm"})
    error = math.sqrt(14 / 3 / 4)
    assert metric.value == 3 and metric.spread == pytest.approx(math.sqrt(14 / 3))
    assert metric.interval == pytest.approx((3 - 1.96 * error, 3 + 1.96 * error))
    metric = power.likelihood_metric(np.array([1.0, -np.inf, np.nan]), {})
    assert metric.value is None and "2 of 3" in metric.reason


@pytest.mark.parametrize(
    "words",
    [["--methods", "arcsm,kde"], ["--members", "0"], ["--seconds", "0"], ["--rows", "9"]],
)
def test_options_that_cannot_be_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        power.parse(words)
    assert "expected" in capsys.readouterr().err


def test_members_share_the_time_and_have_orders_of_their_own() -> None:
    arguments = power.parse(["--members", "3", "--seconds", "60", "--order", "5,4,3,2,1,0"])
    orders = [power.make_model(arguments, member).config["context"]["order"] for member in range(3)]
    assert orders[0] == [5, 4, 3, 2, 1, 0] and len(set(map(tuple, orders))) == 3
    configs = [power.train_config(arguments, 1000, member) for member in range(3)]
    assert sum(config.max_seconds for config in configs) == pytest.approx(60)
    assert len({config.seed for config in configs}) == 3
    assert configs[0].validation == pytest.approx(0.1)
    assert power.train_config(arguments, 10**6, 0).validation == pytest.approx(0.02)


# The spline flow

SMALL = spline.SplineSettings(transforms=2, hidden=(16,), batch=128, evaluate_every=20, warmup=5)


@pytest.fixture
def a_second_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of the flow's training tick when it is read, once in each step."""
    monkeypatch.setattr(spline, "time", SimpleNamespace(monotonic=count(0.0).__next__))


def test_flow_is_that_of_zuko() -> None:
    zuko = pytest.importorskip("zuko")
    flow = spline.make_flow(3, SMALL, seed=0)
    theirs = zuko.flows.NSF(3, transforms=2, hidden_features=(16,))
    theirs.load_state_dict(flow.state_dict())
    x = 3 * torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    assert (x.abs() > 5).any()
    expected = theirs().log_prob(x).detach()
    torch.testing.assert_close(spline.log_prob(flow, x), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        spline._flow_log_prob(flow, x).detach(), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.usefixtures("a_second_for_each_step")
def test_flow_ends_with_the_averaged_weights_that_were_best() -> None:
    pytest.importorskip("zuko")
    generator = torch.Generator().manual_seed(0)
    x = 0.5 * torch.randn(2000, 2, generator=generator) + 1
    flow = spline.make_flow(2, SMALL, seed=0)
    before, shown = spline.log_prob(flow, x).mean().item(), []
    run = spline.train_flow(
        flow,
        x[500:],
        x[:500],
        SMALL,
        seconds=201,
        seed=0,
        progress=lambda step, loss: shown.append((step, loss)),
    )
    after = spline.log_prob(flow, x[:500]).double().mean().item()
    assert run.held_out == pytest.approx(after, abs=1e-6)
    assert min(shown, key=lambda entry: entry[1]) == (run.best_step, pytest.approx(-after))
    truth = -math.log(2 * math.pi * math.e) - 2 * math.log(0.5)
    assert before < truth - 0.5 and after == pytest.approx(truth, abs=0.3)
    assert run.steps == 200 and run.end == "time limit"


@pytest.mark.usefixtures("a_second_for_each_step")
def test_flow_goes_back_to_weights_that_were_better_on_the_held_out_rows() -> None:
    pytest.importorskip("zuko")
    generator = torch.Generator().manual_seed(0)
    held_out = torch.randn(200, 2, generator=generator)
    train = 0.2 * torch.randn(1000, 2, generator=generator) + 2  # leads away from them
    flow, shown = spline.make_flow(2, SMALL, seed=0), []
    run = spline.train_flow(
        flow,
        train,
        held_out,
        SMALL,
        seconds=101,
        seed=0,
        progress=lambda step, loss: shown.append((step, loss)),
    )
    best_step, least = min(shown, key=lambda entry: entry[1])
    assert best_step < shown[-1][0] and run.best_step == best_step
    assert spline.log_prob(flow, held_out).double().mean().item() == pytest.approx(-least)


def test_held_out_rows_are_scored_by_the_average_and_its_own_weights_come_back() -> None:
    pytest.importorskip("zuko")
    flow, other = spline.make_flow(2, SMALL, seed=0), spline.make_flow(2, SMALL, seed=1)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    own = [parameter.detach().clone() for parameter in flow.parameters()]
    average = [parameter.detach() for parameter in other.parameters()]
    value = spline._averaged_log_prob(flow, list(flow.parameters()), average, x)
    assert value == pytest.approx(spline.log_prob(other, x).mean().item(), abs=1e-5)
    for parameter, before in zip(flow.parameters(), own, strict=True):
        torch.testing.assert_close(parameter.detach(), before, rtol=0, atol=0)


def test_flow_that_breaks_keeps_the_weights_it_had() -> None:
    pytest.importorskip("zuko")
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    x[100] = math.nan
    flow = spline.make_flow(2, SMALL, seed=0)
    run = spline.train_flow(flow, x[50:], x[:50], SMALL, seconds=60, seed=0)
    assert "not finite" in run.end and run.steps < 100
    assert spline.log_prob(flow, x[:50]).isfinite().all()


def test_another_gradient_is_refused() -> None:
    pytest.importorskip("zuko")
    flow = spline.make_flow(2, SMALL, seed=0)
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return -spline._flow_log_prob(flow, x).mean()

    spline._check_gradient(flow, loss, loss, x)
    with pytest.raises(ArcsmError, match="gradient"):
        spline._check_gradient(flow, lambda x: 1.1 * loss(x), loss, x)
