"""Denoising: posteriors against Bayes' rule by enumeration, and the paper's methods."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from known import LOPSIDED, seeded

from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM
from arcsm.staged import StagedARCSM
from arcsm.tasks.images import Corruption, Denoising, Gaussian, SaltAndPepper, denoise_images
from arcsm.tasks.images.dynamics import by_langevin, by_single_step, langevin_ladder
from arcsm.tasks.images.levels import Bins, draw_bins, log_probabilities
from arcsm.tasks.images.mirrors import ALL, scalars_of, usual_views
from arcsm.tasks.images.posterior import _powers
from arcsm.tasks.resampling import resampled

from .small import level_probabilities, small_model

LEVELS = np.arange(256)


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return small_model()


def image(*levels: int) -> np.ndarray:
    return np.array(levels, np.uint8).reshape(1, 1, -1, 1)


def bayes(prior: np.ndarray, likelihood: np.ndarray) -> np.ndarray:
    joint = prior * likelihood
    return np.asarray(joint / joint.sum())


def pepper(observed: int, share: float) -> np.ndarray:
    same = np.equal(LEVELS, observed) * (1 - share)
    return np.asarray(same + share / 2 * (observed in (0, 255)))


@pytest.mark.parametrize("width", [1, 30])
def test_levels_have_the_mass_of_their_cells(model: ImageModel, width: int) -> None:
    chain: Any = model.density
    rows = torch.tensor([[200, 40, 0]], dtype=torch.float64) / 255
    context = chain.context(chain.context_inputs(rows))[:, 2]
    bins = Bins(width)
    found = log_probabilities(chain, context, 2, bins).exp()[0].numpy()
    exact = level_probabilities(model, [200, 40])
    expected = np.add.reduceat(exact, bins.first)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
    assert bins.first[:2] == (0, 1) and bins.first[-1] == 255
    centres = bins.centres(rows)
    assert float(centres[0]) == 0 and float(centres[-1]) == 1


def test_bins_are_drawn_by_their_probability() -> None:
    bins = Bins(100)
    log_p = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]).log().expand(40_000, -1)
    drawn = (draw_bins(log_p, bins, seeded()) * 255).round().long().numpy()
    chosen = np.searchsorted(bins.first, drawn, side="right") - 1
    share = np.bincount(chosen, minlength=5) / len(drawn)
    np.testing.assert_allclose(share, [0.1, 0.2, 0.3, 0.15, 0.25], atol=0.012)
    assert set(drawn[chosen == 3]) == set(range(201, 255))  # all levels of a bin, and no others


@pytest.mark.parametrize("kind", ["mean", "map"])
def test_salt_and_pepper_is_judged_by_bayes_rule(model: ImageModel, kind: str) -> None:
    share, observed = (0.3 if kind == "mean" else 0.99), [0, 120, 255]
    found = denoise_images(
        model, image(*observed), SaltAndPepper(share), Denoising(kind, views=["none"])
    ).reshape(-1)
    clean: list[int] = []
    for level in observed:
        posterior = bayes(level_probabilities(model, clean), pepper(level, share))
        best = posterior @ LEVELS if kind == "mean" else posterior.argmax()
        clean.append(int(np.rint(best)))
    assert clean[1] == 120 and clean[0] != 0 and clean != [0, 120, 255]
    np.testing.assert_allclose(found, clean, atol=1 if kind == "mean" else 0)


@pytest.mark.parametrize("cut", [True, False])
def test_gaussian_noise_is_judged_by_bayes_rule(model: ImageModel, cut: bool) -> None:
    noise = Gaussian(0.1)  # fine enough for each level to count
    assert noise.finest == 1
    values = np.array([0.0, 0.45, 1.0]) if cut else np.array([-0.03, 0.45, 1.05])
    noisy = np.rint(values * 255) / 255 if cut else values
    given: Any = (noisy * 255).astype(np.uint8) if cut else noisy
    found = denoise_images(
        model, given.reshape(1, 1, 3, 1), noise, Denoising("mean", views=["none"])
    ).reshape(-1)
    clean: list[int] = []
    for value in noisy:
        off = (value - LEVELS / 255) / noise.scale
        likelihood = np.exp(-(off**2) / 2)
        if cut and value in (0.0, 1.0):  # all that lies beyond, by summing the bell curve
            beyond = np.arange(0, 400) / 255 * (1 if value else -1)
            steps = ((value + beyond)[:, None] - LEVELS / 255) / noise.scale
            likelihood = np.exp(-(steps**2) / 2).sum(0)
        posterior = bayes(level_probabilities(model, clean), likelihood)
        clean.append(int(np.rint(posterior @ LEVELS)))
    np.testing.assert_allclose(found, clean, atol=1)


def test_draws_follow_the_posterior(model: ImageModel) -> None:
    share = 0.4
    noisy = np.repeat(image(0, 10, 20), 90, 0)
    found = denoise_images(model, noisy, SaltAndPepper(share), Denoising("draw"), seed=3)
    posterior = bayes(level_probabilities(model, []), pepper(0, share))
    drawn = found.reshape(90, 3)[:, 0]
    assert (found.reshape(90, 3)[:, 1:] == [10, 20]).all()
    assert abs((drawn == 0).mean() - posterior[0]) < 5 * math.sqrt(0.25 / 90)
    deviation = math.sqrt(posterior @ (LEVELS - posterior @ LEVELS) ** 2)
    assert abs(drawn.mean() - posterior @ LEVELS) < 5 * deviation / math.sqrt(90)


def test_views_are_pooled_before_the_observation() -> None:
    # The last scalar of an image is the first of its mirror image. Their product is to the power
    # of one half as both see the same half of the image: there is but one row.
    model, share = small_model(flips=True), 0.5
    assert usual_views(model) == ("none", "left-right")
    found = denoise_images(model, image(60, 200, 0), SaltAndPepper(share)).reshape(-1)
    prior = np.sqrt(level_probabilities(model, [60, 200]) * level_probabilities(model, []))
    expected = bayes(prior, pepper(0, share)) @ LEVELS
    assert found[:2].tolist() == [60, 200] and abs(found[2] - expected) <= 1
    mixed = denoise_images(
        model, image(60, 200, 0), SaltAndPepper(share), Denoising(pool="mixture")
    ).reshape(-1)
    prior = (level_probabilities(model, [60, 200]) + level_probabilities(model, [])) / 2
    assert abs(mixed[2] - bayes(prior, pepper(0, share)) @ LEVELS) <= 1
    assert abs(int(mixed[2]) - int(found[2])) > 1


def test_views_from_above_and_below_count_whole() -> None:
    model, share = small_model((2, 1, 1)), 0.5
    views = Denoising(views=["none", "up-down"])
    noisy = np.array([0, 90], np.uint8).reshape(1, 2, 1, 1)
    found = denoise_images(model, noisy, SaltAndPepper(share), views).reshape(-1)
    prior = level_probabilities(model, []) * level_probabilities(model, [90])
    assert abs(found[0] - bayes(prior, pepper(0, share)) @ LEVELS) <= 1


def test_mirrored_scalars_and_views() -> None:
    pixels = torch.arange(2 * 3 * 2).view(2, 3, 2)
    for view, axes in (("none", ()), ("left-right", (1,)), ("up-down", (0,)), ("both", (0, 1))):
        expected = pixels.flip(axes).flatten()
        assert torch.equal(pixels.flatten()[scalars_of(view, (2, 3, 2))], expected)
    plain = small_model()
    trained = ImageModel(
        plain.density, plain.shape, plain.settings, prepared={"mirrored": ["up-down", "left-right"]}
    )
    assert usual_views(plain) == ("none",) and usual_views(trained) == ALL
    for flips, expected in ((True, ALL), (False, ("none", "up-down"))):
        settings = replace(plain.settings, flips=flips, upside_down=True)
        assert usual_views(ImageModel(plain.density, plain.shape, settings)) == expected


def test_more_particles_than_memory_is_for_are_refused() -> None:
    assert Denoising("particles", particles=10_000).particles == 10_000
    with pytest.raises(InputError, match="at most 10,000 particles, got 10,001"):
        Denoising("particles", particles=10_001)


def test_particles_find_the_mean_given_the_whole_image() -> None:
    model, noise = small_model((2, 1, 1), seed=9), Gaussian(1.0)
    bins, noisy = Bins(noise.finest), np.array([0.5, 1.0])
    first = np.array(bins.first)
    width = np.diff([*first, 256])
    assert 2 < width.max() == noise.finest
    # A level of the first scalar has the share of its bin, which is judged by its centre.
    centre = (first + (width - 1) / 2) / 255
    bell = np.exp(-((noisy[:, None] - centre) ** 2) / (2 * noise.scale**2))
    prior = np.add.reduceat(level_probabilities(model, []), first) * bell[0]
    filtered = np.repeat(prior / width, width)
    filtered /= filtered.sum()
    chain: Any = model.density
    rows = torch.zeros(256, 2, dtype=torch.float64)
    rows[:, 0] = torch.arange(256) / 255
    context = chain.context(chain.context_inputs(rows))[:, 1]
    by_level = log_probabilities(chain, context, 1, bins).exp().numpy()
    joint = filtered[:, None] * by_level * bell[1]
    joint /= joint.sum()
    exact = [joint.sum(1) @ LEVELS, joint.sum(0) @ centre * 255]
    how = Denoising("particles", particles=30, lag=1, views=["none"])
    found = denoise_images(model, np.repeat(noisy.reshape(1, 2, 1, 1), 8, 0), noise, how)
    means = found.reshape(8, 2).astype(float)
    allowed = 3 * means.std(0) / math.sqrt(8) + 1
    assert (np.abs(means.mean(0) - exact) < allowed).all()
    # Without a say of the second scalar the first would be elsewhere.
    assert abs(filtered @ LEVELS - means[:, 0].mean()) > 1.5 * allowed[0]


def test_particles_are_copied_by_their_weight() -> None:
    log_weight = torch.tensor([[0.5, 0.25, 0.25, 1e-9], [0.25] * 4], dtype=torch.float64).log()
    index = resampled(log_weight, seeded())
    assert index is None  # more than half of them carry the weight
    log_weight[0] = torch.tensor([0.97, 0.01, 0.01, 0.01], dtype=torch.float64).log()
    index = resampled(log_weight, seeded())
    assert index is not None and index[4:].tolist() == [4, 5, 6, 7]
    assert index[:4].tolist().count(0) >= 3 and bool((index[:4] < 4).all())
    assert log_weight[0].tolist() == [0.0] * 4


def test_copies_of_particles_take_all_they_know_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, noise = small_model((3, 1, 1), seed=9), Gaussian(1.0)
    noisy = np.repeat(np.array([0.5, 1.0, 0.5]).reshape(1, 3, 1, 1), 12, 0)
    how = Denoising("particles", particles=30, lag=3, views=["none"])
    means = []
    for effective in (0.0, 1.0):  # never, and after every row
        monkeypatch.setattr("arcsm.tasks.resampling.EFFECTIVE", effective)
        means.append(denoise_images(model, noisy, noise, how).reshape(12, 3)[:, 1].astype(float))
    error = math.sqrt((means[0].var() + means[1].var()) / 12)
    assert abs(means[0].mean() - means[1].mean()) < 3 * error


def test_a_single_mirrored_view_is_turned_back(model: ImageModel) -> None:
    noise, how = SaltAndPepper(0.3), Denoising(views=["left-right"])
    found = denoise_images(model, image(255, 120, 0), noise, how)
    mirrored = denoise_images(model, image(0, 120, 255), noise, Denoising(views=["none"]))
    assert np.array_equal(found, mirrored[:, :, ::-1])
    assert found[0, 0, 0, 0] != found[0, 0, 2, 0]


def test_particles_of_no_lag_use_nothing_of_later_rows(model: ImageModel) -> None:
    by_rows = ImageModel(model.density, (3, 1, 1), model.settings)
    noise, noisy = Gaussian(2.0), np.array([0.9, 0.2, 0.6]).reshape(1, 3, 1, 1)
    other = noisy.copy()
    other[0, 1:] = 0.9
    how = Denoising("particles", particles=50, lag=0, views=["none"])
    one, two = (denoise_images(by_rows, x, noise, how) for x in (noisy, other))
    assert one[0, 0] == two[0, 0] and one[0, 1] != two[0, 1]


def test_of_three_views_each_half_counts_once() -> None:
    # Two from above have half a say each, the one from below a whole one.
    assert _powers(["none", "left-right", "up-down"]) == [0.5, 0.5, 1.0]
    assert _powers(["none", "up-down"]) == [1.0, 1.0]
    assert _powers(["none", "left-right", "up-down", "both"]) == [0.5] * 4
    model = small_model((2, 1, 1))
    noise, levels = Gaussian(0.4), np.array([90, 160])
    # Mirrored from left to right a picture of one column is as before: it adds nothing.
    noisy = levels.reshape(1, 2, 1, 1).astype(np.uint8)
    two = Denoising("mean", views=["none", "up-down"])
    three = Denoising("mean", views=["none", "left-right", "up-down"])
    found = [denoise_images(model, noisy, noise, how).astype(int) for how in (two, three)]
    assert np.abs(found[0] - found[1]).max() <= 1


class Uncertain(Corruption):
    """Noise of a user's own, under which nothing is known of any scalar."""

    def apply(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 256, pixels.shape, dtype=np.uint8)

    def log_likelihood(
        self, observed: torch.Tensor, levels: torch.Tensor, *, cut: bool
    ) -> torch.Tensor:
        return torch.zeros(*observed.shape, len(levels), dtype=levels.dtype)

    def ambiguous(self, observed: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(observed, dtype=torch.bool)


def test_noise_may_be_of_one_s_own(model: ImageModel) -> None:
    prior = level_probabilities(model, [])
    how = Denoising("mean", views=["none"])
    for noisy in (image(9, 9, 9), image(9, 9, 9) / 255):
        found = denoise_images(model, noisy, Uncertain(), how)
        assert abs(float(found[0, 0, 0, 0]) - prior @ LEVELS) <= 1


class Alone:
    """One scalar, with a known density in standardised units; contexts are not looked at."""

    def __init__(self, scale: float) -> None:
        self.dims = 1
        self.shift = torch.tensor([0.4], dtype=torch.float64)
        self.scale = torch.tensor([scale], dtype=torch.float64)
        self.noise = Noise(20.0, 0.01)
        self.head = SimpleNamespace(family=lambda _: LOPSIDED)
        self.context = SimpleNamespace(
            cursor=lambda n: SimpleNamespace(context=lambda: None, push=lambda value: None)
        )

    def empty_rows(self, n: int) -> torch.Tensor:
        return torch.zeros(n, 1, dtype=torch.float64)

    def context_input(self, value: torch.Tensor, d: int) -> torch.Tensor:
        return value


@pytest.mark.parametrize("noisy", [0.2, 0.45, 0.7])
def test_the_single_step_is_the_posterior_mean(noisy: float) -> None:
    chain: Any = Alone(0.1)
    sigma = 0.08
    x = torch.linspace(-1, 2, 60_001, dtype=torch.float64)
    density = LOPSIDED.at(1e-9).log_prob(((x - 0.4) / 0.1)[None])[0]
    weight = (density - (noisy - x) ** 2 / (2 * sigma**2)).softmax(0)
    start = torch.tensor([[noisy]], dtype=torch.float64)
    found = by_single_step(chain, start, sigma, snapped=True)
    assert abs(float(found) - float((weight * x).sum())) < 1e-6


def test_the_single_step_refuses_more_noise_than_was_trained() -> None:
    with pytest.raises(InputError, match=r"up to σ = 4 "):
        by_single_step(Alone(0.1), torch.zeros(1, 1), 2.1, snapped=True)  # type: ignore[arg-type]


def test_langevin_dynamics_goes_to_the_model_from_where_it_starts() -> None:
    chain: Any = Alone(0.1)
    start = torch.full((4000, 1), 0.9, dtype=torch.float64)
    told: dict[str, Any] = {"snapped": True, "generator": seeded()}
    ladder = langevin_ladder(chain, None)
    assert len(ladder) == 5 and ladder[-1] == 0.01
    stays = by_langevin(chain, start, ladder, steps=2, step_size=1e-12, **told)
    assert float((stays - 0.9).abs().max()) < 1e-3
    # From level 1 down, in steps that mix: the moments are those of the mixture.
    ladder = langevin_ladder(chain, 0.2)
    assert ladder[0] <= 1.0 < 20.0
    moved = by_langevin(chain, start, ladder, steps=200, step_size=None, **told)
    mean = 0.4 + 0.1 * (0.3 * -1.2 + 0.7 * 0.9)
    assert abs(float(moved.mean()) - mean) < 0.02
    for wrong in (1e-6, 4.1):  # the levels are 0.01 to 20, of 0.2 each
        with pytest.raises(InputError, match=r"from σ = 0\.002 to 4,"):
            langevin_ladder(chain, wrong)
    # σ for pixels from −1 to 1 is 0.2 of a standardised one: from 1 to 0.2 in ten levels.
    ladder = langevin_ladder(chain, 0.2, 0.04)
    assert len(ladder) == 10 and ladder[0] == pytest.approx(1) and ladder[-1] == pytest.approx(0.2)
    for start, end in ((None, 0.04), (0.04, 0.2), (0.2, 1e-9)):
        with pytest.raises(InputError, match="from a start down to an end"):
            langevin_ladder(chain, start, end)


def test_epsilon_is_that_of_pixels_from_minus_one_to_one() -> None:
    # One level, one step from 0.9 with score s: x moves by (ε/2)·4·s in units of [0, 1].
    chain: Any = Alone(0.1)
    start = torch.full((60_000, 1), 0.9, dtype=torch.float64)
    epsilon = 4e-4
    moved = by_langevin(
        chain, start, [1.0], steps=1, step_size=epsilon, snapped=False, generator=seeded()
    )
    assert abs(float(moved.std()) / (math.sqrt(epsilon) / 2) - 1) < 0.02


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"method": "magic"}, "method among"),
        ({"pool": "sum"}, "pool among"),
        ({"context": "noise"}, "context among"),
        ({"views": ["sideways"]}, "views among"),
        ({"views": ["none", "none"]}, "each once"),
        ({"method": "draw", "views": ["none", "both"]}, "one view for draws"),
        ({"views": 5}, "views among"),
        ({"particles": 0}, "particles to be a whole number of at least 1"),
        ({"particles": None}, "particles to be a whole"),
        ({"particles": 10_001}, "at most 10,000 particles"),
        ({"lag": -1}, "lag to be a whole number of at least 0"),
        ({"lag": None}, "lag to be a whole"),
        ({"langevin_start": 0.0}, "langevin_start to be a positive"),
    ],
)
def test_settings_out_of_range_are_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Denoising(**told)


