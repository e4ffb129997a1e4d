"""The holes of benchmarks/impute.py: which cells are taken away, and how well they are filled.

Mechanisms, each with a fifth of all cells missing on average:
- "mcar": every cell with the same probability.
- "mar": at random given what is known. A third of the columns, chosen at random, has no holes; in
  every other column the log-odds of a hole rise by 2 for each standard deviation of one of these,
  chosen at random.
- "mnar": not at random. The log-odds of a hole rise by 2 for each standard deviation of the cell's
  own value.
Columns have the normal scores of their ranks there, so that a heavy tail is not all that is
missing. A row that would have lost all of its cells keeps one.
"""

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import expit, ndtri
from scipy.stats import rankdata

MECHANISMS = ("mcar", "mar", "mnar")
SHARE, SLOPE = 0.2, 2.0
# Rows whose distances the energy distance is made of.
ENERGY_ROWS = 1000
# Draws of which the least and the largest enclose a further one with a probability of 18 in 20.
DRAWS, COVERAGE = 19, 0.9


def make_holes(rows: np.ndarray, mechanism: str, seed: int) -> np.ndarray:
    """Return which cells are missing, bool in the shape of the rows."""
    random = np.random.default_rng([seed, MECHANISMS.index(mechanism)])
    scores = ndtri((rankdata(rows, axis=0) - 0.5) / len(rows))
    chance = np.full(rows.shape, SHARE)
    columns = rows.shape[1]
    if mechanism == "mar":
        complete = random.permutation(columns)[: max(1, columns // 3)]
        driver = random.choice(complete, size=columns)
        chance = _chance(scores[:, driver], SHARE * columns / (columns - len(complete)))
        chance[:, complete] = 0.0
    elif mechanism == "mnar":
        chance = _chance(scores, SHARE)
    missing = random.random(rows.shape) < chance
    lost = np.flatnonzero(missing.all(1))
    missing[lost, random.integers(columns, size=len(lost))] = False
    return missing


def _chance(scores: np.ndarray, share: float) -> np.ndarray:
    """Return probabilities whose log-odds rise with the scores, with this mean in each column."""
    low, high = (np.full(scores.shape[1], end) for end in (-50.0, 50.0))
    for _ in range(60):
        middle = (low + high) / 2
        above = expit(SLOPE * scores + middle).mean(0) > share
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return expit(SLOPE * scores + (low + high) / 2)


def rmse(filled: np.ndarray, true: np.ndarray, missing: np.ndarray) -> float:
    """Return the root of the mean square error of the missing cells."""
    return float(np.sqrt(np.square(filled - true)[missing].mean()))


def energy_distance(filled: np.ndarray, true: np.ndarray, missing: np.ndarray, seed: int) -> float:
    """Return 2 E|X − Y| − E|X − X'| − E|Y − Y'| for filled rows X and true rows Y with holes.

    The mean distances within a sample leave out those of a row to itself. It is below 0 now and
    then where the two have one distribution.
    """
    rows = np.flatnonzero(missing.any(1))
    rows = np.random.default_rng(seed).permutation(rows)[: 2 * ENERGY_ROWS]
    # Different rows on both sides: a filled row is close to its own true one, whatever is drawn.
    x, y = filled[rows[: len(rows) // 2]], true[rows[len(rows) // 2 :]]
    within = [cdist(some, some).sum() / max(1, len(some) * (len(some) - 1)) for some in (x, y)]
    return float(2 * cdist(x, y).mean() - sum(within))


def coverage(draws: np.ndarray, true: np.ndarray, missing: np.ndarray) -> tuple[float, float]:
    """Return how often missing cells lie between the ends of the draws, and how wide these are.

    `draws` has shape (draws, rows, columns). Draws that tie with the truth count by half: of whole
    numbers a further draw is as likely to be on either side.
    """
    own, cells = true[missing], draws[:, missing]
    low, high = cells.min(0), cells.max(0)
    inside = (own > low) & (own < high)
    at_end = ((own == low) | (own == high)) & (low < high)
    same = (own == low) & (low == high)
    return float((inside + 0.5 * at_end + same).mean()), float((high - low).mean())
