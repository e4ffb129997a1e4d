"""All about one scalar given its context: scores, noise, densities, and ways to draw."""

from arcsm.conditional.density import Density, FlowDensity, QuadratureDensity
from arcsm.conditional.flow import flow_down, flow_up
from arcsm.conditional.head import Conditional, Family, HeadFamily, TanhSum, TanhSumHead
from arcsm.conditional.langevin import annealed_langevin, surviving_offset
from arcsm.conditional.noise import Noise, suggest_sigma_min
from arcsm.conditional.quadrature import Quadrature

__all__ = [
    "Conditional",
    "Density",
    "Family",
    "FlowDensity",
    "HeadFamily",
    "Noise",
    "Quadrature",
    "QuadratureDensity",
    "TanhSum",
    "TanhSumHead",
    "annealed_langevin",
    "flow_down",
    "flow_up",
    "suggest_sigma_min",
    "surviving_offset",
]