@pytest.mark.parametrize(
    ("noise", "method"),
    [
        (SaltAndPepper(0.9), "mean"),
        (Gaussian(0.1), "mean"),
        (Gaussian(0.29), "mean"),
        (Gaussian(0.3), "particles"),
        (Gaussian(0.6), "particles"),
    ],
)
def test_strong_gaussian_noise_is_left_to_particles(noise: Any, method: str) -> None:
    told = Denoising(views=["none"], particles=4, lag=1)
    assert told.suited_to(noise) == replace(told, method=method)
    asked = Denoising("draw")
    assert asked.suited_to(noise) is asked
    model, noisy = small_model(), image(3, 120, 250)
    by_name = denoise_images(model, noisy, noise, replace(told, method=method), seed=5)
    assert np.array_equal(denoise_images(model, noisy, noise, told, seed=5), by_name)


def test_images_that_do_not_fit_are_refused(model: ImageModel) -> None:
    noise = SaltAndPepper(0.1)
    with pytest.raises(InputError, match="3 x 1 pixels"):
        denoise_images(model, np.zeros((1, 2, 3, 1), np.uint8), noise)
    with pytest.raises(InputError, match="in colour"):
        denoise_images(model, np.zeros((1, 1, 3, 3), np.uint8), noise)
    with pytest.raises(InputError, match="uint8 images for salt"):
        denoise_images(model, np.zeros((1, 1, 3, 1)), noise)
    with pytest.raises(InputError, match="finite"):
        denoise_images(model, np.full((1, 1, 3, 1), np.nan), Gaussian(0.1))
    with pytest.raises(InputError, match="Gaussian noise for the method"):
        denoise_images(model, image(1, 2, 3), noise, Denoising("single-step"))


