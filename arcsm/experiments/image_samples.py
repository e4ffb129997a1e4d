"""Samples of images by CSM and by maximum likelihood (Section 5.3): FID, KID, bits, pictures.

The paper shows pictures and gives no number for them. Here both methods have the same backbone, a
MADE or a PixelCNN++, and the same seconds of training on the same images; the model trained by
maximum likelihood has no fewer parameters. FID and KID compare samples with the *training* images,
of which there are enough in every set: of CelebA's test images, in the copy at hand, there are not.
What FID real test images have beside that reference is said where there are enough of them.

Before the training starts its first steps are taken once, so that compiling does not count. Pieces
may be run side by side: their times are then those of models that share the machine, and say so.

The budget paper follows the paper where it states its settings: 200 epochs in all, Adam with 2e-4,
a ladder of 10 levels with one network for each, annealed Langevin dynamics with T = 20 or 10. It
does not say how large its networks were; PixelCNN++ has the size of its authors. It takes days on a
GPU, most of them for the samples.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arcsm.data.images import Images
from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.image_budgets import BUDGETS, ENDLESS
from arcsm.experiments.image_figures import grid_figure, points_figure
from arcsm.experiments.image_models import keep_model, warm_up
from arcsm.experiments.image_parts import (
    DATA,
    Features,
    distances,
    forget_former_work,
    from_png,
    load_data,
    load_features,
    name_features,
    peak_gib,
    reference_statistics,
    to_png,
)
from arcsm.experiments.summaries import finite, over_seeds
from arcsm.experiments.work import synchronise
from arcsm.images import ImageModel, ImageSettings, fit_images
from arcsm.metrics import FeatureStatistics
from arcsm.plots.pictures import picture_grid
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"likelihood": "maximum likelihood", "csm": "CSM"}
NETWORKS = {"made": "MADE", "pixelcnn": "PixelCNN++"}
# A time of training that is longer by this share is as good as equal.
_EQUAL_TIMES = 0.02
# A grid has so many columns.
_COLUMNS = 8


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return for each set its reference, then a piece for each network, method and seed."""
    found = []
    for data in settings["data"]:
        found.append(Piece(f"reference.{data}", {"data": data}))
        for index, pair in enumerate(settings["pairs"]):
            if pair["data"] == data:
                found += [
                    Piece(
                        f"{data}.{pair['network']}.{method}.{seed}",
                        {"data": data, "pair": index, "method": method, "seed": seed},
                    )
                    for method in METHODS
                    for seed in settings["seeds"]
                ]
    return found


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Compute the reference of a set, or train a model, draw from it and measure the samples."""
    features = load_features(settings, place.device)  # before hours of work that would need them
    train, test = load_data(settings["data"][piece.labels["data"]])
    began = time.perf_counter()
    reference = reference_statistics(settings, train, features, place.device)
    if "method" in piece.labels:
        test = replace(test, pixels=test.pixels[: settings["test_images"]], labels=None)
        return _run_model(settings, piece, place, train, test, features, reference)
    seconds = time.perf_counter() - began
    # Of no more images than features a distance would be far too large.
    enough = len(test) > max(settings["features"]["dims"], settings["kid"]["subset_size"])
    found = distances(settings, test.pixels, features, reference) if enough else None
    return {
        "data": piece.labels["data"],
        "images": reference.count,
        "note": train.note,
        "seconds": seconds,
        "test_images": len(test),
        "test": found,
    }


def image_settings(
    settings: Settings, pair: Mapping[str, Any], method: str, seed: int, images: int
) -> ImageSettings:
    """Return how a model is trained: for so many seconds, or so many epochs of so many images."""
    told = ImageSettings(method=method, seed=seed, **pair[method])
    if settings["epochs"] is None:
        return replace(told, steps=ENDLESS, max_seconds=settings["train_seconds"])
    batch = told.filled(pair["data"], "cpu").batch or 1
    return replace(told, steps=settings["epochs"] * math.ceil(images / batch))


def _run_model(
    settings: Settings,
    piece: Piece,
    place: Place,
    train: Images,
    test: Images,
    features: Features,
    reference: FeatureStatistics,
) -> Raw:
    method, seed = piece.labels["method"], piece.labels["seed"]
    pair = settings["pairs"][piece.labels["pair"]]
    told = image_settings(settings, pair, method, seed, len(train))
    forget_former_work(place.device)
    began = time.perf_counter()
    if settings["warm_up_steps"] is not None:
        warm_up(train, told, settings["warm_up_steps"], place.device)
    warmed = time.perf_counter() - began
    model = fit_images(
        train, told, device=place.device, progress=lambda now: place.progress(0.6 * now.done)
    )
    history = model.history
    assert history is not None
    if pair["kept"]:  # for other experiments on the same model
        keep_model(
            model,
            {
                "settings": pair,
                "train_seconds": settings["train_seconds"],
                "mirrored": [],
            },
            train,
            method=method,
            seed=seed,
            folder=settings["models_folder"],
        )
    memory = {"training": peak_gib(place.device)}
    timed = _time_sampling(settings, model, place.device)
    drawn: list[int] = []

    def tell(images: int) -> None:
        drawn.append(images)
        place.progress(0.6 + 0.25 * sum(drawn) / settings["samples"])

    began = time.perf_counter()
    samples = model.sample(
        settings["samples"], seed=seed, batch_size=pair["sample_batch"], progress=tell
    )
    sampling = time.perf_counter() - began
    bits = model.bits_per_dim(test.pixels)
    place.progress(0.95)
    found = distances(settings, samples, features, reference)
    memory["all"] = peak_gib(place.device)
    shown = samples[: _COLUMNS**2]
    return {
        "data": pair["data"],
        "network": pair["network"],
        "method": method,
        "seed": seed,
        "size": told.network,
        "note": train.note,
        "parameters": model.parameters,
        "train_images": len(train),
        "warm_up_seconds": warmed,
        "train_seconds": history.seconds,
        "steps": history.steps,
        "best_step": history.best_step,
        "images_per_s": history.steps * (model.settings.batch or 1) / history.seconds,
        "training": history.training,
        "validation": history.validation,
        "samples": len(samples),
        "side_by_side": place.jobs,
        "sample_seconds": sampling,
        "timed_images": settings["timed_images"],
        "timed_seconds": timed,
        **dict(zip(found, finite(list(found.values())), strict=True)),
        "bits_per_dim": finite([float(bits.mean())])[0],
        "impossible": int(np.count_nonzero(~np.isfinite(bits))),
        "test_images": len(bits),
        "probability": model.about_probability,
        "memory_gib": memory,
        "grid": to_png(picture_grid(shown, columns=_COLUMNS, enlarge=_enlarge(shown), gap=2)),
    }


def _time_sampling(settings: Settings, model: ImageModel, device: str) -> list[float]:
    """Return the seconds of each draw of a few images, after one that does not count."""
    times = []
    for repeat in range(settings["timed_repeats"] + 1):
        synchronise(device)
        began = time.perf_counter()
        model.sample(settings["timed_images"], seed=repeat, batch_size=settings["timed_images"])
        times.append(time.perf_counter() - began)
    return times[1:]


def _enlarge(images: np.ndarray) -> int:
    return max(1, 64 // images.shape[1])


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return distances, bits, sizes and times of every model, and the distances of real images."""
    found: list[Metric] = []
    by = name_features(settings)
    references = {data["data"]: data for name, data in raw.items() if name.startswith("reference.")}
    for name, one in references.items():
        labels = {"data": name, "of": "real test images", "images": one["test_images"]}
        for key, title in (("fid", "FID"), ("kid", "KID")):
            if one["test"] is None:
                reason = f"{one['test_images']} test images are too few"
                found.append(Metric(title, None, "1", 0, labels=labels, reason=reason))
            else:
                found.append(Metric(title, one["test"][key], "1", 1, labels=labels))
    for pair in settings["pairs"]:
        for method in METHODS:
            runs = [raw[name] for name in _names(settings, pair, method)]
            labels = {"data": pair["data"], "network": pair["network"], "method": method}
            found += _of_model(runs, labels, references[pair["data"]], by)
    return found


