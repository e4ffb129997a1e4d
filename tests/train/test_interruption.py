"""Ctrl-C: the step is finished, the state is written, and the run goes on to the same bits."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook
from training_runs import FINISHED, build, contents, draw, happened, quick, same_bits, step_on_disk

from arcsm.baselines import MixtureMADE
from arcsm.errors import NonFiniteLossError
from arcsm.train import fit, loop


def press() -> None:
    """Press Ctrl-C; Python calls the handler before it goes on."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def former() -> Iterator[Callable[..., None]]:
    """A handler of our own, which must be in its place again after each test."""

    def handler(*_: object) -> None:
        raise AssertionError("the handler of the caller was called")

    before = signal.signal(signal.SIGINT, handler)
    yield handler
    after = signal.signal(signal.SIGINT, before)
    assert after is handler


@pytest.fixture
def at_step(request) -> Iterator[Callable[[int, Callable[[], None]], None]]:
    """Call a function within the n-th step of the optimiser from now on."""
    hooks = []

    def arrange(number: int, act: Callable[[], None]) -> None:
        count = 0

        def after_step(*_: object) -> None:
            nonlocal count
            count += 1
            if count == number:
                act()

        hooks.append(register_optimizer_step_post_hook(after_step))

    yield arrange
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("step", [1, 4, 5, 7, 20])
@pytest.mark.parametrize("kind", ["ARCSM", "MixtureMADE"])
def test_a_step_is_finished_and_the_run_goes_on(kind, step, at_step, tmp_path):
    """Within a step: first, with a checkpoint, with an evaluation, with neither, and the last."""
    whole, model, again = build(kind), build(kind), build(kind, seed=3)
    expected = fit(whole, draw(60), quick(), directory=tmp_path / "whole")
    at_step(step, press)
    with pytest.raises(KeyboardInterrupt):
        fit(model, draw(60), quick(), directory=tmp_path / "run")
    assert step_on_disk(tmp_path / "run") == step
    assert list(contents(tmp_path / "run")) == ["training.safetensors"]
    history = fit(again, draw(60), quick(), directory=tmp_path / "run", resume=True)
    assert same_bits(again, whole)
    assert happened(history) == happened(expected)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_pressed_in_a_progress_callback(tmp_path):
    """After the step, when it was too late to be asked whether its state is kept."""
    whole, again = build("ARCSM"), build("ARCSM", seed=3)
    expected = fit(whole, draw(60), quick())
    told = []

    def progress(report) -> None:
        told.append(report.step)
        press()

    with pytest.raises(KeyboardInterrupt):
        fit(build("ARCSM"), draw(60), quick(), directory=tmp_path, progress=progress)
    assert told == [5]
    assert step_on_disk(tmp_path) == 5
    history = fit(again, draw(60), quick(), directory=tmp_path, resume=True)
    assert same_bits(again, whole)
    assert happened(history) == happened(expected)
    assert list(contents(tmp_path)) == FINISHED


def test_pressed_while_the_state_is_written(tmp_path, monkeypatch):
    whole, again = build("MixtureMADE"), build("MixtureMADE", seed=3)
    fit(whole, draw(60), quick())
    original, steps = loop.save_state, []

    def save(directory, model, optimizer, state, *rest):
        steps.append(state.step)
        if state.step == 8 and len(steps) == 2:
            press()
        original(directory, model, optimizer, state, *rest)

    monkeypatch.setattr(loop, "save_state", save)
    with pytest.raises(KeyboardInterrupt):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)
    assert step_on_disk(tmp_path) == 8 and max(steps) == 8
    fit(again, draw(60), quick(), directory=tmp_path, resume=True)
    assert same_bits(again, whole)


def test_pressed_many_times_over_many_runs(at_step, tmp_path):
    whole = build("ARCSM")
    fit(whole, draw(60), quick())
    for pressed in range(1, 7):
        at_step(3, press)
        with pytest.raises(KeyboardInterrupt):
            fit(
                build("ARCSM", seed=pressed - 1), draw(60), quick(), directory=tmp_path, resume=True
            )
        assert step_on_disk(tmp_path) == 3 * pressed
    last = build("ARCSM", seed=9)
    fit(last, draw(60), quick(), directory=tmp_path, resume=True)
    assert same_bits(last, whole)


def test_pressed_twice_ends_at_once(at_step, tmp_path):
    def twice() -> None:
        press()
        with pytest.raises(KeyboardInterrupt):
            press()
        raise KeyboardInterrupt

    at_step(7, twice)
    with pytest.raises(KeyboardInterrupt):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)
    assert step_on_disk(tmp_path) == 4  # the last checkpoint, as the step was not finished


def test_the_third_time_is_the_callers(at_step, former, tmp_path):
    """After the second one the former handler is back."""

    def look() -> None:
        press()
        try:
            press()
        except KeyboardInterrupt:
            assert signal.getsignal(signal.SIGINT) is former
            raise

    at_step(2, look)
    with pytest.raises(KeyboardInterrupt):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)


def test_an_error_restores_the_handler(former, tmp_path, monkeypatch):
    def fails(self, x, noise=(), **_):
        assert signal.getsignal(signal.SIGINT) is not former
        return x.sum(1) * float("nan") * self.context.output.bias.sum()

    monkeypatch.setattr(MixtureMADE, "loss_terms", fails)
    with pytest.raises(NonFiniteLossError):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)
    assert signal.getsignal(signal.SIGINT) is former


def test_a_state_that_is_not_finite_is_not_written(at_step, tmp_path, monkeypatch):
    """An error that is found on the way out is told in place of the interruption."""
    original = MixtureMADE.loss_terms
    steps = []

    def breaks(self, x, noise=(), **options):
        steps.append(len(steps))
        terms = original(self, x, noise, **options)
        return terms * float("nan") if len(steps) == 3 else terms

    monkeypatch.setattr(MixtureMADE, "loss_terms", breaks)
    at_step(3, press)
    with pytest.raises(NonFiniteLossError):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)
    assert step_on_disk(tmp_path) == 0


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_any_former_handler_is_put_back(handler, former, tmp_path):
    signal.signal(signal.SIGINT, handler)
    fit(build("MixtureMADE"), draw(60), quick(steps=2), directory=tmp_path)
    assert signal.signal(signal.SIGINT, former) == handler


def test_without_a_directory_no_handler_is_touched(former):
    seen = []
    fit(
        build("MixtureMADE"),
        draw(60),
        quick(),
        progress=lambda _: seen.append(signal.getsignal(signal.SIGINT)),
    )
    assert seen == [former] * 4


def test_in_another_thread_no_handler_is_touched(former, tmp_path):
    seen, models = [], [build("MixtureMADE"), build("MixtureMADE")]

    def train() -> None:
        fit(
            models[0],
            draw(60),
            quick(),
            directory=tmp_path,
            progress=lambda _: seen.append(signal.getsignal(signal.SIGINT)),
        )

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [former] * 4
    assert list(contents(tmp_path)) == FINISHED
    fit(models[1], draw(60), quick())
    assert same_bits(*models)
