"""Models and training states on disk: safetensors for numbers, JSON for the rest.

Nothing is ever unpickled. Each file is replaced as a whole, and carries in its header the
configuration that it belongs to, so that a file of another model is recognised.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.autoregressive import TrainableModel
from arcsm.baselines import AEM, MixtureMADE, PixelMixture
from arcsm.ensemble import Ensemble
from arcsm.errors import CheckpointError, InputError
from arcsm.files import atomic_path, parse_json, write_json
from arcsm.model import ARCSM

FORMAT = "arcsm-checkpoint"
VERSION = 1

_KINDS: dict[str, type[TrainableModel]] = {
    "AEM": AEM,
    "ARCSM": ARCSM,
    "Ensemble": Ensemble,
    "MixtureMADE": MixtureMADE,
    "OrderAgnosticARCSM": OrderAgnosticARCSM,
    "PixelMixture": PixelMixture,
}
_CHECKSUM = "crc32"  # of names and numbers; safetensors itself has none
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save_model(
    directory: str | os.PathLike[str],
    model: TrainableModel,
    *,
    details: Mapping[str, Any] | None = None,
    half: bool = False,
) -> None:
    """Write `model` to a directory: config.json and model.safetensors.

    `details`, whatever JSON can hold, are kept with it and come back from `read_model`. With `half`
    the weights are stored in 16 bits, for a file half as large.
    """
    description = describe(model)
    if details is not None:
        description["details"] = json.loads(json.dumps(details, allow_nan=False))
    learned = dict(model.named_parameters()) if half else {}
    tensors = {
        name: _halved(value, name) if name in learned else value.detach().contiguous()
        for name, value in model.state_dict().items()
    }
    write_tensors(Path(directory) / "model.safetensors", tensors, description)
    write_json(Path(directory) / "config.json", description)


def _halved(value: Tensor, name: str) -> Tensor:
    largest = torch.finfo(torch.float16).max
    if value.abs().max() > largest:
        raise InputError(
            f"expected weights up to {largest:g} to store them in 16 bits, got"
            f" {value.abs().max().item():g} in {name}; save without half"
        )
    return value.detach().to(torch.float16).contiguous()


def load_model(
    directory: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> TrainableModel:
    """Read a model that `save_model` wrote; refuse, naming the file, what is not one."""
    return read_model(directory, device=device)[0]


def read_model(
    directory: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[TrainableModel, Mapping[str, Any] | None]:
    """Read a model as `load_model` does, and the details that were kept with it."""
    path = Path(directory) / "config.json"
    try:
        description = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"expected a model's config.json in {os.fspath(directory)!r}, got none;"
            " check the path of the model"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"expected JSON in {os.fspath(path)!r}, got: {error}; the file is damaged"
        ) from error
    tensors, header = read_tensors(Path(directory) / "model.safetensors", device=device)
    if header != description:
        raise CheckpointError(
            f"expected config.json and model.safetensors in {os.fspath(directory)!r} of one model,"
            " got two different ones; restore both from the same source"
        )
    details = description.get("details")
    if not isinstance(details, Mapping | None):
        raise CheckpointError(
            f"expected named details in {os.fspath(path)!r}, got {type(details).__name__}; load the"
            " model with the release of arcsm that wrote it"
        )
    model = build(description)
    load_weights(model, tensors, os.fspath(directory))
    return model.to(device), details


def holds_model(directory: str | os.PathLike[str]) -> bool:
    """Say whether a directory is one that `save_model` wrote, of whatever version."""
    try:
        description = parse_json((Path(directory) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(description, dict) and description.get("format") == FORMAT


def describe(model: TrainableModel) -> dict[str, Any]:
    """Return what rebuilds `model` without its weights."""
    kind = type(model).__name__
    if kind not in _KINDS:
        raise InputError(f"expected a model among {', '.join(_KINDS)}, got {kind}")
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "dtype": str(model.dtype).removeprefix("torch."),
        # Through JSON, so that tuples compare equal to what comes back from a file.
        "model": json.loads(json.dumps(model.config)),
    }


def build(description: Mapping[str, Any]) -> TrainableModel:
    """Return the model of a description, its weights still random."""
    check_description(description)
    try:
        model = _KINDS[description["kind"]].from_config(description["model"])
        model = model.to(_DTYPES[description["dtype"]])
    # A configuration that someone has changed fails anywhere, in torch for instance.
    except Exception as error:
        raise CheckpointError(
            f"expected the configuration of a {description['kind']}, got one that does not fit:"
            f" {str(error) or type(error).__name__}; load the model with the release of arcsm that"
            " wrote it"
        ) from error
    return model


def check_description(description: object) -> None:
    """Refuse a header that is not one of ours."""
    if not isinstance(description, Mapping) or description.get("format") != FORMAT:
        raise CheckpointError(
            "expected a checkpoint of arcsm, got a file of another program; check the path"
        )
    if description.get("version") != VERSION or description.get("kind") not in list(_KINDS):
        raise CheckpointError(
            f"expected version {VERSION} of {' or '.join(_KINDS)}, got version"
            f" {description.get('version')!r} of {description.get('kind')!r};"
            " load it with the release of arcsm that wrote it"
        )


def load_weights(model: TrainableModel, tensors: Mapping[str, Tensor], name: str) -> None:
    """Copy `tensors` into `model`; refuse other names or shapes."""
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    got = {key: tuple(value.shape) for key, value in tensors.items()}
    if expected != got:
        wrong = sorted(k for k in expected.keys() | got.keys() if expected.get(k) != got.get(k))
        raise CheckpointError(
            f"expected the weights of this model in {name!r}, got others: {wrong[0]} has shape"
            f" {got.get(wrong[0])} where {expected.get(wrong[0])} belongs"
        )
    model.load_state_dict(dict(tensors))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Replace the file at `path` by `tensors`, with `header` as JSON in its metadata."""
    with atomic_path(path) as temporary:
        # One text alone: the library writes several in any order, and files would differ.
        text = json.dumps({**header, _CHECKSUM: _checksum(tensors)})
        save_file(dict(tensors), os.fspath(temporary), {"header": text})
        # The library leaves a file that nobody but its owner can read.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)


def read_tensors(
    path: Path, *, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file that `write_tensors` wrote."""
    name = os.fspath(path)
    if not path.is_file():
        raise CheckpointError(f"expected a checkpoint at {name!r}, got none; check the path")
    try:
        # It knows no numbers of CPUs.
        place = "cpu" if torch.device(device).type == "cpu" else str(device)
        with safe_open(name, framework="pt", device=place) as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = parse_json(metadata["header"])
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"expected a whole safetensors file at {name!r}, got a damaged or foreign one:"
            f" {error}; restore it from a copy or train again"
        ) from error
    except KeyError as error:
        raise CheckpointError(
            f"expected a checkpoint of arcsm at {name!r}, got a safetensors file of another"
            " program; check the path"
        ) from error
    # Files of earlier releases have no checksum.
    expected = header.pop(_CHECKSUM, None) if isinstance(header, dict) else None
    if expected is not None and expected != _checksum(tensors):
        raise CheckpointError(
            f"expected the numbers that were written to {name!r}, got others: the file is damaged;"
            " restore it from a copy or train again"
        )
    check_description(header)
    return tensors, header


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return a number that is another one after nearly any damage to names or numbers."""
    total = 0
    for name, value in sorted(tensors.items()):
        total = zlib.crc32(name.encode(), total)
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        total = zlib.crc32(numbers.numpy().data, total)
    return f"{total:08x}"
