"""Models of other kinds to compare with: maximum likelihood on the same context networks."""

from arcsm.baselines.aem import AEM
from arcsm.baselines.mixture_made import GaussianMixture, LogisticMixture, Mixture, MixtureMADE
from arcsm.baselines.pixel_mixture import PixelMixture

__all__ = [
    "AEM",
    "GaussianMixture",
    "LogisticMixture",
    "Mixture",
    "MixtureMADE",
    "PixelMixture",
]
