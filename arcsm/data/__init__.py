"""Data: arrays checked at the door, and toy distributions with known densities."""

from arcsm.data.arrays import as_rows, as_training_rows
from arcsm.data.toy import (
    TOYS,
    Checkerboard,
    EightGaussians,
    Pinwheel,
    Rings,
    Toy,
    TwoMoons,
    TwoSpirals,
    get_toy,
)

__all__ = [
    "TOYS",
    "Checkerboard",
    "EightGaussians",
    "Pinwheel",
    "Rings",
    "Toy",
    "TwoMoons",
    "TwoSpirals",
    "as_rows",
    "as_training_rows",
    "get_toy",
]
