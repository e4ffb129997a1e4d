"""The first half of the demonstration: a density in two dimensions, where the truth is known."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from arcsm.conditional import Noise
from arcsm.data import Toy
from arcsm.demo.rivals import Rival, gaussian_mixture, kernel_density
from arcsm.model import ARCSM
from arcsm.progress import Reporter
from arcsm.train import History, TrainConfig, fit


@dataclass(frozen=True)
class ToySizes:
    """How much of everything."""

    rows: int = 20_000
    held_out: int = 4_000
    steps: int = 2_000
    hidden: tuple[int, ...] = (128, 128, 128)
    shown: int = 4_000  # points in the pictures of data and samples
    grid: int = 200  # cells on a side of the density maps
    components: tuple[int, ...] = (10, 20, 40, 80)
    bandwidths: tuple[float, ...] = tuple(np.geomspace(0.02, 0.2, 9).tolist())
    scored: int = 400  # rows of each fold on which a bandwidth is judged


@dataclass(frozen=True)
class Slice:
    """q(x₂ | x₁) at one x₁: the density and its score on the points x₂, learned and true.

    The true score is NaN where the truth has no mass.
    """

    x1: float
    x2: Float[ndarray, "points"]
    density: Float[ndarray, "points"]
    truth: Float[ndarray, "points"]
    score: Float[ndarray, "points"]
    true_score: Float[ndarray, "points"]


@dataclass(frozen=True)
class ToyResult:
    """All that the page shows of the toy; densities on a grid have x₂ upwards along axis 0."""

    name: str
    training_rows: int
    reach: float  # pictures show [−reach, reach]² around the centre
    centre: tuple[float, float]
    data: Float[ndarray, "rows 2"]
    samples: Float[ndarray, "rows 2"]
    truth: Float[ndarray, "grid grid"]
    density: Float[ndarray, "grid grid"]
    slices: list[Slice]
    history: History
    settings: dict[str, object]
    true_log_prob: Float[ndarray, "held_out"]
    log_prob: Float[ndarray, "held_out"]
    rivals: list[Rival]


def run_toy(toy: Toy, sizes: ToySizes, seed: int, reporter: Reporter) -> ToyResult:
    """Train on `toy` and look at what was learned from every side."""
    # Other rows than those on which the settings were chosen (those of the plain seed).
    generator = torch.Generator().manual_seed(1_000_003 + seed)
    rows = toy.sample(sizes.rows, generator=generator)
    held_out = toy.sample(sizes.held_out, generator=generator)
    model = ARCSM.made(2, hidden=sizes.hidden, noise=Noise(2.0, 0.02), seed=seed)
    config = TrainConfig(
        steps=sizes.steps,
        # Large batches and long strides: the best that was found for a training this short.
        batch_size=2048,
        learning_rate=1.5e-2,
        warmup=sizes.steps // 10,
        evaluate_every=max(1, sizes.steps // 60),
        seed=seed,
    )
    with reporter.training(f"training on {toy.name}", sizes.steps) as progress:
        history = fit(model, rows, config, progress=progress)
    with reporter.stage(f"density and samples of {toy.name}"):
        log_prob = model.log_prob(held_out)
        samples = model.sample(sizes.shown, generator=generator)
        centre = (rows.amax(0) + rows.amin(0)) / 2
        reach = 1.05 * (rows - centre).abs().amax().item()
        maps = _maps(toy, model, centre, reach, sizes.grid)
        slices = [
            _slice(toy, model, rows[:, 0].quantile(share).item(), centre[1].item(), reach)
            for share in (0.2, 0.5, 0.72)
        ]
    with reporter.stage(f"mixture and kernel density of {toy.name}"):
        plain, plain_held_out = rows.double().numpy(), held_out.double().numpy()
        rivals = [
            gaussian_mixture(
                plain, plain_held_out, components=sizes.components, kinds=("full",), seed=seed
            ),
            kernel_density(plain, plain_held_out, bandwidths=sizes.bandwidths, scored=sizes.scored),
        ]
    return ToyResult(
        toy.name,
        len(rows),
        reach,
        (centre[0].item(), centre[1].item()),
        rows[: sizes.shown].numpy(),
        samples.numpy(),
        *maps,
        slices,
        history,
        {"model": model.config, "training": config},
        toy.log_prob(held_out).numpy(),
        log_prob.numpy(),
        rivals,
    )


def _maps(
    toy: Toy, model: ARCSM, centre: torch.Tensor, reach: float, cells: int
) -> tuple[ndarray, ndarray]:
    """Return the true and the learned density in the middles of a grid's cells."""
    place = (torch.arange(cells) + 0.5) / cells * 2 - 1
    x1, x2 = (centre[d] + reach * place for d in (0, 1))
    columns = torch.stack([x1, torch.zeros_like(x1)], 1)
    # One conditional of x₁, and one of x₂ for each column of the grid.
    first = model.conditional(columns[:1], 0).log_prob(x1[None])[0]
    second = model.conditional(columns, 1).log_prob(x2.expand(cells, cells))
    points = torch.stack(torch.meshgrid(x1, x2, indexing="ij"), -1).view(-1, 2)
    truth = toy.log_prob(points).view(cells, cells)
    return truth.exp().T.numpy(), (first[:, None] + second).exp().T.numpy()


def _slice(toy: Toy, model: ARCSM, x1: float, centre: float, reach: float) -> Slice:
    x2 = centre + reach * torch.linspace(-1, 1, 801)
    points = torch.stack([torch.full_like(x2, x1), x2], 1)
    density = model.conditional(points[:1], 1).log_prob(x2[None])[0].exp()
    truth = toy.log_prob(points.double()).exp()
    truth = truth / torch.trapezoid(truth, x2.double())
    with torch.no_grad():
        score, _ = model.conditional_scores(points)
    with np.errstate(divide="ignore", invalid="ignore"):
        true_score = np.gradient(np.log(truth.numpy()), x2.double().numpy())
    true_score[~np.isfinite(true_score)] = np.nan
    return Slice(x1, x2.numpy(), density.numpy(), truth.numpy(), score[:, 1].numpy(), true_score)
