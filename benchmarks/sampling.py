"""How fast samples are drawn, side by side, and whether they are as good.

    python benchmarks/sampling.py                 # on the CPU, writes results/sampling-cpu.json
    python benchmarks/sampling.py --device cuda   # on a GPU,   writes results/sampling-cuda.json

A MADE over the 784 pixels of MNIST (dequantised), trained for `--train-seconds`, draws one batch:

- `auto`: the flow density along the order, the context network evaluated incrementally; and the
  same compiled (CPU) or captured as a graph (GPU), and by fixed-point iteration;
- (a) the paper's scheme: L = 10 stage networks, for each scalar a full pass through each of them
  and T = 20 Langevin steps at each level (the stages are copies of the one network, whose head
  takes σ: the arithmetic is that of ten trained apart);
- (b) one network for all levels, a full pass for each scalar, the same Langevin steps, eager;
- (c) the same with the 200 Langevin steps captured as one graph (GPU) or compiled (CPU).

Quality: samples of `auto` and of the Langevin dynamics of (b), beside held-out images: the energy
distance, and the Kolmogorov-Smirnov distance of each pixel. Besides: the context network's share
of a walk against one full pass; and rows per second beside an autoregressive neural spline flow
(zuko) of as many parameters in 6, 43 and 784 dimensions.
"""

import argparse
import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import ks_2samp
from torch import Tensor

from arcsm.conditional import Noise, TanhSum
from arcsm.conditional.flow import fewest_steps
from arcsm.context.protocol import ContextCursor, ContextNetwork
from arcsm.data import dequantise, load_images
from arcsm.model import ARCSM
from arcsm.results import Metric, current_commit, write_result
from arcsm.sampling import Draw, solve_fixed_point
from arcsm.sampling.chain import Request
from arcsm.staged import StagedARCSM
from arcsm.threads import limited_threads
from arcsm.train import TrainConfig, fit

LEVELS, STEPS = 10, 20  # L and T of the paper
PIXELS = 784


class FullPassCursor(ContextCursor):
    """A walk without memory: every context costs a full pass."""

    def __init__(self, network: ContextNetwork, batch: int):
        self._network = network
        self._x = next(network.parameters()).new_zeros(batch, network.dims)

    def context(self) -> Tensor:
        return self._network(self._x)[:, self._network.order[self.position]]

    def push(self, value: Tensor) -> None:
        self._x[:, self._network.order[self.position]] = value
        self.position += 1


class FusedLangevin:
    """The Langevin steps of all levels as one graph (GPU), or compiled level by level (CPU)."""

    def __init__(self, model: ARCSM, rows: int):
        self._model, self._rows = model, rows
        self._ladder = model.noise.ladder(LEVELS)
        self._size = self._ladder[-1] ** 2 / 2
        # What a graph reads has to lie on the device already.
        self._sigma = model.shift.new_tensor(self._ladder)[:, None]
        self._epsilon = self._size * (self._sigma[:, 0] / self._ladder[-1]).square()
        self._level = torch.compile(self._steps_of_level, fullgraph=True, dynamic=False)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._context = model.shift.new_zeros(rows, model.head.context_width)
        self._drawn = model.shift.new_zeros(rows, 1)

    def __call__(self, context: Tensor) -> Tensor:
        self._context.copy_(context)
        if not context.is_cuda:
            return self._all_levels()
        if self._graph is None:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._all_levels()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._drawn.copy_(self._all_levels())
        self._graph.replay()
        return self._drawn

    def _all_levels(self) -> Tensor:
        x = torch.randn_like(self._drawn)
        levels = self._model.head(self._context[None], self._sigma).unstack()
        for epsilon, conditional in zip(self._epsilon, levels, strict=True):
            noise = torch.randn(STEPS, *x.shape, device=x.device)
            x = self._level(conditional, x, epsilon, noise)
        return x

    @staticmethod
    def _steps_of_level(conditional: TanhSum, x: Tensor, epsilon: Tensor, noise: Tensor) -> Tensor:
        for z in noise.unbind():
            x = x + epsilon / 2 * conditional.score(x) + epsilon.sqrt() * z
        return x


