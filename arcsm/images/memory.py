"""When the memory of a device does not suffice: which batch would fit?"""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from arcsm.autoregressive import TrainableModel
from arcsm.errors import ArcsmError
from arcsm.sampling.batches import is_of_memory
from arcsm.train import TrainConfig

# What training keeps for each weight beside it and its gradient: two moments, two averages, and a
# copy while the averages are looked at.
_COPIES = 5


_Result = TypeVar("_Result")


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
    raise ArcsmError(
        f"expected memory on {model.device} for batches of {batch} images, got too little;"
        f" batch={fitting} would fit"
    )


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
