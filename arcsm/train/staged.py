"""Training in stages, as in the paper (Appendix C.2): one network for each noise level."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcsm.errors import CheckpointError, InputError
from arcsm.model import ARCSM
from arcsm.staged import StagedARCSM
from arcsm.train.batches import Augment
from arcsm.train.checkpoint import load_model
from arcsm.train.config import History, Progress, TrainConfig
from arcsm.train.loop import fit


def fit_staged(
    model: ARCSM,
    x: Any,
    config: TrainConfig | None = None,
    *,
    weight: Any = None,
    augment: Augment | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[int, Progress], None] | None = None,
    finished: Callable[[int, History], None] | None = None,
) -> StagedARCSM:
    """Train `model` at σ₁, then on from there at σ₂, …, σ_L; return the network of every stage.

    Each stage takes `config.steps` steps. With a `directory`, stage i is a run in `stage-i` of its
    own, and `resume` goes on with the stage that was interrupted. `progress` is told the stage,
    counted from 1, as well; `finished`, what happened in each stage, also before an interruption.
    """
    config = config or TrainConfig()
    levels = model.noise.levels
    if levels is None:
        raise InputError(
            "expected noise with a number of levels, got continuous noise;"
            " build the model with Noise(..., levels=L)"
        )
    stages: list[ARCSM] = []
    for stage in range(levels):
        # The copy starts where the stage before it ended.
        current = type(model).from_config(model.config).to(model.shift.device, model.shift.dtype)
        current.load_state_dict((stages[-1] if stages else model).state_dict())

        def tell(state: Progress, number: int = stage + 1) -> None:
            if progress is not None:
                progress(number, state)

        history = fit(
            current,
            x,
            replace(config, noise={**config.noise, "stage": stage}),
            weight=weight,
            augment=augment,
            directory=None if directory is None else _stage_directory(directory, stage),
            resume=resume,
            progress=tell,
        )
        stages.append(current)
        if finished is not None:
            finished(stage + 1, history)
    return StagedARCSM(stages)


def load_staged(directory: str | os.PathLike[str]) -> StagedARCSM:
    """Read the stages that `fit_staged` left in `directory`."""
    stages: list[ARCSM] = []
    while _stage_directory(directory, len(stages)).is_dir():
        stage = load_model(_stage_directory(directory, len(stages)))
        if not isinstance(stage, ARCSM):
            raise CheckpointError(
                f"expected models of type ARCSM in {os.fspath(directory)!r}, got"
                f" {type(stage).__name__}; check the path"
            )
        stages.append(stage)
    return StagedARCSM(stages)


def _stage_directory(directory: str | os.PathLike[str], stage: int) -> Path:
    return Path(directory) / f"stage-{stage + 1:02d}"
