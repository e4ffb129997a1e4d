"""Drawing rows from a chain of one-dimensional conditionals."""

from arcsm.sampling.batches import METHODS, SOLVERS, draw_batches
from arcsm.sampling.chain import Chain, Draw
from arcsm.sampling.fixed_point import solve_fixed_point

__all__ = ["METHODS", "SOLVERS", "Chain", "Draw", "draw_batches", "solve_fixed_point"]
