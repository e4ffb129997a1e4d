"""The scikit-learn face of arcsm."""

from arcsm.estimators.density import ARCSMDensity
from arcsm.estimators.detector import ARCSMDetector, PyODView

__all__ = ["ARCSMDensity", "ARCSMDetector", "PyODView"]
