"""The example of variational inference: an implicit posterior beats a normal one on a banana."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "examples" / "implicit_vi.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("implicit_vi", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_distance_is_that_of_known_densities(example: ModuleType) -> None:
    def normal(z: torch.Tensor) -> torch.Tensor:
        return -z.square().sum(-1) / 2

    same = example.divergence(normal, torch.randn(200_000, 2))
    apart = example.divergence(normal, torch.randn(5000, 2) + torch.tensor([20.0, 0.0]))
    # Half the difference of N(0, 1) and N(2, 1) is Φ(1) − Φ(−1).
    shifted = example.divergence(normal, torch.randn(200_000, 2) + torch.tensor([2.0, 0.0]))
    assert same < 0.03 and apart == pytest.approx(1, abs=1e-3)
    assert shifted == pytest.approx(0.6827, abs=0.02)


def test_an_implicit_posterior_beats_a_normal_one_on_the_banana(example: ModuleType) -> None:
    found = example.compare(example.banana, steps=400, draws=10_000)
    assert set(found) == {"normal", "flow", "implicit"}
    assert found["implicit"] < found["normal"] - 0.1


def test_logistic_regression_has_a_posterior_that_all_can_fit(example: ModuleType) -> None:
    found = example.compare(example.logistic_regression(), steps=400, draws=10_000)
    assert max(found.values()) < 0.5
    assert found["implicit"] < found["normal"]
