"""The loop: what it optimises, what it keeps, what it draws its randomness from."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from training_runs import KINDS, build, contents, draw, happened, quick, same_bits, weights_of

from arcsm.autoregressive import AutoregressiveModel
from arcsm.baselines import MixtureMADE
from arcsm.conditional import TanhSumHead
from arcsm.errors import CheckpointError, NonFiniteLossError
from arcsm.model import ARCSM
from arcsm.train import fit
from arcsm.train.checkpoint import read_tensors
from arcsm.train.state import TrainState


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def calls(monkeypatch) -> dict[str, list[tuple[Tensor, Any]]]:
    """The rows and the noise of each call of a loss, in training and in evaluation."""
    seen: dict[str, list[tuple[Tensor, Any]]] = {"training": [], "evaluation": []}

    def watch(kind: type[AutoregressiveModel]) -> None:
        original = kind.loss_terms

        def loss_terms(self, x, noise=(), **options):
            seen["training" if self.training else "evaluation"].append((x, noise))
            return original(self, x, noise, **options)

        monkeypatch.setattr(kind, "loss_terms", loss_terms)

    watch(ARCSM)
    watch(MixtureMADE)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_of_rows_that_it_never_saw(kind):
    model, unseen = build(kind), torch.from_numpy(draw(2000, seed=1))
    noise = model.draw_noise(2000, generator=seeded())
    model.standardise(unseen)
    before = model.loss_terms(unseen, noise).mean().item()
    history = fit(model, draw(2000), quick(steps=200, batch_size=128, evaluate_every=50))
    after = model.loss_terms(unseen, noise).mean().item()
    assert after < before - 0.15
    assert history.validation[-1][1] < history.validation[0][1]
    assert not model.training


@pytest.mark.parametrize("kind", KINDS)
def test_seed_fixes_every_bit(kind):
    one, same, other = (build(kind) for _ in range(3))
    histories = [
        fit(model, draw(60), quick(seed=seed)) for model, seed in ((one, 3), (same, 3), (other, 4))
    ]
    assert same_bits(one, same)
    assert happened(histories[0]) == happened(histories[1])
    assert not same_bits(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_global_generator_is_neither_read_nor_moved(kind):
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        models.append(build(kind))
        fit(models[-1], draw(60), quick())
        assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(*models)


def test_epochs_show_every_row_once(calls):
    x = draw(60)
    fit(build("MixtureMADE"), x, quick(validation=0.2, batch_size=16, steps=6))
    batches = [batch for batch, _ in calls["training"]]
    assert [len(batch) for batch in batches] == [16] * 6
    rows = [{tuple(row) for row in batch.tolist()} for batch in batches]
    first, second = set().union(*rows[:3]), set().union(*rows[3:])
    assert len(first) == len(second) == 48  # of 48 rows, in batches of 16
    assert first == second
    assert rows[:3] != rows[3:]
    held_out = {tuple(row) for batch, _ in calls["evaluation"] for row in batch.tolist()}
    assert len(held_out) == 12
    assert not held_out & first


def test_noise_differs_in_training_and_is_the_same_in_evaluation(calls):
    fit(build("ARCSM"), draw(60), quick(steps=10, noise={"levels": 3}))
    assert calls["training"][0][1].sigma.shape[::2] == (16, 3)
    drawn = [noise.epsilon for _, noise in calls["training"]]
    assert not torch.equal(drawn[0], drawn[1])
    first, second = calls["evaluation"]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_options_of_the_objective_reach_it():
    one, other = build("ARCSM"), build("ARCSM")
    fit(one, draw(60), quick(validation=0, objective={"mix": 1.0}))
    fit(other, draw(60), quick(validation=0))
    assert not same_bits(one, other)


@pytest.mark.parametrize("validation", [0.0, 0.5])
def test_columns_are_standardised_by_all_rows(validation):
    """Units are not learned: held-out rows count for them, and do not make them others."""
    model, x = build("MixtureMADE"), torch.from_numpy(draw(60))
    fit(model, x, quick(steps=2, validation=validation))
    torch.testing.assert_close(model.shift, x.mean(0))
    torch.testing.assert_close(model.scale, x.std(0, correction=0))


def test_columns_are_standardised_by_the_weights_of_the_rows():
    x, weight = draw(60).astype(np.float64), np.random.default_rng(0).uniform(0, 5, 60)
    weight[::4] = 0
    model = build("MixtureMADE").double()
    fit(model, x, quick(steps=2), weight=weight)
    mean = np.average(x, axis=0, weights=weight)
    variance = np.average((x - mean) ** 2, axis=0, weights=weight)
    np.testing.assert_allclose(model.shift.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(model.scale.numpy(), np.sqrt(variance), rtol=1e-12)


# The recipe.


@pytest.fixture
def learning_rates() -> Iterator[list[float]]:
    """The learning rate of each step, as the optimiser has it."""
    rates: list[float] = []
    hook = register_optimizer_step_pre_hook(
        lambda optimiser, *_: rates.append(optimiser.param_groups[0]["lr"])
    )
    yield rates
    hook.remove()


def test_learning_rate_warms_up_and_falls_along_a_cosine(learning_rates):
    fit(build("MixtureMADE"), draw(60), quick(steps=30, warmup=4, learning_rate=0.02))
    step = np.arange(30)
    cosine = (1 + np.cos(math.pi * step / 30)) / 2
    warm = np.minimum((step + 1) / 5, 1)
    assert learning_rates == pytest.approx(list(0.02 * cosine * warm), rel=1e-12)
    assert learning_rates[0] == 0.02 / 5
    assert learning_rates[-1] < 0.02 / 300


def test_final_weights_are_a_running_average(monkeypatch):
    """And so are those that a callback finds in the model, which is not training meanwhile."""
    model, trained, shown = build("ARCSM"), [], []
    averaged = [value.detach().clone() for value in model.parameters()]
    plain = TrainState.average

    def average(state: TrainState, of: nn.Module, decay: float) -> None:
        trained.append([value.detach().clone() for value in of.parameters()])
        plain(state, of, decay)

    def look(_: object) -> None:
        assert not model.training
        shown.append([value.detach().clone() for value in model.parameters()])

    monkeypatch.setattr(TrainState, "average", average)
    config = quick(steps=60, evaluate_every=1, validation=0, ema=0.8)
    fit(model, draw(60), config, progress=look)
    assert len(trained) == len(shown) == 60
    for step, values in enumerate(trained):
        keep = min(0.8, (1 + step) / (10 + step))  # young averages forget the start quickly
        averaged = [
            keep * old + (1 - keep) * new for old, new in zip(averaged, values, strict=True)
        ]
        torch.testing.assert_close(shown[step], averaged, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(list(model.parameters()), averaged, rtol=1e-5, atol=1e-6)
    assert not torch.equal(next(model.parameters()), trained[-1][0])


def test_rows_are_changed_at_each_step_by_the_generator_alone():
    """Mirrored rows are other data; and the held-out rows stay as they are."""

    @dataclasses.dataclass(frozen=True)
    class Mirror:
        share: float

        def __call__(self, rows, generator):
            lot = torch.rand(len(rows), 1, generator=generator, device=rows.device)
            return rows.where(lot >= self.share, -rows)

    def trained(x, share):
        model = build("MixtureMADE")
        augment = None if share is None else Mirror(share)
        history = fit(model, x, quick(steps=20), augment=augment)
        return [*model.parameters()], history.validation

    x = draw(60)
    x = x - x.mean(0)  # so that both have the same units
    plain, never, always, half, again = (trained(x, s) for s in (None, 0.0, 1.0, 0.5, 0.5))
    same = functools.partial(torch.testing.assert_close, rtol=0, atol=0)
    same(plain[0], never[0])
    same(half[0], again[0])
    assert not torch.equal(half[0][0], plain[0][0]) and not torch.equal(half[0][0], always[0][0])
    assert plain[1] != always[1]


def test_a_run_with_other_changes_of_the_rows_is_not_resumed(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Shift:
        by: float

        def __call__(self, rows, generator):
            return rows + self.by

    fit(build("MixtureMADE"), draw(60), quick(), augment=Shift(0.1), directory=tmp_path)
    for other in (Shift(0.2), None):
        with pytest.raises(CheckpointError, match="other data"):
            fit(
                build("MixtureMADE"), draw(60), quick(), augment=other, directory=tmp_path,
                resume=True,
            )  # fmt: skip


def test_training_is_that_of_a_few_plain_lines():
    """All at once: weights, clipping, decay, schedule, averages, in float64."""
    x, weight = draw(40).astype(np.float64), np.random.default_rng(0).uniform(0.5, 2, 40)
    config = quick(
        steps=12, batch_size=40, validation=0, clip=0.5, weight_decay=0.1, ema=0.7, warmup=3
    )
    model, plain = (build("MixtureMADE").double() for _ in range(2))
    history = fit(model, x, config, weight=weight)

    rows, share = torch.from_numpy(x), torch.from_numpy(weight / weight.sum())
    plain.standardise(rows, share)
    optimiser = torch.optim.AdamW(
        plain.parameters(), betas=(0.9, 0.99), weight_decay=0.1, foreach=False
    )
    averaged = [value.detach().clone() for value in plain.parameters()]
    losses = []
    for step in range(12):
        cosine = (1 + math.cos(math.pi * step / 12)) / 2
        optimiser.param_groups[0]["lr"] = config.learning_rate * cosine * min(1, (step + 1) / 4)
        loss = share @ -plain.log_prob(rows)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimiser.step()
        losses.append(loss.item())
        keep = min(0.7, (1 + step) / (10 + step))
        averaged = [
            keep * old + (1 - keep) * new.detach()
            for old, new in zip(averaged, plain.parameters(), strict=True)
        ]
    torch.testing.assert_close(list(model.parameters()), averaged, rtol=1e-9, atol=1e-9)
    assert [step for step, _ in history.training] == [5, 10, 12]
    means = [np.mean(losses[:5]), np.mean(losses[5:10]), np.mean(losses[10:])]
    assert [loss for _, loss in history.training] == pytest.approx(means, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_leaves_the_training_alone(kind):
    often, once = (
        fit(build(kind), draw(60), quick(evaluate_every=every)).training for every in (1, 20)
    )
    assert once == [(20, pytest.approx(np.mean([loss for _, loss in often]), rel=1e-5))]


# Held-out rows come in one batch, and there are few to train on.
OVERFITS = quick(
    steps=120, batch_size=24, learning_rate=5e-2, ema=0.5, validation=0.3, evaluate_every=3
)


@pytest.mark.parametrize("kind", KINDS)
def test_patience_stops_and_the_best_weights_are_kept(kind, calls):
    model = build(kind)
    history = fit(model, draw(60), replace(OVERFITS, steps=300, patience=4))
    steps, losses = zip(*history.validation, strict=True)
    assert history.steps == steps[-1] < 300
    best = int(np.argmin(losses))
    assert history.best_step == steps[best]
    assert len(losses) - 1 - best == 4  # it stopped after four that were no better
    x, noise = calls["evaluation"][-1]
    # Of 18 rows the noise is drawn often enough for 2048; the likelihood has none.
    assert len(x) == (18 if kind == "MixtureMADE" else 18 * 114)
    assert model.loss_terms(x, noise).mean().item() == pytest.approx(losses[best], rel=1e-6)


def test_without_patience_the_best_weights_are_kept_all_the_same(calls):
    model = build("MixtureMADE")
    history = fit(model, draw(60), OVERFITS)
    assert history.best_step < history.steps == 120
    loss = model.loss_terms(calls["evaluation"][-1][0]).mean().item()
    assert loss == pytest.approx(min(loss for _, loss in history.validation), rel=1e-6)


def test_without_held_out_rows_the_last_weights_are_kept():
    history = fit(build("MixtureMADE"), draw(60), quick(validation=0, patience=1))
    assert history.validation == []
    assert history.best_step == history.steps == 20


def test_progress_is_told_of_each_evaluation():
    told = []
    history = fit(build("MixtureMADE"), draw(60), quick(), progress=told.append)
    assert [(report.step, report.loss) for report in told] == history.training
    assert [(report.step, report.validation) for report in told] == history.validation
    assert all(report.steps == 20 for report in told)
    assert [report.done for report in told] == [0.25, 0.5, 0.75, 1.0]


def test_progress_of_a_run_that_stops_early_ends_with_all_done():
    told = []
    config = replace(OVERFITS, steps=300, patience=4)
    history = fit(build("MixtureMADE"), draw(60), config, progress=told.append)
    assert history.steps < 300
    assert [report.done for report in told[:-1]] == [
        step / 300 for step, _ in history.training[:-1]
    ]
    assert told[-1].done == 1.0


@pytest.mark.parametrize(("rows", "repeats"), [(60, 171), (4000, 3), (12_000, 1)])
def test_noise_of_few_held_out_rows_is_drawn_often(rows, repeats, calls):
    """For 2048 draws at least; the mean over rows is not changed by that."""
    x, weight = draw(rows), np.random.default_rng(0).uniform(0.1, 5, rows)
    model = build("ARCSM")
    config = quick(steps=1, validation=0.2, batch_size=1000)
    history = fit(model, x, config, weight=weight)
    count, total, mass = rows // 5, 0.0, 0.0
    assert sum(len(seen) for seen, _ in calls["evaluation"]) == repeats * count >= 2048
    place = {tuple(row): index for index, row in enumerate(x.tolist())}
    for seen, noise in list(calls["evaluation"]):
        piece = len(seen) // repeats
        assert torch.equal(seen, seen[:piece].repeat(repeats, 1))
        if repeats > 1:
            assert not torch.equal(noise.epsilon[:piece], noise.epsilon[piece : 2 * piece])
        share = torch.tensor([weight[place[tuple(row)]] for row in seen.tolist()])
        with torch.no_grad():
            total += (share * model.loss_terms(seen, noise)).sum().item()
        mass += share.sum().item()
    assert history.validation == [(1, pytest.approx(total / mass, rel=1e-4))]


def test_conditions_are_repeated_with_their_rows(monkeypatch):
    original, seen = ARCSM.loss_terms, []

    def loss_terms(self, x, noise, *, condition, jitter=None):
        seen.append((self.training, len(x)))
        torch.testing.assert_close(condition, 2 * x, rtol=0, atol=0)
        return original(self, x, noise, condition=condition)

    monkeypatch.setattr(ARCSM, "loss_terms", loss_terms)
    fit(build("ARCSM", condition_dims=2), draw(60), quick(steps=5), condition=2 * draw(60))
    assert (False, 6 * 342) in seen


def test_few_rows_leave_at_least_two_to_train_on(calls):
    fit(build("MixtureMADE"), draw(4), quick(validation=0.99, steps=2))
    assert len(calls["training"][0][0]) == 2


# Weights.


def test_whole_weights_are_repeated_rows():
    x, weight = draw(30).astype(np.float64), np.random.default_rng(0).integers(1, 4, 30)
    config = quick(batch_size=1000, validation=0)
    weighted, repeated, plain = (build("MixtureMADE").double() for _ in range(3))
    a = fit(weighted, x, config, weight=weight)
    b = fit(repeated, x.repeat(weight, axis=0), config)
    fit(plain, x, config)
    torch.testing.assert_close(weighted.state_dict(), repeated.state_dict(), rtol=0, atol=1e-6)
    assert a.training[0][1] == pytest.approx(b.training[0][1], abs=1e-9)
    gap = weighted.context.output.bias - plain.context.output.bias
    assert gap.abs().max() > 1e-3


def test_weights_count_in_the_held_out_loss(calls):
    x, weight = draw(60), np.random.default_rng(0).uniform(0.1, 5, 60)
    model = build("MixtureMADE")
    history = fit(model, x, quick(steps=5, validation=0.5), weight=weight)
    # In two batches, 16 and 14.
    held_out = torch.cat([rows for rows, _ in calls["evaluation"]])
    place = [int(np.flatnonzero((x == row.numpy()).all(1))[0]) for row in held_out]
    with torch.no_grad():
        loss = np.average(model.loss_terms(held_out).numpy(), weights=weight[place])
    assert history.validation == [(5, pytest.approx(loss, rel=1e-5))]


def test_only_the_ratios_of_weights_count():
    x, weight = draw(60), np.random.default_rng(0).uniform(0.1, 5, 60)
    one, other = build("ARCSM"), build("ARCSM")
    fit(one, x, quick(), weight=weight)
    fit(other, x, quick(), weight=weight * 2.0**-200)  # nothing, in float32
    assert same_bits(one, other)


def test_no_weights_are_equal_weights():
    one, other = build("ARCSM"), build("ARCSM")
    fit(one, draw(60), quick(), weight=[3] * 60)
    fit(other, draw(60), quick())
    assert same_bits(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_weight_zero_are_never_seen(kind, calls):
    x, weight = draw(60), np.ones(60)
    x[::3] = 1e6 + draw(20, seed=1)
    weight[::3] = 0
    one, other = build(kind), build(kind)
    a = fit(one, x, quick(), weight=weight)
    rows = torch.cat([rows for seen in calls.values() for rows, _ in seen])
    assert rows.max() < 1e5
    b = fit(other, x[weight > 0], quick())
    assert same_bits(one, other)
    assert happened(a) == happened(b)


def test_condition_stays_with_its_row(monkeypatch):
    original, seen = MixtureMADE.loss_terms, []

    def loss_terms(self, x, noise, *, condition, jitter=None):
        seen.append(self.training)
        torch.testing.assert_close(condition, 2 * x, rtol=0, atol=0)
        return original(self, x, noise, condition=condition)

    monkeypatch.setattr(MixtureMADE, "loss_terms", loss_terms)
    fit(build("MixtureMADE", condition_dims=2), draw(60), quick(), condition=2 * draw(60))
    assert set(seen) == {True, False}


# Losses that are not finite.


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_halts_and_names_the_rows(what, calls, tmp_path, monkeypatch):
    x, config = draw(80), quick(batch_size=8, checkpoint_every=2)
    fit(build("MixtureMADE"), x, config)
    batch = calls["training"][7][0]  # of an epoch of nine: these rows come up here first
    cursed = batch[3, 0]
    original = MixtureMADE.loss_terms

    def break_down(self, rows, noise=(), **options):
        terms = original(self, rows, noise, **options)
        there = rows[:, 0] == cursed
        if what == "loss":
            return torch.where(there, torch.inf, terms)
        nothing = 0 * self.context.output.bias.sum() * there
        return terms + (nothing.sqrt() if there.any() else 0)  # the slope of √ at 0 is infinite

    monkeypatch.setattr(MixtureMADE, "loss_terms", break_down)
    for resume in (False, True):
        with pytest.raises(NonFiniteLossError, match=r"expected a finite .* at step 7") as error:
            fit(build("MixtureMADE"), x, config, directory=tmp_path, resume=resume)
        named = re.search(r"batch of rows ([\d, ]+);", str(error.value)).group(1).split(", ")
        np.testing.assert_array_equal(x[[int(row) for row in named]], batch.numpy())
        assert list(contents(tmp_path)) == ["training.safetensors"]
        tensors, header = read_tensors(tmp_path / "training.safetensors")
        assert header["training"]["step"] == 6
        assert all(value.isfinite().all() for value in tensors.values())


# Half precision and compilers.


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_trains(kind, monkeypatch):
    dtypes = {"context": set(), "head": set()}
    model, exact = build(kind), build(kind)

    def look(module, _, output):
        if module.training:
            dtypes["context"].add(output.dtype)

    model.context.output.register_forward_hook(look)
    original = TanhSumHead.forward

    def forward(self, projected, sigma):
        conditional = original(self, projected, sigma)
        parts = (projected, conditional.height, conditional.slope, conditional.centre)
        dtypes["head"].update(part.dtype for part in parts)
        return conditional

    monkeypatch.setattr(TanhSumHead, "forward", forward)
    history = fit(model, draw(200), quick(batch_size=64, steps=40, bfloat16=True))
    assert dtypes["context"] == {torch.bfloat16}
    assert dtypes["head"] == ({torch.float32} if kind == "ARCSM" else set())
    assert all(value.dtype == torch.float32 for value in weights_of(model).values())
    assert all(math.isfinite(loss) for _, loss in history.training)
    reference = fit(exact, draw(200), quick(batch_size=64, steps=40))
    losses = zip(history.training, reference.training, strict=True)
    assert all(abs(a - b) < 0.05 for (_, a), (_, b) in losses)
    assert not same_bits(model, exact)


def test_a_compiler_that_fails_is_done_without(monkeypatch):
    eager = build("ARCSM")
    fit(eager, draw(60), quick())

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here\nsecond line")

    for broken in (lambda objective: fails, fails):  # at the first call, and before
        monkeypatch.setattr(torch, "compile", broken)
        model = build("ARCSM")
        with pytest.warns(RuntimeWarning, match=r"without it: no compiler here$") as caught:
            fit(model, draw(60), quick(compile=True))
        assert len(caught) == 1
        assert same_bits(model, eager)


def has_compiler() -> bool:
    """Look for a C++ compiler as torch does."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


@pytest.mark.slow
def test_compiled_losses_are_the_eager_ones():
    if not has_compiler():
        pytest.skip("no C++ compiler")
    config = quick(steps=6, evaluate_every=1)
    # A compiler that failed would warn, and a warning fails the test.
    a, b = (
        fit(ARCSM.made(2, hidden=(16,), width=8, steps=6, seed=0), draw(60), settings)
        for settings in (replace(config, compile=True), config)
    )
    for name in ("training", "validation"):
        got, expected = getattr(a, name), getattr(b, name)
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-4)
