"""The rows of a run: which are trained on, which are held out, and which come in a step."""

import functools
import hashlib
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcsm.train.config import TrainConfig

# Rows to how far below and above them targets are spread; rows and a generator to other rows.
Spread = Callable[[Tensor], tuple[Tensor, Tensor]]
Augment = Callable[[Tensor, torch.Generator], Tensor]


def seeded_generator(
    seed: int, purpose: str, index: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a generator that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def split_rows(
    count: int, config: TrainConfig
) -> tuple[Int[Tensor, "training"], Int[Tensor, "held_out"]]:
    """Return which of so many rows (of positive weight) are trained on, and which are held out."""
    shuffled = torch.randperm(count, generator=seeded_generator(config.seed, "split"))
    # Two rows at least remain: one has no spread.
    held_out = min(round(config.validation * count), count - 2)
    return shuffled[held_out:], shuffled[:held_out]


class TrainingRows:
    """The chosen rows on the model's device, with their weights and conditions."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        condition: Tensor | None,
        spread: Tensor | None,
        rule: Spread | None,
        chosen: Int[Tensor, "chosen"],
        device: torch.device,
        dtype: torch.dtype,
        observed: Tensor | None = None,
    ):
        self.rows = chosen  # where each row stands in the data as it was given
        self.x = x[chosen.to(x.device)].to(device, dtype)
        self.weight = weight[chosen].to(device, dtype)
        self.condition = (
            None if condition is None else condition[chosen.to(condition.device)].to(device, dtype)
        )
        self.spread = None if spread is None else spread[chosen.to(spread.device)].to(device, dtype)
        self.observed = (
            None if observed is None else observed[chosen.to(observed.device)].to(device)
        )
        self._rule = rule

    def jitter(
        self,
        x: Float[Tensor, "rows dims"],
        rows: Int[Tensor, "rows"],
        generator: torch.Generator,
        share: slice,
    ) -> Float[Tensor, "share dims"] | None:
        """Draw how far from x the targets of a batch lie; return this process's share."""
        if self._rule is not None:
            below, above = self._rule(x)
        elif self.spread is not None:
            below = above = self.spread[rows]
        else:
            return None
        place = torch.rand(x.shape, generator=generator, device=x.device).to(x.dtype)
        return ((below + above) * place - below)[share]


def batch_rows(
    count: int, batch: int, step: int, seed: int, device: torch.device
) -> Int[Tensor, "batch"]:
    """Return the rows of a step: epochs are permutations, cut into whole batches."""
    per_epoch = count // batch
    epoch, place = divmod(step, per_epoch)
    return _permutation(count, epoch, seed, device)[place * batch : (place + 1) * batch]


@functools.lru_cache(maxsize=1)
def _permutation(count: int, epoch: int, seed: int, device: torch.device) -> Int[Tensor, "count"]:
    """Return the rows of an epoch, drawn on the CPU, so that they are the same on any device.

    They are moved once: a copy at every step would make the host wait for the device.
    """
    return torch.randperm(count, generator=seeded_generator(seed, "epoch", epoch)).to(device)
