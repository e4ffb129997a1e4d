"""Models on disk: exact round trips, and nothing but our own files is ever loaded."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from training_runs import FINISHED, KINDS, build, contents, draw, quick, same_bits

from arcsm.autoregressive import AutoregressiveModel
from arcsm.baselines import MixtureMADE
from arcsm.conditional import Noise
from arcsm.errors import CheckpointError, InputError
from arcsm.model import ARCSM
from arcsm.train import checkpoint, fit, load_model, save_model

MODELS: dict[str, Callable[[], AutoregressiveModel]] = {
    "ARCSM": lambda: ARCSM.made(
        3,
        hidden=(16, 12),
        width=7,
        order="random",
        condition_dims=2,
        steps=5,
        head_depth=2,
        noise=Noise(2.0, 0.05, levels=4),
        density="quadrature",
        flow_steps=11,
        seed=3,
    ),
    "ARCSM, decorrelated": lambda: ARCSM.made(
        3, hidden=(16,), width=7, order="random", condition_dims=2, decorrelate=True, seed=3
    ),
    "MixtureMADE": lambda: MixtureMADE(
        3, components=2, kind="gaussian", hidden=(8, 12), order="random", condition_dims=2, seed=3
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_comes_back_as_it_was(kind, dtype, tmp_path):
    model = MODELS[kind]().to(dtype)
    assert model.context.order != (0, 1, 2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(0.1 * torch.randn(value.shape, generator=generator, dtype=dtype))
    before = torch.get_rng_state()
    save_model(tmp_path, model)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(contents(tmp_path)) == FINISHED[:2]

    copy = load_model(tmp_path)
    assert type(copy) is type(model)
    assert copy.config == model.config
    assert same_bits(copy, model)
    assert {value.dtype for value in copy.state_dict().values()} == {dtype}
    x, condition = (torch.randn(5, n, generator=generator, dtype=dtype) for n in (3, 2))
    assert torch.equal(
        copy.log_prob(x, condition=condition), model.log_prob(x, condition=condition)
    )
    drawn = [
        m.sample(5, condition=condition, generator=torch.Generator().manual_seed(1))
        for m in (copy, model)
    ]
    assert torch.equal(*drawn)


def test_saving_again_replaces_the_model(tmp_path):
    save_model(tmp_path, build("ARCSM"))
    model = build("MixtureMADE")
    save_model(tmp_path, model)
    assert same_bits(load_model(tmp_path), model)
    assert list(contents(tmp_path)) == FINISHED[:2]


def test_models_of_other_libraries_are_not_saved(tmp_path):
    with pytest.raises(InputError, match=r"expected a model among .*ARCSM, .*MADE.*, got Linear"):
        save_model(tmp_path / "new", nn.Linear(2, 2))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_plain_safetensors(kind, tmp_path):
    model = build(kind)
    save_model(tmp_path, model)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert json.loads((tmp_path / "config.json").read_text())["kind"] == kind


# Files that are damaged, foreign, or of another model.


def cut(share: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])

    return damage


def edit_config(**changes: object) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def edit_both(**changes: object) -> Callable[[Path], None]:
    """Change the description in both files, so that they agree."""

    def damage(directory: Path) -> None:
        edit_config(**changes)(directory)
        path = directory / "model.safetensors"
        header = (directory / "config.json").read_text()
        save_file(load_file(path), path, {"header": header})

    return damage


def edit_weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        weights = load_file(path)
        edit(weights)
        save_file(weights, path, {"header": (directory / "config.json").read_text()})

    return damage


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(content) and None


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def foreign(metadata: dict[str, str] | None) -> Callable[[Path], None]:
    weights = {"weight": torch.zeros(3)}
    return lambda directory: save_file(weights, directory / "model.safetensors", metadata)


def edit_model(directory: Path, **changes: object) -> None:
    model = json.loads((directory / "config.json").read_text())["model"]
    edit_both(model={**model, **changes})(directory)


GARBAGE = np.random.default_rng(0).bytes(4096)
DAMAGED = "expected a whole safetensors file at .*, got a damaged or foreign one"
OTHER_PROGRAM = "expected a checkpoint of arcsm.*, got a (safetensors )?file of another program"
TWO_MODELS = r"expected config\.json and model\.safetensors .* of one model, got two"

DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    **{f"cut to {share}": (cut(share), DAMAGED) for share in (0, 1e-4, 0.1, 0.5, 0.9999)},
    "longer": (
        lambda d: write("model.safetensors", (d / "model.safetensors").read_bytes() + b"more")(d),
        DAMAGED,
    ),
    "a bit of a weight": (
        lambda d: flip_last_bit(d / "model.safetensors"),
        "expected the numbers that were written to .*, got others: the file is damaged",
    ),
    "garbage": (write("model.safetensors", GARBAGE), DAMAGED),
    "zeros": (write("model.safetensors", bytes(4096)), DAMAGED),
    "no metadata": (foreign(None), OTHER_PROGRAM),
    "other metadata": (foreign({"format": "pt"}), OTHER_PROGRAM),
    "header of another program": (foreign({"header": '{"format": "x"}'}), OTHER_PROGRAM),
    "header that is no object": (foreign({"header": "3"}), OTHER_PROGRAM),
    "header that is not JSON": (foreign({"header": "{"}), DAMAGED),
    "no weights": (
        lambda d: (d / "model.safetensors").unlink(),
        r"expected a checkpoint at '.*model\.safetensors', got none",
    ),
    "no config": (
        lambda d: (d / "config.json").unlink(),
        r"expected a model's config\.json in .*, got none",
    ),
    "config is not JSON": (write("config.json", GARBAGE), r"expected JSON in .*, got: "),
    "config is cut": (
        lambda d: (d / "config.json").write_text((d / "config.json").read_text()[:50]),
        r"expected JSON in .*, got: ",
    ),
    "config without an end": (
        write("config.json", b"[" * 100_000),
        "expected JSON in .*, got: lists or objects within each other",
    ),
    "kind that is a list": (edit_both(kind=[]), r"got version 1 of \[\]"),
    "flow steps without number": (
        lambda d: (save_model(d, build("ARCSM")), edit_model(d, flow_steps=[]))[1],
        r"expected the configuration of a ARCSM, got .*expected flow steps from 1 to .*, got \[\]",
    ),
    "details that are no names": (edit_both(details=7), "expected named details in .*, got int"),
    "config is a list": (write("config.json", b"[]"), TWO_MODELS),
    "config of another model": (
        lambda d: checkpoint.write_json(d / "config.json", checkpoint.describe(build("ARCSM"))),
        TWO_MODELS,
    ),
    "config alone of another version": (edit_config(version=2), TWO_MODELS),
    "another version": (
        edit_both(version=2),
        r"expected version 1 of .*ARCSM or .*MixtureMADE.*, got version 2 of 'MixtureMADE'",
    ),
    "another kind": (
        edit_both(kind="Flow"),
        r"expected version 1 of .*ARCSM or .*MixtureMADE.*, got version 1 of 'Flow'",
    ),
    "config of a newer release": (
        edit_both(model={"dims": 2, "novelty": 1}),
        "expected the configuration of a MixtureMADE, got one that does not fit: .*novelty",
    ),
    "config out of range": (
        edit_both(model={"dims": 2, "components": 0}),
        "expected the configuration of a MixtureMADE, got .*at least one component, got 0",
    ),
    "another precision": (
        edit_both(dtype="int8"),
        "expected the configuration of a MixtureMADE, got one that does not fit: 'int8'",
    ),
    "weights of another shape": (
        edit_weights(lambda w: w.update(shift=torch.zeros(3))),
        r"expected the weights .*, got others: shift has shape \(3,\) where \(2,\) belongs",
    ),
    "a weight is missing": (
        edit_weights(lambda w: w.pop("scale")),
        r"expected the weights .*, got others: scale has shape None where \(2,\) belongs",
    ),
    "a weight too many": (
        edit_weights(lambda w: w.update(extra=torch.zeros(1))),
        r"expected the weights .*, got others: extra has shape \(1,\) where None belongs",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_no_model_is_refused(name, tmp_path):
    damage, message = DAMAGES[name]
    save_model(tmp_path, build("MixtureMADE"))
    load_model(tmp_path)
    damage(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)
    assert contents(tmp_path) == before


def test_a_missing_directory_is_refused_and_not_made(tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a model's config\.json in .*, got none"):
        load_model(tmp_path / "missing")
    assert contents(tmp_path) == {}


class Malice:
    """Once unpickled, this makes a directory."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (os.fspath(self.trace),)


