"""Is a model of images sound? By itself, and beside images."""

import math

import numpy as np

from arcsm.images.cells import LEVELS
from arcsm.images.model import ImageModel
from arcsm.soundness import Finding

# Conditionals of one image whose levels are added up, and how far from 1 they may be.
_CONDITIONALS, _TOLERANCE = 3, 1e-3
# Of levels that are all alike.
_UNIFORM = math.log2(LEVELS)


def check_alone(model: ImageModel, *, seed: int = 0) -> list[Finding]:
    """Look at a model without data: its weights, and that probabilities of levels add up to 1."""
    bad = [name for name, value in model.density.state_dict().items() if not value.isfinite().all()]
    if bad:
        text = f"It has weights that are not finite numbers: {bad[0]}."
        advice = "restore the directory from a copy, or train again"
        return [Finding("loads", False, text, advice)]
    height, width, channels = model.shape
    kind = "grey" if channels == 1 else "colour"
    findings = [
        Finding(
            "loads",
            True,
            f"It loads: images of {width} x {height} in {kind}, {model.parameters:,} parameters.",
        )
    ]
    if model.settings.noise == "paper":
        text = "With the noise of the paper levels have no probabilities: not looked at."
        return [*findings, Finding("levels", True, text)]
    off = max(abs(total - 1) for total in _totals(model, seed))
    text = f"The probabilities of the {LEVELS} levels of a scalar add up to 1 within {off:.1e}."
    return [
        *findings,
        Finding("levels", off <= _TOLERANCE, text, "train again", numbers={"error": off}),
    ]


def check_beside(model: ImageModel, pixels: np.ndarray, *, seed: int = 0) -> list[Finding]:
    """Look at a model beside images, best of ones that it was not trained on."""
    bits = model.bits_per_dim(pixels, seed=seed)
    possible = np.isfinite(bits)
    if not possible.all():
        count = int(np.count_nonzero(~possible))
        text = f"{count:,} of {len(bits):,} images are impossible under the model."
        return [Finding("images", False, text, "train on images such as these")]
    mean = float(bits.mean())
    error = float(bits.std() / math.sqrt(len(bits)))
    text = f"{len(bits):,} images have {mean:.3f} ± {error:.3f} bits per dimension on average"
    numbers = {"bits_per_dim": mean, "error": error, "images": len(bits)}
    if model.settings.noise == "paper":  # noise takes bits, which say little by themselves
        return [Finding("images", True, f"{text}.", numbers=numbers)]
    good = mean < _UNIFORM
    relation = "less" if good else "not less"
    return [
        Finding(
            "images",
            good,
            f"{text}, {relation} than the {_UNIFORM:g} of levels that are all alike.",
            "train for longer, or on images such as these",
            numbers,
        )
    ]


def _totals(model: ImageModel, seed: int) -> list[float]:
    """Return the sums over all levels of some conditionals, spread over an image."""
    image = model.sample(1, seed=seed)
    totals = []
    for scalar in np.linspace(0, model.dims - 1, _CONDITIONALS).round().astype(int).tolist():
        levels = np.repeat(image, LEVELS, axis=0)
        levels.reshape(LEVELS, -1)[:, scalar] = np.arange(LEVELS)
        terms = model.log_prob_terms(levels, only=[scalar]).reshape(LEVELS, -1)[:, scalar]
        totals.append(float(np.exp(terms).sum()))
    return totals
