"""How fast PixelCNN++ is: a step of training by CSM and by maximum likelihood, and the samplers.

Steps are those of training on CIFAR-10's shape: noise, loss and gradient in bfloat16, clipped, and
Adam. Backbones are the same; ours has a score head, the other a mixture of 10 logistics. Repeats of
both take turns. Compiled steps, which on a GPU are replayed as a graph, and eager ones are pieces
of their own; for each method the faster counts. FLOPs are those of products and convolutions,
forward and backward, counted by torch. Weights are random: they do not change the times.

The paper's scheme has a network for each of 10 noise levels, passes the whole image through each of
them for every scalar, and takes T = 10 Langevin steps at each level. It is timed for the first
scalars of the walk, all of which cost the same, and scaled up to the whole image.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.image_figures import points_figure
from arcsm.experiments.image_parts import forget_former_work, peak_gib
from arcsm.experiments.image_timing import (
    COMPILED,
    EAGER,
    make_model,
    make_step,
    paper_seconds,
    product_flops,
    step_flops,
)
from arcsm.experiments.work import Step, on_gpu, seconds
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"likelihood": "maximum likelihood", "csm": "CSM"}
# In the first three every feature of an image is computed once.
SAMPLERS = {
    "own": "CSM, exact draws",
    "likelihood": "maximum likelihood",
    "langevin": "CSM, Langevin",
    "paper": "the paper's: 10 networks, whole passes, Langevin",
}
_WHOLE = "whole images"
# Goals: a step of CSM in steps of maximum likelihood, and seconds of 64 images.
_RATIO, _SECONDS = 1.15, 60.0
# Dense products in bfloat16, as the maker states it, by what the name of a card has in it.
NOMINAL = {"H200": 989e12}

BUDGETS: dict[str, Settings] = {
    "smoke": {
        "shape": [4, 4, 3],
        "options": {"filters": [4, 4], "blocks": 1, "levels": 2},
        "bfloat16": False,
        "steps": [{"size": "tiny", "batch": 4, "modes": [EAGER]}],
        "repeats": 3,
        "inner": 1,
        "warm_up": 1,
        "product": 64,
        "counted": 2,
        "sizes": ["tiny"],
        "images": 4,
        "draws": 1,
        "langevin_steps": 2,
        "scalars": 2,
        "tells": False,
        "seeds": [0],
    },
    "gpu": {
        "shape": [32, 32, 3],
        "options": {},
        "bfloat16": True,
        "steps": [
            {"size": "small", "batch": 128, "modes": [COMPILED, EAGER]},
            {"size": "paper", "batch": 64, "modes": [COMPILED]},
        ],
        "repeats": 12,
        "inner": 5,
        "warm_up": 5,
        "product": 8192,
        "counted": 4,
        "sizes": ["small"],
        "images": 64,
        "draws": 2,
        "langevin_steps": 10,
        "scalars": 8,
        "tells": True,
        "seeds": [0],
    },
}


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return a piece for each step and way to compile it, and for the samplers of each size."""
    found = [
        Piece(
            f"step.{told['size']}.{told['batch']}.{mode}",
            {"kind": "step", "size": told["size"], "batch": told["batch"], "mode": mode},
        )
        for told in settings["steps"]
        for mode in told["modes"]
    ]
    for size in settings["sizes"]:
        found += [
            Piece(f"{sampler}.{size}", {"kind": "sampler", "sampler": sampler, "size": size})
            for sampler in SAMPLERS
        ]
    return found


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Time both kinds of step, or one sampler."""
    forget_former_work(place.device)
    labels = piece.labels
    if labels["kind"] == "step":
        return {**labels, **_run_steps(settings, labels, place)}
    return {**labels, **_run_sampler(settings, labels["sampler"], labels["size"], place)}


def _run_steps(settings: Settings, labels: Mapping[str, Any], place: Place) -> Raw:
    size, device = labels["size"], place.device
    flops = {method: step_flops(settings, size, method, device) for method in METHODS}
    forget_former_work(device)
    steps: dict[str, Step] = {}
    compiling, parameters = {}, {}
    for index, method in enumerate(METHODS):
        parameters[method] = make_model(settings, size, method, "cpu").parameters
        began = time.perf_counter()
        steps[method] = make_step(
            settings, size, method, batch=labels["batch"], mode=labels["mode"], device=device
        )
        for _ in range(settings["warm_up"]):
            seconds(steps[method], device)
        compiling[method] = time.perf_counter() - began
        place.progress(0.4 * (index + 1))
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(settings["repeats"]):
        for method, step in steps.items():
            times[method].append(seconds(step, device, settings["inner"]))
    return {
        "seconds": times,
        "flops_per_image": flops,
        "parameters": parameters,
        "seconds_to_compile": compiling,
        "product_flops_per_s": product_flops(
            settings["product"], device, bfloat16=settings["bfloat16"]
        ),
        "card": torch.cuda.get_device_name() if on_gpu(device) else None,
        "memory_gib": peak_gib(device),
    }


def _run_sampler(settings: Settings, sampler: str, size: str, place: Place) -> Raw:
    device, images = place.device, settings["images"]
    if sampler == "paper":
        model = make_model(settings, size, "csm", device, noise="paper")
        each = paper_seconds(settings, model, device, place.progress)
        times = [one * model.dims for one in each]
        return {
            "images": images,
            "seconds": times,
            "timed_scalars": len(each),
            "scalars": model.dims,
            "memory_gib": peak_gib(device),
        }
    noise = {"noise": "paper"} if sampler == "langevin" else {}
    method = "likelihood" if sampler == "likelihood" else "csm"
    model = make_model(settings, size, method, device, **noise)
    options = {"method": "langevin", "langevin_steps": settings["langevin_steps"]} if noise else {}

    def draw() -> None:
        model.sample(images, batch_size=images, **options)

    times = []
    for index in range(settings["draws"] + 1):
        times.append(seconds(draw, device))
        place.progress((index + 1) / (settings["draws"] + 1))
    return {
        "images": images,
        "first": times[0],  # with what is compiled for it
        "seconds": times[1:],
        "timed_scalars": model.dims,
        "scalars": model.dims,
        "memory_gib": peak_gib(device),
    }


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return times of steps and their ratio, what share of the peak they are, and of samplers."""
    found: list[Metric] = []
    for told in settings["steps"]:
        where = {"size": told["size"], "batch": told["batch"]}
        runs = [raw[f"step.{told['size']}.{told['batch']}.{mode}"] for mode in told["modes"]]
        found += _of_steps(runs, where)
    for size in settings["sizes"]:
        for sampler, name in SAMPLERS.items():
            found.append(_of_sampler(raw[f"{sampler}.{size}"], name, size, settings))
    return found


