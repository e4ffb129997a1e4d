"""The training loop: read it from top to bottom.

All randomness of step t (which rows, which noise) is drawn from generators seeded by (seed, t)
alone, for the whole batch across all processes. So a run that was killed goes on to the same bits
from its last checkpoint, and several processes compute the same step as one.
"""

import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from arcsm.autoregressive import TrainableModel
from arcsm.data.arrays import as_training_rows
from arcsm.distributed import join
from arcsm.errors import InputError, NonFiniteLossError
from arcsm.files import remove_stale_temporaries
from arcsm.train.batches import Augment, TrainingRows, batch_rows, seeded_generator, split_rows
from arcsm.train.checkpoint import save_model
from arcsm.train.config import History, Progress, TrainConfig
from arcsm.train.inputs import (
    check_condition,
    check_observed,
    check_range,
    check_spread,
    check_weights,
    fingerprint,
)
from arcsm.train.limits import Clock, Interruption
from arcsm.train.state import TrainState, load_state, refuse_existing, save_state
from arcsm.train.step import Batch, TrainStep

# The least number of noisy rows on which the held-out loss is taken.
_VALIDATION_DRAWS = 2048


def fit(
    model: TrainableModel,
    x: Any,
    config: TrainConfig | None = None,
    *,
    weight: Any = None,
    condition: Any = None,
    spread: Any = None,
    observed: Any = None,
    augment: Augment | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> History:
    """Train `model` on the rows of `x`.

    It ends with the averaged weights: those that did best on the held-out rows, if there are any.
    `weight` gives each row a weight. `spread` says, in the shape of x, how far on either side an
    entry is spread evenly, anew at every step, where it is a target; contexts see x itself. It may
    be a rule, from rows to (below, above). Entries of x that are not `observed`, a truth value for
    each, are holes: whatever stands there is not learned. `augment(rows, generator)` may change the
    rows of each step, by the generator alone. While `progress` is told, the model has the averaged
    weights. With a `directory` the state is written there every `checkpoint_every` steps and on
    Ctrl-C, and the finished model at the end; `resume` goes on from that state, with the same data
    and configuration, as if nothing had happened.
    """
    config = config or TrainConfig()
    if resume and directory is None:
        raise InputError("expected the directory of the run to resume, got none; pass directory")
    if observed is not None and not model.takes_holes:
        raise InputError(
            "expected a model of all orders for rows with holes, got a"
            f" {type(model).__name__}; use an OrderAgnosticARCSM, or leave observed out"
        )
    x, seen = check_observed(observed, x)
    # Of rows with holes the model looks itself whether columns vary.
    may_be_constant = model.takes_constant_columns or seen is not None
    rows = as_training_rows(x, dims=model.dims, may_be_constant=may_be_constant)
    weights = check_weights(weight, len(rows))
    conditions = check_condition(condition, len(rows), model.condition_dims)
    spreads = check_spread(spread, rows)
    device, dtype = model.device, model.dtype
    check_range(rows, dtype, "x")
    check_range(conditions, dtype, "condition")
    check_range(spreads, dtype, "spread")
    rule = spread if callable(spread) else None
    digest = fingerprint(rows, weights, conditions, spreads, seen, rules=(rule, augment))
    rank, world = join(device)
    if world > 1 and config.batch_size % world:
        raise InputError(
            f"expected a batch size that {world} processes can share, got {config.batch_size};"
            f" use a multiple of {world}"
        )

    # Rows of weight 0 say nothing; a batch of them alone would have no mean.
    kept = weights.nonzero()[:, 0]
    trained, held_out = (kept[part] for part in split_rows(len(kept), config))
    parts = (rows, weights, conditions, spreads)
    data = TrainingRows(*parts, rule, trained, device, dtype, seen)
    check = TrainingRows(*parts, rule, held_out, device, dtype, seen)
    batch = min(config.batch_size, len(data.x) // world * world)
    if batch < world:
        raise InputError(f"expected a row for each of {world} processes, got {len(data.x)} rows")

    # On all rows: units are not learned, and a rare value may be among the held-out rows alone.
    units = {} if seen is None else {"observed": seen[kept.to(seen.device)].to(device)}
    model.standardise(
        rows[kept.to(rows.device)].to(device, dtype), weights[kept].to(device, dtype), **units
    )
    # Before the averages start: the processes are given the same weights here.
    take_step = TrainStep(model, config, world)
    state = TrainState.start(model)
    if directory is not None:
        if Path(directory).is_dir():
            remove_stale_temporaries(directory)
        if resume:
            load_state(directory, model, take_step.optimizer, state, asdict(config), digest)
            _check_same_step(state, directory, world, device)
        else:
            refuse_existing(directory)

    model.train()
    clock = Clock(config.steps, config.max_seconds, state.seconds, world)
    # Several processes would not be interrupted at the same step, and wait for each other.
    with Interruption(directory is not None and world == 1) as interruption:
        for step in range(state.step, config.steps):
            done = clock.share_done(step)
            if state.stopped or done >= 1 or interruption.requested:
                break
            # Which rows, and which noise: the same for any number of processes.
            chosen = batch_rows(len(data.x), batch, step, config.seed, device)
            noise = model.draw_noise(
                batch,
                generator=seeded_generator(config.seed, "noise", step, device),
                **config.noise,
            )
            share = slice(rank * batch // world, (rank + 1) * batch // world)
            mine = chosen[share]
            x_chosen = data.x[chosen]
            if augment is not None:
                x_chosen = augment(x_chosen, seeded_generator(config.seed, "augment", step, device))
            scale = world / data.weight[chosen].sum()

            given = Batch(
                x_chosen[share],
                data.weight[mine] * scale,
                None if data.condition is None else data.condition[mine],
                type(noise)(*(part[share].to(dtype) for part in noise)),
                data.jitter(
                    x_chosen, chosen, seeded_generator(config.seed, "jitter", step, device), share
                ),
                None if data.observed is None else data.observed[mine],
            )
            loss, norm = take_step(given, config.learning_rate * _schedule(step, done, config))
            state.average(model, config.ema)
            state.step = step + 1

            state.watch(loss, norm)
            state.seconds = clock.seconds
            last = clock.share_done(state.step) >= 1
            evaluate = state.step % config.evaluate_every == 0 or last
            keep = state.step % config.checkpoint_every == 0 or last
            if evaluate or keep or device.type == "cpu" or state.step % 50 == 0:
                _halt_if_not_finite(state, data, batch, config)
            if world > 1 and (evaluate or keep):
                dist.all_reduce(state.total)
                state.total /= world
            if evaluate:
                began = clock.seconds
                validation = _validate(model, state, check, config)
                clock.keep_back(clock.seconds - began)  # as the last look will take as long
                state.record(validation, config.patience)
                if progress is not None and rank == 0:
                    told = Progress(
                        state.step,
                        config.steps,
                        state.training[-1][1],
                        validation,
                        state.seconds,
                        1.0 if state.stopped else clock.share_done(state.step),
                    )
                    with state.averaged(model):
                        model.eval()
                        progress(told)
                        model.train()
                state.seconds = clock.seconds
            if directory is not None and rank == 0 and (keep or state.stopped):
                save_state(directory, model, take_step.optimizer, state, asdict(config), digest)
        if directory is not None and interruption.requested:
            _halt_if_not_finite(state, data, batch, config)
            save_state(directory, model, take_step.optimizer, state, asdict(config), digest)

    take_step.forget()
    state.finish(model)
    model.eval()
    if directory is not None and rank == 0:
        save_model(directory, model)
    if world > 1:
        # Nobody returns before the model is on disk.
        arrived = torch.ones((), device=device)
        dist.all_reduce(arrived)
        arrived.item()  # until then a GPU alone would wait
    return History(
        state.training,
        state.validation,
        state.best_step,
        state.step,
        state.seconds,
    )


def _schedule(step: int, done: float, config: TrainConfig) -> float:
    """Return the factor of the learning rate: a linear warm-up, then a cosine down to 0."""
    warm = min(1.0, (step + 1) / (config.warmup + 1))
    return warm * (0.5 + 0.5 * math.cos(math.pi * done))


@torch.no_grad()
def _validate(
    model: TrainableModel, state: TrainState, check: TrainingRows, config: TrainConfig
) -> float | None:
    """Return the held-out loss of the averaged weights, with the same noise each time."""
    if len(check.x) == 0:
        return None
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=check.x.device)
    # Of a few rows the noise would decide which weights are the best: draw it several times.
    generator = seeded_generator(config.seed, "validation", device=check.x.device)
    noisy = len(model.draw_noise(1, generator=generator)) > 0
    # The many scalars of a picture share its level, but each has noise of its own.
    enough = _VALIDATION_DRAWS / max(1, model.dims // 64)
    repeats = math.ceil(enough / len(check.x)) if noisy else 1
    with state.averaged(model):
        for start in range(0, len(check.x), config.batch_size):
            piece = slice(start, start + config.batch_size)
            x = check.x[piece].repeat(repeats, 1)
            noise = model.draw_noise(
                len(x),
                generator=seeded_generator(config.seed, "validation", start, x.device),
                **config.noise,
            )
            noise = type(noise)(*(part.to(x.dtype) for part in noise))
            condition = None
            if check.condition is not None:
                condition = check.condition[piece].repeat(repeats, 1)
            every = torch.arange(len(check.x))[piece].repeat(repeats)
            jitter = check.jitter(
                x,
                every,
                seeded_generator(config.seed, "validation jitter", start, x.device),
                slice(None),
            )
            holes = {}
            if check.observed is not None:
                holes["observed"] = check.observed[piece].repeat(repeats, 1)
            terms = model.loss_terms(
                x, noise, condition=condition, jitter=jitter, **holes, **config.objective
            )
            total += (terms * check.weight[piece].repeat(repeats)).sum().double()
    model.train()
    return (total / (repeats * check.weight.sum())).item()


def _halt_if_not_finite(
    state: TrainState, data: TrainingRows, batch: int, config: TrainConfig
) -> None:
    bad = int(state.bad_step)
    if bad < 0:
        return
    chosen = batch_rows(len(data.x), batch, bad, config.seed, torch.device("cpu"))
    rows = data.rows[chosen].tolist()
    shown = ", ".join(map(str, rows[:20])) + (", …" if len(rows) > 20 else "")
    raise NonFiniteLossError(
        f"expected a finite loss and gradient, got one that is not at step {bad}, in the batch of"
        f" rows {shown}; look at these rows, or lower the learning rate ({config.learning_rate})"
    )


def _check_same_step(
    state: TrainState, directory: str | os.PathLike[str], world: int, device: torch.device
) -> None:
    """Refuse to go on where some processes have found the state of the run and others have not."""
    if world == 1:
        return
    steps = torch.tensor([state.step, -state.step], device=device)
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    latest, earliest = steps[0].item(), -steps[1].item()
    if latest != earliest:
        raise InputError(
            f"expected all processes to resume at one step, got steps {earliest} to {latest} in"
            f" {os.fspath(directory)!r}; put it where all hosts can read it"
        )
