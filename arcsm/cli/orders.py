"""What `arcsm train` says of the order of the columns."""

from arcsm.estimators import ARCSMDensity
from arcsm.ordering import LearnedOrder
from arcsm.tabular import TabularModel


def about_order(density: ARCSMDensity) -> list[str]:
    """Return a line on the order, where it is not that of the table."""
    count, order = len(density.model_.members), " → ".join(density.order_)
    if density.order == "any":
        return ["One model for any order of the columns."]
    if count > 1:
        same = f"all in the order {order}" if order else "each in an order of its own"
        first = TabularModel(density.model_.columns, density.model_.members[0]).order
        learned = f"; the first: {' → '.join(first)}" if density.order == "auto" else ""
        return [f"{count} models, {same}{learned}{_about_race(density.model_.race)}."]
    if density.order == "natural":
        return []
    return [f"Order of the columns: {order}{_about_race(density.model_.race)}."]


def _about_race(race: LearnedOrder | None) -> str:
    """Return by how much the learned order beat that of the table."""
    if race is None or len(race.candidates) < 2:
        return ""
    natural = race.candidates[0]
    best = next(tried for tried in race.candidates if tried.order == race.order)
    judged = f"in short trainings of {len(race.candidates)} orders"
    if best is natural:
        return f" (that of the table, which no other one beat {judged})"
    gain = best.log_prob - natural.log_prob
    return f" (better than that of the table by {gain:.2f} ± {best.error:.2f} nats {judged})"
