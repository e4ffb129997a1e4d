"""Which order of the columns makes a density easy to learn, found out on the rows themselves."""

from arcsm.ordering.race import Candidate, LearnedOrder, learn_order, race_rows

__all__ = ["Candidate", "LearnedOrder", "learn_order", "race_rows"]
