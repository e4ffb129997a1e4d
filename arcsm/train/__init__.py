"""Training: one visible loop, and checkpoints that resume to the same bits."""

from arcsm.train.batches import split_rows
from arcsm.train.checkpoint import holds_model, load_model, read_model, save_model
from arcsm.train.config import History, Progress, TrainConfig
from arcsm.train.loop import fit
from arcsm.train.staged import fit_staged, load_staged
from arcsm.train.tune import fine_tune

__all__ = [
    "History",
    "Progress",
    "TrainConfig",
    "fine_tune",
    "fit",
    "fit_staged",
    "holds_model",
    "load_model",
    "load_staged",
    "read_model",
    "save_model",
    "split_rows",
]
