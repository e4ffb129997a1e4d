"""Plots of data, samples, densities, calibration and training, on matplotlib axes.

Every function draws on the axes it is given, or on those of a new figure, and returns them. No
figure is registered with pyplot and no global setting is changed: show a figure with the means of
the notebook, or write it with :func:`save_figure`.
"""

from arcsm.plots.calibration import pit_difference_plot, pit_plot
from arcsm.plots.canvas import save_figure
from arcsm.plots.curves import conditional_plot, density_map, loss_plot
from arcsm.plots.pairs import pair_plot
from arcsm.plots.surprise import surprise_plot

__all__ = [
    "conditional_plot",
    "density_map",
    "loss_plot",
    "pair_plot",
    "pit_difference_plot",
    "pit_plot",
    "save_figure",
    "surprise_plot",
]
