"""Models on the Hugging Face hub: a model directory there, and back.

What is uploaded is what `save` writes: safetensors, config.json and the card. Nothing is pickled,
so that a model of somebody else can do no more than compute. Needs the extra `hub`.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from arcsm.cards import front_matter, write_plain_card
from arcsm.errors import ArcsmError, InputError
from arcsm.loading import load
from arcsm.shipped import directory_of
from arcsm.train import holds_model, save_model

PREFIX = "hf://"

# The files of a model; the state of a training is not one of them.
_FILES = ("config.json", "*.safetensors", "README.md", "*.png", "stage-*/*")
_NOT = ("training.safetensors", "stage-*/training.safetensors")

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    private: bool = True,
    license: str | None = None,
    token: str | None = None,
    commit_message: str | None = None,
) -> str:
    """Upload a model to the repository OWNER/NAME, which is made if need be; return its address.

    `model` is a directory, or anything that has `save` or that `save_model` takes. The files of a
    model that is there already are replaced, in one commit. The repository is `private` unless you
    say otherwise: the pictures on the card show rows, and config.json has the names of columns and
    of categories. `license`, such as "mit", is written on the card. `token` is by default the one
    of `hf auth login`.
    """
    _check_repository(repo_id)
    hub = _hub()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / repo_id.split("/")[1]
        _collect(model, folder)
        _finish_card(hub, folder, license)
        with _clear_errors(hub, repo_id):
            api = hub.HfApi(token=token, library_name="arcsm")
            url = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                commit_message=commit_message or "Upload a model of arcsm",
                # Weights of a model that was there, its stages say, must not stay with this one.
                delete_patterns=["*.safetensors", "stage-*/config.json"],
            )
    return str(url)


def load_from_hub(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> Any:
    """Return the estimator or the model in the repository OWNER/NAME, as `arcsm.load` does.

    `revision` is a branch, a tag or a commit. Files are fetched once, and kept in `cache_dir`.
    """
    path = fetch(repo_id, revision=revision, token=token, cache_dir=cache_dir)
    return load(path, device=device)


def fetch(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Return the directory of the model in a repository, after its files were fetched."""
    _check_repository(repo_id)
    hub = _hub()
    with _clear_errors(hub, repo_id, revision):
        path = hub.snapshot_download(
            repo_id,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=list(_FILES),
            ignore_patterns=list(_NOT),
        )
    return Path(path)


def fetch_address(address: str) -> Path:
    """Return the directory of the model at hf://OWNER/NAME or hf://OWNER/NAME@REVISION."""
    repo_id, _, revision = address.removeprefix(PREFIX).partition("@")
    return fetch(repo_id, revision=revision or None)


def _collect(model: Any, folder: Path) -> None:
    """Put the files of a model into a new folder."""
    if not isinstance(model, str | os.PathLike):
        if hasattr(model, "save"):
            model.save(folder)
        else:
            folder.mkdir()
            save_model(folder, model)
        return
    source = directory_of(model)
    if not holds_model(source) and not holds_model(source / "stage-01"):
        got = "nothing there" if not source.exists() else "something else"
        raise InputError(
            f"expected the directory of a model at {os.fspath(model)!r}, got {got}; save one there"
        )
    folder.mkdir()
    left_out = {path for pattern in _NOT for path in source.glob(pattern)}
    for path in {path for pattern in _FILES for path in source.glob(pattern)} - left_out:
        target = folder / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    # What cannot be read would be found out by those who fetch it.
    load(folder)


def _finish_card(hub: Any, folder: Path, license: str | None) -> None:
    """Let the card say what the hub wants to know; write one if there is none."""
    path = folder / "README.md"
    if not path.exists():
        write_plain_card(folder, title=folder.name)
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        path.write_text(f"{front_matter()}\n\n{text}", encoding="utf-8")
    if license is not None:
        card = hub.ModelCard.load(path)
        card.data.license = license
        card.save(path)


def _check_repository(repo_id: Any) -> None:
    known = isinstance(repo_id, str) and _REPOSITORY.fullmatch(repo_id) is not None
    if not known or ".." in repo_id or "--" in repo_id:
        raise InputError(
            f"expected a repository as OWNER/NAME, got {repo_id!r}; letters, digits, '-', '_' and"
            " '.' are allowed, but neither '--' nor '..'"
        )


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError(
            "expected huggingface_hub, which speaks with the hub, got none installed; install it"
            " with: pip install 'arcsm[hub]'"
        ) from error
    return huggingface_hub


@contextmanager
def _clear_errors(hub: Any, repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Say in one sentence what the hub, or the way there, has refused."""
    try:
        yield
    except _errors(hub) as error:
        raise ArcsmError(_in_words(hub, error, repo_id, revision)) from error


def _errors(hub: Any) -> tuple[type[BaseException], ...]:
    """Return what the library raises; that of the network depends on its release."""
    network = getattr(getattr(hub, "errors", None), "HTTPError", OSError)
    return (OSError, ValueError, hub.utils.HfHubHTTPError, network)


def _in_words(hub: Any, error: BaseException, repo_id: str, revision: str | None) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, hub.utils.RevisionNotFoundError):
        return f"expected the revision {revision!r} of {repo_id!r}, got none; check its name"
    if isinstance(error, hub.utils.RepositoryNotFoundError):
        return (
            f"expected a repository {repo_id!r} on the hub, got none, or one that is private; check"
            " the name, or log in with: hf auth login"
        )
    if status in (401, 403):
        return (
            f"expected the right to write to {repo_id!r} on the hub, got the answer {status}; log"
            " in with: hf auth login"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    return f"expected the hub to answer for {repo_id!r}, got: {reason}; check the network"
