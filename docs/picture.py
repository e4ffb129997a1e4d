"""Draw docs/assets/overview.png: data, the scores of one slice, the density, samples.

python docs/picture.py
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from arcsm import ARCSM, TrainConfig, fit, get_toy
from arcsm.conditional import Noise
from arcsm.plots.canvas import save_figure
from arcsm.plots.curves import density_map
from arcsm.plots.palette import DATA, MODEL, MUTED, SCORE

REACH, SLICE, GRID = 4.4, 0.7, 260
ASSETS = Path(__file__).parent / "assets"


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    toy = get_toy("pinwheel")
    rows = toy.sample(20_000, generator=generator)
    model = ARCSM.made(2, hidden=(128, 128, 128), steps=24, noise=Noise(2.0, 0.02), seed=1)
    fit(model, rows, TrainConfig(steps=2000, batch_size=1024, learning_rate=7e-3, seed=0))
    draw(model, rows, generator)


@torch.no_grad()
def draw(model: ARCSM, rows: torch.Tensor, generator: torch.Generator) -> None:
    """Draw the four panels."""
    figure = Figure(figsize=(13.2, 3.55), layout="constrained")
    data, scores, density, samples = figure.subplots(1, 4, width_ratios=(1, 1.25, 1, 1))
    line = torch.linspace(-REACH, REACH, 400)
    at = torch.stack([torch.full_like(line, SLICE), line], 1)

    data.scatter(*rows[:4000].T, s=1.4, color=DATA, linewidths=0)
    data.axvline(SLICE, color=SCORE, linewidth=1.1, linestyle="--")
    data.set_title("rows")

    levels = (1.0, 0.3, 0.1)
    for sigma, strength in zip(levels, (0.3, 0.55, 1.0), strict=True):
        found = model.conditional_scores(at, sigma=sigma)[0][:, 1]
        scores.plot(line, found, color=SCORE, alpha=strength, label=f"σ = {sigma:g}")
    scores.axhline(0, color=MUTED, linewidth=0.6)
    scores.set_ylim(-16, 16)
    scores.set_xlabel("x₂")
    scores.set_title(f"conditional scores at x₁ = {SLICE:g}")
    scores.legend(frameon=False, fontsize=8, loc="lower left")
    q = scores.twinx()
    log_q = model.conditional(at[:1], 1).log_prob(line[None])[0]
    q.fill_between(line, log_q.exp(), color=MODEL, alpha=0.25, linewidth=0)
    q.set_ylim(0, 2.2 * log_q.exp().max().item())
    q.set_yticks([])
    scores.annotate("q(x₂ | x₁)", (0.97, 0.05), xycoords="axes fraction", ha="right", color=MODEL)

    side = torch.linspace(-REACH, REACH, GRID)
    grid = torch.cartesian_prod(side, side).flip(1)
    density_map(
        model.log_prob(grid).reshape(GRID, GRID), (-REACH, REACH, -REACH, REACH), ax=density
    )
    density.axvline(SLICE, color="white", linewidth=0.9, linestyle="--")
    density.set_title("the density, exact")

    drawn = model.sample(4000, generator=generator)
    samples.scatter(*drawn.T, s=1.4, color=MODEL, linewidths=0)
    samples.set_title("samples of that density")
    for panel in (data, density, samples):
        panel.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xticks=[], yticks=[])
        panel.set(xlabel="", ylabel="")
    ASSETS.mkdir(exist_ok=True)
    save_figure(figure, ASSETS / "overview.png", dpi=110)


if __name__ == "__main__":
    main()
