"""Random weights for the inception network, made once."""

from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from arcsm.metrics import weights

from .inception_weights import random_weights


@pytest.fixture(scope="session")
def state() -> dict[str, Tensor]:
    """Weights of the inception network with random values."""
    return random_weights()


@pytest.fixture(scope="session")
def random_file(state: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in a file."""
    path = tmp_path_factory.mktemp("inception") / "random.safetensors"
    save_file(state, path)
    return path


@pytest.fixture
def accepted(state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let random weights pass for the published ones, which are told by their first kernel."""
    norm = state["Conv2d_1a_3x3.conv.weight"].double().norm().item()
    monkeypatch.setattr(weights, "_FIRST_NORM", norm)
