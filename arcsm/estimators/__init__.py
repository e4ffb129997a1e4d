"""The scikit-learn face of arcsm."""

from arcsm.estimators.density import ARCSMDensity
from arcsm.estimators.detector import ARCSMDetector
from arcsm.estimators.imputer import ARCSMImputer
from arcsm.estimators.pyod_view import PyODView

__all__ = ["ARCSMDensity", "ARCSMDetector", "ARCSMImputer", "PyODView"]