@torch.no_grad()
def langevin_walk(model: ARCSM, rows: int, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """Walk along the order with a full pass for each scalar."""
    x = model.empty_rows(rows)
    cursor = FullPassCursor(model.context, rows)
    for d in model.context.order:
        x[:, d] = draw(cursor.context())[:, 0] * model.scale[d] + model.centre(x, d)
        cursor.push(model.context_input(x[:, d], d))
    return x


def without_memory(model: ARCSM) -> ARCSM:
    """Return a copy whose walks make a full pass for each scalar."""
    slow = copy.deepcopy(model)
    slow.context.cursor = lambda batch, condition=None: FullPassCursor(  # type: ignore[method-assign]
        slow.context, batch
    )
    return slow


def mnist(part: str, seed: int) -> Tensor:
    """Return the images as rows in [0, 1), dequantised by uniform noise."""
    return dequantise(load_images("mnist", part, download=False).pixels, seed=seed)


def trained_model(arguments: argparse.Namespace) -> tuple[ARCSM, float]:
    noise = Noise(3.0, arguments.sigma_min)
    model = ARCSM.made(
        PIXELS,
        hidden=(arguments.hidden,) * 3,
        noise=noise,
        flow_steps=fewest_steps(noise),
        seed=0,
    ).to(arguments.device)
    started = time.monotonic()
    fit(
        model,
        mnist("train", 0),
        TrainConfig(
            steps=200_000,
            batch_size=arguments.batch,
            learning_rate=arguments.learning_rate,
            max_seconds=arguments.train_seconds,
            validation=0.02,
            evaluate_every=500,
            compile=arguments.device == "cuda",
        ),
    )
    return model, time.monotonic() - started


def timed(function: Callable[[], Any], device: str, *, repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def schemes(model: ARCSM, arguments: argparse.Namespace) -> dict[str, Callable[[], Tensor]]:
    """Return the ways to draw one batch, the slow ones last."""
    rows, device = arguments.rows, arguments.device
    generator = torch.Generator(device).manual_seed(1)
    slow = without_memory(model)
    ladder = Noise(model.noise.sigma_max, model.noise.sigma_min, levels=LEVELS)
    stages = []
    for _ in range(LEVELS):
        stage = without_memory(model)
        stage.noise = ladder
        stages.append(stage)
    staged = StagedARCSM(stages)
    fused = FusedLangevin(model, rows)
    slow.noise = ladder
    ways = {
        "auto": lambda: model.sample(rows, generator=generator),
        "auto, eager": lambda: model.sample(rows, generator=generator, compile=False),
        "auto, jacobi": lambda: model.sample(rows, generator=generator, solver="jacobi"),
        "auto, gauss-seidel": lambda: model.sample(
            rows, generator=generator, solver="gauss-seidel", block=arguments.block
        ),
        "(c) langevin fused, full passes": lambda: langevin_walk(model, rows, fused),
        "(b) langevin, full passes": lambda: slow.sample(
            rows, generator=generator, method="langevin", langevin_steps=STEPS
        ),
        "(a) staged langevin, full passes": lambda: staged.sample(
            rows, generator=generator, langevin_steps=STEPS
        ),
    }
    if device == "cpu":
        ways["auto, compiled"] = lambda: model.sample(rows, generator=generator, compile=True)
    return ways


def measure_schemes(model: ARCSM, arguments: argparse.Namespace) -> Iterator[list[Metric]]:
    """Time one way to draw after the other; yield what is known of each."""
    labels = {"D": PIXELS, "rows": arguments.rows, "device": arguments.device}
    seconds = {}
    table = Table(title=f"One batch of {arguments.rows} × {PIXELS}, {arguments.device}")
    for name in ("scheme", "seconds", "times auto"):
        table.add_column(name, justify="left" if name == "scheme" else "right")
    ways = schemes(model, arguments)
    for name in (name for name in ways if name.startswith(("auto", "(c)"))):
        if any(name.startswith(chosen) for chosen in arguments.schemes):
            ways[name]()  # compiles, captures
    for name, way in ways.items():
        if not any(name.startswith(chosen) for chosen in arguments.schemes):
            continue
        repeats = arguments.repeats if name in ("auto", "auto, eager", "auto, compiled") else 1
        seconds[name] = timed(way, arguments.device, repeats=repeats)
        median = statistics.median(seconds[name])
        spread = statistics.stdev(seconds[name]) if repeats > 1 else None
        own = {**labels, "scheme": name}
        ratio = median / statistics.median(seconds["auto"])
        table.add_row(name, f"{median:.3f}", f"{ratio:.1f}")
        Console(width=100).print(f"{name}: {median:.3f} s, {ratio:.1f} × auto")
        yield [
            Metric("time of a batch", median, unit="s", n=repeats, spread=spread, labels=own),
            Metric("time / time of auto", ratio, unit="1", n=repeats, labels=own),
        ]
    Console(width=100).print(table)


@torch.no_grad()
def fixed_points(model: ARCSM, arguments: argparse.Namespace) -> list[Metric]:
    """Count the passes of fixed-point sampling, and compare its rows with those of the walk."""
    uniform = torch.rand(arguments.rows, PIXELS, device=arguments.device)
    walked = model.sample(arguments.rows, uniform=uniform, compile=False)
    metrics = []
    for solver, block in (("jacobi", None), ("gauss-seidel", arguments.block)):
        request = Request(arguments.rows, uniform, None, None)
        found = solve_fixed_point(model, request, Draw(solver=solver, block=block))
        off = (found.x - walked).abs().amax().item()
        labels = {"D": PIXELS, "rows": arguments.rows, "device": arguments.device}
        labels |= {"scheme": f"auto, {solver}", "block": block}
        metrics += [
            Metric("passes of the context network", found.passes, unit="1", n=1, labels=labels),
            Metric(
                "largest difference from the sequential walk",
                off,
                unit="1",
                n=uniform.numel(),
                labels=labels,
            ),
        ]
        print(f"{solver}: {found.passes} passes, off by {off:.2g}")
    return metrics


@torch.no_grad()
def context_share(model: ARCSM, arguments: argparse.Namespace) -> list[Metric]:
    """Time the context network alone: a whole walk against one full pass of the same batch."""
    x = torch.randn(arguments.rows, PIXELS, device=arguments.device)

    def walk() -> None:
        with limited_threads(1):  # as samples of so few rows are drawn
            cursor = model.context.cursor(arguments.rows)
            for d in model.context.order:
                cursor.context()
                cursor.push(x[:, d])

    ratios = []
    for _ in range(arguments.repeats):
        (one,) = timed(lambda: model.context(x), arguments.device, repeats=1)
        (all_steps,) = timed(walk, arguments.device, repeats=1)
        ratios.append(all_steps / one)
    ratio = statistics.median(ratios)
    print(f"context network: a walk takes {ratio:.2f} full passes")
    return [
        Metric(
            "context of a walk / one full pass",
            ratio,
            unit="1",
            n=len(ratios),
            spread=statistics.stdev(ratios),
            labels={"D": PIXELS, "rows": arguments.rows, "device": arguments.device},
        )
    ]


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Return 2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖, unbiased."""

    def within(z: Tensor) -> Tensor:
        return torch.cdist(z, z).sum() / (len(z) * (len(z) - 1))

    return (2 * torch.cdist(x, y).mean() - within(x) - within(y)).item()


def quality(model: ARCSM, arguments: argparse.Namespace) -> list[Metric]:
    """Compare samples of the two dynamics with held-out images, and those with each other."""
    count, device = arguments.quality_rows, arguments.device
    generator = torch.Generator(device).manual_seed(2)
    # With the noise σ_min that every model of it is smoothed by.
    held_out = mnist("test", 1).to(device)
    held_out = held_out[torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))]
    noise = torch.randn(held_out.shape, generator=generator, device=device)
    held_out = held_out + model.noise.sigma_min * model.scale * noise
    reference, other = held_out[:count], held_out[count : 2 * count]
    model = copy.deepcopy(model)
    samples = {
        "held-out images": other,
        "auto": model.sample(count, generator=generator),
        "langevin": model.sample(
            count, generator=generator, method="langevin", langevin_steps=STEPS
        ),
    }
    metrics = []
    for name, x in samples.items():
        distance = energy_distance(x, reference)
        ks = [
            ks_2samp(*(part[:, d].cpu().numpy() for part in (x, reference))) for d in range(PIXELS)
        ]
        mean = float(np.mean([test.statistic for test in ks]))
        rejected = float(np.mean([test.pvalue < 0.01 for test in ks]))
        labels = {"sampler": name, "device": device}
        for what, value, n in (
            ("energy distance to held-out images", distance, len(x)),
            ("mean KS distance of a pixel", mean, PIXELS),
            ("share of pixels rejected by KS at 1 %", rejected, PIXELS),
        ):
            metrics.append(Metric(what, value, unit="1", n=n, labels=labels))
        print(f"{name}: energy distance {distance:.4f}, KS {mean:.4f}, rejected {rejected:.2f}")
    return metrics


def spline_flow(dims: int, parameters: int) -> torch.nn.Module:
    """Return zuko's autoregressive neural spline flow with at least so many parameters."""
    import zuko

    width = 8
    while True:
        flow = zuko.flows.NSF(dims, transforms=3, hidden_features=(width, width))
        if sum(p.numel() for p in flow.parameters()) >= parameters:
            return flow
        width = int(width * 1.02) + 1


def throughput(arguments: argparse.Namespace) -> list[Metric]:
    """Rows per second beside zuko's autoregressive neural spline flow of as many parameters."""
    device, metrics = arguments.device, []
    for dims in arguments.throughput_dims:
        noise = Noise()
        model = ARCSM.made(dims, noise=noise, flow_steps=fewest_steps(noise), seed=0).to(device)
        parameters = sum(p.numel() for p in model.parameters())
        flow = spline_flow(dims, parameters).to(device)
        sizes = arguments.throughput_rows if dims < 100 else arguments.throughput_rows[:1]
        for rows in sizes:
            ways: dict[str, Callable[[], Any]] = {
                "arcsm": functools.partial(model.sample, rows),
                "zuko NSF": functools.partial(_sample_flow, flow, rows),
            }
            if device == "cpu":
                ways["arcsm, compiled"] = functools.partial(model.sample, rows, compile=True)
            for way in ways.values():
                way()
            repeats = arguments.repeats if dims < 100 else 2
            # One after the other, again and again: what else the machine does falls on all.
            rounds = [
                {name: timed(way, device, repeats=1)[0] for name, way in ways.items()}
                for _ in range(repeats)
            ]
            labels = {"D": dims, "rows": rows, "device": device, "parameters": parameters}
            for name in ways:
                speed = rows / statistics.median(seconds[name] for seconds in rounds)
                ratio = statistics.median(seconds["zuko NSF"] / seconds[name] for seconds in rounds)
                own = {**labels, "model": name}
                metrics += [
                    Metric("rows per second", speed, unit="1/s", n=repeats, labels=own),
                    Metric("speed / speed of zuko NSF", ratio, unit="1", n=repeats, labels=own),
                ]
                print(f"D = {dims}, {rows} rows: {name}, {speed:,.0f} rows/s, {ratio:.2f} × NSF")
    return metrics


@torch.no_grad()
def _sample_flow(flow: torch.nn.Module, rows: int) -> Tensor:
    return flow().sample((rows,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=PIXELS)
    parser.add_argument("--sigma-min", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--train-seconds", type=float, default=120.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--schemes", nargs="+", default=["auto", "(a)", "(b)", "(c)"])
    parser.add_argument("--quality-rows", type=int, default=1000)
    parser.add_argument("--throughput-dims", type=int, nargs="*", default=[6, 43, 784])
    parser.add_argument("--throughput-rows", type=int, nargs="+", default=[64, 10_000])
    parser.add_argument("-o", "--output", default=None)
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    metrics: list[Metric] = []
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    settings["threads"] = torch.get_num_threads()

    def keep(found: list[Metric]) -> None:
        # After each part: the slow schemes come last, and a run that is cut short keeps the rest.
        metrics.extend(found)
        write_result(
            arguments.output or Path("results") / f"sampling-{arguments.device}.json",
            experiment="sampling",
            metrics=metrics,
            seeds=[0],
            settings=settings,
            seconds=time.monotonic() - started,
            commit=commit,
        )

    if arguments.throughput_dims:
        keep(throughput(arguments))
    model, seconds = trained_model(arguments)
    settings |= {"model": model.config, "training_seconds": seconds}
    if arguments.device == "cpu":  # on a GPU no step is taken by itself
        keep(context_share(model, arguments))
    if arguments.quality_rows:
        keep(quality(model, arguments))
    keep(fixed_points(model, arguments))
    for found in measure_schemes(model, arguments):
        keep(found)


if __name__ == "__main__":
    main()
