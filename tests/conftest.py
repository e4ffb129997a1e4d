"""A guard around every test: torch's global state is the same after it as before."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def torch_state_is_left_alone() -> Iterator[None]:
    """Fail a test that leaves torch's global state changed, and put the state back.

    Each test starts from the same state of the global generator, which weights are drawn from.
    """
    before = _settings()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    after = _settings()
    changed = [
        f"{name}: {before[name]} → {after[name]}" for name in before if before[name] != after[name]
    ]
    if changed:
        _restore(before)
        pytest.fail("the test left torch's global state changed: " + "; ".join(changed))


def _settings() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
    }


def _restore(settings: dict[str, Any]) -> None:
    torch.set_default_dtype(settings["default dtype"])
    # Called only where it was changed: the call itself fixes a count torch would else choose.
    if torch.get_num_threads() != settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.set_grad_enabled(settings["grad mode"])
    torch.use_deterministic_algorithms(
        settings["deterministic"], warn_only=settings["deterministic, warn only"]
    )
    torch.autograd.set_detect_anomaly(settings["anomaly detection"])