def _of_steps(runs: Sequence[Raw], told: Mapping[str, Any]) -> list[Metric]:
    """Return what there is to say of the steps of one size and batch, compiled in several ways."""
    found, best = [], {}
    for method in METHODS:
        labels = {**told, "method": method}
        for one in runs:
            times = [1000 * value for value in one["seconds"][method]]
            spread = statistics.stdev(times) if len(times) > 1 else None
            where = {**labels, "mode": one["mode"]}
            middle = statistics.median(times)
            found.append(
                Metric("time of a step", middle, "ms", len(times), spread=spread, labels=where)
            )
        best[method] = min(runs, key=lambda one: statistics.median(one["seconds"][method]))
    ratio = _middle(best["csm"], "csm") / _middle(best["likelihood"], "likelihood")
    count = len(best["csm"]["seconds"]["csm"])
    found.append(
        Metric("step of CSM in steps of maximum likelihood", ratio, "1", count, labels=told)
    )
    for method, run in best.items():
        labels = {**told, "method": method, "mode": run["mode"]}
        rate = told["batch"] / _middle(run, method)
        flops = run["flops_per_image"][method]
        n = len(run["seconds"][method])
        found += [
            Metric("images a second", rate, "1/s", n, labels=labels),
            Metric("FLOPs of a step for each image", flops, "1", 1, labels=labels),
            Metric("parameters", run["parameters"][method], "1", 1, labels=labels),
            Metric(
                "share of the peak of a product in the same run",
                rate * flops / run["product_flops_per_s"],
                "1",
                n,
                labels={**labels, "peak, TFLOP/s": run["product_flops_per_s"] / 1e12},
            ),
            _of_nominal(rate * flops, run["card"], n, labels),
        ]
    return found


