"""Fine-tuning by the normalised likelihood, after composite score matching has done most of it."""

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from arcsm.data.arrays import as_training_rows
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.train.config import History, Progress, TrainConfig
from arcsm.train.inputs import check_weights
from arcsm.train.loop import fit

# Steps that are dear, from weights that are nearly right.
_DEFAULT = TrainConfig(steps=300, batch_size=256, learning_rate=5e-4, warmup=20, evaluate_every=50)
# How far the units of the data may be from those of the model, in standard deviations.
_UNITS = 0.05


def fine_tune(
    model: ARCSM,
    x: Any,
    config: TrainConfig | None = None,
    *,
    weight: Any = None,
    condition: Any = None,
    spread: Any = None,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> History:
    """Train on by maximum likelihood at σ_min, each normaliser integrated; return what happened.

    The model should have been trained by `fit` on these rows or such as these: rows in other
    units are refused, and nothing else can be told of weights. What is made more likely is the
    density by quadrature, which is the canonical one from then on. A step costs some hundred times
    as much as one of score matching on a CPU; the default is few of them. Scoring costs more
    afterwards too: every normaliser is integrated, some 1 ms for each scalar of a row on a CPU,
    where the flow has the closed form of a normal density. Arguments are those of `fit`.
    """
    config = config or _DEFAULT
    if type(model) is not ARCSM:  # others have losses of their own
        raise InputError(
            f"expected a model of type ARCSM, got {type(model).__name__}; only that has energies"
            " to be normalised"
        )
    if config.objective.get("objective", "likelihood") != "likelihood":
        raise InputError(
            f"expected the objective 'likelihood', got {config.objective['objective']!r};"
            " use fit for others"
        )
    _require_units(model, x, weight)
    # Shapes change from step to step: compiling would start over again each time.
    config = replace(
        config, objective={**config.objective, "objective": "likelihood"}, compile=False
    )
    former, model.density = model.density, "quadrature"
    try:
        return fit(
            model,
            x,
            config,
            weight=weight,
            condition=condition,
            spread=spread,
            directory=directory,
            resume=resume,
            progress=progress,
        )
    except BaseException:
        model.density = former
        raise


def _require_units(model: ARCSM, x: Any, weight: Any) -> None:
    """Refuse rows in other units than those the model was trained in, as `fit` would change them.

    Those of a model that was not trained at all are 0 and 1, which standardised rows fit as well.
    """
    rows = as_training_rows(x, dims=model.dims)
    weights = check_weights(weight, len(rows))
    kept = weights.nonzero()[:, 0]
    units = copy.deepcopy(model)
    units.standardise(rows[kept.to(rows.device)].to(model.shift), weights[kept].to(model.shift))
    moved = ((units.shift - model.shift) / model.scale).abs().max().item()
    stretched = torch.log(units.scale / model.scale).abs().max().item()
    if not max(moved, stretched) <= _UNITS:
        raise InputError(
            "expected rows like those the model was trained on, got some whose means or deviations"
            f" differ by {max(moved, stretched):.2g} standard deviations; train it on these by fit"
        )