def _names(settings: Settings, pair: Mapping[str, Any], method: str) -> list[str]:
    return [f"{pair['data']}.{pair['network']}.{method}.{seed}" for seed in settings["seeds"]]


def _of_model(
    runs: Sequence[Raw], labels: Mapping[str, Any], reference: Raw, features: str
) -> list[Metric]:
    """Return what there is to say of one method, over seeds."""
    against = f"{reference['images']:,} training images"
    if reference["note"]:
        against += f" ({reference['note']})"
    measured = {
        **labels,
        "samples": runs[0]["samples"],
        "against": against,
        "features": features,
    }
    found = [
        _or_none("FID", [one["fid"] for one in runs], "1", measured),
        _or_none("KID", [one["kid"] for one in runs], "1", measured),
        _or_none(
            "deviation of KID among its subsets",
            [one["kid_deviation"] for one in runs],
            "1",
            labels,
        ),
        _or_none(
            "bits per dimension",
            [one["bits_per_dim"] for one in runs],
            "bits",
            {**labels, "images": runs[0]["test_images"], "of": runs[0]["probability"]},
            why="had images that are impossible under the model",
        ),
    ]
    found.append(over_seeds("parameters", [one["parameters"] for one in runs], "1", labels))
    together = max(one["side_by_side"] for one in runs)
    if together > 1:
        labels = {**labels, "models side by side": together}
    for name, values, unit in (
        ("seconds of training", [one["train_seconds"] for one in runs], "s"),
        ("steps of training", [one["steps"] for one in runs], "steps"),
        ("training images a second", [one["images_per_s"] for one in runs], "1/s"),
        ("seconds before training, to compile", [one["warm_up_seconds"] for one in runs], "s"),
        ("seconds to draw all samples", [one["sample_seconds"] for one in runs], "s"),
    ):
        found.append(over_seeds(name, values, unit, labels))
    times = [seconds for one in runs for seconds in one["timed_seconds"]]
    spread = statistics.stdev(times) if len(times) > 1 else None
    title = f"seconds to draw {runs[0]['timed_images']} images"
    found.append(
        Metric(title, statistics.median(times), "s", len(times), spread=spread, labels=labels)
    )
    for part, title in (("training", "peak memory of training"), ("all", "peak memory")):
        memory = [one["memory_gib"][part] for one in runs]
        if None in memory:
            found.append(Metric(title, None, "GiB", 0, labels=labels, reason="not on a GPU"))
        else:
            found.append(over_seeds(title, memory, "GiB", labels))
    return found


