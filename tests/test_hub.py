"""Models of every kind in a directory, on the hub and back; the hub is a folder here."""

import json
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from arcsm import ARCSM, ARCSMDensity, ARCSMDetector, ImageModel, ImageSettings, save_model
from arcsm.cli import app
from arcsm.conditional import Noise
from arcsm.errors import ArcsmError, CheckpointError, InputError
from arcsm.hub import fetch_address, load_from_hub, push_to_hub
from arcsm.images.networks import build_density
from arcsm.loading import load
from arcsm.train import TrainConfig, fit_staged

hub = pytest.importorskip("huggingface_hub")

X = np.random.default_rng(0).normal(size=(60, 2))


def density() -> ARCSMDensity:
    return ARCSMDensity(max_steps=2, hidden=(8,), random_state=0).fit(X)


def detector() -> ARCSMDetector:
    return ARCSMDetector(max_steps=2, ensemble=1, random_state=0).fit(X)


def core() -> ARCSM:
    return ARCSM.made(2, hidden=(8,), seed=0)


def images() -> ImageModel:
    settings = ImageSettings(network="made", steps=1).filled("images", "cpu")
    shape = (2, 2, 1)
    return ImageModel(build_density(settings, shape, name="images", deviation=0.3), shape, settings)


KINDS = {"density": density, "detector": detector, "core": core, "images": images}


def tensors(model: Any) -> dict[str, torch.Tensor]:
    for name in ("density_", "model_", "model", "density"):
        if isinstance(model, torch.nn.Module):
            break
        model = getattr(model, name, model)
    return dict(model.state_dict())


def same_weights(one: Any, other: Any) -> bool:
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def save(model: Any, path: Path) -> None:
    save_model(path, model) if isinstance(model, ARCSM) else model.save(path)


