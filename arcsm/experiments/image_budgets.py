"""How large the experiment on samples of images is under each budget: sets, networks, times."""

from typing import Any

from arcsm.experiments.experiment import Settings
from arcsm.experiments.image_parts import STAND_IN

# The time of training decides, not the number of steps.
ENDLESS = 1_000_000
TRAIN_SECONDS = 120
_TRAINING = {"learning_rate": 1e-3, "ema": 0.999, "evaluate_every": 1000}
_MADE = {"network": "made", "batch": 256, **_TRAINING}
_PIXELCNN = {"network": "small", "batch": 128, **_TRAINING}
# Networks of maximum likelihood are somewhat wider, a MADE because it gives 3 numbers for each
# scalar where ours gives 16, PixelCNN++ at its coarsest level: none has fewer parameters than ours.
_WIDE = {"filters": [48, 64, 80]}
PIXELCNN = {"csm": _PIXELCNN, "likelihood": {**_PIXELCNN, "options": _WIDE}}
_COMMON = {
    "assumed": "networks, batches and learning rates: the paper does not state them",
    "data": {
        "mnist": {"name": "mnist"},
        "cifar10": {"name": "cifar10"},
        "celeba32": {"name": "celeba", "size": 32},
    },
    "features": {"network": "inception", "dims": 2048},
    "feature_batch": 256,
    "reference_images": 50_000,
    "reference_folder": None,  # the cache of the user
    "models_folder": None,
    "kid": {"subsets": 100, "subset_size": 1000, "reference": 10_000},
    "samples": 10_000,
    "test_images": 2000,
    "timed_images": 64,
    "timed_repeats": 2,
    "train_seconds": TRAIN_SECONDS,
    "epochs": None,
    "warm_up_steps": 4,
    "seeds": [0],
}
_SMALL = {
    "smoke": {
        **_COMMON,
        "data": {
            "grey": {"name": STAND_IN, "side": 8, "channels": 1, "train": 96, "test": 24},
            "colour": {"name": STAND_IN, "side": 4, "channels": 3, "train": 96, "test": 24},
        },
        "features": {"network": STAND_IN, "dims": 8},
        "reference_images": 80,
        "kid": {"subsets": 4, "subset_size": 20, "reference": 60},
        "samples": 64,
        "test_images": 16,
        "timed_images": 2,
        "timed_repeats": 1,
        "train_seconds": 0.2,
        "warm_up_steps": 1,
        "goal": None,
        "pairs": [
            {
                "data": "grey",
                "network": "made",
                "kept": False,
                "sample_batch": 64,
                "csm": {**_MADE, "batch": 16, "options": {"hidden": [64, 64]}},
                "likelihood": {**_MADE, "batch": 16, "options": {"hidden": [148, 148]}},
            },
            {
                "data": "colour",
                "network": "pixelcnn",
                "kept": False,
                "sample_batch": 64,
                "csm": {
                    "network": "tiny",
                    "batch": 16,
                    "options": {"filters": [8, 8], "blocks": 1, "levels": 2},
                },
                "likelihood": {
                    "network": "tiny",
                    "batch": 16,
                    "options": {"filters": [24, 24], "blocks": 1, "levels": 2},
                },
            },
        ],
    },
    "cpu": {
        **_COMMON,
        "data": {"mnist": {"name": "mnist"}},
        "features": {"network": "inception", "dims": 192},
        "feature_batch": 50,
        "reference_images": 2000,
        "kid": {"subsets": 20, "subset_size": 500, "reference": 2000},
        "samples": 1000,
        "test_images": 200,
        "timed_repeats": 1,
        "train_seconds": 300,
        "warm_up_steps": None,
        "goal": 1,
        "pairs": [
            {
                "data": "mnist",
                "network": "pixelcnn",
                "kept": False,
                "sample_batch": 500,
                "csm": {"network": "tiny"},
                "likelihood": {"network": "tiny", "options": {"filters": [16, 32, 41]}},
            }
        ],
    },
}


def _pairs(
    made: dict[str, Any], pixelcnn: dict[str, Any], wide: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the five pairs; `wide` are options of maximum likelihood's PixelCNN++."""

    def pair(data: str, network: str, batch: int, told: Any, options: Any) -> dict[str, Any]:
        likelihood = {key: value for key, value in told.items() if key not in _STAGED}
        return {
            "data": data,
            "network": network,
            "kept": network == "pixelcnn",  # those of MADE are large, and of no further use
            "sample_batch": batch,
            "csm": told,
            "likelihood": {**likelihood, "options": options},
        }

    # Graphs of walks along a MADE are made for powers of 2.
    return [
        pair("mnist", "made", 2048, made, {"hidden": [2176, 2176]}),
        pair("mnist", "pixelcnn", 2500, pixelcnn, wide),
        pair("cifar10", "made", 2048, made, {"hidden": [6912, 6912]}),
        pair("cifar10", "pixelcnn", 2500, pixelcnn, wide),
        pair("celeba32", "pixelcnn", 2500, pixelcnn, wide),
    ]


_STAGED = {"noise": "paper", "staged": True}
_PAPER = {"learning_rate": 2e-4, **_STAGED}
_GPU = {**_COMMON, "goal": 4, "pairs": _pairs(_MADE, _PIXELCNN, _WIDE)}
BUDGETS: dict[str, Settings] = {
    **_SMALL,
    "gpu": _GPU,
    "paper": {
        **_GPU,
        "train_seconds": None,
        "epochs": 200,
        "warm_up_steps": None,
        "pairs": _pairs(
            {**_MADE, **_PAPER},
            {**_PIXELCNN, "network": "paper", **_PAPER},
            {"filters": [160, 160, 168]},
        ),
    },
}
