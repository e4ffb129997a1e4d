"""The mixture of a pixel: a distribution over levels, as the formulas have it, and its draws."""

import decimal
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from known import DOUBLE, normal, seeded
from scipy import stats
from torch import Tensor

from arcsm.baselines.pixel_logistics import (
    LOG_SCALE_MIN,
    PixelLogistics,
    check_levels,
    nearest_level,
    to_symmetric,
)
from arcsm.errors import InputError

LEVELS = to_symmetric(torch.arange(256, dtype=DOUBLE) / 255)


def random_outputs(channels: int, components: int = 3, *batch: int, seed: int = 0) -> Tensor:
    """Outputs of mixtures whose components differ, some a few levels wide and some a hundred."""
    parts = 0.5 * normal(*batch, PixelLogistics.width(channels, 1), components, seed=seed)
    parts[..., 1 + channels : 1 + 2 * channels, :] *= 2
    parts[..., 1 + channels : 1 + 2 * channels, :] -= 3
    return parts.flatten(-2)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))


def slow_probability(
    logits: np.ndarray,
    mean: np.ndarray,
    log_scale: np.ndarray,
    coefficient: np.ndarray,
    levels: list[int],
) -> float:
    """P of a pixel by the definition; `coefficient[c, j]` is that of channel j for channel c."""
    weight = np.exp(logits) / np.exp(logits).sum()
    total = 0.0
    for k in range(len(logits)):
        product = weight[k]
        for c, level in enumerate(levels):
            centre = mean[c, k]
            for j in range(c):
                centre += math.tanh(coefficient[c, j, k]) * (levels[j] / 127.5 - 1)
            h = math.exp(max(log_scale[c, k], -7.0))
            low = sigmoid((level / 127.5 - 1 - 1 / 255 - centre) / h) if level > 0 else 0.0
            high = sigmoid((level / 127.5 - 1 + 1 / 255 - centre) / h) if level < 255 else 1.0
            product *= high - low
        total += product
    return total


@pytest.mark.parametrize("channels", [1, 3])
def test_probabilities_are_those_of_the_definition(channels):
    random = np.random.default_rng(0)
    components, pairs = 4, [(c, j) for c in range(channels) for j in range(c)]
    for _ in range(20):
        logits = random.normal(size=components)
        mean = random.uniform(-1.2, 1.2, size=(channels, components))
        log_scale = random.uniform(-2, 0, size=(channels, components))
        coefficient = random.normal(size=(channels, channels, components))
        levels = random.choice([0, 1, 100, 127, 254, 255], size=channels).tolist()
        outputs = np.concatenate(
            [logits, mean.ravel(), log_scale.ravel(), *(coefficient[pair] for pair in pairs)]
        )
        expected = slow_probability(logits, mean, log_scale, coefficient, levels)
        mixture = PixelLogistics.from_outputs(torch.from_numpy(outputs), channels)
        got = mixture.log_prob(LEVELS[levels]).item()
        assert got == pytest.approx(math.log(expected), rel=1e-9)


def test_a_pixel_has_as_many_parameters_as_in_the_original():
    assert PixelLogistics.width(3, 10) == 100
    assert PixelLogistics.width(1, 10) == 30


@pytest.mark.parametrize(
    ("mean", "log_scale"),
    [(0.1, -2.0), (-1.0, -50.0), (0.3, -7.0), (0.0, 30.0), (1e4, 0.0), (-60.0, -7.0), (0, 1e3)],
)
def test_levels_of_any_component_add_up_to_one(mean, log_scale):
    outputs = torch.tensor([0.0, mean, log_scale], dtype=DOUBLE)
    mixture = PixelLogistics.from_outputs(outputs, 1)
    mass = mixture.log_prob(LEVELS[:, None]).exp().sum().item()
    assert mass == pytest.approx(1, abs=1e-12)


def test_conditionals_of_all_channels_add_up_to_one():
    mixture = PixelLogistics.from_outputs(random_outputs(3, 5), 3)
    for channel, before in ((0, []), (1, [0]), (1, [77]), (2, [255, 3]), (2, [180, 255])):
        y = torch.zeros(256, 3, dtype=DOUBLE)
        y[:, :channel] = LEVELS[before]
        y[:, channel] = LEVELS
        mass = mixture.log_prob_terms(y)[:, channel].exp().sum().item()
        assert mass == pytest.approx(1, abs=1e-12)


