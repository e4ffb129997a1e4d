"""Two score heads on the same MADE in the same time: the paper's MLP, and the tanh sum we ship.

    python benchmarks/heads.py        # writes results/heads.json

The MLP takes [context, σ, x] and carries its derivative along by hand. The tanh sum makes K
coefficients from [context, σ] and evaluates x in closed form. Both sit in the same preconditioning
and are trained with the same settings for the same number of seconds, then judged on fresh rows by
the same probability flow, taken in many steps; the base density at σ_max is normalised on a grid.
The last column is the time of the scores of 200 conditionals on 257 points each.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcsm.conditional import Noise, TanhSumHead
from arcsm.conditional.head import HeadFamily
from arcsm.context import MADE
from arcsm.data import get_toy
from arcsm.model import ARCSM
from arcsm.results import Metric, current_commit, write_result
from arcsm.train import TrainConfig, fit


class MLPHead(nn.Module):
    """The paper's head: a small network on [context, σ, x], bounded features in its last layer."""

    def __init__(self, context_width: int, *, hidden: int = 64, depth: int = 3):
        super().__init__()
        self.context_width = context_width
        self.first = nn.Linear(context_width, hidden)
        self.noise = nn.Linear(8, hidden, bias=False)
        self.scalar = nn.Linear(1, hidden, bias=False)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 1))
        self.output = nn.Linear(hidden, 1)

    def forward(self, context: Tensor, sigma: Tensor) -> "MLPConditional":
        angles = sigma.log()[..., None] * torch.tensor([0.25, 0.5, 1.0, 2.0])
        embedded = self.noise(torch.cat([angles.sin(), angles.cos()], -1))
        return MLPConditional(self, self.first(context) + embedded, sigma)

    def family(self, context: Tensor) -> HeadFamily:
        return HeadFamily(self, context)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MLPConditional:
    """The conditional of an MLP head: value and tangent in x, layer by layer."""

    head: MLPHead
    start: Tensor
    sigma: Tensor

    def jet(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sigma = self.sigma[..., None]
        root = (1 + sigma.square()).sqrt()
        u = x / root
        h = self.start[..., None, :] + self.head.scalar(u[..., None])
        tangent = self.head.scalar.weight[:, 0].expand_as(h)
        for layer in self.head.layers:
            gate = torch.sigmoid(h)
            tangent = F.linear(gate * (1 + h * (1 - gate)) * tangent, layer.weight)
            h = layer(h * gate)
        bounded = torch.tanh(h)
        tangent = (1 - bounded.square()) * tangent
        value = self.head.output(bounded)[..., 0]
        derivative = F.linear(tangent, self.head.output.weight)[..., 0]
        return (value / sigma - u) / root, (derivative / sigma - 1) / root.square()


HEADS: dict[str, Callable[[int], nn.Module]] = {
    "MLP 64 × 3": lambda width: MLPHead(width, hidden=64, depth=3),
    "MLP 32 × 3": lambda width: MLPHead(width, hidden=32, depth=3),
    "tanh sum, 16 steps": lambda width: TanhSumHead(width, steps=16),
    "tanh sum, 24 steps": lambda width: TanhSumHead(width, steps=24),
}


@torch.no_grad()
def flow_log_prob(model: ARCSM, x: Tensor, steps: int = 256) -> Tensor:
    """Return log q by the flow in log σ, for any head: only scores are asked for."""
    z = (x - model.shift) / model.scale
    family = model.head.family(model.context(z))
    ladder = model.noise.ladder(steps + 1)[::-1]
    y, change = z[..., None], torch.zeros_like(z)[..., None]
    lower = family.at(ladder[0])
    for below, above in itertools.pairwise(ladder):
        upper, h = family.at(above), math.log(above / below)
        s, ds = lower.jet(y)
        s_up, ds_up = upper.jet(y - h * below**2 * s)
        y = y - h / 2 * (below**2 * s + above**2 * s_up)
        change = change - h / 2 * (below**2 * ds + above**2 * ds_up)
        lower = upper
    grid = torch.linspace(-30, 30, 601).expand(*z.shape, -1)
    score, _ = lower.jet(grid)
    width = 60 / 600
    zero = torch.zeros_like(z)[..., None]
    energy = torch.cat([zero, ((score[..., 1:] + score[..., :-1]) / 2 * width).cumsum(-1)], -1)
    log_z = energy.logsumexp(-1) + math.log(width)
    place = ((y[..., 0] + 30) / width).clamp(0, 599.99)
    left = place.long()
    # Between grid points the energy is a parabola fixed by the scores at both ends.
    offset = (place - left) * width
    ends = [score.gather(-1, (left + i)[..., None])[..., 0] for i in (0, 1)]
    base = energy.gather(-1, left[..., None])[..., 0]
    base = base + ends[0] * offset + (ends[1] - ends[0]) * offset.square() / (2 * width)
    return (base - log_z + change[..., 0]).sum(-1) - model.scale.log().sum()


def make_model(head: str, seed: int) -> ARCSM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        context = MADE(2, width=32, hidden=(64, 64, 64))
        return ARCSM(context, HEADS[head](32), Noise(3.0, 0.01))  # type: ignore[arg-type]


def steps_in(seconds: float, head: str, x: Tensor, config: dict[str, Any]) -> int:
    """Return how many steps a head takes in the given time on this machine."""
    probe = TrainConfig(**{**config, "steps": 60})
    fit(make_model(head, 0), x, probe)
    start = time.monotonic()
    fit(make_model(head, 0), x, probe)
    return max(200, round(seconds / (time.monotonic() - start) * 60))


def grid_time(model: ARCSM) -> float:
    """Return the milliseconds for the scores of 200 conditionals on 257 points."""
    times = []
    with torch.no_grad():
        context = model.context(torch.randn(100, 2)).flatten(0, 1)
        points = torch.linspace(-4, 4, 257).expand(200, -1)
        for _ in range(15):
            start = time.perf_counter()
            model.head.family(context).at(0.1).jet(points)
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="training time of each model")
    parser.add_argument("--toys", nargs="+", default=["checkerboard", "rings", "two-moons"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="results/heads.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    config: dict[str, Any] = {"seed": arguments.seed}
    metrics = []
    for name in arguments.toys:
        toy = get_toy(name)
        generator = torch.Generator().manual_seed(1000 + arguments.seed)
        x = toy.sample(20_000, generator=generator)
        fresh = toy.sample(4_000, generator=generator)
        for head in HEADS:
            steps = steps_in(arguments.seconds, head, x, config)
            model = make_model(head, arguments.seed)
            start = time.monotonic()
            fit(model, x, TrainConfig(**{**config, "steps": steps}))
            seconds = time.monotonic() - start
            likelihood = flow_log_prob(model, fresh)
            grid = grid_time(model)
            error = likelihood.std().item() / len(fresh) ** 0.5
            mean, labels = likelihood.mean().item(), {"toy": name, "head": head, "steps": steps}
            metrics += [
                Metric(
                    "held-out log-likelihood",
                    mean,
                    unit="nats",
                    n=len(fresh),
                    interval=(mean - 1.96 * error, mean + 1.96 * error),
                    labels=labels,
                ),
                Metric("training time", seconds, unit="s", n=1, labels=labels),
                Metric("200 × 257 grid", grid, unit="ms", n=15, labels=labels),
            ]
            print(
                f"{name:13s} {head:20s} {mean:8.4f} ± {error:.4f}  {steps} steps in"
                f" {seconds:.0f} s,  grid {grid:.1f} ms  (truth {toy.log_prob(fresh).mean():.4f})",
                flush=True,
            )
    write_result(
        arguments.output,
        experiment="heads",
        metrics=metrics,
        seeds=[arguments.seed],
        settings={"seconds": arguments.seconds, "threads": torch.get_num_threads()},
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
