"""KL(truth ‖ model) on six two-dimensional toys whose density is known.

    python benchmarks/toys.py        # writes results/toys.json

Each model is trained from 20,000 rows with the shipped defaults but for the hidden width, σ_min by
the rule of `suggest_sigma_min`, and judged on fresh rows by E[log p − log q] in nats.
"""

import argparse
import time

import torch

from arcsm.conditional import Noise, suggest_sigma_min
from arcsm.data import TOYS, get_toy
from arcsm.model import ARCSM
from arcsm.results import Metric, current_commit, write_result
from arcsm.train import TrainConfig, fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toys", nargs="+", default=list(TOYS))
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64, 64])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--fresh", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("-o", "--output", default="results/toys.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    config = TrainConfig(steps=arguments.steps, compile=arguments.compile)
    metrics = []
    for name in arguments.toys:
        toy = get_toy(name)
        for seed in arguments.seeds:
            generator = torch.Generator().manual_seed(1000 + seed)
            x = toy.sample(arguments.rows, generator=generator)
            fresh = toy.sample(arguments.fresh, generator=generator)
            start = time.monotonic()
            sigma_min = suggest_sigma_min((x - x.mean(0)) / x.std(0))
            model = ARCSM.made(
                2, hidden=arguments.hidden, noise=Noise(sigma_min=sigma_min), seed=seed
            )
            fit(model, x, TrainConfig(**{**vars(config), "seed": seed}))
            seconds = time.monotonic() - start
            difference = toy.log_prob(fresh) - model.log_prob(fresh)
            error = difference.std().item() / len(difference) ** 0.5
            mean = difference.mean().item()
            labels = {"toy": name, "seed": seed, "sigma_min": sigma_min}
            metrics += [
                Metric(
                    "KL(truth ‖ model)",
                    mean,
                    unit="nats",
                    n=len(difference),
                    interval=(mean - 1.96 * error, mean + 1.96 * error),
                    labels=labels,
                ),
                Metric("training time", seconds, unit="s", n=1, labels=labels),
            ]
            print(
                f"{name:16s} seed {seed}  KL {mean:.4f} ± {error:.4f}  {seconds:.1f} s", flush=True
            )
    write_result(
        arguments.output,
        experiment="toys",
        metrics=metrics,
        seeds=arguments.seeds,
        settings={
            **vars(config),
            "hidden": arguments.hidden,
            "rows": arguments.rows,
            "threads": torch.get_num_threads(),
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
