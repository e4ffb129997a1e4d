"""What an experiment is: pieces of work that are run once each, and what is made of their data.

A piece is the least that is run in one go, one method with one seed for instance. Its raw data,
curves and counts, are kept as they are; metrics, pictures and the verdict are made from them
afterwards and can be made anew. So a run that was interrupted goes on where it stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = ("smoke", "cpu", "gpu", "paper")

# Raw data of a piece: what JSON can hold.
Raw = Mapping[str, Any]
Settings = Mapping[str, Any]


def _keep_silent(text: str) -> None:
    """Say nothing."""


def _accept(settings: Settings, pieces: "Sequence[Piece]") -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Claim:
    """What the paper says, in a sentence of ours, where it says so, and the number if it has one.

    `value` is to be compared with the metric `metric` of the same labels.
    """

    text: str
    source: str
    metric: str | None = None
    value: float | None = None
    unit: str = "1"
    labels: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Piece:
    """One piece of work: a name that no other piece of the run has, and what it is about.

    One that never uses a GPU may be run `anywhere`, beside pieces of another device. `depends_on`
    has what of the settings it depends on, if that is not all of them: while this stays as it is,
    so does the piece.
    """

    name: str
    labels: Mapping[str, Any]
    anywhere: bool = False
    depends_on: Settings | None = None


@dataclass(frozen=True)
class Place:
    """Where a piece is run, and how it tells how far it is: `progress(share)`, from 0 to 1.

    `tell(text)` sets a few words that stand beside the progress, a loss for instance. `jobs` pieces
    are run there at the same time. A `fresh` piece begins anew: what it has kept of a former run
    that was interrupted is discarded.
    """

    device: str
    progress: Callable[[float], None]
    tell: Callable[[str], None] = _keep_silent
    jobs: int = 1
    fresh: bool = False


@dataclass(frozen=True)
class Verdict:
    """Did what the paper claims, or what was aimed at, come out? A sentence with the numbers."""

    holds: bool | None  # None where the run does not tell
    text: str


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper, or beyond it.

    `budgets` has the settings of each budget: sizes, steps, seeds (under "seeds"); a budget that
    an experiment does not have is left out. `check` refuses what pieces would refuse after hours,
    data that are not there for instance, before the first of them is run. Pieces of an experiment
    that `measures_time` are never run side by side. Where `tells_of_some` is true, `metrics` and
    `figures` may be given some of the pieces, and tell what there is of them.
    """

    name: str
    title: str
    question: str
    claims: Sequence[Claim]
    budgets: Mapping[str, Settings]
    pieces: Callable[[Settings], Sequence[Piece]]
    run: Callable[[Settings, Piece, Place], Raw]
    metrics: Callable[[Settings, Mapping[str, Raw]], Sequence[Metric]]
    figures: Callable[[Settings, Mapping[str, Raw]], Mapping[str, "Figure"]]
    verdicts: Callable[[Settings, Sequence[Metric]], Sequence[Verdict]]
    check: Callable[[Settings, Sequence[Piece]], None] = _accept
    measures_time: bool = False
    tells_of_some: bool = False
