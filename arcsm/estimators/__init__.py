"""The scikit-learn face of arcsm."""

from arcsm.estimators.density import ARCSMDensity
from arcsm.estimators.detector import ARCSMDetector, PyODView
from arcsm.estimators.imputer import ARCSMImputer

__all__ = ["ARCSMDensity", "ARCSMDetector", "ARCSMImputer", "PyODView"]
