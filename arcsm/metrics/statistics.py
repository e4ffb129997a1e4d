"""Mean and covariance of features, and a file for them: a reference is computed once."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.train.checkpoint import write_tensors

_FORMAT, _VERSION = "arcsm-feature-statistics", 1
# Rows brought to double precision at once.
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """What FID needs of the features of `count` images: their mean and covariance, in float64.

    `features` are the features themselves, which KID needs, or None.
    """

    mean: Float[Tensor, "dims"]
    covariance: Float[Tensor, "dims dims"]
    count: int
    features: Float[Tensor, "count dims"] | None = None


def feature_statistics(features: Any, *, keep: bool = False) -> FeatureStatistics:
    """Return mean and covariance of the rows of `features`; the rows too where `keep` says so.

    The covariance is the unbiased one. Of no more rows than columns its rank is deficient: it
    describes the rows, but hardly the distribution that they are drawn from.
    """
    rows = as_rows(features, name="features")
    if len(rows) < 2:
        raise InputError("expected features of at least two images, got one; it has no covariance")
    device = torch.device("cpu") if rows.device.type == "mps" else rows.device  # has no float64
    mean = rows.new_zeros(rows.shape[1], dtype=torch.float64, device=device)
    for part in rows.split(_ROWS):
        mean += part.to(mean).sum(0)
    mean /= len(rows)
    covariance = mean.new_zeros(len(mean), len(mean))
    for part in rows.split(_ROWS):
        centred = part.to(mean) - mean
        covariance.addmm_(centred.T, centred)
    covariance /= len(rows) - 1
    return FeatureStatistics(mean, covariance, len(rows), rows if keep else None)


def save_statistics(path: str | os.PathLike[str], statistics: FeatureStatistics) -> None:
    """Write statistics, and the features where they were kept, to a safetensors file."""
    tensors = {"mean": statistics.mean, "covariance": statistics.covariance}
    if statistics.features is not None:
        tensors["features"] = statistics.features
    header = {"format": _FORMAT, "version": _VERSION, "count": statistics.count}
    write_tensors(Path(path), {k: v.detach().contiguous() for k, v in tensors.items()}, header)


def load_statistics(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> FeatureStatistics:
    """Read what `save_statistics` wrote."""
    name = os.fspath(path)
    if not Path(path).is_file():
        raise InputError(f"expected a file with statistics at {name!r}, got none; check the path")
    try:
        with safe_open(name, framework="pt", device=str(device)) as file:
            header = json.loads((file.metadata() or {}).get("header", "{}"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise InputError(
            f"expected a whole safetensors file at {name!r}, got a damaged or foreign one: {error};"
            " write it again with save_statistics"
        ) from error
    known = header.get("format") == _FORMAT and header.get("version") == _VERSION
    if not known or tensors.keys() - {"features"} != {"mean", "covariance"}:
        raise InputError(
            f"expected statistics that save_statistics wrote at {name!r}, got another safetensors"
            " file; check the path"
        )
    return FeatureStatistics(count=header["count"], **tensors)
