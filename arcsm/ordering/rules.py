"""Orders worth a try: rules from simple statistics of the columns, and random orders.

No rule is best on every table, and each of those here was on some. "first" and "last" say where
the columns go of which a rule finds most.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

# Rows that a rule looks at, and columns up to which forests are grown.
_MOST_ROWS = 2000
_MOST_FOR_TREES = 200

# By how often they did well: where time is short, those at the end are not tried.
_BY_PROMISE = (
    "natural",
    "linear first",
    "trees first",
    "greedy least",
    "greedy gain",
    "random 1",
    "distinct first",
    "odd first",
    "random 2",
    "reverse",
    "odd last",
    "random 3",
    "greedy most",
    "entropy last",
    "entropy first",
)

Groups = Sequence[Sequence[int]]


def candidate_orders(
    x: Float[np.ndarray, "rows scalars"], groups: Groups, *, most: int, seed: int
) -> dict[str, tuple[int, ...]]:
    """Return up to `most` different orders of the groups, by name, the most promising ones first.

    `groups` hold every scalar of x once; their own order is the natural one.
    """
    count = len(groups)
    random = np.random.default_rng(seed)
    orders = {"natural": list(range(count)), "reverse": list(range(count))[::-1]}
    orders |= {name: order_of_groups(scalars, groups) for name, scalars in _by_rules(x).items()}
    names = iter(_BY_PROMISE)
    found: dict[tuple[int, ...], str] = {}
    drawn = 0
    # Few columns have few orders.
    while len(found) < min(most, math.factorial(min(count, 20))):
        name = next(names, None)
        if name is None or name.startswith("random"):
            drawn += 1
            name = f"random {drawn}"
            order = random.permutation(count).tolist()
        elif name in orders:
            order = orders[name]
        else:
            continue
        found.setdefault(tuple(order), name)
    return {name: order for order, name in found.items()}


def order_of_groups(scalars: Sequence[int], groups: Groups) -> list[int]:
    """Return the groups by where their scalars stand on average."""
    place = np.argsort(scalars)
    means = [place[list(group)].mean() for group in groups]
    return np.argsort(means, kind="stable").tolist()


def _by_rules(x: Float[np.ndarray, "rows scalars"]) -> dict[str, list[int]]:
    """Return an order of the scalars for each rule."""
    some = x[:_MOST_ROWS].astype(np.float64)
    deviation = some.std(0)
    z = (some - some.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    # A little of the identity: columns may be copies of each other, and then have no inverse.
    correlation = 0.98 * (z.T @ z) / len(z)
    np.fill_diagonal(correlation, 1.0)
    found = {f"greedy {how}": greedy_order(correlation, how) for how in ("least", "most", "gain")}
    distinct = np.array([len(np.unique(column)) for column in some.T], dtype=np.float64)
    statistics = {
        # A few equal values by accident of rounding do not make a column discrete.
        "distinct": np.minimum(distinct, 0.9 * len(some)),
        "entropy": _entropy(z),
        "linear": 1 - 1 / np.diag(np.linalg.inv(correlation)),
        "odd": negentropy(z),
    }
    if 2 <= z.shape[1] <= _MOST_FOR_TREES:
        statistics["trees"] = tree_r2(z)
    for name, values in statistics.items():
        found[f"{name} first"] = np.argsort(-values, kind="stable").tolist()
        found[f"{name} last"] = np.argsort(values, kind="stable").tolist()
    return found


def greedy_order(correlation: Float[np.ndarray, "scalars scalars"], how: str) -> list[int]:
    """Return an order in which each scalar is chosen given those before it, linearly.

    The next is the one that they leave the "least" or the "most" variance of, or the one that,
    with them, explains most of the others ("gain"), as the very first one does.
    """
    left = correlation.copy()
    free = np.ones(len(left), dtype=bool)
    order: list[int] = []
    while free.any():
        variance = np.diag(left)
        if how == "gain" or not order:
            score = (left[free] ** 2).sum(0) / np.maximum(variance, 1e-9)
        else:
            score = variance if how == "most" else -variance
        chosen = int(np.where(free, score, -np.inf).argmax())
        order.append(chosen)
        free[chosen] = False
        if variance[chosen] > 1e-9:
            left = left - np.outer(left[:, chosen], left[chosen]) / variance[chosen]
    return order


def negentropy(z: Float[np.ndarray, "rows scalars"]) -> Float[np.ndarray, "scalars"]:
    """Return how far columns of variance 1 are from normal ones, by Hyvärinen's approximation."""
    size = np.abs(z)
    log_cosh = size + np.log1p(np.exp(-2 * size)) - np.log(2)
    lopsided = (z * np.exp(-(z**2) / 2)).mean(0)
    return np.asarray(79.047 * (log_cosh.mean(0) - 0.37457) ** 2 + 7.4129 * lopsided**2)


def tree_r2(z: Float[np.ndarray, "rows scalars"]) -> Float[np.ndarray, "scalars"]:
    """Return the share of each column's variance that a small forest on the others explains.

    The forests are grown on half of the rows and judged on the other half.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    half = len(z) // 2
    explained = np.zeros(z.shape[1])
    for column in range(z.shape[1]):
        others = np.delete(z, column, 1).astype(np.float32)
        forest = ExtraTreesRegressor(
            10, max_depth=8, min_samples_leaf=3, max_features=0.5, random_state=0
        ).fit(others[:half], z[:half, column])
        rest = z[half:, column]
        left = np.mean((rest - forest.predict(others[half:])) ** 2)
        explained[column] = 1 - left / max(rest.var(), 1e-12)
    return explained


def _entropy(z: Float[np.ndarray, "rows scalars"]) -> Float[np.ndarray, "scalars"]:
    """Return the entropy of the values of each column.

    Continuous columns, no value of which comes twice, are told apart by a histogram.
    """
    low, high = np.quantile(z, (0.005, 0.995), axis=0)
    entropies = []
    for column, least, most in zip(z.T, low, high, strict=True):
        bins = np.histogram(column, 32, (least, most + 1e-9))[0]
        entropies.append(_of_counts(np.unique(column, return_counts=True)[1]))
        entropies[-1] += 1e-3 * _of_counts(bins[bins > 0])
    return np.array(entropies)


def _of_counts(counts: np.ndarray) -> float:
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())
