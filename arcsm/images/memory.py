"""When the memory of a device does not suffice: which batch would fit?

Linux hands out more memory than there is, and ends without a word who comes to use it. So what is
certain not to fit into that of a CPU is refused beforehand; all else is tried.
"""

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from arcsm.autoregressive import TrainableModel
from arcsm.baselines import PixelMixture
from arcsm.errors import ArcsmError
from arcsm.sampling.batches import is_of_memory
from arcsm.train import TrainConfig

# What training keeps for each weight beside it and its gradient: two moments, two averages, and a
# copy while the averages are looked at.
_COPIES = 5
# So many numbers training keeps for each that a pass without gradients keeps: four to seven were
# found, and next to them lies what is certain.
_AT_LEAST, _AT_MOST = 3, 8
_BYTES = 4


_Result = TypeVar("_Result")


def check_weights_fit(weights: int, device: torch.device | str) -> None:
    """Refuse a network that is certain to be larger than the memory of a CPU."""
    room = _available(device)
    if room is not None and (2 + _COPIES) * _BYTES * weights > room:
        raise ArcsmError(
            f"expected memory for the weights of the network, at least {weights:,}, got too little;"
            " choose a PixelCNN++, or pass size=..., for example size=32, to make images smaller"
        )


def check_batch_fits(model: TrainableModel, rows: Tensor, config: TrainConfig) -> None:
    """Refuse batches that are certain to take more than the memory of a CPU."""
    room, batch = _available(model.device), min(config.batch_size, len(rows))
    if room is None:
        return
    network: Any = model  # which has streams of pixels, or a context network
    if isinstance(model, PixelMixture):
        numbers = int(network.streams.numbers_per_image)
    else:
        numbers = int(network.context.numbers_per_row)
    if room < _AT_LEAST * _BYTES * numbers:
        raise ArcsmError(
            "expected memory for one image at a time at least, got too little for images of"
            f" {model.dims:,} numbers; pass size=..., for example size=64, to make them smaller"
        )
    if room < batch * _AT_LEAST * _BYTES * numbers:
        raise _too_large(model.device, batch, max(1, room // (_AT_MOST * _BYTES * numbers)))


def _available(device: torch.device | str) -> int | None:
    """Return the bytes of memory that a CPU has to give, None if that is not known."""
    told = Path("/proc/meminfo")
    if torch.device(device).type != "cpu" or not told.exists():
        return None
    found = re.search(r"MemAvailable: +([0-9]+) kB", told.read_text())
    return None if found is None else 1024 * int(found[1])


def _too_large(device: torch.device, batch: int, fitting: int) -> ArcsmError:
    return ArcsmError(
        f"expected memory on {device} for batches of {batch} images, got too little;"
        f" batch={fitting} would fit"
    )


def within_memory(
    train: Callable[[], _Result],
    model: TrainableModel,
    rows: Tensor,
    config: TrainConfig,
    *,
    spread: bool,
) -> _Result:
    """Return what `train` does; if memory is wanting, say which batch of images would fit.

    `spread` says whether the loss is given jitter.
    """
    try:
        return train()
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
    # Outside of the handler, which keeps what was allocated alive.
    batch = min(config.batch_size, len(rows))
    fitting = largest_batch(lambda images: _try(model, rows, images, config, spread), batch)
    if fitting is None:
        raise ArcsmError(
            f"expected memory on {model.device} for one image at a time at least, got too little;"
            " choose a smaller network, or free some memory"
        )
    raise _too_large(model.device, batch, fitting)


def largest_batch(attempt: Callable[[int], None], batch: int) -> int | None:
    """Return the largest of batch/2, batch/4, …, 1 for which there is memory, or None."""
    while batch > 1:
        batch //= 2
        if _fits(attempt, batch):
            return batch
    return None


def _fits(attempt: Callable[[int], None], batch: int) -> bool:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        attempt(batch)
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        return False
    return True


def _try(
    model: TrainableModel,
    rows: Tensor,
    images: int,
    config: TrainConfig,
    spread: bool,
) -> None:
    """Take a step of training but for the change of weights, beside all that training keeps."""
    device = model.device
    weights = sum(parameter.numel() for parameter in model.parameters())
    kept = torch.empty(_COPIES * weights + rows.numel(), dtype=model.dtype, device=device)
    generator = torch.Generator(device).manual_seed(0)
    x = rows[:images].to(device, model.dtype)
    noise = model.draw_noise(images, generator=generator, **config.noise)
    noise = type(noise)(*(part.to(x.dtype) for part in noise))
    jitter = torch.zeros_like(x) if spread else None
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.bfloat16):
            terms = model.loss_terms(x, noise, jitter=jitter, **config.objective)
        terms.sum().backward()
        del kept
    finally:
        model.zero_grad(set_to_none=True)