def test_terms_are_a_chain_whose_sum_is_the_log_probability():
    mixture = PixelLogistics.from_outputs(random_outputs(3, 4, 50), 3)
    y = LEVELS[torch.randint(256, (50, 3), generator=seeded())]
    terms = mixture.log_prob_terms(y)
    torch.testing.assert_close(terms.sum(-1), mixture.log_prob(y), rtol=1e-12, atol=1e-12)
    changed = y.clone()
    changed[:, 1] = LEVELS[torch.randint(256, (50,), generator=seeded(1))]
    others = mixture.log_prob_terms(changed)
    assert torch.equal(others[:, 0], terms[:, 0])
    moved = changed[:, 1] != y[:, 1]
    assert (others[moved, 1:] != terms[moved, 1:]).all()


def test_first_term_is_the_sum_over_all_values_of_the_next_channel():
    mixture = PixelLogistics.from_outputs(random_outputs(2, 3), 2)
    y = torch.stack([LEVELS[40].expand(256), LEVELS], -1)
    total = mixture.log_prob(y).logsumexp(0)
    torch.testing.assert_close(mixture.log_prob_terms(y)[0, 0], total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("level", "mean", "log_scale"),
    [(3, 0.9, -6.0), (250, -0.5, -7.0), (128, 0.0, 20.0), (77, 0.2, -7.0), (1, 30.0, -3.0)],
)
def test_tiny_probabilities_keep_their_digits(level, mean, log_scale):
    """Against 800 decimal digits, where the difference of two sigmoids is harmless."""
    with decimal.localcontext() as context:
        context.prec = 800
        y = decimal.Decimal(2 * level) / 255 - 1
        h = decimal.Decimal(log_scale).exp()

        def upto(end: decimal.Decimal) -> decimal.Decimal:
            return 1 / (1 + (-(end - decimal.Decimal(mean)) / h).exp())

        cell = decimal.Decimal(1) / 255
        expected = float((upto(y + cell) - upto(y - cell)).ln())
    for dtype, tolerance in ((DOUBLE, 1e-12), (torch.float32, 3e-5)):
        outputs = torch.tensor([0.0, mean, log_scale], dtype=dtype)
        got = PixelLogistics.from_outputs(outputs, 1).log_prob(LEVELS[level, None].to(dtype))
        assert got.item() == pytest.approx(expected, rel=tolerance)


def test_end_cells_are_open():
    mean, h = torch.tensor(0.2, dtype=DOUBLE), 0.5
    outputs = torch.tensor([0.0, 0.2, math.log(h)], dtype=DOUBLE)
    mixture = PixelLogistics.from_outputs(outputs, 1)
    low, high = mixture.log_prob(LEVELS[[0, 255], None]).exp()
    torch.testing.assert_close(low, torch.sigmoid((-1 + 1 / 255 - mean) / h))
    torch.testing.assert_close(high, 1 - torch.sigmoid((1 - 1 / 255 - mean) / h))


def test_scales_have_a_least_value_and_coefficients_a_bound():
    outputs = random_outputs(3, 2)
    outputs.view(10, 2)[4:] = torch.tensor([-50.0, 50.0])
    mixture = PixelLogistics.from_outputs(outputs, 3)
    assert (mixture.log_scale[:, 0] == LOG_SCALE_MIN).all()
    torch.testing.assert_close(mixture.coefficient, outputs.view(10, 2)[7:].sign())


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_are_those_of_finite_differences(channels):
    y = LEVELS[torch.tensor([[0, 255, 7], [255, 100, 0], [130, 131, 254]])[:, :channels]]
    outputs = random_outputs(channels, 2, 3).requires_grad_()

    def evaluate(outputs: Tensor) -> tuple[Tensor, Tensor]:
        mixture = PixelLogistics.from_outputs(outputs, channels)
        return mixture.log_prob(y), mixture.log_prob_terms(y)

    assert torch.autograd.gradcheck(evaluate, (outputs,))


def test_float32_stays_finite_for_all_parameters():
    sign = torch.randint(3, (500, 40), generator=seeded()) - 1.0
    outputs = (sign * 10 ** torch.linspace(-2, 3, 500)[:, None]).requires_grad_()
    y = LEVELS[torch.randint(256, (500, 3), generator=seeded(1))].float()
    y[:100] = y[:100].sign()
    loss = PixelLogistics.from_outputs(outputs, 3).log_prob(y)
    assert loss.isfinite().all()
    loss.sum().backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all()


