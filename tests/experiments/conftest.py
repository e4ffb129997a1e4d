"""What tests of experiments share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for results, which is not there yet."""
    return tmp_path / "results"
