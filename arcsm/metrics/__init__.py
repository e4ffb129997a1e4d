"""How far generated images are from real ones: FID and KID by the network they are defined with."""

from arcsm.metrics.fid import fid, frechet_distance, kid
from arcsm.metrics.inception import InceptionFeatures
from arcsm.metrics.statistics import (
    FeatureStatistics,
    feature_statistics,
    load_statistics,
    save_statistics,
)
from arcsm.metrics.weights import export_weights

__all__ = [
    "FeatureStatistics",
    "InceptionFeatures",
    "export_weights",
    "feature_statistics",
    "fid",
    "frechet_distance",
    "kid",
    "load_statistics",
    "save_statistics",
]
