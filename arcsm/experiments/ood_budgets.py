"""How large the experiment on unusual images is under each budget: sets, models, pairs."""

from typing import Any

from arcsm.experiments.experiment import Settings
from arcsm.experiments.image_budgets import PIXELCNN, TRAIN_SECONDS
from arcsm.experiments.image_parts import STAND_IN
from arcsm.tasks.images.statistics import LEVELS

# The models of the experiment on samples, trained anew where they are not kept.
_MODEL: dict[str, Any] = {
    "directory": None,
    "train_seconds": TRAIN_SECONDS,
    "mirrored": [],
    "settings": PIXELCNN,
}
_PAIRS = {
    "svhn": {"kind": "set", "name": "svhn", "part": "train", "for": "judging"},
    "constant": {"kind": "constant", "for": "judging"},
    "uniform": {"kind": "uniform", "for": "judging"},
    "celeba": {"kind": "set", "name": "celeba", "part": "test", "size": 32, "for": "choosing"},
    "smoothed": {"kind": "smoothed", "sigma": 1.0, "for": "choosing"},
    "permuted": {"kind": "permuted", "for": "choosing"},
}
_COMMON: dict[str, Any] = {
    "assumed": "sign and noise level of h, network and time of training: the paper states none",
    "cases": {
        "cifar10": {
            "data": {"name": "cifar10"},
            "methods": ["csm", "likelihood"],
            "model": _MODEL,
            "pairs": _PAIRS,
        },
        "mnist": {
            "data": {"name": "mnist"},
            "methods": ["csm"],
            "model": _MODEL,
            "pairs": {
                "fashion": {
                    "kind": "set",
                    "name": "fashion-mnist",
                    "part": "test",
                    "for": "information",
                },
            },
        },
    },
    "models_folder": None,  # the cache of the user
    "levels": list(LEVELS),
    "training_images": 5000,
    "images": 2000,
    "resamples": 1000,
    "timed_images": 256,
    "timed_on_cpu": 4,
    "shown": 8,
    "seeds": [0],
    "goal": True,
}
_TINY = {
    "network": "tiny",
    "batch": 16,
    "options": {"filters": [8, 8], "blocks": 1, "levels": 2},
}
# Of the shipped model of digits, which is there without a GPU. Nothing is chosen on these: the
# default was, with CIFAR-10.
_DIGITS = {
    "data": {"name": "mnist"},
    "methods": ["csm"],
    "model": {**_MODEL, "directory": "arcsm:digits"},
    "pairs": {
        "fashion": {"kind": "set", "name": "fashion-mnist", "part": "test", "for": "judging"},
        "constant": {"kind": "constant", "for": "judging"},
        "uniform": {"kind": "uniform", "for": "judging"},
        "smoothed": {"kind": "smoothed", "sigma": 1.0, "for": "judging"},
        "permuted": {"kind": "permuted", "for": "judging"},
    },
}
BUDGETS: dict[str, Settings] = {
    "smoke": {
        **_COMMON,
        "cases": {
            "squares": {
                "data": {"name": STAND_IN, "side": 6, "channels": 3, "train": 90, "test": 60},
                "methods": ["csm", "likelihood"],
                "model": {
                    **_MODEL,
                    "train_seconds": 0.3,
                    "settings": {"csm": _TINY, "likelihood": _TINY},
                },
                "pairs": {
                    "uniform": {"kind": "uniform", "for": "judging"},
                    "constant": {"kind": "constant", "for": "judging"},
                    "stand-in": {"kind": "stand-in", "for": "choosing"},
                    "permuted": {"kind": "permuted", "for": "choosing"},
                    "smoothed": {"kind": "smoothed", "sigma": 1.0, "for": "choosing"},
                },
            }
        },
        "levels": [0.05, 0.5],
        "training_images": 60,
        "images": 24,
        "resamples": 50,
        "timed_images": 2,
        "timed_on_cpu": 1,
        "shown": 2,
        "goal": False,
    },
    "cpu": {**_COMMON, "cases": {"mnist": _DIGITS}, "timed_images": 64, "goal": False},
    "gpu": _COMMON,
}
