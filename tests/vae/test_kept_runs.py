"""Runs on the disk: interrupted ones go on to the same bits, and others are refused."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_vaes import stack_of

from arcsm.errors import CheckpointError
from arcsm.vae import VAEStack, state
from arcsm.vae.state import load_run, save_run


@pytest.mark.parametrize("method", ["elbo", "stein", "csm"])
def test_an_interrupted_run_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = stack_of(method, (0, 1), average=0.9, decay=0.5)
    whole.train()
    path = tmp_path / "vae.safetensors"

    class Stop(Exception):
        pass

    def stop(stack: VAEStack) -> None:
        save_run(stack, path)
        raise Stop

    with pytest.raises(Stop):
        stack_of(method, (0, 1), average=0.9, decay=0.5).train(progress=stop)
    later = stack_of(method, (0, 1), average=0.9, decay=0.5)
    later.train(folder=tmp_path)
    assert later.curve.loss == whole.curve.loss and later.step == 4
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name]), name


@pytest.mark.parametrize("method", ["elbo", "csm"])
def test_ctrl_c_within_a_step_keeps_that_step_and_loses_no_bit(method: str, tmp_path: Path) -> None:
    whole = stack_of(method, (0, 1), average=0.9, steps=6, evaluate_every=4)
    whole.train()
    first = stack_of(method, (0, 1), average=0.9, steps=6, evaluate_every=4)
    move = first._descents[0].step

    def interrupt(gradients: Sequence[torch.Tensor]) -> None:
        if first.step == 2:  # the estimator has learned, the decoder moved, the encoder has not
            signal.raise_signal(signal.SIGINT)
        move(gradients)

    first._descents[0].step = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.train(folder=tmp_path / "new")
    assert first.step == 3 and first.curve.step == []
    later = stack_of(method, (0, 1), average=0.9, steps=6, evaluate_every=4)
    taken = counted_steps(later)
    later.train(folder=tmp_path / "new")
    assert taken == [3, 4, 5] and later.curve.loss == whole.curve.loss
    assert later.seconds > first.seconds > 0
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name]), name


def counted_steps(stack: VAEStack) -> list[int]:
    """Return a list that the number of each step is added to as it is taken."""
    taken: list[int] = []
    advance = stack.advance

    def count() -> None:
        taken.append(stack.step)
        advance()

    stack.advance = count  # type: ignore[method-assign]
    return taken


def test_half_a_step_is_never_saved(tmp_path: Path) -> None:
    stack = stack_of("csm", average=0.9)
    move = stack._descents[0].step

    def interrupt(gradients: Sequence[torch.Tensor]) -> None:
        move(gradients)
        if stack.step == 3:  # as if asked for twice: that does not wait
            raise KeyboardInterrupt

    stack._descents[0].step = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stack.train(folder=tmp_path, save_seconds=-1)
    later = stack_of("csm", average=0.9)
    load_run(later, tmp_path / "vae.safetensors")
    assert later.step == 3  # the last one that was whole


@pytest.mark.parametrize("within", ["_learn_from_fresh_latents", "forget"])
def test_a_head_start_that_was_interrupted_is_taken_again(within: str, tmp_path: Path) -> None:
    stack = stack_of("csm")
    of = stack._losses if within == "forget" else stack
    plain = getattr(of, within)

    def interrupt(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    setattr(of, within, interrupt)
    with pytest.raises(KeyboardInterrupt):
        stack.train(folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_kept_and_not_trained_again(tmp_path: Path) -> None:
    whole = stack_of("csm", (0, 1))
    whole.train(folder=tmp_path)
    later, told = stack_of("csm", (0, 1)), list[int]()
    taken = counted_steps(later)
    later.train(folder=tmp_path, progress=lambda stack: told.append(stack.step))
    assert taken == [] and later.curve == whole.curve
    assert told == [4]  # what was told of the last record may have been lost
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name]), name


def test_a_foreign_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    save_run(stack_of("csm"), path)
    with pytest.raises(CheckpointError, match="same settings, seeds, images"):
        load_run(stack_of("csm", learning_rate=0.5), path)
    with pytest.raises(CheckpointError, match="same settings, seeds, images"):
        load_run(stack_of("csm", (1,)), path)
    with pytest.raises(CheckpointError, match="weights of these networks"):
        load_run(stack_of("csm", dims=3), path)


def test_what_is_other_of_a_foreign_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    save_run(stack_of("csm"), path)
    with pytest.raises(CheckpointError, match=r"got another with other batch, learning_rate;"):
        load_run(stack_of("csm", learning_rate=0.5, batch=4), path)
    with pytest.raises(CheckpointError, match=r"got another with other seeds;"):
        load_run(stack_of("csm", (1,)), path)


def test_a_run_may_be_made_longer_unless_its_rate_falls(tmp_path: Path) -> None:
    whole = stack_of("csm", steps=6)
    whole.train()
    stack_of("csm", steps=4).train(folder=tmp_path / "run")
    longer = stack_of("csm", steps=6)
    longer.train(folder=tmp_path / "run")
    assert longer.step == 6 and longer.curve.loss == whole.curve.loss
    stack_of("csm", steps=4, decay=0.5).train(folder=tmp_path / "falling")
    with pytest.raises(CheckpointError, match="with other steps;"):
        stack_of("csm", steps=6, decay=0.5).train(folder=tmp_path / "falling")


def test_a_run_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vae.safetensors"
    with monkeypatch.context() as older:
        older.setattr(state, "_VERSION", 1)
        save_run(stack_of("csm"), path)
    with pytest.raises(
        CheckpointError, match=rf"version {state._VERSION} in .* another version.* remove it"
    ):
        load_run(stack_of("csm"), path)


def test_states_are_kept_between_records(tmp_path: Path) -> None:
    stack = stack_of("csm", steps=40, evaluate_every=40)
    seen: list[bool] = []
    advance = stack.advance

    def look() -> None:
        seen.append((tmp_path / "vae.safetensors").exists())
        advance()

    stack.advance = look  # type: ignore[method-assign]
    stack.train(folder=tmp_path, save_seconds=0.0)
    assert not seen[0] and all(seen[2:])


def test_a_state_between_records_knows_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stack_of("csm", steps=8, evaluate_every=8, head_start=0)
    clock = [0.0]
    monkeypatch.setattr("arcsm.vae.state.time.monotonic", lambda: clock[0])
    advance = stack.advance

    def slowly() -> None:
        if stack.step == 5:
            raise RuntimeError("killed")
        advance()
        clock[0] += 3

    stack.advance = slowly  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="killed"):
        stack.train(folder=tmp_path, save_seconds=0.0)
    later = stack_of("csm", steps=8, evaluate_every=8, head_start=0)
    load_run(later, tmp_path / "vae.safetensors")
    assert (later.step, later.seconds, later.curve.step) == (5, 15.0, [])
