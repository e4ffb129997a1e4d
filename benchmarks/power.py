"""POWER, the household electricity of UCI: ARCSM beside a neural spline flow, in the same time.

    export ARCSM_DATA=...                                  # the folder of data sets
    python benchmarks/power.py --device cuda --seconds 420 # writes results/power.json

Both models see the same rows, standardised, and the score is the mean log-density of the test rows
in nats. The meters read in steps, and to each reading uniform noise of one step is added. The flow
is trained on, and judged at, the noisy values. ARCSM knows the steps: its targets are spread over
the cell of a reading anew at every step of training while its contexts see the middle of the cell.
Two densities over the noisy values are reported of it:

    cells     Π_d P(cell of x_d | middles of x_<d)/width of the cell: even inside a cell
    density   Π_d q(x_d | middles of x_<d)

The time of day has no noise, and is a density for every model. It is a whole number of minutes,
0.0024 apart in standard units: with a `--sigma-min` much below 0.002 ARCSM would find the minutes.

Settings are to be compared by the validation rows, which no model trains on. `--members` trains
several ARCSM in a share of the time each and mixes their densities. Every call writes one file.
"""

import argparse
import io
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import spline
import torch
from readings import cell_log_prob, draw, point_log_prob, recover_cells
from safetensors.torch import save_file
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.data.sets import load_power
from arcsm.devices import check_device, matmul_precision
from arcsm.model import ARCSM
from arcsm.results import Metric, current_commit, write_result
from arcsm.train import Progress, TrainConfig, fit, save_model

METHODS = ("arcsm", "nsf")

# Training rows held out to choose the weights, for both models.
HELD_OUT = 20_000

# Settings


def make_model(arguments: argparse.Namespace, member: int) -> ARCSM:
    """Return an untrained member; all but the first have an order of their own."""
    order = arguments.order or "natural"
    if member > 0:
        order = np.random.default_rng([arguments.seed, member]).permutation(6).tolist()
    return ARCSM.made(
        6,
        hidden=arguments.hidden,
        width=arguments.width,
        frequencies=arguments.frequencies,
        order=order,
        steps=arguments.steps,
        head_depth=arguments.head_depth,
        noise=Noise(sigma_min=arguments.sigma_min),
        seed=1000 * member + arguments.seed,
    )


def train_config(arguments: argparse.Namespace, rows: int, member: int) -> TrainConfig:
    return TrainConfig(
        steps=10**8,  # the time ends it
        batch_size=arguments.batch,
        learning_rate=arguments.learning_rate,
        ema=arguments.ema,
        validation=held_out_rows(rows) / rows,
        evaluate_every=1000,
        max_seconds=arguments.seconds / arguments.members,
        compile=arguments.device.startswith("cuda"),
        bfloat16=arguments.bfloat16,
        seed=1000 * member + arguments.seed,
        noise={"levels": arguments.levels, "points": arguments.points},
        objective={"mix": arguments.mix},
    )