def _or_none(
    name: str,
    values: Sequence[float | None],
    unit: str,
    labels: Mapping[str, Any],
    why: str = "left the numbers",
) -> Metric:
    known = [value for value in values if value is not None]
    if len(known) == len(values):
        return over_seeds(name, known, unit, labels)
    reason = f"{len(values) - len(known)} of {len(values)} seeds {why}"
    return Metric(name, None, unit, len(values), labels=labels, reason=reason)


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw all distances in one chart, and for each pair the first samples of both methods."""
    drawn = {}
    named = [(_title(pair), pair) for pair in settings["pairs"]]
    points = {
        told: {
            title: [raw[name]["fid"] for name in _names(settings, pair, method)]
            for title, pair in named
        }
        for method, told in METHODS.items()
    }
    drawn["fid"] = points_figure(
        points,
        x=f"FID of {settings['samples']:,} samples by {name_features(settings)}",
        title="Distance of samples from the images (less is better)",
    )
    for title, pair in named:
        panels = {}
        for method, told in METHODS.items():
            one = raw[_names(settings, pair, method)[0]]
            value = "none" if one["fid"] is None else f"{one['fid']:.1f}"
            panels[f"{told}, FID {value}"] = from_png(one["grid"])
        drawn[f"samples-{pair['data']}-{pair['network']}"] = grid_figure(
            panels, title=f"{title}: the first {_COLUMNS**2} samples, none chosen"
        )
    return drawn


def _title(pair: Mapping[str, Any]) -> str:
    return f"{DATA.get(pair['data'], pair['data'])}, {NETWORKS[pair['network']]}"


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say where CSM is ahead of maximum likelihood, whether the two are alike, and their bits."""

    def of(name: str, pair: Mapping[str, Any], method: str) -> Metric:
        wanted = {"data": pair["data"], "network": pair["network"], "method": method}
        return next(
            one for one in metrics if one.name == name and wanted.items() <= one.labels.items()
        )

    goal, pairs = settings["goal"], settings["pairs"]
    ahead, told, alike = 0, [], True
    for pair in pairs:
        own, other = (of("FID", pair, method).value for method in ("csm", "likelihood"))
        ahead += own is not None and (other is None or own < other)
        told.append(f"{_title(pair)} {_number(own)} against {_number(other)}")
        sizes = [of("parameters", pair, method).value or 0 for method in ("csm", "likelihood")]
        alike = alike and sizes[0] <= sizes[1]
    text = f"CSM has the lower FID in {ahead} of {len(pairs)} pairs: {'; '.join(told)}."
    said = [Verdict(None if goal is None else ahead >= goal, text)]
    # What CSM takes to recalibrate counts; time that it leaves unused is no advantage.
    spent = {m: [of("seconds of training", p, m).value or 0 for p in pairs] for m in METHODS}
    longest = max(own / other for own, other in zip(spent["csm"], spent["likelihood"], strict=True))
    allowed = 1 + _EQUAL_TIMES
    text = "; ".join(f"{min(t):.0f} to {max(t):.0f} s by {METHODS[m]}" for m, t in spent.items())
    text = (
        f"Models were trained for {text}: by CSM for {longest:.3f} of the time of the counterpart"
        f" at most (equal: up to {allowed:g}), with {'at most' if alike else 'not always at most'}"
        " as many parameters."
    )
    said.append(Verdict(None if goal is None else alike and longest <= allowed, text))
    bits = "; ".join(
        f"{_title(pair)} "
        + " and ".join(
            f"{_number(of('bits per dimension', pair, method).value, 3)} by {METHODS[method]}"
            for method in ("csm", "likelihood")
        )
        for pair in pairs
    )
    text = f"Bits per dimension of test images, by exact probabilities: {bits}."
    return [*said, Verdict(None, text)]


def _number(value: float | None, digits: int = 1) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


EXPERIMENT = Experiment(
    name="image-samples",
    title="Samples of images, by CSM and by maximum likelihood",
    question="With one design, equal times and no more parameters, whose samples are better?",
    claims=[
        Claim(
            "A MADE trained by CSM gives sharper and better samples than one trained by maximum"
            " likelihood. (Pictures; the paper gives no number.)",
            "Section 5.3, Figure 4",
        ),
        Claim(
            "PixelCNN++ trained by CSM gives more digit-like samples of MNIST, and less shifted"
            " colours of CIFAR-10 and CelebA. (Pictures; the paper gives no number.)",
            "Section 5.3, Figure 4",
        ),
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
)
