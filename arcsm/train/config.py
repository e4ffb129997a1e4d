"""How to train, what is told on the way, and what happened."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from arcsm.errors import InputError


@dataclass(frozen=True)
class TrainConfig:
    """How to train. `noise` and `objective` hold options of the model's `draw_noise` and loss.

    `steps` optimiser steps on batches of `batch_size` rows over all processes; the learning rate
    warms up linearly and falls to 0 along a cosine. A share `validation` of the rows is held out;
    every `evaluate_every` steps the averaged weights are scored on it, the best are kept, and
    training stops after `patience` evaluations without a better one. `bfloat16` computes the
    context network in half precision; `compile` uses torch.compile where a compiler is found.
    With `max_seconds` training takes no longer than that: the learning rate falls with the time
    that is spent, so that it ends as it would have, only sooner (and not to the same bits).
    """

    steps: int = 4000
    batch_size: int = 512
    learning_rate: float = 5e-3
    warmup: int = 200
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.998
    validation: float = 0.1
    evaluate_every: int = 250
    patience: int | None = None
    max_seconds: float | None = None
    checkpoint_every: int = 500
    compile: bool = False
    bfloat16: bool = False
    seed: int = 0
    noise: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        number = (int, float)
        checks = {
            "steps": _is_whole(self.steps, 1),
            "batch_size": _is_whole(self.batch_size, 1),
            "learning_rate": isinstance(self.learning_rate, number)
            and 0 < self.learning_rate < math.inf,
            "warmup": _is_whole(self.warmup, 0),
            "weight_decay": isinstance(self.weight_decay, number)
            and 0 <= self.weight_decay < math.inf,
            "clip": isinstance(self.clip, number) and self.clip > 0,
            "ema": isinstance(self.ema, number) and 0 <= self.ema < 1,
            "validation": isinstance(self.validation, number) and 0 <= self.validation < 1,
            "evaluate_every": _is_whole(self.evaluate_every, 1),
            "patience": self.patience is None or _is_whole(self.patience, 1),
            "max_seconds": self.max_seconds is None
            or (isinstance(self.max_seconds, number) and 0 < self.max_seconds < math.inf),
            "checkpoint_every": _is_whole(self.checkpoint_every, 1),
            "compile": isinstance(self.compile, bool),
            "bfloat16": isinstance(self.bfloat16, bool),
            "seed": _is_whole(self.seed),
            "noise": _survives_json(self.noise),
            "objective": _survives_json(self.objective),
        }
        for name, good in checks.items():
            if not good:
                raise InputError(
                    f"expected {name} in its range, got {getattr(self, name)!r};"
                    " see the documentation of TrainConfig"
                )


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after each evaluation; `done` is the share of the work."""

    step: int
    steps: int
    loss: float
    validation: float | None
    seconds: float
    done: float


@dataclass(frozen=True)
class History:
    """What happened: (step, mean training loss since the last entry), (step, held-out loss)."""

    training: list[tuple[int, float]]
    validation: list[tuple[int, float]]
    best_step: int
    steps: int
    seconds: float


def _is_whole(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _survives_json(options: object) -> bool:
    """Say whether a checkpoint can hold `options`, such that they compare equal when read."""
    try:
        return isinstance(options, dict) and json.loads(json.dumps(options)) == options
    except (TypeError, ValueError):
        return False