def held_out_rows(rows: int) -> int:
    return min(HELD_OUT, rows // 10)


# The run


class Run:
    """One call: its rows and settings, and the metrics it has gathered so far."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments, self.device = arguments, torch.device(arguments.device)
        self.split = load_power(seed=0)  # one split for all seeds of the models
        self.train = self.split.train[: arguments.rows]
        self.validation = self.split.validation[: arguments.validation_rows]
        self.test = self.split.test[: arguments.test_rows]
        self.metrics: list[Metric] = []

    def arcsm(self) -> list[ARCSM]:
        """Train the members one after the other, and judge their mixture."""
        cells = recover_cells(self.train, self.split)
        middle = cells.middle.astype(np.float32)
        spread = np.broadcast_to(self.split.quanta / 2, middle.shape).astype(np.float32)
        models, steps, seconds = [], 0, 0.0
        for member in range(self.arguments.members):
            model = make_model(self.arguments, member).to(self.device)
            config = train_config(self.arguments, len(middle), member)
            with matmul_precision("high" if self.arguments.tf32 else None):
                history = fit(model, middle, config, spread=spread, progress=_show)
            steps, seconds = steps + history.steps, seconds + history.seconds
            models.append(model)
            self._save(f"arcsm-{member}", model)
        self._count("arcsm", models, steps, seconds)
        self.judge_arcsm("arcsm", models)
        return models

    def judge_arcsm(self, method: str, models: list[ARCSM]) -> None:
        for evaluation, function in (("cells", cell_log_prob), ("density", point_log_prob)):
            self._judge(
                {"method": method, "evaluation": evaluation},
                partial(function, models, split=self.split),
            )
        rows, seed = self.arguments.draw_rows, self.arguments.seed
        self._time_samples(method, lambda: draw(models, rows, self.split, seed))

    def nsf(self) -> None:
        """Train and judge the spline flow."""
        arguments = self.arguments
        settings = spline_settings(arguments)
        flow = spline.make_flow(6, settings, arguments.seed).to(self.device)
        rows = torch.from_numpy(self.train).float().to(self.device)
        # The rows are shuffled already.
        held_out = held_out_rows(len(rows))
        with matmul_precision("high" if self.arguments.tf32 else None):
            run = spline.train_flow(
                flow,
                rows[held_out:],
                rows[:held_out],
                settings,
                seconds=arguments.seconds,
                seed=arguments.seed,
                progress=lambda step, loss: print(f"  step {step:7d}  held out {-loss:.4f}"),
            )
        print(f"  {run}")
        self._count("nsf", [flow], run.steps, run.seconds, how=run.how, end=run.end)
        if arguments.save is not None:
            weights = {name: part.contiguous() for name, part in flow.state_dict().items()}
            arguments.save.mkdir(parents=True, exist_ok=True)
            save_file(weights, arguments.save / "nsf.safetensors")

        def log_prob(x: np.ndarray) -> np.ndarray:
            points = torch.from_numpy(x).float().to(self.device)
            return spline.log_prob(flow, points).double().cpu().numpy()

        self._judge({"method": "nsf", "evaluation": "density"}, log_prob)
        self._time_samples("nsf", lambda: spline.sample(flow, arguments.draw_rows))

    def _judge(self, labels: dict[str, str], log_prob: Callable[[np.ndarray], np.ndarray]) -> None:
        scored, seconds = 0, 0.0
        for name, rows in (("validation", self.validation), ("test", self.test)):
            if len(rows) == 0:
                continue
            start = time.monotonic()
            values = log_prob(rows)
            scored, seconds = scored + len(rows), seconds + time.monotonic() - start
            metric = likelihood_metric(values, {**labels, "rows": name})
            self.metrics.append(metric)
            shown = metric.reason
            if metric.value is not None:
                error = values.std(ddof=1) / len(values) ** 0.5
                shown = f"{metric.value:.4f} ± {error:.4f} nats"
            print(f"{labels['method']:10s} {labels['evaluation']:8s} {name:10s} {shown}")
        if scored:
            self._rate("rows scored", scored, seconds, labels)

    def _time_samples(self, method: str, sample: Callable[[], Tensor]) -> None:
        start = time.monotonic()
        finite = int(sample().isfinite().all(1).sum())  # reading it waits for the device
        rows = self.arguments.draw_rows
        self._rate("rows drawn", rows, time.monotonic() - start, {"method": method})
        labels = {"method": method}
        self.metrics.append(
            Metric("share of finite samples", finite / rows, unit="1", n=rows, labels=labels)
        )

    def _rate(self, name: str, rows: int, seconds: float, labels: dict[str, str]) -> None:
        self.metrics.append(
            Metric(f"{name} in a second", rows / seconds, unit="1/s", n=rows, labels=labels)
        )

    def _count(
        self, method: str, models: Sequence[torch.nn.Module], steps: int, seconds: float, **how: str
    ) -> None:
        parameters = sum(part.numel() for model in models for part in model.parameters())
        labels = {"method": method, **how}
        print(f"{method}: {parameters:,} parameters, {steps:,} steps in {seconds:.1f} s")
        self.metrics += [
            Metric("parameters", parameters, unit="1", n=1, labels=labels),
            Metric("steps", steps, unit="1", n=1, labels=labels),
            Metric("training time", seconds, unit="s", n=1, labels=labels),
        ]

    def _save(self, name: str, model: ARCSM) -> None:
        if self.arguments.save is not None:
            save_model(self.arguments.save / name, model)


def _show(progress: Progress) -> None:
    held_out = math.nan if progress.validation is None else progress.validation
    print(
        f"  step {progress.step:7d}  loss {progress.loss:.5f}  held out {held_out:.5f}"
        f"  {progress.seconds:.0f} s"
    )


def likelihood_metric(values: np.ndarray, labels: dict[str, str]) -> Metric:
    """Return the mean of log-densities with its 95 % interval; none if one is not finite."""
    bad, name = int((~np.isfinite(values)).sum()), "log-likelihood"
    if bad:
        reason = f"no finite log-density for {bad} of {len(values)} rows"
        return Metric(name, None, unit="nats", n=len(values), labels=labels, reason=reason)
    mean, spread = values.mean(), values.std(ddof=1)
    error = spread / len(values) ** 0.5
    interval = (mean - 1.96 * error, mean + 1.96 * error)
    return Metric(
        name, mean, unit="nats", n=len(values), spread=spread, interval=interval, labels=labels
    )


def spline_settings(arguments: argparse.Namespace) -> spline.SplineSettings:
    return spline.SplineSettings(
        transforms=arguments.nsf_transforms,
        hidden=arguments.nsf_hidden,
        bins=arguments.nsf_bins,
        bound=arguments.nsf_bound,
        batch=arguments.nsf_batch,
        learning_rate=arguments.nsf_learning_rate,
    )


def whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers with commas between them, got {text!r}"
        ) from error


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--methods", type=lambda text: text.split(","), default=list(METHODS))
    add("--seconds", type=float, default=420.0, help="training time of each method")
    add("--device", default="cpu")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=2)
    add("--rows", type=int, help="training rows; all by default")
    add("--validation-rows", type=int, default=50_000)
    add("--test-rows", type=int, help="all by default; 0 for none")
    add("--draw-rows", type=int, default=65_536, help="samples drawn, to time them")
    add("--hidden", type=whole_numbers, default=(512, 512, 512))
    add("--width", type=int, default=64, help="of a context")
    add("--frequencies", type=int, default=4)
    add("--order", type=whole_numbers, help="of the first member; natural by default")
    add("--steps", type=int, default=32, help="tanh steps of the head")
    add("--head-depth", type=int, default=1)
    add("--sigma-min", type=float, default=0.002)
    add("--levels", type=int, default=2, help="noise levels of a row in each step")
    add("--points", type=int, default=4, help="noisy values of each entry at a level")
    add("--mix", type=float, default=0.5)
    add("--batch", type=int, default=8192)
    add("--learning-rate", type=float, default=2e-3)
    add("--ema", type=float, default=0.999)
    add("--bfloat16", action="store_true", help="contexts of ARCSM, in training")
    add("--tf32", action="store_true", help="matrix products of all models, in training")
    add("--members", type=int, default=1)
    flow = spline.SplineSettings()
    add("--nsf-transforms", type=int, default=flow.transforms)
    add("--nsf-hidden", type=whole_numbers, default=flow.hidden)
    add("--nsf-bins", type=int, default=flow.bins)
    add("--nsf-bound", type=float, default=flow.bound)
    add("--nsf-batch", type=int, default=flow.batch)
    add("--nsf-learning-rate", type=float, default=flow.learning_rate)
    add("--save", type=Path, help="folder for the weights")
    add("-o", "--output", default="results/power.json")
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.methods if name not in METHODS]
    if unknown:
        parser.error(f"expected methods among {', '.join(METHODS)}, got {', '.join(unknown)}")
    if arguments.members < 1 or not arguments.seconds > 0:
        parser.error(
            "expected at least one member and a time above 0,"
            f" got {arguments.members} and {arguments.seconds}"
        )
    if arguments.rows is not None and arguments.rows < 100:
        parser.error(f"expected at least 100 training rows, got {arguments.rows}")
    return arguments


def main() -> None:
    arguments = parse()
    started, commit = time.monotonic(), current_commit()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(arguments.threads))
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)  # samples of the flow are drawn from the global generator
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    check_device(arguments.device)
    run = Run(arguments)
    print(f"{len(run.train):,} training rows, read in {time.monotonic() - started:.0f} s")
    if "arcsm" in arguments.methods:
        run.arcsm()
        write(run, started, commit)  # lest it be lost with what comes after it
    if "nsf" in arguments.methods:
        run.nsf()
        write(run, started, commit)


def write(run: Run, started: float, commit: dict[str, Any]) -> None:
    """Write what there is so far."""
    arguments = run.arguments
    settings: dict[str, Any] = {
        name: value for name, value in vars(arguments).items() if name not in ("save", "output")
    }
    write_result(
        arguments.output,
        experiment="power",
        metrics=run.metrics,
        seeds=[arguments.seed],
        settings={
            "options": settings,
            "model": make_model(arguments, 0).config,
            "training": asdict(train_config(arguments, len(run.train), 0)),
            "flow": asdict(spline_settings(arguments)),
            "held out": held_out_rows(len(run.train)),
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
