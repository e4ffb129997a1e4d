"""Unusual images: what is gathered of them, how it is judged, and the map of their pixels."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.baselines import PixelMixture
from arcsm.errors import InputError
from arcsm.images import ImageModel, ImageSettings
from arcsm.tasks.images import ImageDetector
from arcsm.tasks.images.judges import JUDGES, make_judge, vectors_of
from arcsm.tasks.images.novelty import HeatMap
from arcsm.tasks.images.statistics import Statistics, gather, middles

from .small import level_probabilities, small_model

SHAPE = (3, 4, 3)


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return small_model(SHAPE)


def noise(n: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, *SHAPE), dtype=np.uint8)


def soft(n: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    pixels = 120 + 10 * random.standard_normal((n, *SHAPE))
    return pixels.clip(0, 255).astype(np.uint8)


def test_statistics_are_those_of_scores(model: ImageModel) -> None:
    chain: Any = model.density
    pixels = noise(3)
    pixels[0, 0] = 0
    levels = (0.05, 0.5)
    found = gather(model, pixels, levels=levels)
    rows = torch.from_numpy(pixels.reshape(3, -1)).double() / 255
    # Contexts see the levels; the scalar itself is where its target was.
    z = (middles(rows) - 0.5) / 0.15
    for place, level in enumerate(levels):
        family = chain.head.family(chain.context(chain.context_inputs(rows)))
        point = z[..., None].requires_grad_()
        score = family.at(level).score(point)
        bend = torch.autograd.grad(score.sum(), point)[0][..., 0].detach().numpy()
        s = level * score[..., 0].detach().numpy().reshape(3, *SHAPE)
        assert found.score is not None and found.square is not None
        assert found.bend is not None and found.product is not None
        np.testing.assert_allclose(found.score[:, place], s.mean((1, 2)), atol=1e-5)
        np.testing.assert_allclose(found.square[:, place], (s**2).mean((1, 2)), rtol=1e-4)
        b = (level**2 * bend).reshape(3, *SHAPE)
        np.testing.assert_allclose(found.bend[:, place], b.mean((1, 2)), atol=1e-5)
        expected = [
            (s[:, :, :-1] * s[:, :, 1:]).mean((1, 2, 3)),
            (s[:, :-1] * s[:, 1:]).mean((1, 2, 3)),
            (s[..., 0] * s[..., 1]).mean((1, 2)),
            (s[..., 1] * s[..., 2]).mean((1, 2)),
        ]
        np.testing.assert_allclose(found.product[:, place], np.stack(expected, 1), atol=1e-5)
    np.testing.assert_allclose(found.nll.sum(1), -model.log_prob(pixels), rtol=1e-9)


def test_black_and_white_lie_where_they_were_spread() -> None:
    rows = torch.tensor([[0.0, 1 / 255, 128 / 255, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[-4.5, 1.0, 128.0, 259.5]], dtype=torch.float64) / 255
    torch.testing.assert_close(middles(rows), expected)


def told(n: int = 2, shift: float = 0.0) -> Statistics:
    """Statistics of n images, with numbers that can be added up by hand."""
    score = np.full((n, 2, 1), 0.5) + shift
    square = np.full((n, 2, 1), 2.0)
    bend = np.full((n, 2, 1), -0.25)
    product = np.zeros((n, 2, 2))
    nll = np.arange(n, dtype=float)[:, None] * 10
    return Statistics((2, 3, 1), (0.1, 1.0), nll, score, square, bend, product)


def test_judges_add_up_what_they_say() -> None:
    images = told(3)
    np.testing.assert_allclose(make_judge("nll").judge(images), [0, 10, 20])
    typical = make_judge("typicality").learn(images)
    np.testing.assert_allclose(typical.judge(images), [10, 0, 10])
    # h = Σ s over 6 pixels, in which s = 0.5/σ; the outlier score is minus that.
    np.testing.assert_allclose(make_judge("h").judge(images), -6 * 0.5 / 0.1)
    np.testing.assert_allclose(make_judge("h", sigma=1.0).judge(images), -3.0)
    np.testing.assert_allclose(make_judge("csm", sigma=1.0).judge(images), 6 * (1.0 - 0.25))
    # Without a sigma it is the level nearest to 0.3: 0.1 of 0.1 and 1, and the second of these.
    levels = (0.01, 0.25, 1.0)
    several = Statistics(
        (2, 3, 1), levels, np.zeros((1, 1)), *(np.arange(3.0)[None, :, None] for _ in range(3))
    )
    np.testing.assert_allclose(make_judge("csm").judge(several), 6 * 1.5)
    np.testing.assert_allclose(make_judge("h").judge(several), -6 / 0.25)
    with pytest.raises(InputError, match=r"sigma among 0\.1, 1"):
        make_judge("csm", sigma=0.3).judge(images)
    with pytest.raises(InputError, match="no sigma for 'typicality'"):
        make_judge("typicality", sigma=1.0)
    with pytest.raises(InputError, match="a judge among"):
        make_judge("oracle")


def test_the_normal_density_is_a_distance_in_units_of_the_covariance() -> None:
    random = np.random.default_rng(0)
    n = 4000
    train = Statistics((1, 1, 3), (), random.standard_normal((n, 3)) * [1.0, 10.0, 0.1] + 5)
    judge = make_judge("gaussian").learn(train)
    off = np.array([[5.0, 5.0, 5.0], [8.0, 5.0, 5.0], [5.0, 5.0, 5.3]])
    found = judge.judge(Statistics((1, 1, 3), (), off))
    np.testing.assert_allclose(found, [0.0, 9.0, 9.0], atol=1.0)
    assert abs(judge.judge(train).mean() - 3) < 0.2


@pytest.mark.parametrize("method", ["gaussian", "mixture", "neighbours"])
def test_vectors_tell_other_images_apart(model: ImageModel, method: str) -> None:
    detector = ImageDetector(model, method).fit(soft(120))
    usual, unusual = detector.score(soft(30, seed=1)), detector.score(noise(30))
    assert usual.shape == (30,) and np.median(unusual) > usual.max()
    # Images of one colour lie far out, and stay numbers.
    flat = np.zeros((2, *SHAPE), np.uint8)
    assert np.isfinite(detector.score(flat)).all()


def test_neighbours_do_not_count_the_image_itself(model: ImageModel) -> None:
    train = soft(60)
    detector = ImageDetector(model, "neighbours").fit(train)
    judge: Any = detector._judge
    place = judge._standardised(vectors_of(detector.statistics(train))) @ judge._whiten
    apart = np.sort(np.linalg.norm(place[:, None] - place, axis=2), 1)
    np.testing.assert_allclose(detector.score(train), apart[:, 1:6].mean(1), rtol=1e-6)
    # Nor where the training image was rounded otherwise; of a new image all five count.
    nll = np.random.default_rng(0).standard_normal((500, 50)) * 3 + 100
    judge = make_judge("neighbours").learn(Statistics((1, 1, 50), (), nll))
    itself = judge.judge(Statistics((1, 1, 50), (), nll * (1 + 1e-7)))
    np.testing.assert_allclose(itself, judge.judge(Statistics((1, 1, 50), (), nll)), rtol=1e-4)
    assert itself.min() > 2
    new = (judge._standardised(nll[:1] + 1.0)) @ judge._whiten
    apart = np.sort(np.linalg.norm(judge._known - new, axis=1))[:5].mean()
    np.testing.assert_allclose(judge.judge(Statistics((1, 1, 50), (), nll[:1] + 1)), apart)


def test_default_methods_and_what_has_no_scores(model: ImageModel) -> None:
    assert ImageDetector(model).method == "neighbours"
    by_likelihood = ImageModel(
        PixelMixture(SHAPE, filters=4, blocks=1, levels=1, seed=0).eval(),
        SHAPE,
        ImageSettings(method="likelihood"),
    )
    detector = ImageDetector(by_likelihood).fit(soft(10))
    assert detector.method == "typicality"
    mean = -by_likelihood.log_prob(soft(10)).mean()
    expected = np.abs(-by_likelihood.log_prob(noise(4)) - mean)
    np.testing.assert_allclose(detector.score(noise(4)), expected, rtol=1e-6)
    with pytest.raises(InputError, match="without scores"):
        ImageDetector(by_likelihood, "h")
    with pytest.raises(InputError, match="for a heat map"):
        detector.heat_map(noise(1))
    assert vectors_of(gather(by_likelihood, noise(2))).shape == (2, 3)


def test_input_that_does_not_fit_is_refused(model: ImageModel) -> None:
    with pytest.raises(InputError, match="a method among"):
        ImageDetector(model, "best")
    with pytest.raises(InputError, match="call fit"):
        ImageDetector(model).score(noise(1))
    with pytest.raises(InputError, match=r"noise levels from 0\.02 to 3"):
        ImageDetector(model, levels=[0.001])
    for levels in (0.3, ["a"]):
        with pytest.raises(InputError, match="a sequence of noise levels"):
            ImageDetector(model, levels=levels)  # type: ignore[arg-type]
    for sigma in (7.0, "x"):
        with pytest.raises(InputError, match=r"sigma among 0\.02, 0\.04"):
            ImageDetector(model, "h", sigma=sigma)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a seed from 0"):
        ImageDetector(model, seed=-1)
    with pytest.raises(InputError, match=r"100 training images or more .* got 3;"):
        ImageDetector(model, "nll").fit(noise(3)).threshold()
    with pytest.raises(InputError, match="in colour"):
        ImageDetector(model).fit(np.zeros((2, 4, 4, 1), np.uint8))
    with pytest.raises(InputError, match="two training images"):
        ImageDetector(model).fit(noise(1))
    assert set(JUDGES) >= {"nll", "h", "csm", "gaussian"}


def test_the_threshold_is_what_new_images_of_the_same_kind_score(model: ImageModel) -> None:
    random = np.random.default_rng(3)

    def drawn(n: int) -> Statistics:
        return Statistics(SHAPE, (), random.standard_normal((n, 3)) * [1.0, 5.0, 0.2])

    detector = ImageDetector(model, "typicality").fit_statistics(drawn(2000))
    beyond = [
        (detector.score_statistics(drawn(4000)) > detector.threshold(s)).mean()
        for s in (0.01, 0.1, 0.5)
    ]
    np.testing.assert_allclose(beyond, [0.01, 0.1, 0.5], rtol=0.35)
    # Of few images in many dimensions a density knows its own all too well: halves tell.
    few = ImageDetector(model, "gaussian").fit_statistics(
        Statistics(SHAPE, (), random.standard_normal((60, 20)))
    )
    new = few.score_statistics(Statistics(SHAPE, (), random.standard_normal((4000, 20))))
    assert (new > few.threshold(0.1)).mean() < 0.2
    for share, message in ((0.01, "100 training images or more"), (0.0, "between 0 and 1")):
        with pytest.raises(InputError, match=message):
            few.threshold(share)
    with pytest.raises(InputError, match="call fit"):
        ImageDetector(model).threshold()


def test_a_smoothed_heat_map_is_a_mean_over_neighbours() -> None:
    surprise = np.zeros((2, 33, 33))
    surprise[0], surprise[1, 16, 16] = 3.0, 5.0
    heat = HeatMap(surprise, np.ones_like(surprise))
    np.testing.assert_allclose(heat.smoothed(0), heat.excess)
    even, peak = heat.smoothed(2.0)
    np.testing.assert_allclose(even, 2.0)
    # A normal window of two pixels' width, whose images do not mix.
    expected = 5 * np.exp(-(3**2) / (2 * 2.0**2)) / (2 * np.pi * 2.0**2) - 1
    assert peak[16, 19] == pytest.approx(expected, abs=1e-3) == peak[13, 16]
    assert peak.sum() == pytest.approx(5 - 33**2)
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="0 pixels or more"):
            heat.smoothed(wrong)


def test_the_heat_map_adds_up_to_the_likelihood_and_expects_the_entropy() -> None:
    model = small_model()
    pixels = np.array([[200, 40, 120]], np.uint8).reshape(1, 1, 3, 1)
    found = ImageDetector(model).heat_map(pixels)
    assert found.surprise.shape == found.expected.shape == (1, 1, 3)
    np.testing.assert_allclose(found.surprise.sum((1, 2)), -model.log_prob(pixels), rtol=1e-9)
    p = level_probabilities(model, [200, 40])
    np.testing.assert_allclose(found.expected[0, 0, 2], -(p * np.log(p)).sum(), rtol=1e-4)
    np.testing.assert_allclose(
        found.excess[0, 0, 2], -np.log(p[120]) + (p * np.log(p)).sum(), rtol=1e-3
    )
