"""Two modes with nothing between them: who weighs them rightly, and does `check` tell?

    python benchmarks/gap.py        # writes results/gap.json

One column, 90 % of the rows around 0 and 10 % around 1, each mode with a standard deviation of
0.05. Score matching at one noise level cannot see the weights of modes so far apart; the flow
learns them at the larger levels. Told are the share of the first mode by flow, by quadrature at
σ_min and by annealed Langevin dynamics, whether `model.check` finds flow and quadrature
calibrated on fresh rows, and the share by quadrature after fine-tuning by the likelihood.
"""

import argparse
import time

import torch

from arcsm import ARCSM, TrainConfig, fit
from arcsm.results import Metric, current_commit, write_result
from arcsm.train import fine_tune

TARGET, ALLOWED = 0.90, 0.02
_MIDDLE = 0.5
METHODS = ("flow", "quadrature", "langevin")


def draw(rows: int, seed: int) -> torch.Tensor:
    """Return rows of the two modes."""
    generator = torch.Generator().manual_seed(seed)
    second = torch.rand((rows, 1), generator=generator) >= TARGET
    return second.float() + 0.05 * torch.randn((rows, 1), generator=generator)


def share(model: ARCSM, method: str, samples: int, seed: int) -> float:
    """Return the share of samples on the side of the first mode."""
    generator = torch.Generator().manual_seed(seed)
    drawn = model.sample(samples, generator=generator, method=method)
    return float((drawn < _MIDDLE).double().mean())


def measure(
    seed: int, *, rows: int, samples: int, config: TrainConfig, tuning: TrainConfig
) -> tuple[list[Metric], str]:
    """Train one model; return its metrics and a line that tells of them."""
    # Rows that have nothing to do with the seed of the model.
    x, fresh = draw(rows, 1000 + seed), draw(rows, 2000 + seed)
    model = ARCSM.made(1, seed=seed)
    start = time.monotonic()
    fit(model, x, config)
    seconds = time.monotonic() - start
    labels = {"seed": seed}
    shares = {method: share(model, method, samples, seed) for method in METHODS}
    report = model.check(fresh)
    found = {name: report[f"calibration by {name}"].good for name in ("flow", "quadrature")}
    difference = report["heat equation"].numbers.get("mean_difference")
    fine_tune(model, x, tuning)
    shares["fine-tuned"] = share(model, "quadrature", samples, seed)
    metrics = [
        Metric(
            "share of the first mode",
            value,
            unit="1",
            n=samples,
            labels={**labels, "method": method, "truth": TARGET, "allowed": ALLOWED},
        )
        for method, value in shares.items()
    ]
    metrics += [
        Metric("found calibrated", float(good), unit="1", n=1, labels={**labels, "method": method})
        for method, good in found.items()
    ]
    metrics += [
        Metric(
            "flow against quadrature",
            difference,
            unit="nats",
            n=report["heat equation"].numbers.get("rows", 0),
            labels=labels,
            reason="one of them is not finite" if difference is None else None,
        ),
        Metric("training time", seconds, unit="s", n=1, labels=labels),
    ]
    told = "  ".join(f"{method} {value:.3f}" for method, value in shares.items())
    verdict = ", ".join(f"{name} {'good' if good else 'bad'}" for name, good in found.items())
    return metrics, f"seed {seed}  {told}  (truth {TARGET})  check: {verdict}  {seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--tuning-steps", type=int, default=100)
    parser.add_argument("-o", "--output", default="results/gap.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    config = TrainConfig(steps=arguments.steps)
    tuning = TrainConfig(steps=arguments.tuning_steps, batch_size=256, learning_rate=1e-3)
    metrics: list[Metric] = []
    for seed in arguments.seeds:
        measured, line = measure(
            seed, rows=arguments.rows, samples=arguments.samples, config=config, tuning=tuning
        )
        metrics += measured
        print(line, flush=True)
    write_result(
        arguments.output,
        experiment="gap",
        metrics=metrics,
        seeds=arguments.seeds,
        settings={
            "model": ARCSM.made(1).config,
            "rows": arguments.rows,
            "samples": arguments.samples,
            "steps": arguments.steps,
            "tuning steps": arguments.tuning_steps,
            "threads": torch.get_num_threads(),
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