@pytest.mark.parametrize("name", FINISHED)
def test_a_pickle_is_not_executed(name, tmp_path):
    trace, directory = tmp_path / "executed", tmp_path / "model"
    save_model(directory, build("MixtureMADE"))
    malice = Malice(trace)
    for dump in (
        lambda file: pickle.dump(malice, file, 0),
        lambda file: pickle.dump(malice, file, pickle.HIGHEST_PROTOCOL),
        lambda file: torch.save(malice, file),
    ):
        with (directory / name).open("wb") as file:
            dump(file)
        with pytest.raises(CheckpointError, match=f"expected .*{name}', got"):
            if name == "training.safetensors":
                fit(build("MixtureMADE"), draw(60), quick(), directory=directory, resume=True)
            else:
                load_model(directory)
    assert not trace.exists()
    pickle.loads(pickle.dumps(malice))
    assert trace.exists()  # it would have shown


# Disks that fail.


def fails_midway(tensors: object, path: str, metadata: object) -> None:
    Path(path).write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_old_model(tmp_path, monkeypatch):
    model = build("MixtureMADE")
    save_model(tmp_path, model)
    before = contents(tmp_path)
    monkeypatch.setattr(checkpoint, "save_file", fails_midway)
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path, build("MixtureMADE", seed=1))
    assert contents(tmp_path) == before
    assert same_bits(load_model(tmp_path), model)


def test_a_full_disk_leaves_the_last_state(tmp_path, monkeypatch):
    written = []

    def fill(tensors: object, path: str, metadata: object) -> None:
        if len(written) == 2:
            fails_midway(tensors, path, metadata)
        save_file(tensors, path, metadata)
        written.append(Path(path).read_bytes())

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", fill)
        with pytest.raises(OSError, match="No space left"):
            fit(build("ARCSM"), draw(60), quick(), directory=tmp_path)
    assert contents(tmp_path) == {"training.safetensors": written[1]}

    model, other = build("ARCSM"), build("ARCSM")
    fit(model, draw(60), quick(), directory=tmp_path, resume=True)
    fit(other, draw(60), quick())
    assert same_bits(model, other)
    assert list(contents(tmp_path)) == FINISHED


def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"expected directories above .*, got a file among them"):
        save_model(tmp_path / "file", build("MixtureMADE"))
    assert contents(tmp_path) == {"file": b"mine"}


def test_others_may_read_a_model_as_any_other_file(tmp_path):
    save_model(tmp_path / "model", build("ARCSM"))
    (tmp_path / "other").write_text("")
    mode = (tmp_path / "other").stat().st_mode
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode == mode
