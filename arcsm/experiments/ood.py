"""Out-of-distribution detection on images (Section 5.5): which statistic tells strangers apart?

Models are trained on CIFAR-10, by CSM and by maximum likelihood (PixelCNN++ both times), and give
scores to its test images and to images of other kinds; AUROC says how well the two are told apart.
In every score more is more unusual. The paper's h(x) = Σ s_d is taken with a minus, since unusual
images have the smaller h; it states neither sign nor noise level, so each level is shown, and that
one of the paper's ladder which does best on the pairs for choosing speaks for it. Noise levels are
in deviations of pixels.

A default is chosen on some pairs, smoothed and permuted CIFAR-10 and CelebA, and judged on others,
those of the paper: SVHN, one colour all over, and noise. Beyond the paper, it is judged on MNIST
beside Fashion-MNIST; without a GPU, by the model of digits that comes with arcsm. The densities of
the vectors of statistics are fitted to training images alone. Where a set is not on the disk its
pairs are left out, and the record says so.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from arcsm.errors import InputError
from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.image_figures import grid_figure
from arcsm.experiments.image_models import trained_model
from arcsm.experiments.image_parts import (
    DATA,
    forget_former_work,
    from_png,
    load_data,
    to_png,
)
from arcsm.experiments.ood_budgets import BUDGETS
from arcsm.experiments.ood_figures import table_figure
from arcsm.experiments.ood_sets import blemished, make_unusual
from arcsm.experiments.work import synchronise
from arcsm.images import ImageModel
from arcsm.metrics.detection import auroc_interval
from arcsm.plots.pictures import picture_grid
from arcsm.results import Metric
from arcsm.tasks.images import ImageDetector
from arcsm.tasks.images.judges import OF_ONE_LEVEL, OF_VECTORS, WITHOUT_SCORES
from arcsm.tasks.images.novelty import DEFAULT
from arcsm.tasks.images.statistics import PAPER_LARGEST, PAPER_LEVEL, Statistics, gather
from arcsm.threads import limited_threads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"likelihood": "maximum likelihood", "csm": "CSM"}
NAMES = {
    "svhn": "SVHN",
    "constant": "one colour",
    "uniform": "noise",
    "celeba": "CelebA 32×32",
    "smoothed": "smoothed",
    "permuted": "permuted",
    "fashion": "Fashion-MNIST",
    "stand-in": "inverted",
}
# Those of the paper's table, in the order of their scores, with its values of AR-CSM.
_PAPER = {"svhn": 0.68, "constant": 0.57, "uniform": 0.95}
_GOALS = {"svhn": 0.90, "constant": 0.95, "uniform": 0.995}
_GOAL_OF_H = 0.73


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return a piece for each case, method and seed."""
    return [
        Piece(f"{name}.{method}.{seed}", {"case": name, "method": method, "seed": seed})
        for name, case in settings["cases"].items()
        for method in case["methods"]
        for seed in settings["seeds"]
    ]


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Train a model, or take the one that is kept, and let all detectors judge all sets."""
    case, method, seed = (piece.labels[name] for name in ("case", "method", "seed"))
    told = settings["cases"][case]
    train, test = load_data(told["data"])
    forget_former_work(place.device)
    began = time.perf_counter()
    model, directory = trained_model(
        told["model"],
        train,
        method=method,
        seed=seed,
        device=place.device,
        folder=settings["models_folder"],
        progress=lambda share: place.progress(0.6 * share),
    )
    training = time.perf_counter() - began
    n, random = settings["images"], np.random.default_rng(seed)
    chosen = np.sort(random.permutation(len(train))[: settings["training_images"]])
    levels = tuple(settings["levels"])
    known = gather(model, train.pixels[chosen], levels=levels)
    place.progress(0.75)
    usual = gather(model, test.pixels[:n], levels=levels)
    place.progress(0.8)
    detectors = detectors_for(model, levels, known, seed)
    areas: dict[str, dict[str, list[float]]] = {name: {} for name in detectors}
    missing, counts = {}, {}
    scores_of_usual = {name: one.score_statistics(usual) for name, one in detectors.items()}
    # Images that are changed are others than those they are compared with.
    spare = test.pixels[n : 2 * n]
    for index, (pair, kind) in enumerate(told["pairs"].items()):
        try:
            pixels = make_unusual(kind, spare, n, seed + index)
        except InputError as error:
            missing[pair] = str(error)
            continue
        counts[pair] = len(pixels)
        unusual = gather(model, pixels, levels=levels)
        for name, detector in detectors.items():
            found = auroc_interval(
                scores_of_usual[name],
                detector.score_statistics(unusual),
                resamples=settings["resamples"],
                seed=seed,
            )
            areas[name][pair] = list(found)
        place.progress(0.8 + 0.15 * (index + 1) / len(told["pairs"]))
    return {
        "case": case,
        "method": method,
        "seed": seed,
        "train_seconds": None if model.history is None else model.history.seconds,
        "seconds_for_model": training,
        "parameters": model.parameters,
        "bits_per_dim": float(usual.nll.sum(1).mean() / (model.dims * np.log(2))),
        "usual": len(usual),
        "counts": counts,
        "missing": missing,
        "areas": areas,
        "speed": _speeds(settings, model, directory, train.pixels, test.pixels, place.device),
        "heat": _heat(model, test.pixels[: settings["shown"]], seed) if method == "csm" else None,
    }


def detectors_for(
    model: ImageModel, levels: tuple[float, ...], known: Statistics, seed: int
) -> dict[str, ImageDetector]:
    """Return all detectors that a model has, by name, fitted to statistics of training images."""
    asked: dict[str, tuple[str, float | None]] = {name: (name, None) for name in WITHOUT_SCORES}
    if known.score is not None:
        for method in OF_ONE_LEVEL:
            asked |= {f"{method} at σ = {level:g}": (method, level) for level in levels}
        asked |= {name: (name, None) for name in OF_VECTORS}
    return {
        name: ImageDetector(model, method, levels=levels, sigma=sigma, seed=seed).fit_statistics(
            known
        )
        for name, (method, sigma) in asked.items()
    }


def _speeds(
    settings: Settings,
    model: ImageModel,
    directory: Any,
    train: np.ndarray,
    test: np.ndarray,
    device: str,
) -> dict[str, dict[str, float]]:
    """Return images a second of each method, on the device and on two cores."""
    found: dict[str, dict[str, float]] = {}
    places = {"device": (model, settings["timed_images"])}
    places["two cores"] = (ImageModel.load(directory), settings["timed_on_cpu"])
    scored = gather(model, train[:1], likelihood=False).score is not None
    methods = (*WITHOUT_SCORES, *(("h", "csm", *OF_VECTORS) if scored else ()))
    for where, (own, count) in places.items():
        images = test[:count]
        levels = tuple(settings["levels"])
        with limited_threads(2):
            known = gather(own, train[:4], levels=levels)
            for method in methods:
                detector = ImageDetector(own, method, levels=levels).fit_statistics(known)
                detector.score(images[:1])
                synchronise(device)
                began = time.perf_counter()
                detector.score(images)
                synchronise(device)
                rate = len(images) / (time.perf_counter() - began)
                found.setdefault(method, {})[where] = rate
    return found


def _heat(model: ImageModel, pixels: np.ndarray, seed: int) -> str:
    """Return usual images, the same with a blemish, and what the map says of these, as PNG."""
    spoiled = blemished(pixels, seed)
    excess = ImageDetector(model).heat_map(spoiled).smoothed()
    top = np.quantile(excess, 0.999)
    heat = (255 * np.clip(excess / max(top, 1e-9), 0, 1)).astype(np.uint8)[..., None]
    rows = np.concatenate([pixels, spoiled, np.repeat(heat, pixels.shape[3], 3)])
    return to_png(picture_grid(rows, columns=len(pixels), enlarge=max(1, 64 // pixels.shape[1])))


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return AUROC of every detector and pair, the choice of a default, and speeds."""
    found: list[Metric] = []
    for one in raw.values():
        labels = {"case": one["case"], "method": one["method"], "seed": one["seed"]}
        found.append(
            Metric("bits per dimension", one["bits_per_dim"], "bits", one["usual"], labels=labels)
        )
        pairs = settings["cases"][one["case"]]["pairs"]
        for pair, told in pairs.items():
            about = {**labels, "pair": pair, "for": told["for"]}
            if pair in one["missing"]:
                reason = "the images are not there"
                found.append(Metric("AUROC", None, "1", 0, labels=about, reason=reason))
                continue
            for detector, areas in one["areas"].items():
                value, low, high = areas[pair]
                n = one["usual"] + one["counts"][pair]
                found.append(
                    Metric(
                        "AUROC",
                        value,
                        "1",
                        n,
                        interval=(low, high),
                        labels={**about, "detector": detector},
                    )
                )
        for detector, areas in one["areas"].items():
            for purpose in ("choosing", "judging"):
                values = [areas[pair][0] for pair in areas if pairs[pair]["for"] == purpose]
                if values:
                    about = {**labels, "detector": detector, "over": purpose}
                    found.append(
                        Metric("mean AUROC", float(np.mean(values)), "1", len(values), labels=about)
                    )
        for detector, speeds in one["speed"].items():
            for where, rate in speeds.items():
                about = {**labels, "detector": detector, "on": where}
                found.append(Metric("images a second", rate, "1/s", 1, labels=about))
    return found