def test_the_mean_is_bayes_mean_under_any_noise(model: ImageModel) -> None:
    """Levels that are taken together are few, so that the model's say within them counts."""
    assert [Gaussian(sigma).finest for sigma in (0.01, 0.1, 0.3, 0.6, 10.0)] == [1, 1, 4, 8, 8]
    prior = level_probabilities(model, [])
    for sigma in (0.6, 2.0, 10.0):
        noise = Gaussian(sigma)
        off = (LEVELS - 61) / (255 * noise.scale)
        expected = bayes(prior, np.exp(-(off**2) / 2)) @ LEVELS
        how = Denoising("mean", views=["none"])
        noisy = np.full((1, 1, 3, 1), 61 / 255, np.float32)
        found = denoise_images(model, noisy, noise, how)
        assert abs(float(found[0, 0, 0, 0]) - expected) < 2


def test_what_is_of_another_kind_is_refused(model: ImageModel) -> None:
    noisy, noise = image(1, 2, 3), SaltAndPepper(0.1)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((None, noisy, noise), {}, "model as a ImageModel, got NoneType"),
        ((model, noisy, "gaussian:0.6"), {}, "noise as a Corruption, got str"),
        ((model, noisy, noise, "mean"), {}, "how as a Denoising, got str"),
        ((model, noisy, noise), {"batch_size": 0}, "batch_size to be a whole number"),
        ((model, noisy, noise), {"seed": 1.5}, "a seed from 0"),
        ((model, noisy, noise), {"seed": 2**70}, "a seed from 0"),
        ((model, image(0, 9, 255).astype(np.float32), Gaussian(0.6)), {}, "divide levels by 255"),
    ]
    for arguments, options, message in wrong:
        with pytest.raises(InputError, match=message):
            denoise_images(*arguments, **options)
    for spoil in (noise.apply, Gaussian(0.5).apply):
        with pytest.raises(InputError, match="uint8 arrays to spoil"):
            spoil(noisy / 255, np.random.default_rng(0))
    assert Gaussian(np.float32(0.5)).finest == 7 and Denoising(particles=np.int64(3))
    with pytest.raises(InputError, match="got leftright;"):
        Denoising(views="leftright")


