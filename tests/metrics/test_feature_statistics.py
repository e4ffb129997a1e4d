"""Statistics of features: their values, and the file that keeps them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from arcsm.errors import InputError
from arcsm.metrics import feature_statistics, fid, kid, load_statistics, save_statistics


def test_they_are_the_mean_and_the_unbiased_covariance() -> None:
    # More rows than are summed at once.
    rows = np.random.default_rng(0).normal(size=(9000, 3)) * [1, 5, 0.1] + [100, 0, -3]
    statistics = feature_statistics(rows)
    assert statistics.count == 9000
    assert statistics.features is None
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.covariance, np.cov(rows, rowvar=False), rtol=1e-9)


@pytest.mark.parametrize("keep", [False, True])
def test_a_file_gives_back_what_was_written(tmp_path: Path, keep: bool) -> None:
    features = torch.randn(20, 4)
    statistics = feature_statistics(features, keep=keep)
    save_statistics(tmp_path / "reference.safetensors", statistics)
    read = load_statistics(tmp_path / "reference.safetensors")
    assert read.count == 20
    assert torch.equal(read.mean, statistics.mean)
    assert torch.equal(read.covariance, statistics.covariance)
    assert read.mean.dtype == torch.float64
    other = torch.randn(30, 4) + 1
    assert fid(read, other) == fid(statistics, other)
    if keep:
        expected = kid(features, other, subset_size=20, generator=torch.Generator().manual_seed(1))
        assert kid(read, other, subset_size=20, generator=torch.Generator().manual_seed(1)) == (
            expected
        )
    else:
        assert read.features is None


def test_files_that_hold_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got none; check the path"):
        load_statistics(tmp_path / "nothing.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    save_statistics(damaged, feature_statistics(torch.randn(5, 2)))
    damaged.write_bytes(damaged.read_bytes()[:-4])
    with pytest.raises(InputError, match="damaged"):
        load_statistics(damaged)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"mean": torch.zeros(2)}, foreign)
    with pytest.raises(InputError, match="another safetensors file"):
        load_statistics(foreign)