def best_by_choosing(
    metrics: Sequence[Metric], case: str, among: Sequence[str] | None = None
) -> str | None:
    """Return the detector of CSM with the largest mean AUROC on the pairs for choosing."""
    totals: dict[str, list[float]] = {}
    for one in metrics:
        wanted = {"case": case, "method": "csm", "over": "choosing"}
        if one.name != "mean AUROC" or not wanted.items() <= one.labels.items():
            continue
        name = one.labels["detector"]
        if one.value is not None and (among is None or name in among):
            totals.setdefault(name, []).append(one.value)
    return max(totals, key=lambda name: float(np.mean(totals[name])), default=None)


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw AUROC of every detector on every pair, and the map of the pixels to blame."""
    drawn = {}
    for name, case in settings["cases"].items():
        runs = [raw[f"{name}.{method}.{settings['seeds'][0]}"] for method in case["methods"]]
        present = [pair for pair in case["pairs"] if pair not in runs[0]["missing"]]
        if not present:
            continue
        values = {
            _case(one, detector): [areas[pair][0] for pair in present]
            for one in runs
            for detector, areas in one["areas"].items()
        }
        drawn[f"auroc-{name}"] = table_figure(
            values,
            [NAMES[pair] for pair in present],
            title=f"AUROC of unusual images beside test images of {DATA.get(name, name)}",
        )
        heat = next((one["heat"] for one in runs if one["heat"]), None)
        if heat is not None:
            title = "Surprise beyond what was expected, around each pixel"
            panel = {"as they were, with a blemish, and the map": from_png(heat)}
            drawn[f"heat-{name}"] = grid_figure(panel, title=title)
    return drawn


def _case(one: Raw, detector: str) -> str:
    return detector if one["method"] == "csm" else f"{detector}, {METHODS[one['method']]}"


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say what the chosen detector reaches on the paper's pairs, and what h does."""
    case = next(iter(settings["cases"]))
    judged = [
        name for name, told in settings["cases"][case]["pairs"].items() if told["for"] == "judging"
    ]

    def value(detector: str, pair: str, method: str = "csm") -> Metric | None:
        wanted = {"case": case, "method": method, "detector": detector, "pair": pair}
        return next(
            (m for m in metrics if m.name == "AUROC" and wanted.items() <= m.labels.items()), None
        )

    def told(detector: str, method: str = "csm") -> str:
        parts = []
        for pair in judged:
            one = value(detector, pair, method)
            if one is None or one.value is None or one.interval is None:
                parts.append(f"{NAMES[pair]} none")
            else:
                low, high = one.interval
                parts.append(f"{NAMES[pair]} {one.value:.3f} ({low:.3f} to {high:.3f})")
        return ", ".join(parts)

    chosen = best_by_choosing(metrics, case)
    how = "chosen on other pairs" if chosen else "the default"
    chosen = chosen or DEFAULT
    aims, reached = "", None
    if settings["goal"]:
        found = {pair: value(chosen, pair) for pair in judged}
        reached = all(
            one is not None and one.value is not None and one.value >= _GOALS.get(pair, 0.0)
            for pair, one in found.items()
        )
        goals = ", ".join(f"{NAMES[pair]} {goal:g}" for pair, goal in _GOALS.items())
        aims = f" (Aims: {goals}; beyond these, 0.96 on SVHN.)"
    beside = f"beside {DATA.get(case, case)}"
    text = f"The detector {chosen!r}, {how}, has AUROC {beside}: {told(chosen)}.{aims}"
    said = [Verdict(reached, text)]
    every_h = sorted(
        {
            one.labels["detector"]
            for one in metrics
            if str(one.labels.get("detector", "")).startswith("h at")
        }
    )
    by_h = []
    for name in every_h:
        areas = [value(name, pair) for pair in judged]
        known = [one.value for one in areas if one is not None and one.value is not None]
        if known:
            by_h.append((float(np.mean(known)), name))
    if by_h:
        name = _level_of_h(settings["levels"], metrics, case)
        mean = next(mean for mean, other in by_h if other == name)
        best = best_by_choosing(metrics, case, every_h)
        text = (
            f"The paper's statistic, as -{name}, has mean AUROC {mean:.4f} {beside}: {told(name)}."
        )
        if settings["goal"]:
            text += f" (Aim: {_GOAL_OF_H:g}.)"
        if best is None:
            text += " That level is the least of the paper's ladder."
        else:
            freely = next(one for one in by_h if one[1] == best)
            text += (
                " That level is the best on other pairs among those within the paper's ladder;"
                f" among all it is -{freely[1]}, with a mean of {freely[0]:.3f}."
            )
        text += (
            f" Over all levels means are {min(by_h)[0]:.3f} to {max(by_h)[0]:.3f}; σ are in"
            " deviations of pixels."
        )
        said.append(Verdict(mean >= _GOAL_OF_H if settings["goal"] else None, text))
    for method, detector in (("csm", "nll"), ("likelihood", "nll"), ("likelihood", "typicality")):
        if method in settings["cases"][case]["methods"]:
            text = f"{detector} of {METHODS[method]}: {told(detector, method)}."
            said.append(Verdict(None, text))
    return said


def _level_of_h(levels: Sequence[float], metrics: Sequence[Metric], case: str) -> str:
    """Return the name of h at that level of the paper's ladder which does best on other pairs."""
    ladder = [level for level in levels if PAPER_LEVEL <= level <= PAPER_LARGEST]
    chosen = best_by_choosing(metrics, case, [f"h at σ = {level:g}" for level in ladder])
    if chosen is not None:
        return chosen
    nearest = min(levels, key=lambda level: abs(math.log(level / PAPER_LEVEL)))
    return f"h at σ = {nearest:g}"


EXPERIMENT = Experiment(
    name="ood",
    title="Unusual images",
    question="Which statistic of a model of images tells those of other kinds apart?",
    claims=[
        Claim(
            f"Σ s_d has AUROC {value:.2f} on {NAMES[pair]}; likelihood of PixelCNN++ {other:.2f}.",
            "Section 5.5, Table 1",
        )
        for (pair, value), other in zip(_PAPER.items(), (0.32, 0.0, 1.0), strict=True)
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
    measures_time=True,
)
