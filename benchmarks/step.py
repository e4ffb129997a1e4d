"""Time and peak memory of a training step: CSM against maximum likelihood of the same MADE.

    python benchmarks/step.py                 # on the CPU, writes results/step-cpu.json
    python benchmarks/step.py --device cuda   # on a GPU,   writes results/step-cuda.json

Both models have the shipped defaults: the same MADE, with a context of 32 values and a score head
for CSM, and with 10 logistics for maximum likelihood. A step draws its noise, computes the loss and
its gradient, clips, and moves the weights. Repeats of all variants are interleaved in one run, so
that ratios mean something on a busy machine. The third variant is the CSM step written without
closed forms, eager, its derivative taken by a second backward pass.
"""

import argparse
import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from arcsm.autoregressive import AutoregressiveModel
from arcsm.baselines import MixtureMADE
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation
from arcsm.results import Metric, current_commit, write_result
from arcsm.train import TrainConfig

VARIANTS = ("csm", "mle", "csm-double-backward")


class DoubleBackwardARCSM(ARCSM):
    """The same model, its derivative taken by autograd: what a closed form saves."""

    def loss_terms(  # type: ignore[override]
        self, x: torch.Tensor, noise: Perturbation, **options: Any
    ) -> torch.Tensor:
        z = (x - self.shift) / self.scale
        sigma, epsilon, context_epsilon = noise
        conditional = self.conditionals(z + self.noise.sigma_min * context_epsilon, sigma)
        noisy = (z[..., None] + sigma * epsilon).requires_grad_()
        score, _ = conditional.jet(noisy[..., None])
        score = score[..., 0]
        (derivative,) = torch.autograd.grad(score.sum(), noisy, create_graph=True)
        term = score.square() / 2 + 0.5 * derivative + 0.5 * score * epsilon / sigma
        variance = sigma.square()
        return (variance * (1 + variance) * term).sum(1).mean(-1)


def make_model(variant: str, dims: int) -> AutoregressiveModel:
    if variant == "mle":
        return MixtureMADE(dims, components=10, seed=0)
    model = ARCSM.made(dims, seed=0)
    if variant == "csm":
        return model
    return DoubleBackwardARCSM(model.context, model.head, model.noise)


def make_step(
    variant: str, dims: int, batch: int, device: str, graphs: bool = True
) -> Callable[[], None]:
    """Return a function that takes one training step on data that stays where it is."""
    model = make_model(variant, dims).to(device)
    config = TrainConfig()
    x = torch.randn(batch, dims, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)
    generator = torch.Generator(device).manual_seed(0)

    def loss(noise: Any) -> torch.Tensor:
        return model.loss_terms(x, noise).mean()

    if variant != "csm-double-backward":  # torch.compile refuses a second backward pass
        # As the training loop compiles it.
        graphs = graphs and device == "cuda"
        loss = torch.compile(loss, mode="reduce-overhead" if graphs else "default")

    def step() -> None:
        value = loss(model.draw_noise(batch, generator=generator))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return step


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_steps(dims: int, batch: int, device: str, repeats: int) -> dict[str, list[float]]:
    """Return milliseconds of each variant, repeats interleaved."""
    steps = {variant: make_step(variant, dims, batch, device) for variant in VARIANTS}
    for step in steps.values():
        for _ in range(3):
            step()
    inner = 1 if device == "cpu" and dims >= 64 else 5
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(repeats):
        for variant, step in steps.items():
            synchronise(device)
            start = time.perf_counter()
            for _ in range(inner):
                step()
            synchronise(device)
            times[variant].append((time.perf_counter() - start) * 1000 / inner)
    return times


def peak_memory(variant: str, dims: int, batch: int, device: str) -> float:
    """Return the MiB that three steps need beyond what the process had before."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        # Without graphs, which share a pool of memory that the allocator does not account for.
        step = make_step(variant, dims, batch, device, graphs=False)
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        step()
        peak = torch.cuda.max_memory_allocated() - before
        return peak / 2**20
    # Memory that a process once had may stay with it: each measurement has a process of its own.
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(resident_peak, (variant, dims, batch))


def resident_peak(variant: str, dims: int, batch: int) -> float:
    """Return the MiB at the peak of two steps beyond those before the model was made (Linux)."""
    tiny = make_step(variant, 2, 8, "cpu")  # loads the compiler and the libraries
    tiny()
    gc.collect()
    before = resident("VmRSS")
    step = make_step(variant, dims, batch, "cpu")
    step()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew, without the compiler's
    step()
    step()
    return (resident("VmHWM") - before) / 1024


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise OSError(f"expected {field} in the status of the process, got none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 32, 128, 256, 512, 1024])
    parser.add_argument("--batch", type=int, default=TrainConfig().batch_size)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("-o", "--output", default=None)
    arguments = parser.parse_args()
    output = arguments.output or f"results/step-{arguments.device}.json"
    started, commit = time.monotonic(), current_commit()

    table = Table(title=f"Training step, batch {arguments.batch}, {arguments.device}")
    for name in ("D", "context parameters", "CSM ms", "MLE ms", "CSM / MLE", "memory CSM / MLE"):
        table.add_column(name, justify="right")
    table.add_column("compiled / eager double backward", justify="right")
    metrics: list[Metric] = []
    for dims in arguments.dims:
        parameters = sum(p.numel() for p in make_model("csm", dims).context.parameters())
        labels = {"D": dims, "device": arguments.device, "context_parameters": parameters}
        torch.compiler.reset()
        times = time_steps(dims, arguments.batch, arguments.device, arguments.repeats)
        memory = {
            variant: peak_memory(variant, dims, arguments.batch, arguments.device)
            for variant in ("csm", "mle")
        }
        median = {variant: statistics.median(values) for variant, values in times.items()}
        for variant, values in times.items():
            metrics.append(
                Metric(
                    "step time",
                    median[variant],
                    unit="ms",
                    n=len(values),
                    spread=statistics.stdev(values),
                    labels={**labels, "variant": variant},
                )
            )
        for variant, value in memory.items():
            metrics.append(
                Metric("peak memory", value, unit="MiB", n=1, labels={**labels, "variant": variant})
            )
        ratios = {
            "CSM step / MLE step": [a / b for a, b in zip(times["csm"], times["mle"], strict=True)],
            "compiled CSM / eager double backward": [
                a / b for a, b in zip(times["csm"], times["csm-double-backward"], strict=True)
            ],
        }
        for name, values in ratios.items():
            metrics.append(
                Metric(
                    name,
                    statistics.median(values),
                    unit="1",
                    n=len(values),
                    spread=statistics.stdev(values),
                    labels=labels,
                )
            )
        table.add_row(
            str(dims),
            f"{parameters:,}",
            f"{median['csm']:.2f}",
            f"{median['mle']:.2f}",
            f"{statistics.median(ratios['CSM step / MLE step']):.2f}",
            f"{memory['csm'] / max(memory['mle'], 1e-9):.2f}",
            f"{statistics.median(ratios['compiled CSM / eager double backward']):.2f}",
        )
        Console(width=120).print(table)
    write_result(
        output,
        experiment="training-step",
        metrics=metrics,
        seeds=[0],
        settings={
            "batch": arguments.batch,
            "repeats": arguments.repeats,
            "threads": torch.get_num_threads(),
            "csm": make_model("csm", 8).config,
            "mle": make_model("mle", 8).config,
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
