"""How far images are from real ones (FID, KID) or from clean ones; how well outliers are told."""

from arcsm.metrics.detection import auroc, auroc_interval
from arcsm.metrics.fid import fid, frechet_distance, kid
from arcsm.metrics.inception import InceptionFeatures
from arcsm.metrics.restoration import psnr, ssim
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
    "auroc",
    "auroc_interval",
    "export_weights",
    "feature_statistics",
    "fid",
    "frechet_distance",
    "kid",
    "load_statistics",
    "psnr",
    "save_statistics",
    "ssim",
]
