"""Which column makes a row unusual: the surprise of each column given all the others.

The density of a column given all others is that of the row over its integral along the column. So
it can be had from a chain in any order, by putting other values v into the column:

    surprise_d(x) = log mean_v q(x with x_d = v) − log q(x)

over values v of the column that are typical of it, taken from the training rows. It is above 0 if
the other columns would sit better with another value, by so many nats. It has no units, and does
not depend on how wide a column is by itself: for a normal row it is about 0 where a column has
nothing to do with the others, and below 0 where they determine it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from arcsm.model import ARCSM
from arcsm.tabular import TabularModel
from arcsm.tasks.detect.passes import smoothed_terms

# Values put into a column, and the noise at which rows are compared, in standard deviations: with
# less of it the values would have to lie closer to be sure to meet a narrow conditional.
VALUES, SMOOTHING = 24, 0.1

# Rows with other values that are evaluated at one time.
_ROWS = 32_768


def typical_values(model: TabularModel, points: np.ndarray) -> dict[str, np.ndarray]:
    """Return for each column of the chain `VALUES` of its values (values, scalars), evenly ranked.

    Values that are frequent come several times, and so weigh as much as they should.
    """
    found = {}
    for name in model.chained:
        own = model.columns.scalars_of(name)
        values = points[:, own.start : own.stop]
        in_order = values[np.lexsort(values.T[::-1])]
        ranks = (np.arange(VALUES) + 0.5) / VALUES * len(values)
        found[name] = in_order[ranks.astype(np.int64)]
    return found


def column_surprise(
    model: TabularModel,
    points: np.ndarray,
    values: Mapping[str, np.ndarray],
    chains: Sequence[ARCSM] | None = None,
) -> np.ndarray:
    """Return the surprise of every column (rows, columns), the mean over the chains of `model`.

    `chains` are these by default; in another precision, say, they can be passed.
    `points` are encoded rows and `values` those of `typical_values`. Of a constant or a copy the
    surprise is 0: whether it is as it should be is not for the chain to say.
    """
    surprise = np.zeros((len(points), len(model.columns.names)))
    chains = model.members if chains is None else chains
    for chain in chains:
        rows = torch.from_numpy(points).to(chain.device, chain.dtype)
        here = smoothed_terms(chain, rows, SMOOTHING)
        for name in model.chained:
            own = model.columns.scalars_of(name)
            there = torch.from_numpy(values[name]).to(rows)
            found = _surprise(chain, rows, here, list(own), there)
            surprise[:, model.columns.names.index(name)] += found.double().cpu().numpy()
    return surprise / len(chains)


def _surprise(chain: ARCSM, rows: Tensor, here: Tensor, own: list[int], values: Tensor) -> Tensor:
    """Return the surprise of the scalars `own` in one chain; `here` are the terms of the rows."""
    order = chain.context.order
    # What comes before the column does not depend on it.
    changed = order[min(order.index(scalar) for scalar in own) :]
    found = []
    for some in rows.split(max(1, _ROWS // len(values))):
        others = some.repeat_interleave(len(values), 0)
        others[:, own] = values.repeat(len(some), 1)
        terms = smoothed_terms(chain, others, SMOOTHING, only=changed)
        found.append(terms.sum(-1).view(len(some), len(values)).logsumexp(-1))
    return torch.cat(found) - math.log(len(values)) - here[:, list(changed)].sum(-1)
