"""Other density models, each fitted to training rows and asked for the density of test rows.

All of them standardise the columns by the training rows; their log-densities are in nats, in the
units of the rows they were given. `spline_flow` needs zuko: pip install 'arcsm[bench]'.
"""

import copy
import itertools
import math
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neighbors import KernelDensity
from threadpoolctl import threadpool_limits

from arcsm.errors import InputError

BANDWIDTHS = np.geomspace(0.02, 1.5, 15)
BANDWIDTH_ROWS, FOLDS = 5000, 5
COMPONENTS = (1, 2, 3, 5, 8, 12, 19, 30)
COVARIANCES = ("full", "diag", "tied")
LEARNING_RATE = 1e-3
HELD_OUT = 0.15
PATIENCE = 20  # epochs
LARGE, BATCH, LARGE_BATCH = 20_000, 128, 512


def settings() -> dict[str, Any]:
    """Return what decides the fits, for the record of a benchmark."""
    versions = {name: _version(name) for name in ("scikit-learn", "zuko")}
    return {
        "kde": {"bandwidths": BANDWIDTHS.tolist(), "rows": BANDWIDTH_ROWS, "folds": FOLDS},
        "mixture": {"components": COMPONENTS, "covariances": COVARIANCES},
        "flow": {
            "learning rate": LEARNING_RATE,
            "held out": HELD_OUT,
            "patience": PATIENCE,
            "batch": BATCH,
            f"batch from {LARGE} rows": LARGE_BATCH,
        },
        "libraries": versions,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class Outcome:
    """The log-density of each test row, the seconds of fitting, and what the fit settled on."""

    log_density: np.ndarray
    seconds: float
    chosen: str


@dataclass(frozen=True)
class Standard:
    """Columns with mean 0 and standard deviation 1 on the training rows."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, train: np.ndarray) -> "Standard":
        """Take mean and scale from `train`, whose columns are not constant."""
        return cls(train.mean(0), train.std(0))

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return `x` in standard units."""
        return (x - self.mean) / self.scale

    def back(self, log_density: np.ndarray) -> np.ndarray:
        """Return log-densities over standard units as those over the units of the rows."""
        return log_density - np.log(self.scale).sum()


def kernel_density(train: np.ndarray, test: np.ndarray, seed: int) -> Outcome:
    """Gaussian kernels, their bandwidth by five-fold cross-validated log-likelihood.

    Of many rows the bandwidth is chosen on a random part; the kernels then sit on all of them.
    """
    start = time.monotonic()
    standard = Standard.of(train)
    x = standard.forward(train)
    part = np.random.default_rng(seed).permutation(len(x))[:BANDWIDTH_ROWS]
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    scores = [
        cross_val_score(KernelDensity(bandwidth=width), x[part], cv=folds, error_score="raise")
        for width in BANDWIDTHS
    ]
    best = float(BANDWIDTHS[np.argmax(np.sum(scores, axis=1))])
    model = KernelDensity(bandwidth=best).fit(x)
    seconds = time.monotonic() - start
    log_density = standard.back(model.score_samples(standard.forward(test)))
    return Outcome(log_density, seconds, f"bandwidth {best:.3g}")


def gaussian_mixture(
    train: np.ndarray, test: np.ndarray, seed: int, *, cross_validate: bool = False
) -> Outcome:
    """A Gaussian mixture, its number of components and form of covariance by BIC.

    BIC holds for many rows. Of few, it takes many components that each close in on a handful of
    rows; to `cross_validate` the choice in five folds, as that of the kernels' bandwidth, does not.
    """
    start = time.monotonic()
    standard = Standard.of(train)
    x = standard.forward(train)
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    best, least = None, math.inf
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for covariance, components in itertools.product(COVARIANCES, COMPONENTS):
            model = GaussianMixture(components, covariance_type=covariance, random_state=seed)
            try:
                if cross_validate:
                    scores = cross_val_score(model, x, cv=folds, error_score="raise")
                    criterion = -scores.mean()
                else:
                    criterion = model.fit(x).bic(x)
            except ValueError:  # fewer rows than components, or one collapsed; others may do
                continue
            if criterion < least:
                best, least = model, criterion
        if best is None:
            raise InputError(f"expected a mixture that fits the {len(x)} rows, found none")
        if cross_validate:
            best.fit(x)
        seconds = time.monotonic() - start
        log_density = standard.back(best.score_samples(standard.forward(test)))
    chosen = f"{best.n_components} components, {best.covariance_type}"
    return Outcome(log_density, seconds, chosen)


def spline_flow(train: np.ndarray, test: np.ndarray, seed: int, limit: float) -> Outcome:
    """An autoregressive neural spline flow with the defaults of zuko, for at most `limit` seconds.

    Held-out training rows tell when to stop; the weights that were best on them are kept.
    """
    try:
        import zuko
    except ImportError as error:
        raise InputError(
            "expected zuko for the spline flow, got no such package;"
            " install it with: pip install 'arcsm[bench]'"
        ) from error

    start = time.monotonic()
    standard = Standard.of(train)
    x = torch.from_numpy(standard.forward(train)).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = x[torch.randperm(len(x))]
        count = max(1, round(HELD_OUT * len(x)))
        held_out, rest = x[:count], x[count:]
        flow = zuko.flows.NSF(x.shape[1])
        chosen = _train(
            flow, rest, held_out, start + limit, BATCH if len(x) < LARGE else LARGE_BATCH
        )
    seconds = time.monotonic() - start
    points = torch.from_numpy(standard.forward(test)).float()
    log_density = standard.back(_log_density(flow, points).double().numpy())
    return Outcome(log_density, seconds, chosen)


def _train(
    flow: torch.nn.Module,
    rest: torch.Tensor,
    held_out: torch.Tensor,
    deadline: float,
    batch: int,
) -> str:
    """Train with Adam until patience or time runs out; say in words how it ended."""
    optimiser = torch.optim.Adam(flow.parameters(), lr=LEARNING_RATE)
    best, least, best_epoch, epoch = copy.deepcopy(flow.state_dict()), math.inf, 0, 0
    late, finite = False, True
    while epoch - best_epoch < PATIENCE and not late and finite:
        epoch += 1
        for rows in torch.randperm(len(rest)).split(batch):
            loss = -flow().log_prob(rest[rows]).mean()
            # A step on a loss that is not finite would leave no weights to go on with.
            finite = bool(loss.isfinite())
            if not finite:
                break
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            late = time.monotonic() >= deadline
            if late:
                break
        validation = -_log_density(flow, held_out).mean().item()
        if validation < least:
            best, least, best_epoch = copy.deepcopy(flow.state_dict()), validation, epoch
    flow.load_state_dict(best)
    end = "time limit" if late else "patience" if finite else "loss not finite"
    return f"epoch {best_epoch} of {epoch}, {end}"


@torch.no_grad()
def _log_density(flow: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([flow().log_prob(part) for part in x.split(2048)])