class FolderHub:
    """A folder in the place of the hub, with its rules for patterns."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []

    def create_repo(self, _: Any, repo_id: str, **options: Any) -> str:
        self.calls.append(options)
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)
        return f"https://hub/{repo_id}"

    def upload_folder(
        self,
        _: Any,
        *,
        repo_id: str,
        folder_path: Path,
        delete_patterns: list[str],
        commit_message: str,
    ) -> None:
        self.calls.append({"commit_message": commit_message})
        target = self.root / repo_id
        for path in [p for p in target.rglob("*") if p.is_file()]:
            if any(fnmatch(str(path.relative_to(target)), p) for p in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, target, dirs_exist_ok=True)

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        source, cache = self.root / repo_id, Path(options["cache_dir"] or self.root / "cache")
        for path in [p for p in source.rglob("*") if p.is_file()]:
            name = str(path.relative_to(source))
            wanted = any(fnmatch(name, p) for p in options["allow_patterns"])
            if wanted and not any(fnmatch(name, p) for p in options["ignore_patterns"]):
                (cache / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, cache / name)
        self.calls.append({"revision": options["revision"]})
        return str(cache)


@pytest.fixture
def folder_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderHub:
    fake = FolderHub(tmp_path / "hub")
    for name in ("create_repo", "upload_folder"):
        method = getattr(fake, name)
        monkeypatch.setattr(
            hub.HfApi, name, lambda self, *words, _m=method, **options: _m(self, *words, **options)
        )
    monkeypatch.setattr(hub, "snapshot_download", fake.snapshot_download)
    return fake


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_loaded_as_what_it_is(kind: str, tmp_path: Path) -> None:
    model = KINDS[kind]()
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert type(loaded) is type(model) and same_weights(loaded, model)


def test_stages_are_loaded_together(tmp_path: Path) -> None:
    noise = Noise(sigma_min=0.1, sigma_max=1.0, levels=2)
    model = ARCSM.made(2, hidden=(8,), noise=noise, density="quadrature", seed=0)
    config = TrainConfig(steps=1, batch_size=8)
    staged = fit_staged(model, X.astype(np.float32), config, directory=tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert len(loaded.stages) == 2 and same_weights(loaded, staged)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "got none"),
        ("{", "damaged"),
        ("[]", "got none"),
        ({"details": {"table": {"estimator": "Other"}}}, "'Other'"),
        ({"details": {"table": {"estimator": "PyODView"}}}, "'PyODView'"),
        ({"details": {"table": 3}}, "None"),
    ],
)
def test_a_directory_of_something_else_is_refused(
    content: Any, reason: str, tmp_path: Path
) -> None:
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=reason):
        load(tmp_path)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_to_the_hub_and_back(kind: str, saved: bool, folder_hub: FolderHub, tmp_path: Path) -> None:
    model = KINDS[kind]()
    what = tmp_path / "m" if saved else model
    if saved:
        save(model, what)
        (what / "notes.txt").write_text("not for others")
        (what / "training.safetensors").write_bytes(b"state")
    assert push_to_hub(what, "me/model", license="mit") == "https://hub/me/model"
    there = folder_hub.root / "me" / "model"
    names = {path.name for path in there.iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= names
    assert not {"notes.txt", "training.safetensors"} & names
    if saved:
        for name in ("config.json", "model.safetensors"):
            assert (there / name).read_bytes() == (what / name).read_bytes()
    card = hub.ModelCard.load(there / "README.md")
    assert card.data.library_name == "arcsm" and card.data.license == "mit"
    assert card.data.tags[:2] == ["arcsm", "density-estimation"]
    assert "# model" in card.text or saved
    loaded = load_from_hub("me/model", revision="v1", cache_dir=tmp_path / "cache")
    assert type(loaded) is type(model) and same_weights(loaded, model)
    assert folder_hub.calls[0] == {"private": True, "exist_ok": True}
    assert folder_hub.calls[-1] == {"revision": "v1"}


def test_weights_of_an_earlier_model_do_not_stay(folder_hub: FolderHub, tmp_path: Path) -> None:
    push_to_hub(detector(), "me/model", private=False, commit_message="first")
    assert folder_hub.calls[0]["private"] is False
    assert folder_hub.calls[1] == {"commit_message": "first"}
    push_to_hub(core(), "me/model")
    there = folder_hub.root / "me" / "model"
    assert sorted(p.name for p in there.glob("*.safetensors")) == ["model.safetensors"]


def test_a_card_without_a_head_gets_one_and_keeps_its_text(
    folder_hub: FolderHub, tmp_path: Path
) -> None:
    save(core(), tmp_path / "m")
    (tmp_path / "m" / "README.md").write_text("# Mine\n")
    push_to_hub(tmp_path / "m", "me/model")
    card = hub.ModelCard.load(folder_hub.root / "me" / "model" / "README.md")
    assert card.data.library_name == "arcsm" and card.data.license is None
    assert card.text.strip() == "# Mine"
    assert (tmp_path / "m" / "README.md").read_text() == "# Mine\n"


def test_the_command_line_takes_an_address(folder_hub: FolderHub, tmp_path: Path) -> None:
    save(density(), tmp_path / "m")
    push_to_hub(tmp_path / "m", "me/model")
    runner = CliRunner()
    here = runner.invoke(app, ["sample", str(tmp_path / "m"), "-n", "3"])
    there = runner.invoke(app, ["sample", "hf://me/model@v2", "-n", "3"])
    assert here.exit_code == there.exit_code == 0, there.output
    assert here.stdout == there.stdout
    assert folder_hub.calls[-1] == {"revision": "v2"}
    wrong = runner.invoke(app, ["sample", "hf://model"])
    assert wrong.exit_code == 2 and "OWNER/NAME" in wrong.stderr


@pytest.mark.parametrize(
    "repo_id", ["model", "a/b/c", "a b/c", "", "../m", "é/m", "a/b..c", "a/b--c", None]
)
def test_a_repository_that_cannot_be(repo_id: Any) -> None:
    with pytest.raises(InputError, match="OWNER/NAME"):
        push_to_hub("m", repo_id)
    with pytest.raises(InputError, match="OWNER/NAME"):
        load_from_hub(repo_id)


def test_what_is_no_model_is_not_uploaded(folder_hub: FolderHub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing there"):
        push_to_hub(tmp_path / "m", "me/model")
    (tmp_path / "m").mkdir()
    with pytest.raises(InputError, match="something else"):
        push_to_hub(tmp_path / "m", "me/model")
    save(core(), tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    assert load_file(weights)
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="damaged"):
        push_to_hub(tmp_path / "m", "me/model")
    with pytest.raises(InputError, match="a model among"):
        push_to_hub(3, "me/model")
    assert folder_hub.calls == []


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'arcsm\[hub\]'"):
        load_from_hub("me/model")


class Answer:
    """As much of an answer as the errors of the library ask for."""

    def __init__(self, status_code: int) -> None:
        self.status_code, self.headers, self.request = status_code, {}, None


def answered(kind: Any, status: int) -> Exception:
    return kind("refused\nat length", response=Answer(status))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (lambda: answered(hub.utils.RepositoryNotFoundError, 404), "none, or one that is private"),
        (lambda: answered(hub.utils.RevisionNotFoundError, 404), "revision 'v9'"),
        (lambda: answered(hub.utils.HfHubHTTPError, 403), "the answer 403"),
        (lambda: answered(hub.utils.HfHubHTTPError, 500), "got: refused; check the network"),
        (lambda: ConnectionError("no route to host"), "no route to host; check the network"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    error: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error()

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ArcsmError, match=reason) as caught:
        fetch_address("hf://me/model@v9")
    assert "\n" not in str(caught.value)
    result = CliRunner().invoke(app, ["sample", "hf://me/model@v9"])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_network_that_is_down_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ArcsmError, match="expected the hub to answer for 'me/model'") as caught:
        load_from_hub("me/model", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
