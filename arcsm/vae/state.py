"""Runs of VAEs on the disk, to go on with: one file, replaced as a whole."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from arcsm.errors import CheckpointError
from arcsm.train.checkpoint import write_tensors
from arcsm.train.limits import Interruption
from arcsm.vae.settings import Curve

if TYPE_CHECKING:
    from arcsm.vae.training import VAEStack

_FORMAT = "arcsm-vae-run"
# Of what is written: another one where weights have other names or meanings.
_VERSION = 7


class Kept:
    """A run that is kept in a folder, if there is one: now and then, at its end, and on Ctrl-C.

    It begins with what the folder has of it.
    """

    def __init__(
        self, stack: "VAEStack", folder: str | os.PathLike[str] | None, save_seconds: float
    ):
        self._stack, self._save_seconds = stack, save_seconds
        self._path = None if folder is None else Path(folder) / "vae.safetensors"
        self.resumed = self._path is not None and self._path.exists()
        if self._path is not None and self.resumed:
            load_run(stack, self._path)

    def __enter__(self) -> "Kept":
        self._saved = time.monotonic()
        self._began = self._saved - self._stack.seconds
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        stack = self._stack
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        # Before the first step there may be half of a head start: that is taken again.
        if interrupted and self._path is not None and stack.whole and stack.step > 0:
            self._save(self._path)

    @property
    def seconds(self) -> float:
        """The time spent, in this process and in those that it resumes."""
        return time.monotonic() - self._began

    def undivided(self) -> Interruption:
        """Return a context at whose end Ctrl-C takes effect, so that there is a state to write."""
        return Interruption(self._path is not None)

    def save_if_late(self) -> None:
        """Save at the last step, or if it is some time since that was done."""
        late = time.monotonic() - self._saved > self._save_seconds
        if self._path is not None and (late or self._stack.step == self._stack.settings.steps):
            self._save(self._path)
            self._saved = time.monotonic()

    def _save(self, path: Path) -> None:
        self._stack.seconds = self.seconds
        save_run(self._stack, path)


def save_run(stack: "VAEStack", path: str | os.PathLike[str]) -> None:
    """Write all that further steps depend on."""
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "about": _about(stack),
        "step": stack.step,
        "seconds": stack.seconds,
        "curve": asdict(stack.curve),
    }
    tensors = {**stack.state(), "generator": stack.generator.get_state()}
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    write_tensors(Path(path), contiguous, header)


def load_run(stack: "VAEStack", path: str | os.PathLike[str]) -> None:
    """Go on from what `save_run` wrote; refuse a run with other settings."""
    name = os.fspath(path)
    try:
        with safe_open(name, framework="pt", device=str(stack.device)) as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            header = json.loads((file.metadata() or {}).get("header", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"expected a run of VAEs in {name!r}, got no such file or a damaged one: {error};"
            " remove it to begin anew"
        ) from error
    if header.get("format") == _FORMAT and header.get("version") != _VERSION:
        raise CheckpointError(
            f"expected a run of VAEs of version {_VERSION} in {name!r}, got one of another version"
            " of arcsm, which has other networks; remove it to begin anew"
        )
    then, now = header.get("about"), _about(stack)
    if header.get("format") != _FORMAT or then != now:
        what = ""
        if isinstance(then, dict):
            both = ({**about, **about.get("settings", {})} for about in (then, now))
            old, new = ({k: v for k, v in one.items() if k != "settings"} for one in both)
            names = sorted(key for key in old | new if old.get(key) != new.get(key))
            what = f" with other {', '.join(names)}" if names else ""
        raise CheckpointError(
            "expected a run of VAEs with the same settings, seeds, images and kind of device in"
            f" {name!r}, got another{what}; resume with those it was started with, or remove the"
            " file"
        )
    generator, own = tensors.pop("generator"), stack.state()
    shapes = {key: value.shape for key, value in own.items()}
    if shapes != {key: value.shape for key, value in tensors.items()}:
        raise CheckpointError(
            f"expected the weights of these networks in {name!r}, got those of others; build the"
            " networks as before, or remove the file"
        )
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(tensors[key])
    stack.generator.set_state(generator.cpu())
    stack.step, stack.seconds = header["step"], header["seconds"]
    stack.curve = Curve(**header["curve"])


def _about(stack: "VAEStack") -> dict[str, Any]:
    """Return what a run must share with another to be gone on with."""
    apart = {"capture", "compile", "tf32"}
    if not stack.settings.decay:
        apart.add("steps")  # the first ones are those of any longer run
    settings = {k: v for k, v in asdict(stack.settings).items() if k not in apart}
    return {
        "settings": settings,
        "seeds": list(stack.seeds),
        "images": stack.source.digest,
        "device": stack.device.type,  # the states of their generators are not alike
    }
