"""Unusual rows of a table: how unusual they are, and why."""

from arcsm.tasks.detect.detector import METHODS, NEIGHBOURS, Detector, check_method
from arcsm.tasks.detect.explain import column_surprise

__all__ = ["METHODS", "NEIGHBOURS", "Detector", "check_method", "column_surprise"]
