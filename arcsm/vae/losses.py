"""What is noted of losses while nobody looks: sums on the device, read at the next record."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from arcsm.errors import NonFiniteLossError
from arcsm.vae.estimators import diverged, has_diverged


class Losses:
    """Losses of the score estimator and of the autoencoder of each run, since the last record.

    Of each the sum is kept, and for how many updates that was finite. A sum that is not finite
    stays so: these are the updates before the first bad one.
    """

    def __init__(self, runs: int, device: torch.device | str):
        names = ("estimator", "autoencoder")
        self.totals = {name: torch.zeros(runs, device=device) for name in names}
        self.finite = {name: torch.zeros(runs, dtype=torch.long, device=device) for name in names}

    def note(self, name: str, losses: Tensor) -> None:
        """Add the losses of an update."""
        self.totals[name].add_(losses)
        self.finite[name].add_(self.totals[name].isfinite())

    def forget(self) -> None:
        """Begin anew."""
        for of in (self.totals, self.finite):
            for noted in of.values():
                noted.zero_()

    def means(
        self, first: int, last: int, *, updates: int, dims: int, estimator: str
    ) -> tuple[Sequence[float], Sequence[float]]:
        """Return the mean losses of the estimator, and of the autoencoder, over steps.

        With so many `updates` of the estimator in each. Where one has diverged, its name and the
        step are told instead: that of the first, as the other one follows.
        """
        each = {"estimator": updates, "autoencoder": 1}
        found = {name: total.tolist() for name, total in self.totals.items()}
        bad: dict[str, int] = {}
        for name, totals in found.items():
            runs = zip(totals, self.finite[name].tolist(), strict=True)
            steps = [first + good // each[name] for total, good in runs if not math.isfinite(total)]
            if steps:
                bad[name] = min(steps)
        if bad:
            # In the same step it is the estimator, whose scores are in the autoencoder's loss.
            name = min(bad, key=lambda one: bad[one])
            what = diverged if name == "estimator" else _autoencoder_diverged
            raise what(estimator, bad[name])
        scores, losses = (
            [total / (each[name] * (last - first + 1)) for total in totals]
            for name, totals in found.items()
        )
        if any(has_diverged(value, dims) for value in scores):
            raise diverged(estimator, last)
        return scores, losses

    def state(self) -> dict[str, Tensor]:
        """Return all tensors, by name."""
        kept = {"totals": self.totals, "finite": self.finite}
        return {f"{what}/{name}": value for what, of in kept.items() for name, value in of.items()}


def _autoencoder_diverged(name: str, step: int) -> NonFiniteLossError:
    return NonFiniteLossError(
        f"the autoencoder trained by {name} diverged at step {step}: its loss is not a finite"
        " number; lower the learning rate, or look for NaN in what the decoder says"
    )
