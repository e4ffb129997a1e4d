"""Hard shapes with known answers: a funnel, rare modes, bent heavy tails, a skewed product.

    python benchmarks/shapes.py        # writes results/shapes.json

`ARCSMDensity` with its defaults learns each from 20,000 rows. It is judged by KL(truth ‖ model) on
fresh rows, in nats, and by the worst marginal: the largest distance between the distribution
function of as many samples and the exact one (Kolmogorov–Smirnov). A target is a label of its
metric; the funnel in ten dimensions has none and is there to be seen.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special, stats

from arcsm import ARCSMDensity
from arcsm.results import Metric, current_commit, write_result

KS_TARGET = 0.03

Rows = Callable[[np.random.Generator, int], np.ndarray]
Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Shape:
    """A density: how to draw rows, its logarithm, the distribution function of each column."""

    sample: Rows
    log_prob: Function
    marginals: tuple[Function, ...]
    target: float | None


def _mixed(x: np.ndarray, nodes: np.ndarray, weights: np.ndarray, cdf: Callable) -> np.ndarray:
    """Return Σ_k weights_k · cdf(x, nodes_k), a marginal as a mixture over the other column.

    Where the nodes are even and the integrand decays at both ends, the trapezoidal sum is about
    as exact as float64.
    """
    parts = np.array_split(np.asarray(x, dtype=np.float64), max(1, len(x) // 2000))
    return np.concatenate([cdf(part[:, None], nodes) @ weights for part in parts])


# Neal's funnel: v ~ N(0, 3²), every x | v ~ N(0, e^v)


def _funnel_sample(random: np.random.Generator, rows: int, dimensions: int) -> np.ndarray:
    v = random.normal(0, 3, size=(rows, 1))
    return np.hstack([v, np.exp(v / 2) * random.normal(size=(rows, dimensions - 1))])


def _funnel_log_prob(x: np.ndarray) -> np.ndarray:
    v = x[:, :1]
    return stats.norm.logpdf(v[:, 0], 0, 3) + stats.norm.logpdf(x[:, 1:], 0, np.exp(v / 2)).sum(1)


def _funnel_marginal(x: np.ndarray) -> np.ndarray:
    v = np.linspace(-30, 30, 1001)
    weights = stats.norm.pdf(v, 0, 3) * (v[1] - v[0])
    return _mixed(x, np.exp(-v / 2), weights, lambda x, rate: special.ndtr(x * rate))


def _funnel(dimensions: int, target: float | None) -> Shape:
    return Shape(
        sample=lambda random, rows: _funnel_sample(random, rows, dimensions),
        log_prob=_funnel_log_prob,
        marginals=(lambda v: stats.norm.cdf(v, 0, 3), *[_funnel_marginal] * (dimensions - 1)),
        target=target,
    )


# Three modes of very different weight, far apart

_WEIGHT = np.array([0.9, 0.08, 0.02])
_CENTRE = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, -15.0]])
_STD = np.array([1.0, 0.7, 0.5])


def _modes_sample(random: np.random.Generator, rows: int) -> np.ndarray:
    mode = random.choice(3, size=rows, p=_WEIGHT)
    return _CENTRE[mode] + _STD[mode, None] * random.normal(size=(rows, 2))


def _modes_log_prob(x: np.ndarray) -> np.ndarray:
    each = stats.norm.logpdf(x[:, None], _CENTRE, _STD[:, None]).sum(2)
    return special.logsumexp(each + np.log(_WEIGHT), axis=1)


def _modes_marginal(column: int) -> Function:
    return lambda x: stats.norm.cdf(x[:, None], _CENTRE[:, column], _STD) @ _WEIGHT


# A bent t: x1 and the rest of x2 are t with 3 degrees of freedom, x2 = rest + x1²/2


def _bent_sample(random: np.random.Generator, rows: int) -> np.ndarray:
    x, rest = random.standard_t(3, size=(2, rows))
    return np.column_stack([x, rest + x**2 / 2])


def _bent_log_prob(x: np.ndarray) -> np.ndarray:
    return stats.t.logpdf(x[:, 0], 3) + stats.t.logpdf(x[:, 1] - x[:, 0] ** 2 / 2, 3)


def _bent_marginal(x: np.ndarray) -> np.ndarray:
    # x1 = sinh s: the tails of t become exponential. By symmetry, s > 0 twice, at midpoints.
    step = 0.005
    s = np.arange(0, 12, step) + step / 2
    weights = 2 * stats.t.pdf(np.sinh(s), 3) * np.cosh(s) * step
    return _mixed(x, np.sinh(s) ** 2 / 2, weights, lambda x, bend: special.stdtr(3, x - bend))


# A gamma column that is the rate of an exponential one


def _product_sample(random: np.random.Generator, rows: int) -> np.ndarray:
    rate = random.gamma(2.0, size=rows)
    return np.column_stack([rate, random.exponential(size=rows) / rate])


def _product_log_prob(x: np.ndarray) -> np.ndarray:
    return stats.gamma.logpdf(x[:, 0], 2) + stats.expon.logpdf(x[:, 1], 0, 1 / x[:, 0])


def _product_marginal(x: np.ndarray) -> np.ndarray:
    # ∫ a e^(−a) (1 − e^(−ax)) da over a > 0; samples of a model may be negative.
    return 1 - (1 + np.maximum(x, 0.0)) ** -2.0


SHAPES = {
    "funnel": _funnel(2, target=0.1),
    "modes": Shape(_modes_sample, _modes_log_prob, (_modes_marginal(0), _modes_marginal(1)), 0.05),
    "bent-t": Shape(
        _bent_sample, _bent_log_prob, (lambda x: stats.t.cdf(x, 3), _bent_marginal), 0.1
    ),
    "gamma-exponential": Shape(
        _product_sample,
        _product_log_prob,
        (lambda x: stats.gamma.cdf(x, 2), _product_marginal),
        0.15,
    ),
    "funnel-10": _funnel(10, target=None),
}


def ks_distance(x: np.ndarray, cdf: Function) -> float:
    """Return the largest distance between the distribution function of `x` and `cdf`."""
    expected = cdf(np.sort(x))
    steps = np.arange(len(x) + 1) / len(x)
    return float(np.maximum(steps[1:] - expected, expected - steps[:-1]).max())


def measure(
    name: str, seed: int, *, rows: int, fresh: int, max_steps: int | None
) -> tuple[list[Metric], str]:
    """Fit one shape; return its metrics and a line that tells of them."""
    shape = SHAPES[name]
    # Rows that have nothing to do with the seed of the model.
    random = np.random.default_rng(1000 + seed)
    train, unseen = shape.sample(random, rows), shape.sample(random, fresh)
    start = time.monotonic()
    density = ARCSMDensity(max_steps=max_steps, random_state=seed).fit(train)
    seconds = time.monotonic() - start
    difference = shape.log_prob(unseen) - density.score_samples(unseen)
    drawn = density.sample(fresh, random_state=seed)
    finite = bool(np.isfinite(drawn).all())
    labels = {"shape": name, "seed": seed}
    targets = {} if shape.target is None else {"target": shape.target}
    metrics = [_divergence(difference, labels | targets)]
    worst = None
    if finite:
        worst = max(map(ks_distance, drawn.T, shape.marginals))
    metrics += [
        Metric(
            "worst marginal distance",
            worst,
            unit="1",
            n=fresh,
            labels=labels | {"target": KS_TARGET} if targets else labels,
            reason=None if finite else "samples that are not finite",
        ),
        Metric("training time", seconds, unit="s", n=1, labels=labels),
    ]
    error = difference.std() / len(difference) ** 0.5
    line = (
        f"{name:18s} seed {seed}  KL {difference.mean():.4f} ± {error:.4f}"
        f" (target {shape.target or '–'})  worst marginal"
        f" {'–' if worst is None else format(worst, '.4f')}"
        f" (target {KS_TARGET if targets else '–'})  {seconds:.1f} s"
        f"  {density.history_.steps} steps"
    )
    return metrics, line


def _divergence(difference: np.ndarray, labels: dict) -> Metric:
    name = "KL(truth ‖ model)"
    bad = int((~np.isfinite(difference)).sum())
    if bad:
        reason = f"the model gives no finite log-density to {bad} of {len(difference)} rows"
        return Metric(name, None, unit="nats", n=len(difference), labels=labels, reason=reason)
    mean, spread = difference.mean(), difference.std(ddof=1)
    error = spread / len(difference) ** 0.5
    interval = (mean - 1.96 * error, mean + 1.96 * error)
    return Metric(
        name,
        mean,
        unit="nats",
        n=len(difference),
        spread=spread,
        interval=interval,
        labels=labels,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--fresh", type=int, default=20_000)
    parser.add_argument("--max-steps", type=int, help="by default left to the estimator")
    parser.add_argument("-o", "--output", default="results/shapes.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    metrics: list[Metric] = []
    for name in arguments.shapes:
        for seed in arguments.seeds:
            measured, line = measure(
                name,
                seed,
                rows=arguments.rows,
                fresh=arguments.fresh,
                max_steps=arguments.max_steps,
            )
            metrics += measured
            print(line, flush=True)
    write_result(
        arguments.output,
        experiment="shapes",
        metrics=metrics,
        seeds=arguments.seeds,
        settings={
            "estimator": ARCSMDensity(max_steps=arguments.max_steps).get_params(),
            "rows": arguments.rows,
            "fresh rows": arguments.fresh,
            "threads": torch.get_num_threads(),
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
