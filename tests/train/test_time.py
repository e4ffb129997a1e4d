"""Training that ends in time, by a clock of our own."""

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from training_runs import FINISHED, build, contents, draw, happened, quick, same_bits

from arcsm.errors import CheckpointError
from arcsm.train import fit, limits, loop

LIMITED = quick(steps=1000, max_seconds=10.0, warmup=0)


class Clock:
    """A second for each step of the optimiser; it says what it was told, and the rates."""

    def __init__(self) -> None:
        self.now = 1e6
        self.step = 1.0
        self.rates: list[float] = []


@pytest.fixture
def clock(monkeypatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def tick(*_: object) -> None:
        clock.now += clock.step

    hooks = [
        register_optimizer_step_pre_hook(
            lambda optimiser, *_: clock.rates.append(optimiser.param_groups[0]["lr"])
        ),
        register_optimizer_step_post_hook(tick),
    ]
    yield clock
    for hook in hooks:
        hook.remove()


def test_training_ends_in_time_with_a_rate_near_zero(clock):
    told = []
    history = fit(build("MixtureMADE"), draw(60), LIMITED, progress=told.append)
    assert history.steps == 10 and history.seconds == 10.0
    cosine = (1 + np.cos(math.pi * np.arange(10) / 10)) / 2
    assert clock.rates == pytest.approx(list(0.01 * cosine), rel=1e-12)
    assert clock.rates[-1] < 0.01 / 30
    assert [(report.step, report.done) for report in told] == [(5, 0.5), (10, 1.0)]
    assert [report.seconds for report in told] == [5.0, 10.0]


@pytest.mark.parametrize("seconds", [7.0, 7.3, 0.4])
def test_the_model_is_evaluated_and_written_at_the_end(clock, seconds, tmp_path):
    config = quick(steps=1000, max_seconds=seconds, evaluate_every=500, checkpoint_every=500)
    history = fit(build("MixtureMADE"), draw(60), config, directory=tmp_path)
    last = math.ceil(seconds)
    assert history.steps == last
    assert [step for step, _ in history.validation] == [last]
    assert history.best_step == last
    assert list(contents(tmp_path)) == FINISHED


def test_steps_may_be_done_before_the_time_is(clock):
    in_time, plain = build("MixtureMADE"), build("MixtureMADE")
    a = fit(in_time, draw(60), quick(max_seconds=1000.0))
    b = fit(plain, draw(60), quick())
    assert happened(a) == happened(b) and a.steps == 20
    assert same_bits(in_time, plain)
    assert clock.rates[:20] == clock.rates[20:]


def test_whichever_is_further_counts(clock):
    """Steps first, then time, when steps become slow: the rate never rises."""
    told = []

    def slow_down(report) -> None:
        told.append(report.done)
        clock.step = 10.0

    config = quick(steps=20, max_seconds=100.0, warmup=0, evaluate_every=1)
    history = fit(build("MixtureMADE"), draw(60), config, progress=slow_down)
    assert history.steps == 11
    steps, seconds = np.arange(1, 12) / 20, (1 + 10 * np.arange(11)) / 100
    assert told == pytest.approx(list(np.maximum(steps, seconds)))
    assert all(a >= b for a, b in zip(clock.rates, clock.rates[1:], strict=False))


@pytest.mark.parametrize("kind", ["ARCSM", "MixtureMADE"])
def test_a_resumed_run_counts_the_seconds_spent_before(kind, clock, tmp_path):
    whole = build(kind)
    expected = fit(whole, draw(60), LIMITED)

    def interrupt(report) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(build(kind), draw(60), LIMITED, directory=tmp_path, progress=interrupt)
    clock.now += 1e5  # the time between the two does not count
    again = build(kind, seed=1)
    before = len(clock.rates)
    history = fit(again, draw(60), LIMITED, directory=tmp_path, resume=True)
    assert len(clock.rates) - before == 6  # on from the checkpoint of step 4
    assert history.seconds == pytest.approx(10.0)
    assert happened(history) == happened(expected)
    assert same_bits(again, whole)


def test_a_run_whose_time_is_over_is_not_trained_again(clock, tmp_path):
    model, again = build("MixtureMADE"), build("MixtureMADE", seed=1)
    first = fit(model, draw(60), LIMITED, directory=tmp_path)
    steps, before = len(clock.rates), contents(tmp_path)
    second = fit(again, draw(60), LIMITED, directory=tmp_path, resume=True)
    assert len(clock.rates) == steps
    assert happened(first) == happened(second) and same_bits(model, again)
    assert contents(tmp_path) == before
    with pytest.raises(CheckpointError, match="other values of max_seconds;"):
        fit(
            build("MixtureMADE"),
            draw(60),
            quick(steps=1000, warmup=0),
            directory=tmp_path,
            resume=True,
        )


def test_the_clock_of_a_run_without_a_limit_leaves_no_trace(clock, tmp_path):
    for name, step in (("quick", 0.1), ("slow", 10.0)):
        clock.step = step
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path / name)
    assert contents(tmp_path / "quick") == contents(tmp_path / "slow")


def test_real_seconds(tmp_path):
    history = fit(build("MixtureMADE"), draw(60), quick(steps=10**6, max_seconds=0.2))
    assert 1 <= history.steps < 10**6
    assert 0.1 <= history.seconds < 5  # at most half is kept back for the last look


def test_the_last_look_is_within_the_time_and_counted(clock, monkeypatch):
    whole = loop._validate

    def slow(*arguments):
        clock.now += 2
        return whole(*arguments)

    monkeypatch.setattr(loop, "_validate", slow)
    config = quick(steps=1000, max_seconds=10.0, evaluate_every=3, warmup=0)
    history = fit(build("MixtureMADE"), draw(60), config)
    # Three steps and a look, 5 s; then as many as leave 2 s for the last one.
    assert [step for step, _ in history.validation] == [3, 6]
    assert history.steps == 6 and history.seconds == 10.0


def test_a_run_without_a_limit_adds_up_its_time_as_well(clock, tmp_path):
    def interrupt(report) -> None:
        if report.step == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path, progress=interrupt)
    history = fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path, resume=True)
    assert history.steps == 20
    # From the last checkpoint on, which is of an earlier step, time counts anew.
    assert history.seconds == 20.0
    again = fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path, resume=True)
    assert again.seconds == 20.0
