"""PixelCNN++ by maximum likelihood: one distribution over images, evaluated, drawn and learned."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from known import DOUBLE, normal, seeded
from scipy import stats
from torch import Tensor

from arcsm.baselines import PixelMixture
from arcsm.errors import InputError
from arcsm.train import TrainConfig, fit, load_model, save_model

GREY, COLOUR = (3, 4, 1), (2, 3, 3)


def model_of(shape: tuple[int, int, int], **options: Any) -> PixelMixture:
    """A model in float64 whose mixtures differ from pixel to pixel and follow the pixels before."""
    sizes = {"filters": 4, "blocks": 1, "levels": 1, "components": 3, "seed": 1, **options}
    model = PixelMixture(shape, **sizes).double()
    with torch.no_grad():
        model.output.weight.copy_(0.3 * normal(*model.output.weight.shape, seed=2))
    return model


def images(shape: tuple[int, int, int], n: int, seed: int = 0) -> Tensor:
    """Rows of random levels, a third of them at the ends of the range."""
    levels = torch.randint(-40, 296, (n, math.prod(shape)), generator=seeded(seed)).clamp(0, 255)
    return levels.double() / 255


@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_terms_add_up_to_the_log_probability_and_to_minus_the_loss(shape):
    model, x = model_of(shape), images(shape, 6)
    terms, errors = model.log_prob_terms(x)
    assert terms.shape == errors.shape == x.shape
    assert not errors.any()
    close = {"rtol": 1e-12, "atol": 1e-10}
    torch.testing.assert_close(terms.sum(-1), model.log_prob(x), **close)
    noise = model.draw_noise(6, generator=seeded())
    assert noise == ()
    torch.testing.assert_close(model.loss_terms(x, noise).detach(), -model.log_prob(x), **close)


def test_probabilities_of_all_images_add_up_to_one():
    """Two pixels of 256 levels: the second given the first, and the first by itself."""
    model = model_of((1, 2, 1), filters=2, components=2)
    levels = torch.arange(256, dtype=DOUBLE) / 255
    log_prob = model.log_prob(torch.cartesian_prod(levels, levels))
    assert log_prob.logsumexp(0).item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("d", [0, 4, 10, 17])
def test_conditional_of_any_channel_adds_up_to_one(d):
    model = model_of(COLOUR, levels=2)
    x = images(COLOUR, 1).repeat(256, 1)
    x[:, d] = torch.arange(256, dtype=DOUBLE) / 255
    terms, _ = model.log_prob_terms(x)
    assert terms[:, d].logsumexp(0).item() == pytest.approx(0, abs=1e-10)


def test_terms_see_what_comes_before_them_and_nothing_else():
    model = model_of(COLOUR, blocks=2)
    x = images(COLOUR, 1, seed=3)
    terms, _ = model.log_prob_terms(x)
    for d in range(model.dims):
        changed = x.clone()
        changed[0, d] = (255 * x[0, d] + 100).round() % 256 / 255
        others, _ = model.log_prob_terms(changed)
        assert torch.equal(others[0, :d], terms[0, :d])
        assert (others[0, d:] != terms[0, d:]).all()


def test_pixels_are_known_as_levels_however_they_were_rounded():
    model, x = model_of(GREY), images(GREY, 5)
    assert torch.equal(model.log_prob(x.float()), model.log_prob(x))
    assert torch.equal(model.log_prob(x.numpy()), model.log_prob(x))


def test_batches_change_nothing():
    model, x = model_of(COLOUR), images(COLOUR, 7)
    torch.testing.assert_close(model.log_prob(x, batch_size=3), model.log_prob(x))
    whole, pieces = model.log_prob_terms(x)[0], model.log_prob_terms(x, batch_size=2)[0]
    torch.testing.assert_close(pieces, whole)
    one, two = (model.sample(7, generator=seeded(), batch_size=size) for size in (None, 3))
    assert one.shape == two.shape == x.shape


def test_bits_per_dim_of_fair_coins_is_one():
    """A component of no end of width leaves half the mass on each of the end levels."""
    model = model_of(GREY, components=1)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.copy_(torch.tensor([0.0, 0.0, 35.0]))
    x = torch.randint(2, (4, 12), generator=seeded()).double()
    assert model.bits_per_dim(x).tolist() == pytest.approx([1] * 4, abs=1e-9)


@pytest.mark.parametrize("components", [1, 10])
def test_training_starts_near_the_uniform_distribution(components):
    model = PixelMixture(GREY, filters=8, blocks=2, levels=2, components=components, seed=0)
    x = torch.randint(256, (200, 12), generator=seeded()) / 255
    assert model.bits_per_dim(x).mean().item() == pytest.approx(8, abs=0.5)


def test_channels_start_alike():
    """One component for all channels: grey pixels take fewer bits than such of any colour."""
    model = PixelMixture(COLOUR, filters=8, blocks=2, levels=2, seed=0)
    grey = images((2, 3, 1), 100).repeat_interleave(3, 1)
    coloured = images(COLOUR, 100)
    assert model.bits_per_dim(grey).mean() < 8 < model.bits_per_dim(coloured).mean()


def pvalue_of(counts: np.ndarray, probability: np.ndarray) -> float:
    """Chi-square, with all that is expected fewer than ten times as one case."""
    expected = counts.sum() * probability
    rare = expected < 10
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(counts, expected).pvalue)


def test_draws_of_one_pixel_have_its_probabilities():
    model = model_of((1, 1, 1))
    levels = torch.arange(256, dtype=DOUBLE)[:, None]
    exact = model.log_prob(levels / 255).exp().numpy()
    drawn = model.sample(20000, generator=seeded())
    counts = np.bincount((drawn * 255).round().long().flatten().numpy(), minlength=256)
    assert pvalue_of(counts, exact) > 0.01


@pytest.mark.parametrize("pixel", [1, 4, 5])
def test_draws_given_the_first_pixels_have_the_conditional_probabilities(pixel):
    """All draws have the same pixels before: their reds are of one distribution, and so are greens
    of the red that is drawn most often."""
    model, n = model_of(COLOUR, levels=2), 6000
    start = images(COLOUR, 1)[:, : 3 * pixel]
    drawn = model.sample(n, generator=seeded(), given=start)
    assert torch.equal(drawn[:, : 3 * pixel], start.expand(n, -1))
    red, green = (drawn[:, 3 * pixel : 3 * pixel + 2] * 255).round().long().T.numpy()
    often = int(np.bincount(red).argmax())
    for channel, chosen, values in ((0, slice(None), red), (1, red == often, green)):
        rows = torch.zeros(256, model.dims, dtype=DOUBLE)
        rows[:, : 3 * pixel] = start
        rows[:, 3 * pixel] = often / 255
        d = 3 * pixel + channel
        rows[:, d] = torch.arange(256) / 255
        exact = model.log_prob_terms(rows)[0][:, d].exp().numpy()
        assert pvalue_of(np.bincount(values[chosen], minlength=256), exact) > 0.01


@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_the_walk_knows_pixels_as_the_parallel_pass_does(shape):
    """Narrow components leave hardly a choice: from other contexts, draws would be impossible."""
    model = model_of(shape, components=1, levels=2)
    channels = shape[-1]
    with torch.no_grad():
        scales = slice(1 + channels, 1 + 2 * channels)
        model.output.weight[scales] = 0
        model.output.bias[scales] = -20
    x = model.sample(20, generator=seeded())
    assert x.unique().numel() > 3  # and not all at an end
    assert model.log_prob_terms(x)[0].min().item() > -15


def test_draws_are_levels_and_those_of_the_generator():
    model = model_of(COLOUR).float()
    one, same, other = (model.sample(9, generator=seeded(seed)) for seed in (7, 7, 8))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    exact = torch.arange(256, dtype=torch.float32) / 255
    assert torch.isin(one, exact).all()  # to the bit, so that they are contexts as in training


def test_given_may_differ_from_row_to_row_and_be_whole_images():
    model, x = model_of(COLOUR), images(COLOUR, 4)
    drawn = model.sample(4, generator=seeded(), given=x[:, :6], batch_size=3)
    assert torch.equal(drawn[:, :6], x[:, :6])
    assert torch.equal(model.sample(4, given=x), x)


def striped(n: int) -> Tensor:
    """Images of one of two greys above a white line; the last column is black throughout."""
    dark = torch.rand(n, 1, 1, 1, generator=seeded()) < 0.5
    x = torch.where(dark, 64.0, 160.0).expand(n, 4, 4, 1).clone()
    x[:, 3] = 255
    x[:, :, 3] = 0
    return (x / 255).flatten(1)


def test_training_lowers_the_loss():
    """Columns that never vary are no obstacle."""
    x = striped(64)
    model = PixelMixture((4, 4, 1), filters=6, blocks=1, levels=1, components=3, seed=0)
    before = model.bits_per_dim(x).mean().item()
    config = TrainConfig(steps=25, batch_size=32, learning_rate=3e-2, warmup=2, ema=0.5)
    history = fit(model, x, config)
    after = model.bits_per_dim(x).mean().item()
    assert after < before - 1.5
    assert history.validation[-1][1] == pytest.approx(after * 16 * math.log(2), rel=0.1)


def test_dropout_is_at_work_in_training_alone():
    model, x = model_of(GREY, dropout=0.5), images(GREY, 3)
    assert model.training
    assert not torch.equal(model.loss_terms(x), model.loss_terms(x))
    assert torch.equal(model.log_prob(x), model.log_prob(x))
    model.sample(2, generator=seeded())
    assert model.training
    model.eval()
    assert torch.equal(model.loss_terms(x).detach(), -model.log_prob(x))
    assert not model.training


def test_half_precision_is_for_the_streams_alone():
    model, x = model_of(COLOUR).float(), images(COLOUR, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss_terms(x)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model.loss_terms(x), rtol=0.02, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        features = model.streams(2 * x.view(-1, *COLOUR) - 1)
    assert features.dtype == torch.bfloat16
    mixture, _ = model._mixtures(x)
    assert mixture.mean.dtype == torch.float32


def test_loss_is_one_graph_for_the_compiler():
    model, x = model_of(COLOUR), images(COLOUR, 2)
    compiled = torch.compile(model.loss_terms, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model.loss_terms(x))


def test_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    one, same, other = (
        PixelMixture(GREY, filters=4, blocks=1, levels=1, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, one.parameters(), same.parameters()))
    assert not torch.equal(one.output.weight, other.output.weight)


def test_model_is_made_anew_from_its_config():
    model = model_of(COLOUR, filters=(4, 6), levels=2, dropout=0.25)
    copy = PixelMixture.from_config(json.loads(json.dumps(model.config))).double()
    copy.load_state_dict(model.state_dict())
    assert copy.config == model.config
    assert copy.streams.dropout == 0.25
    assert torch.equal(copy.log_prob(images(COLOUR, 2)), model.log_prob(images(COLOUR, 2)))


def test_model_comes_back_from_disk(tmp_path):
    model = model_of(GREY, filters=(4, 6), levels=2)
    save_model(tmp_path / "model", model)
    copy = load_model(tmp_path / "model")
    assert isinstance(copy, PixelMixture)
    assert torch.equal(copy.log_prob(images(GREY, 2)), model.log_prob(images(GREY, 2)))


@pytest.mark.parametrize("components", [0, 2.5, True])
def test_components_are_counted(components):
    with pytest.raises(InputError, match="expected at least one component"):
        PixelMixture(GREY, filters=4, blocks=1, components=components)


def test_rows_that_are_not_images_of_levels_are_refused():
    model, x = model_of(GREY), images(GREY, 2)
    off = x.clone()
    off[1, 3] = 0.5
    calls = itertools.product(
        (model.log_prob, model.log_prob_terms, model.bits_per_dim),
        (
            (x[:, :5], "expected x with 12 columns, got 5"),
            (off, "expected levels from 0 to 255, divided by 255, in x, got 0.5 in row 1"),
            (x * math.nan, "expected finite numbers in x, got nan"),
            (x * 255, "expected levels from 0 to 255, divided by 255, in x"),
        ),
    )
    for method, (rows, message) in calls:
        with pytest.raises(InputError, match=message):
            method(rows)
    with pytest.raises(InputError, match="expected levels from 0 to 255, divided by 255"):
        fit(model, off)


def test_what_a_mixture_on_levels_has_no_use_for_is_refused():
    model, x = model_of(GREY), images(GREY, 2)
    with pytest.raises(InputError, match="expected no jitter"):
        model.loss_terms(x, jitter=x)
    with pytest.raises(InputError, match="expected no condition"):
        model.loss_terms(x, condition=x)
    assert model.condition_dims == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "expected a positive whole number of samples, got 0"),
        ({"n": True}, "expected a positive whole number of samples, got True"),
        ({"batch_size": 0}, "expected a positive whole batch_size, got 0"),
        ({"given": torch.zeros(1, 4)}, "a multiple of 3 up to 18, got 4"),
        ({"given": torch.zeros(1, 21)}, "a multiple of 3 up to 18, got 21"),
        ({"given": torch.zeros(3, 3)}, "for one row or for 2, got 3 rows"),
        ({"given": torch.full((1, 3), 0.3)}, "divided by 255, in given, got 0.3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    model = model_of(COLOUR)
    with pytest.raises(InputError, match=message):
        model.sample(**{"n": 2, **options})
