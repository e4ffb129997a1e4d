"""Columns as people have them, as the real scalars of an autoregressive density, and back."""

from arcsm.columns.columns import Columns
from arcsm.columns.encoded import Encoded

__all__ = ["Columns", "Encoded"]