def test_the_paper_s_noise_has_the_paper_s_methods_alone() -> None:
    fine = small_model()
    chain: Any = ARCSM.made(
        3, hidden=(8,), noise=Noise(2.0, 0.08, levels=10), shared_units=True, seed=0
    )
    with torch.no_grad():
        chain.shift.fill_(0.5)
        chain.scale.fill_(0.25)
    paper = ImageModel(chain, fine.shape, ImageSettings(network="made", noise="paper"))
    noisy = image(0, 120, 255)
    for method in ("mean", "particles"):
        with pytest.raises(InputError, match="fine noise for the method"):
            denoise_images(paper, noisy, SaltAndPepper(0.1), Denoising(method))
    # Steps of no size leave the image as it was, through all changes of units.
    still = Denoising("langevin", langevin_step_size=1e-14)
    assert np.array_equal(denoise_images(paper, noisy, SaltAndPepper(0.1), still), noisy)
    # Next to no noise leaves next to nothing to correct.
    step = Denoising("single-step")
    assert np.array_equal(denoise_images(paper, noisy, Gaussian(1e-3), step), noisy)
    staged = ImageModel(
        StagedARCSM([chain] * 10), fine.shape, ImageSettings(noise="paper", staged=True)
    )
    with pytest.raises(InputError, match="one network"):
        denoise_images(staged, noisy, SaltAndPepper(0.1), still)