def _of_nominal(rate: float, card: str | None, n: int, labels: Mapping[str, Any]) -> Metric:
    name = "share of the nominal peak in bfloat16"
    nominal = next((value for key, value in NOMINAL.items() if key in (card or "")), None)
    if nominal is None:
        reason = "not on a GPU" if card is None else f"the peak of {card} is not known here"
        return Metric(name, None, "1", 0, labels=labels, reason=reason)
    return Metric(name, rate / nominal, "1", n, labels={**labels, "peak, TFLOP/s": nominal / 1e12})


def _middle(run: Raw, method: str) -> float:
    return statistics.median(run["seconds"][method])


def _of_sampler(one: Raw, name: str, size: str, settings: Settings) -> Metric:
    times = one["seconds"]
    timed = _WHOLE
    if one["timed_scalars"] < one["scalars"]:
        timed = f"{one['timed_scalars']} of {one['scalars']:,} scalars, scaled up to all"
    labels = {"sampler": name, "size": size, "timed": timed}
    if one["sampler"] in ("langevin", "paper"):
        labels["T"] = settings["langevin_steps"]
    spread = statistics.stdev(times) if len(times) > 1 else None
    title = f"seconds of {one['images']} images"
    return Metric(title, statistics.median(times), "s", len(times), spread=spread, labels=labels)


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw the times of steps, and those of samplers on a logarithmic axis."""
    found = metrics(settings, raw)
    steps: dict[str, dict[str, list[float | None]]] = {}
    for told in settings["steps"]:
        case = f"{told['size']}, batch {told['batch']}"
        for method, name in METHODS.items():
            wanted = {"size": told["size"], "batch": told["batch"], "method": method}.items()
            times = [
                one.value or 0.0
                for one in found
                if one.name == "time of a step" and wanted <= one.labels.items()
            ]
            steps.setdefault(name, {})[case] = [min(times)]
    samplers: dict[str, dict[str, list[float | None]]] = {}
    for one in found:
        if "sampler" in one.labels:
            case = one.labels["sampler"]
            if one.labels["timed"] != _WHOLE:
                case += f"\n({one.labels['timed']})"
            samplers.setdefault(f"size {one.labels['size']}", {})[case] = [one.value]
    shape = "×".join(map(str, settings["shape"]))
    return {
        "steps": points_figure(
            steps, x="milliseconds", title=f"A step of training PixelCNN++ on images of {shape}"
        ),
        "samplers": points_figure(
            samplers,
            x="seconds",
            title=f"{settings['images']} images of {shape}",
            log_x=True,
        ),
    }


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say whether steps and samplers are as fast as was aimed at, and how far from the paper's."""
    said = []

    def decided(holds: bool) -> bool | None:
        return holds if settings["tells"] else None

    for one in metrics:
        if one.name.startswith("step of CSM") and one.value is not None:
            text = (
                f"A step of CSM takes {one.value:.2f} times as long as one of maximum likelihood"
                f" (size {one.labels['size']}, batch {one.labels['batch']}; at most {_RATIO} was"
                " aimed at)."
            )
            said.append(Verdict(decided(one.value <= _RATIO), text))
    for size in settings["sizes"]:
        times = {
            one.labels["sampler"]: one.value
            for one in metrics
            if "sampler" in one.labels and one.labels["size"] == size
        }
        own, other = times[SAMPLERS["own"]], times[SAMPLERS["paper"]]
        if own is None or other is None:
            continue
        images = settings["images"]
        text = (
            f"{images} images take {own:.3g} s (size {size}; less than {_SECONDS:.0f} s was aimed"
            f" at); the paper's scheme takes {other:.3g} s, {other / own:,.0f} times as long."
        )
        said.append(Verdict(decided(own < _SECONDS), text))
    return said


EXPERIMENT = Experiment(
    name="image-speed",
    title="PixelCNN++: the time of a step, and of samples",
    question="What do conditional scores cost in training, and how soon are there images?",
    claims=[
        Claim(
            "Sampling takes 10 noise levels with 10 Langevin steps each, for every scalar in turn."
            " (The paper gives no times.)",
            "Appendix C.3 and C.4",
        ),
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
    measures_time=True,
)
