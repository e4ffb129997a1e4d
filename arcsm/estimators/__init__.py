"""The scikit-learn face of arcsm."""

from arcsm.estimators.density import ARCSMDensity

__all__ = ["ARCSMDensity"]
