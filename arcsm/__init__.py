"""Autoregressive score matching: density models trained through univariate conditional scores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "ARCSM",
    "MADE",
    "ARCSMDensity",
    "ARCSMDetector",
    "ARCSMImputer",
    "ArcsmError",
    "CheckpointError",
    "Ensemble",
    "History",
    "ImageModel",
    "ImageSettings",
    "InputError",
    "MixtureMADE",
    "Noise",
    "NonFiniteLossError",
    "OrderAgnosticARCSM",
    "TanhSumHead",
    "TrainConfig",
    "denoise",
    "fine_tune",
    "fit",
    "fit_images",
    "get_toy",
    "learn_order",
    "load",
    "load_from_hub",
    "load_model",
    "push_to_hub",
    "read_table",
    "save_model",
    "write_table",
]

if TYPE_CHECKING:
    from arcsm.agnostic import OrderAgnosticARCSM
    from arcsm.baselines import MixtureMADE
    from arcsm.conditional import Noise, TanhSumHead
    from arcsm.context import MADE
    from arcsm.data import get_toy, read_table, write_table
    from arcsm.ensemble import Ensemble
    from arcsm.errors import ArcsmError, CheckpointError, InputError, NonFiniteLossError
    from arcsm.estimators import ARCSMDensity, ARCSMDetector, ARCSMImputer
    from arcsm.hub import load_from_hub, push_to_hub
    from arcsm.images import ImageModel, ImageSettings, fit_images
    from arcsm.loading import load
    from arcsm.model import ARCSM
    from arcsm.ordering import learn_order
    from arcsm.tasks import denoise
    from arcsm.train import History, TrainConfig, fine_tune, fit, load_model, save_model

# Where the public names live. They are imported when first asked for: torch takes seconds to
# load, which `arcsm --help` and whoever needs a single module should not have to wait for.
_HOMES = {
    "arcsm.agnostic": ("OrderAgnosticARCSM",),
    "arcsm.baselines": ("MixtureMADE",),
    "arcsm.conditional": ("Noise", "TanhSumHead"),
    "arcsm.context": ("MADE",),
    "arcsm.data": ("get_toy", "read_table", "write_table"),
    "arcsm.ensemble": ("Ensemble",),
    "arcsm.errors": ("ArcsmError", "CheckpointError", "InputError", "NonFiniteLossError"),
    "arcsm.estimators": ("ARCSMDensity", "ARCSMDetector", "ARCSMImputer"),
    "arcsm.hub": ("load_from_hub", "push_to_hub"),
    "arcsm.images": ("ImageModel", "ImageSettings", "fit_images"),
    "arcsm.loading": ("load",),
    "arcsm.model": ("ARCSM",),
    "arcsm.ordering": ("learn_order",),
    "arcsm.tasks": ("denoise",),
    "arcsm.train": ("History", "TrainConfig", "fine_tune", "fit", "load_model", "save_model"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'arcsm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
