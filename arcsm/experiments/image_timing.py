"""What is timed of PixelCNN++: a step of training as the loop takes it, and the paper's sampler."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from arcsm.autoregressive import TrainableModel
from arcsm.conditional import annealed_langevin
from arcsm.conditional.recalibration import Recalibration
from arcsm.errors import InputError
from arcsm.experiments.experiment import Settings
from arcsm.experiments.work import Step, seconds
from arcsm.images import ImageModel, ImageSettings, PixelCells
from arcsm.images.networks import build_density
from arcsm.model import ARCSM
from arcsm.train.step import Batch, TrainStep

# As the training loop does on a GPU, compiled and replayed as a graph; or one operation at a time.
COMPILED, EAGER = "compiled", "eager"
_UNITS = (0.47, 0.25)  # mean and deviation of CIFAR-10's pixels


def make_model(settings: Settings, size: str, method: str, device: str, **told: Any) -> ImageModel:
    """Return a model of images with random weights, in the units of CIFAR-10."""
    height, width, channels = settings["shape"]
    shape = (height, width, channels)
    chosen = ImageSettings(network=size, method=method, options=settings["options"], **told)
    chosen = chosen.filled("cifar10", device)
    density = build_density(chosen, shape, name="cifar10", deviation=_UNITS[1])
    if isinstance(density, ARCSM):
        density.shift.fill_(_UNITS[0])
        density.scale.fill_(_UNITS[1])
        if chosen.recalibrate:  # what the held-out images say does not change the times
            density.recalibration = Recalibration()
    return ImageModel(density.to(device).eval(), shape, chosen, "cifar10")


def make_step(
    settings: Settings, size: str, method: str, *, batch: int, mode: str, device: str
) -> Step:
    """Return a function that takes one step of training on images that stay where they are."""
    model = make_model(settings, size, method, device)
    density = model.density
    assert isinstance(density, TrainableModel)
    config = replace(
        model.settings.training(batch), compile=mode == COMPILED, bfloat16=settings["bfloat16"]
    )
    density.train()
    generator = torch.Generator(device).manual_seed(0)
    levels = torch.randint(0, 256, (batch, model.dims), generator=generator, device=device)
    x = levels.float() / 255
    weight = torch.full((batch,), 1 / batch, device=device)
    spread = PixelCells() if isinstance(density, ARCSM) else None
    take_step = TrainStep(density, config)

    def step() -> None:
        noise = density.draw_noise(batch, generator=generator, **config.noise)
        jitter = None
        if spread is not None:
            below, above = spread(x)
            place = torch.rand(x.shape, generator=generator, device=x.device)
            jitter = (below + above) * place - below
        take_step(Batch(x, weight, None, noise, jitter, None), config.learning_rate)

    return step


def step_flops(settings: Settings, size: str, method: str, device: str) -> float:
    """Return the FLOPs of products and convolutions in a step, for each image."""
    images = settings["counted"]
    step = make_step(settings, size, method, batch=images, mode=EAGER, device=device)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / images


def product_flops(size: int, device: str, *, bfloat16: bool) -> float:
    """Return the FLOPs a second of a product of two square matrices, the best of ten."""
    kind = torch.bfloat16 if bfloat16 else torch.float32
    one, other = (torch.randn(size, size, device=device).to(kind) for _ in range(2))

    def product() -> None:
        torch.mm(one, other)

    product()
    return 2 * size**3 / min(seconds(product, device, inner=5) for _ in range(10))


def paper_seconds(
    settings: Settings, model: ImageModel, device: str, progress: Callable[[float], None]
) -> list[float]:
    """Return the seconds of the first scalars by the paper's scheme, but for the very first."""
    generator = torch.Generator(device).manual_seed(0)
    walk = paper_walk(
        model, settings["images"], steps=settings["langevin_steps"], generator=generator
    )

    def draw_next() -> None:
        next(walk)

    times = []
    for index in range(settings["scalars"] + 1):
        times.append(seconds(draw_next, device))
        progress((index + 1) / (settings["scalars"] + 1))
    return times[1:]


@torch.no_grad()
def paper_walk(
    model: ImageModel, images: int, *, steps: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "images scalars"]]:
    """Draw scalar after scalar as the paper does, and yield the images after each of them.

    Every level of the ladder has a network, here a copy of one, that is given the whole image for
    each scalar. In float32, not compiled; ε₀ = σ_L²/2.
    """
    first = model.density
    if not isinstance(first, ARCSM) or first.noise.levels is None:
        raise InputError(
            f"expected a model of scores on a ladder of noise levels, got {type(first).__name__};"
            " make it with noise='paper'"
        )
    ladder = first.noise.ladder()
    networks = [copy.deepcopy(first) for _ in ladder]
    x = first.empty_rows(images)
    for d in first.context.order:
        z = torch.randn(images, 1, generator=generator, dtype=x.dtype, device=x.device)
        for network, sigma in zip(networks, ladder, strict=True):
            context = network.context(network.context_inputs(x))[:, d]
            z = annealed_langevin(
                network.head.family(context),
                z,
                [sigma],
                steps=steps,
                step_size=sigma**2 / 2,
                generator=generator,
            )
        x[:, d] = z[:, 0] * first.scale[d] + first.shift[d]
        yield x
