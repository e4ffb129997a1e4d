"""The parts of the demonstration: rivals in the right units, pictures the right way round."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from pages import Page, pixels, problems

from arcsm.demo import charts, digits, figures
from arcsm.demo.digits import DigitsResult, DigitsSizes
from arcsm.demo.page import About, render
from arcsm.demo.rivals import Rival, gaussian_mixture, kernel_density
from arcsm.demo.toy import Slice, ToyResult
from arcsm.pages import data_uri
from arcsm.progress import Reporter
from arcsm.train import History


def test_mixture_of_one_gaussian_is_that_gaussian_in_the_units_of_the_data() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(7, 20, (4000, 1))
    held_out = np.linspace(-30, 40, 8)[:, None]
    rival = gaussian_mixture(rows, held_out, components=(1, 2, 3))
    z = (held_out[:, 0] - rows.mean()) / rows.std()
    exact = -(z**2) / 2 - math.log(rows.std() * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(rival.log_prob, exact, atol=1e-4)
    assert rival.choice.startswith("1 component")


def test_bic_finds_two_well_separated_clusters() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-5, 1, (500, 2)), rng.normal(5, 1, (500, 2))])
    assert gaussian_mixture(rows, rows, components=(1, 2, 4)).choice.startswith("2 components")


def test_kernel_density_is_normalised_and_its_bandwidth_is_not_at_an_end() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(-3, 5, (2000, 1))
    grid = np.linspace(-40, 40, 4001)[:, None]
    rival = kernel_density(rows, grid, bandwidths=(0.001, 0.2, 5.0), scored=200)
    mass = np.trapezoid(np.exp(rival.log_prob), grid[:, 0])
    assert mass == pytest.approx(1, abs=1e-4)
    assert "bandwidth 0.2 " in rival.choice


def test_heat_map_has_its_first_row_at_the_bottom_and_saturates() -> None:
    density = np.zeros((4, 6))
    density[0, :] = 2.0
    shown = pixels(data_uri(figures.heat_map(density, top=1.0))).astype(int)
    assert shown.shape == (4, 6, 4)
    assert shown[-1, 0, :3].sum() > 600 and shown[0, 0, :3].sum() < 30


def test_montage_reads_row_by_row_and_clips() -> None:
    images = np.zeros((3, 4))
    images[0, 1] = 16.0  # top right of the first image
    images[2, 2] = 99.0  # bottom left of the third, in the second row
    shown = pixels(data_uri(figures.montage(images, 2, peak=16.0, side=2))).astype(int)
    size, gap = 16, 8
    assert shown.shape == (2 * size + gap, 2 * size + gap, 4)
    bright = shown[..., :3].sum(-1) > 600
    assert bright[0, size - 1] and not bright[0, 0] and not bright[size - 1, size - 1]
    assert bright[2 * size + gap - 1, 0]
    assert shown[-1, -1, 3] == 0  # no fourth image


def test_blame_reddens_surprise_alone() -> None:
    images = np.full((1, 4), 8.0)
    excess = np.array([[-5.0, 0.0, 3.0, 50.0]])
    png = figures.blame(images, excess, 1, peak=16.0, side=2, top=6.0)
    shown = pixels(data_uri(png)).astype(int)[[0, 0, 8, 8], [0, 8, 0, 8]]
    redness = shown[:, 0] - shown[:, 2]
    assert redness[0] == redness[1] < 10 < redness[2] < redness[3]


def test_scatter_puts_points_where_they_are() -> None:
    points = np.array([[1.9, 2.9]])  # the upper right corner of [0, 2] × [1, 3]
    png = figures.scatter(points, (1.0, 2.0), 1.0, figures.MODEL_COLOUR)
    inked = np.argwhere(pixels(data_uri(png))[..., 3] > 0)
    height = pixels(data_uri(png)).shape[0]
    assert len(inked) and inked[:, 0].max() < 0.1 * height and inked[:, 1].min() > 0.9 * height


def test_frame_maps_values_and_keeps_what_is_out_of_range_on_the_edge() -> None:
    frame = charts.Frame(10, 20, 100, 50, (0, 1), (-1, 1))
    assert frame.at(0, -1) == (10, 70) and frame.at(1, 1) == (110, 20)
    assert frame.at(0.5, 0) == (60, 45) and frame.at(2, 9) == (110, 20)


def test_ticks_are_round_and_within() -> None:
    assert charts._ticks(-3.2, 3.2, count=5) == pytest.approx([-2, 0, 2])
    ticks = charts._ticks(0.013, 0.019, count=4)
    assert len(ticks) >= 3 and all(0.013 <= tick <= 0.019 for tick in ticks)


class Captured(Exception):
    pass


def test_no_digit_is_in_two_of_training_validation_and_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def capture(model: Any, x: torch.Tensor, config: Any, progress: Any) -> None:
        half = len(progress._rows) // 2
        seen.update(trained=x, known=progress._rows[:half], unseen=progress._rows[half:])
        seen.update(validation=config.validation)
        raise Captured

    monkeypatch.setattr(digits, "fit", capture)
    sizes = DigitsSizes(held_out=100, validation=50, copies=3, hidden=(8,))
    with pytest.raises(Captured):
        digits.run_digits(sizes, 0, Reporter())
    trained, known, unseen = (
        {tuple(row) for row in seen[name].floor().int().tolist()}
        for name in ("trained", "known", "unseen")
    )
    assert len(seen["trained"]) == 3 * len(trained) and len(trained) == 1797 - 150
    assert len(known) == len(unseen) == 50
    assert known <= trained and not unseen & trained
    assert seen["validation"] == 0


def fake_results() -> tuple[ToyResult, DigitsResult, About]:
    """Results with numbers that are easy to recognise on the page."""
    rng = np.random.default_rng(0)
    steps = [(10, 3.0), (20, 2.0), (30, 1.5)]
    x2 = np.linspace(-1, 1, 5)
    part = Slice(-0.25, x2, x2**2, x2**2, x2, np.where(x2 > 0, x2, np.nan))
    log_prob = np.array([-2.0, -4.0])
    toy = ToyResult(
        "two-moons", 1000, 2.0, (0.0, 0.0), rng.normal(size=(9, 2)), rng.normal(size=(9, 2)),
        rng.random((4, 4)), rng.random((4, 4)), [part], History(steps, steps, 20, 30, 1.0), {},
        log_prob + 0.25, log_prob, [Rival("Kernel density", "a <b>", log_prob - 0.125)],
    )  # fmt: skip
    images = 16 * rng.random((4, 64))
    digits = DigitsResult(
        training_rows=1234, real=images, generated=images, sigma=3.0, clean=images, noisy=images,
        denoised=images, psnr_noisy=14.5, psnr_denoised=19.25, unusual=images,
        unusual_labels=np.arange(4), unusual_log_prob=np.array([-151.0, -150.0, -149.0, -148.0]),
        excess=images, training=steps, validation=steps, settings={},
        log_prob=np.array([-90.0, -100.0]),
        rivals=[Rival("Gaussian mixture", "7 components", np.array([-80.0, -96.0]))],
    )  # fmt: skip
    about = About("arcsm demo", {"seed": "5"}, {"arcsm": "1.2.3"}, {"training": 1.25}, 61.4)
    return toy, digits, about


def test_page_shows_the_numbers_it_was_given() -> None:
    html = render(*fake_results())
    assert problems(html) == []
    text = Page(html).text
    assert "0.250 ± 0.000 nats KL(truth ‖ model) on two-moons" in text["what"]
    # Paired: the differences 10 and 4 have a mean of 7 and a standard error of 3.
    assert "7.0 ± 3.0 nats behind the best rival" in text["what"]
    assert "14.5 → 19.2 dB" in text["what"] and "61 s" in text["what"]
    assert "= 0.2500 ± 0.0000 nats on 2 unseen points" in text["density"]
    assert "−3.000 ± 1.000" in text["likelihood"] and "−0.125 ± 0.000" in text["likelihood"]
    assert "+7.0 ± 3.0" in text["likelihood"] and "−95.0 ± 5.0" in text["likelihood"]
    assert "a <b>" in text["likelihood"]  # escaped on the way in
    assert "x1 = −0.25" in text["conditional"]
    assert "1,234 digits" in text["digits"] and "−151" in text["unusual"]
    assert "1.2 s" in text["about"] and "61.4 s" in text["about"] and "1.2.3" in text["about"]


def test_page_does_not_call_a_lead_what_is_none() -> None:
    toy, digits, about = fake_results()
    behind = [Rival("Gaussian mixture", "7 components", digits.log_prob - np.array([1.0, 3.0]))]
    ahead = render(toy, dataclasses.replace(digits, rivals=behind), about)
    assert "2.0 ± 1.0 nats ahead of the best rival" in Page(ahead).text["what"]
