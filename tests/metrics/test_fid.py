"""FID and KID against closed forms, direct sums and scipy."""

import math
import warnings

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from arcsm.errors import InputError
from arcsm.metrics import feature_statistics, fid, frechet_distance, kid


def random_covariance(dims: int, rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(dims, rank, dtype=torch.float64, generator=generator)
    return factor @ factor.T


def rotation(dims: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dims, dims, dtype=torch.float64, generator=generator))[0]


def normal(rows: int, dims: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, dims, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_diagonal_covariances_have_a_closed_form() -> None:
    a, b = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([16.0, 4.0, 0.25])
    shift = torch.tensor([1.0, -2.0, 0.5])
    expected = 1 + 4 + 0.25 + (1 - 4) ** 2 + (2 - 2) ** 2 + (3 - 0.5) ** 2
    assert frechet_distance(torch.zeros(3), a.diag(), shift, b.diag()) == pytest.approx(expected)


def test_covariances_of_one_basis_are_as_diagonal_ones() -> None:
    turn = rotation(5, seed=1)
    a = torch.arange(1.0, 6.0, dtype=torch.float64)
    b = torch.tensor([5.0, 0.1, 3.0, 7.0, 2.0], dtype=torch.float64)
    expected = (a.sqrt() - b.sqrt()).square().sum().item()
    zero = torch.zeros(5)
    distance = frechet_distance(zero, turn @ a.diag() @ turn.T, zero, turn @ b.diag() @ turn.T)
    assert distance == pytest.approx(expected, rel=1e-12)


def test_two_by_two_covariances_that_do_not_commute() -> None:
    # tr √M = √(tr M + 2 √det M) for a 2 × 2 matrix M of positive eigenvalues.
    a = np.array([[2.0, 0.7], [0.7, 1.0]])
    b = np.array([[0.5, -0.3], [-0.3, 3.0]])
    root = math.sqrt(np.trace(a @ b) + 2 * math.sqrt(np.linalg.det(a) * np.linalg.det(b)))
    expected = np.trace(a) + np.trace(b) - 2 * root
    assert frechet_distance([0, 0], a, [0, 0], b) == pytest.approx(expected, rel=1e-12)


def test_it_is_what_the_root_of_the_product_gives() -> None:
    a, b = random_covariance(12, 20, seed=2), random_covariance(12, 15, seed=3)
    mean = normal(2, 12, seed=4)
    root = scipy.linalg.sqrtm((a @ b).numpy()).real
    expected = (mean[0] - mean[1]).square().sum() + (a + b).trace() - 2 * np.trace(root)
    assert frechet_distance(mean[0], a, mean[1], b) == pytest.approx(float(expected), rel=1e-9)


def test_covariances_of_rank_one() -> None:
    u, v = normal(2, 40, seed=5)
    expected = (u @ u + v @ v - 2 * (u @ v).abs()).item()
    zero = torch.zeros(40)
    assert frechet_distance(zero, u.outer(u), zero, v.outer(v)) == pytest.approx(expected)


def test_singular_covariances_lose_nothing_to_rounding() -> None:
    covariance = 1e3 * random_covariance(200, 5, seed=6)
    mean = torch.zeros(200)
    scale = covariance.trace().item()
    # (c - 1)² tr Σ for Σ and c² Σ; roots of eigenvalues that are rounding alone would add to it.
    assert frechet_distance(mean, covariance, mean, covariance) < 1e-12 * scale
    distance = frechet_distance(mean, covariance, mean, 4 * covariance)
    assert distance == pytest.approx(scale, rel=1e-12)


def test_a_point_has_the_distance_of_its_mean_and_the_spread_of_the_other() -> None:
    zero = torch.zeros(3, 3)
    assert frechet_distance([3, 0, 4], zero, [0, 0, 0], zero) == 25
    assert frechet_distance([0, 0, 0], zero, [0, 0, 0], torch.eye(3)) == pytest.approx(3)


def test_it_is_symmetric_and_does_not_change_with_the_basis() -> None:
    a, b = random_covariance(6, 4, seed=7), random_covariance(6, 9, seed=8)
    (m, n), turn = normal(2, 6, seed=9), rotation(6, seed=10)
    distance = frechet_distance(m, a, n, b)
    assert frechet_distance(n, b, m, a) == pytest.approx(distance, rel=1e-12)
    turned = frechet_distance(turn @ m + 5, turn @ a @ turn.T, turn @ n + 5, turn @ b @ turn.T)
    assert turned == pytest.approx(distance, rel=1e-10)


@pytest.mark.parametrize(
    ("mean", "covariance", "words"),
    [
        ([0.0, 0.0], [[1.0]], "shape"),
        ([[0.0]], [[1.0]], "shape"),
        ([0.0, 0.0], [[1.0, 0.5], [0.1, 1.0]], "symmetric"),
        ([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]], "negative eigenvalues"),
        ([math.nan], [[1.0]], "finite"),
        (["one"], [[1.0]], "array of numbers"),
    ],
)
def test_what_is_no_normal_distribution_is_refused(
    mean: object, covariance: object, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        frechet_distance(mean, covariance, [0.0], [[1.0]])


def test_distributions_over_different_features_are_refused() -> None:
    with pytest.raises(InputError, match="got 1 and 2"):
        frechet_distance([0.0], [[1.0]], [0.0, 0.0], torch.eye(2))


def test_fid_is_the_distance_of_the_sample_moments() -> None:
    a, b = normal(60, 4, seed=11), 2 * normal(90, 4, seed=12) + 1
    expected = frechet_distance(
        a.mean(0), np.cov(a.numpy(), rowvar=False), b.mean(0), np.cov(b.numpy(), rowvar=False)
    )
    assert fid(a, b) == pytest.approx(expected, rel=1e-10)
    assert fid(a.numpy(), feature_statistics(b)) == pytest.approx(expected, rel=1e-10)


def test_fid_of_single_precision_is_computed_in_double() -> None:
    # A mean this large would swallow the spread of the features in single precision.
    a = (normal(4000, 2, seed=13) + 3000).float()
    b = (normal(4000, 2, seed=14) + 3000).float()
    assert fid(a, b) == pytest.approx(fid(a.double(), b.double()), rel=1e-9)


def test_too_few_images_are_warned_of() -> None:
    few, enough = normal(5, 5, seed=15), normal(6, 5, seed=16)
    with pytest.warns(UserWarning, match="features_b are those of 5 images, fewer than the 6"):
        fid(enough, few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fid(enough, enough)


def direct_mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Sum the definition of the unbiased estimate term by term."""
    n, dims = x.shape
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += (x[i] @ x[j] / dims + 1) ** 3 / (n * (n - 1))
                total += (y[i] @ y[j] / dims + 1) ** 3 / (n * (n - 1))
            total -= 2 * (x[i] @ y[j] / dims + 1) ** 3 / n**2
    return total


def test_kid_of_whole_sets_is_the_sum_of_its_definition() -> None:
    x, y = normal(9, 3, seed=17), 1.5 * normal(9, 3, seed=18) + 0.3
    # All rows are in each subset, so there is one value, whatever their order.
    mean, deviation = kid(x, y, subsets=3, subset_size=9)
    assert mean == pytest.approx(direct_mmd(x.numpy(), y.numpy()), rel=1e-12)
    assert deviation == pytest.approx(0, abs=1e-12)


def test_kid_has_the_mean_of_the_discrepancy_that_it_estimates() -> None:
    # With one feature (xy + 1)³ = Σ C(3,k) x^k y^k: the discrepancy is Σ C(3,k) (E x^k - E y^k)².
    # The first three moments are 0, 1, 0 of N(0, 1) and 1, 2, 4 of N(1, 1).
    expected = 3 * 1 + 3 * 1 + 1 * 16
    x, y = normal(20_000, 1, seed=19), normal(20_000, 1, seed=20) + 1
    generator = torch.Generator().manual_seed(0)
    mean, deviation = kid(x, y, subsets=400, subset_size=50, generator=generator)
    assert mean == pytest.approx(expected, abs=4 * deviation / 20)
    assert deviation / 20 < 0.05 * expected


def test_kid_of_equal_distributions_is_zero_on_average() -> None:
    x, y = normal(20_000, 4, seed=21), normal(20_000, 4, seed=22)
    generator = torch.Generator().manual_seed(0)
    mean, deviation = kid(x, y, subsets=400, subset_size=20, generator=generator)
    # Were pairs of equal rows counted, it would be (2/20) (E k(x, x) - E k(x, x')) > 1 too large.
    assert abs(mean) < 4 * deviation / 20 < 0.2


def test_the_deviation_is_that_among_the_subsets() -> None:
    x, y = normal(60, 2, seed=23), normal(50, 2, seed=24)
    generator = torch.Generator().manual_seed(5)
    values = [kid(x, y, subsets=1, subset_size=20, generator=generator)[0] for _ in range(7)]
    generator = torch.Generator().manual_seed(5)
    mean, deviation = kid(x, y, subsets=7, subset_size=20, generator=generator)
    assert mean == pytest.approx(np.mean(values), rel=1e-12)
    assert deviation == pytest.approx(np.std(values), rel=1e-9)
    assert deviation > 0


def test_kid_of_single_precision_loses_little() -> None:
    x, y = normal(300, 64, seed=25, dtype=torch.float32), normal(300, 64, seed=26) + 0.1
    exact, _ = kid(x.double(), y, subsets=1, subset_size=300)
    assert kid(x, y.float(), subsets=1, subset_size=300)[0] == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "at least subset_size = 1000 images in each set, got 8.*subset_size=8"),
        ({"subset_size": 9}, "got 8"),
        ({"subset_size": 1}, "subset_size as a whole number from 2"),
        ({"subset_size": 4, "subsets": 0}, "subsets as a whole number from 1"),
    ],
)
def test_kid_refuses_subsets_that_cannot_be_drawn(options: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        kid(normal(10, 2, seed=27), normal(8, 2, seed=28), **options)


def test_features_that_are_none_are_refused() -> None:
    good = normal(8, 2, seed=29)
    bad = good.clone()
    bad[3, 1] = math.nan
    with pytest.raises(InputError, match="features_b, got nan in row 3"):
        fid(good, bad)
    with pytest.raises(InputError, match="features_a of dtype"):
        kid(np.zeros((4, 2), dtype=np.uint8), good)
    with pytest.raises(InputError, match="got 3 and 2"):
        kid(normal(8, 3, seed=30), good, subset_size=8)
    with pytest.raises(InputError, match="at least two images"):
        fid(good[:1], good)
    with pytest.raises(InputError, match="statistics without them"):
        kid(good, feature_statistics(good))
