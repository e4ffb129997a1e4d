"""Filling the holes of tables under a fitted model: means, medians, intervals, joint draws."""

from arcsm.tasks.impute.answers import STRATEGIES
from arcsm.tasks.impute.imputation import Imputation, check_strategy

__all__ = ["STRATEGIES", "Imputation", "check_strategy"]
