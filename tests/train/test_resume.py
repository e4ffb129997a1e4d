"""A run that is killed, at any moment, goes on to the same bits."""

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from training_runs import (
    FINISHED,
    RUNS,
    build,
    contents,
    draw,
    finish,
    happened,
    quick,
    run,
    same_bits,
    start,
    step_on_disk,
)

from arcsm.baselines import MixtureMADE
from arcsm.errors import CheckpointError, InputError
from arcsm.train import fit, load_model


def is_killed(name: str, directory: Path, *death: object) -> bool:
    """Go on with a run until it is killed as `death` says; False where it ended before."""
    code = finish(start(run, name, directory, death))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def check_same_as_uninterrupted(name: str, directory: Path) -> dict[str, object]:
    """Let the run end, and compare every byte with those of a run that was left in peace."""
    assert finish(start(run, name, directory)) == 0
    whole = directory.parent / "whole"
    assert finish(start(run, name, whole)) == 0
    assert list(contents(whole)) == FINISHED  # and no temporary files
    assert contents(directory) == contents(whole)
    history = (directory.parent / f"{directory.name}.json").read_text()
    assert history == (directory.parent / "whole.json").read_text()
    return json.loads(history)


@pytest.mark.parametrize("name", RUNS)
def test_killed_runs_end_with_the_same_bits(name, tmp_path):
    directory, chance = tmp_path / "killed", random.Random(name)
    reached, unfinished = [], 0
    while not (directory / "model.safetensors").exists():
        assert is_killed(name, directory, "step", chance.randint(4, 9))
        reached.append(step_on_disk(directory))
        share = chance.choice([0, 0.01, 0.5, 0.99, 1])
        assert is_killed(name, directory, "write", chance.randint(1, 2), share)
        unfinished += any(directory.glob(".*.partial"))
        assert len(reached) < 30
    assert len(reached) > 3
    assert unfinished > 2  # writes that were cut short
    assert "config.json" not in contents(directory)  # the last one died between two files

    history = check_same_as_uninterrupted(name, directory)
    if RUNS[name][1].patience is not None:
        assert history["best_step"] < reached[-1] <= history["steps"] < RUNS[name][1].steps


def test_a_run_killed_from_outside_ends_with_the_same_bits(tmp_path):
    directory, chance, kills = tmp_path / "killed", random.Random(0), 0
    for _ in range(5):
        process = start(run, "MixtureMADE", directory, ("slow",))
        time.sleep(chance.uniform(0.05, 0.4))
        process.kill()
        kills += finish(process) == -signal.SIGKILL
    assert kills  # how many, and where, is left to the clock
    check_same_as_uninterrupted("MixtureMADE", directory)


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_is_not_trained_again(name, tmp_path, monkeypatch):
    kind, config = RUNS[name]
    model = build(kind)
    first = fit(model, draw(60), config, directory=tmp_path)
    before = contents(tmp_path)
    again = build(kind, seed=1)
    monkeypatch.setattr(type(again), "draw_noise", None)  # whatever trained would fail
    second = fit(again, draw(60), config, directory=tmp_path, resume=True)
    assert same_bits(model, again)
    assert happened(first) == happened(second)
    assert contents(tmp_path) == before
    assert same_bits(model, load_model(tmp_path))


def test_resuming_where_there_is_no_run_starts_one(tmp_path):
    model, other = build("ARCSM"), build("ARCSM")
    fit(model, draw(60), quick(), directory=tmp_path / "new", resume=True)
    fit(other, draw(60), quick())
    assert same_bits(model, other)
    assert list(contents(tmp_path / "new")) == FINISHED


def test_a_new_run_does_not_overwrite_another(tmp_path):
    fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"expected a directory without .* got one in .*resume"):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path)
    assert contents(tmp_path) == before


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory) -> Path:
    """The directory of a run that was interrupted, and of which only the state is there."""
    directory = tmp_path_factory.mktemp("run")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    model = build("MixtureMADE", condition_dims=1)
    options = {"weight": np.arange(1.0, 61), "condition": draw(60)[:, :1]}
    with pytest.raises(KeyboardInterrupt):
        fit(model, draw(60), quick(), directory=directory, progress=interrupt, **options)
    assert list(contents(directory)) == ["training.safetensors"]
    return directory


OTHERS = {
    "settings": (
        {"config": quick(learning_rate=1e-3, seed=5, noise={"a": [1]})},
        "other values of learning_rate, noise, seed;",
    ),
    "fewer steps": ({"config": quick(steps=10)}, "other values of steps;"),
    "shape of the model": (
        {"model": lambda: MixtureMADE(2, hidden=(16, 17), components=3, condition_dims=1)},
        "got one of another model",
    ),
    "order of the model": (
        {"model": lambda: build("MixtureMADE", condition_dims=1, order=[1, 0])},
        "got one of another model",
    ),
    "precision of the model": (
        {"model": lambda: build("MixtureMADE", condition_dims=1).double()},
        "got one of another model",
    ),
    "kind of the model": (
        {"model": lambda: build("ARCSM", condition_dims=1)},
        "got one of another model",
    ),
    "rows": ({"x": draw(60, seed=1)}, "got one on other data"),
    "one value": (
        {"x": np.where(np.arange(120).reshape(60, 2) == 77, np.float32(3), draw(60))},
        "got one on other data",
    ),
    "order of the rows": ({"x": draw(60)[::-1].copy()}, "got one on other data"),
    "weights": ({"weight": np.arange(60.0, 0, -1)}, "other data; .*rows, weights and conditions"),
    "no weights": ({"weight": None}, "got one on other data"),
    "condition": ({"condition": draw(60, seed=1)[:, :1]}, "got one on other data"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_is_not_resumed_with_another(name, stopped_run):
    changes, message = OTHERS[name]
    usual = {
        "model": lambda: build("MixtureMADE", condition_dims=1),
        "x": draw(60),
        "config": quick(),
        "weight": np.arange(1.0, 61),
        "condition": draw(60)[:, :1],
    }
    options = {**usual, **changes}
    before = contents(stopped_run)
    with pytest.raises(CheckpointError, match=rf"expected .*training\.safetensors.*{message}"):
        fit(options.pop("model")(), **options, directory=stopped_run, resume=True)
    assert contents(stopped_run) == before


def test_what_was_interrupted_goes_on_when_nothing_changed(stopped_run, tmp_path):
    (tmp_path / "training.safetensors").write_bytes(
        (stopped_run / "training.safetensors").read_bytes()
    )
    model, other = (build("MixtureMADE", condition_dims=1) for _ in range(2))
    options = {"weight": np.arange(1.0, 61), "condition": draw(60)[:, :1]}
    history = fit(model, draw(60), quick(), directory=tmp_path, resume=True, **options)
    assert happened(history) == happened(fit(other, draw(60), quick(), **options))
    assert same_bits(model, other)


@pytest.mark.parametrize("damage", ["cut", "garbage", "another file"])
def test_a_damaged_state_is_refused(damage, stopped_run, tmp_path):
    path = tmp_path / "training.safetensors"
    whole = (stopped_run / path.name).read_bytes()
    if damage == "another file":
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path / "finished")
        whole = (tmp_path / "finished" / "model.safetensors").read_bytes()
    path.write_bytes({"cut": whole[:-1], "garbage": whole[::-1]}.get(damage, whole))
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"expected .*training\.safetensors.* got"):
        fit(build("MixtureMADE"), draw(60), quick(), directory=tmp_path, resume=True)
    assert path.read_bytes() == before
