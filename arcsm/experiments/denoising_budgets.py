"""How large the experiment on noise in images is under each budget: sets, models, methods."""

from typing import Any

from arcsm.experiments.experiment import Settings
from arcsm.experiments.image_budgets import TRAIN_SECONDS
from arcsm.experiments.image_parts import STAND_IN
from arcsm.tasks.images.mirrors import VIEWS

_SMALL = {"network": "small", "batch": 128, "learning_rate": 1e-3, "ema": 0.999}
_MODEL = {
    "directory": None,
    "train_seconds": TRAIN_SECONDS,
    "mirrored": ["up-down", "left-right"],
    "settings": {"csm": {**_SMALL, "evaluate_every": 1000, "flips": False}},
}
# From σ₁ to σ_L of the paper, with T and ε₀ that the names of its figures have.
_LANGEVIN = {"method": "langevin", "langevin_end": 0.04}
_COMMON: dict[str, Any] = {
    "assumed": "network, time of training, and that Langevin dynamics starts at σ₁: not stated",
    "cases": {
        "cifar10": {
            "data": {"name": "cifar10"},
            "noise": "salt-and-pepper:0.1",
            "model": _MODEL,
            "ours": {
                "mean, four views": {"method": "mean"},
                "mean, four views mixed": {"method": "mean", "pool": "mixture"},
                "mean, one view": {"method": "mean", "views": ["none"]},
                "draw": {"method": "draw"},
            },
            "paper": {
                "the paper's Langevin": {
                    **_LANGEVIN,
                    "langevin_steps": 5,
                    "langevin_step_size": 8e-5,
                    "langevin_start": 0.2,
                },
            },
            "default": "mean, four views",
            "completed": False,
        },
        "mnist": {
            "data": {"name": "mnist"},
            "noise": "gaussian:0.6",
            "model": _MODEL,
            "ours": {
                "mean, four views": {"method": "mean"},
                "mean, four views mixed": {"method": "mean", "pool": "mixture"},
                "mean, one view": {"method": "mean", "views": ["none"]},
                "mean, one view, drawn contexts": {
                    "method": "mean",
                    "views": ["none"],
                    "context": "draw",
                },
                "draw": {"method": "draw"},
                "64 particles": {"method": "particles", "particles": 64, "views": ["none"]},
                "256 particles": {"method": "particles", "particles": 256, "views": ["none"]},
            },
            "paper": {
                "the paper's single step": {"method": "single-step"},
                "the paper's Langevin": {
                    **_LANGEVIN,
                    "langevin_steps": 20,
                    "langevin_step_size": 2e-5,
                    "langevin_start": 1.0,
                },
            },
            # Of so much noise means of one scalar after another make contexts of no digit.
            "default": "256 particles",
            "completed": True,
        },
    },
    "models_folder": None,  # the cache of the user
    "images": 500,
    "batch": 500,
    "particles_at_once": 8192,
    "choosing_images": 40,
    "seeds": [0],
    "goal": True,
}
_TINY = {"network": "tiny", "options": {"filters": [8, 8], "blocks": 1, "levels": 2}, "batch": 16}
_STAND_IN = {
    **_MODEL,
    "train_seconds": 0.5,
    "settings": {"csm": {**_TINY, "flips": False}},
}
BUDGETS: dict[str, Settings] = {
    "smoke": {
        **_COMMON,
        "cases": {
            "colour": {
                **_COMMON["cases"]["cifar10"],
                "data": {"name": STAND_IN, "side": 4, "channels": 3, "train": 80, "test": 8},
                "model": _STAND_IN,
            },
            "grey": {
                **_COMMON["cases"]["mnist"],
                "data": {"name": STAND_IN, "side": 12, "channels": 1, "train": 80, "test": 8},
                "model": _STAND_IN,
                "ours": {
                    "mean, four views": {"method": "mean"},
                    "2 particles": {"method": "particles", "particles": 2, "views": ["none"]},
                },
                "default": "2 particles",
            },
        },
        "images": 2,
        "choosing_images": 2,
        "goal": False,
    },
    "cpu": {
        **_COMMON,
        "cases": {
            "mnist": {
                **_COMMON["cases"]["mnist"],
                "model": {
                    **_MODEL,
                    "train_seconds": 600,
                    "settings": {"csm": {"network": "tiny", "flips": False}},
                },
                "ours": {
                    "mean, four views": {"method": "mean"},
                    "single step, four views": {"method": "single-step", "views": list(VIEWS)},
                    "8 particles": {"method": "particles", "particles": 8, "views": ["none"]},
                },
                "default": "8 particles",
            }
        },
        "images": 50,
        "choosing_images": 20,
    },
    "gpu": _COMMON,
}
