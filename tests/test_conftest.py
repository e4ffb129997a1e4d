"""The guard in conftest.py notices each change of torch's global state, and undoes it."""

import shutil
import subprocess
import sys
from pathlib import Path

SUSPECTS = """
import pytest
import torch

CHANGES = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "grad": lambda: torch.set_grad_enabled(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "warn_only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
}

@pytest.mark.parametrize("name", CHANGES)
def test_suspect(name):
    CHANGES[name]()

def test_innocent():
    torch.rand(1)
"""


def test_guard_fails_each_leak_and_only_those(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_suspects.py").write_text(SUSPECTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "7 passed, 6 errors" in run.stdout, run.stdout + run.stderr
