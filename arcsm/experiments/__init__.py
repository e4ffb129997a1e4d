"""The experiments of the paper, and some beyond it: one module each, run piece by piece.

A module has the name of its experiment, with underscores, and defines `EXPERIMENT`.
"""

from importlib import import_module

from arcsm.errors import InputError
from arcsm.experiments.experiment import BUDGETS, Experiment
from arcsm.experiments.runner import Outcome, command_of, run_experiment
from arcsm.experiments.store import Store

__all__ = [
    "BUDGETS",
    "NAMES",
    "Experiment",
    "Outcome",
    "Store",
    "command_of",
    "get_experiment",
    "run_experiment",
]

# In the order of the paper, then what goes beyond it.
NAMES = (
    "gaussian-cost",
    "objective-variance",
    "gaussian-curves",
    "mnist-likelihood",
    "toy-samples",
    "image-samples",
    "image-denoising",
    "ood",
    "vae",
    "vae-times",
    "entropy-gradients",
    "image-speed",
    "csm-dsm-mix",
)


def get_experiment(name: str) -> Experiment:
    """Return the experiment of a name among `NAMES`."""
    if name not in NAMES:
        raise InputError(
            f"expected an experiment among {', '.join(NAMES)}, got {name!r}; choose one of these"
        )
    experiment = import_module(f"arcsm.experiments.{name.replace('-', '_')}").EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment
