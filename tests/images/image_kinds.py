"""Small pictures, and settings of each kind of model of them."""

from typing import Any

import numpy as np

from arcsm.images import ImageSettings

SMALL_MADE: dict[str, Any] = {"network": "made", "options": {"hidden": [48, 48]}}
SMALL_CNN: dict[str, Any] = {
    "network": "tiny",
    "options": {"filters": [4, 6], "blocks": 1, "levels": 2},
}
QUICK: dict[str, Any] = {"steps": 4, "batch": 16, "validation": 0.0, "learning_rate": 1e-3}

KINDS: dict[str, dict[str, Any]] = {
    "made": SMALL_MADE,
    "pixelcnn": SMALL_CNN,
    "made-likelihood": {**SMALL_MADE, "method": "likelihood"},
    "pixelcnn-likelihood": {**SMALL_CNN, "method": "likelihood"},
    "paper": {**SMALL_MADE, "noise": "paper"},
    "staged": {**SMALL_MADE, "noise": "paper", "staged": True},
}
EXACT = ("made", "pixelcnn", "made-likelihood", "pixelcnn-likelihood")


def pictures(n: int, height: int = 4, width: int = 4, channels: int = 1) -> np.ndarray:
    """Noise of all levels between a black and a white row."""
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    pixels[:, 0], pixels[:, -1] = 0, 255
    return pixels


def settings(kind: str, **others: Any) -> ImageSettings:
    return ImageSettings(**{**QUICK, **KINDS[kind], **others})