def test_numbers_stand_for_the_values_of_one_component():
    """By hand: the second component is drawn, G is moved by R, and B by R and by G."""
    mean, h = [[-0.5, 0.1], [0.3, -0.2], [-0.3, 0.0]], [[0.01, 0.02], [0.01, 0.03], [0.01, 0.01]]
    coupling = [[0.0, 0.5], [0.0, -0.4], [0.0, 0.9]]
    mixture = PixelLogistics(
        torch.tensor([0.3, 0.7], dtype=DOUBLE).log(),
        torch.tensor(mean, dtype=DOUBLE),
        torch.tensor(h, dtype=DOUBLE).log(),
        torch.tensor(coupling, dtype=DOUBLE),
    )
    drawn = mixture.draw(torch.tensor([0.31, 0.5, 0.9, 0.2], dtype=DOUBLE))
    red = round(127.5 * 1.1)
    y_red = red / 127.5 - 1
    green = round(127.5 * (1 - 0.2 + 0.5 * y_red + 0.03 * math.log(9)))
    y_green = green / 127.5 - 1
    blue = round(127.5 * (1 - 0.4 * y_red + 0.9 * y_green + 0.01 * math.log(0.25)))
    assert (drawn * 255).tolist() == pytest.approx([red, green, blue], abs=1e-9)
    first = mixture.draw(torch.tensor([0.29, 0.5, 0.5, 0.5], dtype=DOUBLE))
    expected = [round(127.5 * (1 + centre)) for centre in (-0.5, 0.3, -0.3)]
    assert (first * 255).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_least_and_greatest_numbers_stand_for_levels_too(dtype):
    mixture = PixelLogistics.from_outputs(random_outputs(3).to(dtype), 3)
    ends = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=dtype)] * 4)
    parts = [part.expand(16, *part.shape) for part in vars(mixture).values()]
    assert torch.equal(PixelLogistics(*parts).draw(ends), ends[:, 1:])


def test_what_rounding_takes_from_the_weights_goes_to_the_last_component():
    mixture = PixelLogistics.from_outputs(random_outputs(1), 1)
    short = replace(mixture, log_weight=mixture.log_weight - 1e-6)
    uniform = torch.tensor([1 - 1e-7, 0.5], dtype=DOUBLE)
    last = nearest_level((mixture.mean[0, -1:] + 1) / 2)
    assert (nearest_level((mixture.mean[0, :-1] + 1) / 2) != last).all()
    assert torch.equal(short.draw(uniform), last)


def test_draws_have_the_probabilities_of_the_mixture():
    """Two channels, in bins of 16 × 16 levels, of components that couple them."""
    mixture = PixelLogistics(
        torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE).log(),
        torch.tensor([[-0.9, 0.0, 0.9], [0.8, 0.1, -0.2]], dtype=DOUBLE),
        torch.tensor([[-1.0, -2.0, -3.0], [-2.0, -1.5, -1.0]], dtype=DOUBLE),
        torch.tensor([[0.5, -0.9, 0.2]], dtype=DOUBLE),
    )
    exact = mixture.log_prob(torch.cartesian_prod(LEVELS, LEVELS)).exp().view(16, 16, 16, 16)
    exact = exact.sum((1, 3)).flatten().numpy()
    n = 20000
    uniform = torch.rand(n, 3, generator=seeded(), dtype=DOUBLE)
    parts = [part.expand(n, *part.shape) for part in vars(mixture).values()]
    bins = ((PixelLogistics(*parts).draw(uniform) * 255).round().long() // 16).numpy()
    counts = np.bincount(bins[:, 0] * 16 + bins[:, 1], minlength=256)
    common = n * exact > 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = n * np.append(exact[common], exact[~common].sum())
    assert stats.chisquare(observed, expected).pvalue > 0.01


def test_nearest_level_rounds_and_keeps_to_the_range():
    x = torch.tensor([-3.0, -0.001, 0.4 / 255, 0.6 / 255, 200 / 255, 0.9999, 7.0])
    assert (nearest_level(x) * 255).round().tolist() == [0, 0, 0, 1, 200, 255, 255]


def test_what_is_no_level_is_refused():
    levels = torch.arange(256, dtype=torch.float32).view(4, 64) / 255
    check_levels(levels)
    check_levels(levels.double())
    for level, shown in ((127.5, "0.5"), (99.01, "0.388275"), (-1, "-0.0039"), (256, "1.00392")):
        bad = levels.clone()
        bad[2, 5] = level / 255
        with pytest.raises(InputError, match=f"in x, got {shown}.* in row 2, column 5; pass"):
            check_levels(bad)
