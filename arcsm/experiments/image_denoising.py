"""Removing noise from images (Section 5.4): salt and pepper on CIFAR-10, Gaussian on MNIST.

The paper shows pictures. Here PSNR and SSIM of test images are measured, beside what people use
without a model, whose settings are chosen on training images, and beside the paper's own methods on
the same model: Langevin dynamics from the noisy image, and the single step. Salt and pepper
replaces a tenth of all scalars. The σ = 0.6 of Gaussian noise is that of pixels from −1 to 1, the
paper's rescaled space; noisy pixels are neither rounded nor cut off, for any method.

Models are trained on the training images and on mirrored copies of them, so that one model sees an
image from all four corners. Originals and results of CIFAR-10 and MNIST are shown, and completions
of the lower half of MNIST's test images.

Pieces may be run side by side: their times are then those of methods that share the machine, and
say so.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from arcsm.experiments.denoising_budgets import BUDGETS
from arcsm.experiments.denoising_rivals import apply, choose_settings, rivals_for, to_uint8
from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.image_figures import grid_figure, points_figure
from arcsm.experiments.image_models import trained_model
from arcsm.experiments.image_parts import (
    DATA,
    forget_former_work,
    from_png,
    load_data,
    to_png,
)
from arcsm.experiments.work import synchronise
from arcsm.images import ImageModel
from arcsm.metrics.restoration import psnr, ssim
from arcsm.plots.pictures import picture_grid
from arcsm.results import Metric
from arcsm.tasks.images import (
    Corruption,
    Denoising,
    Gaussian,
    complete,
    denoise_images,
    gaussian,
    parse_noise,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISY = "noisy image"
_SHOWN = 8
_LEAST_SIDE_OF_SSIM = 11


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return for each case the rivals, then a piece for every method and seed."""
    found = []
    for name, case in settings["cases"].items():
        for seed in settings["seeds"]:
            labels = {"case": name, "seed": seed}
            found.append(Piece(f"{name}.rivals.{seed}", labels, anywhere=True))
            for index, method in enumerate((*case["ours"], *case["paper"])):
                labels = {"case": name, "seed": seed, "method": method}
                found.append(Piece(f"{name}.{index}.{seed}", labels))
    return found


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Spoil test images, clean them by one method, or by all rivals, and measure."""
    case, seed = piece.labels["case"], piece.labels["seed"]
    told = settings["cases"][case]
    noise = parse_noise(told["noise"])
    train, test = load_data(told["data"])
    originals = test.pixels[: settings["images"]]
    noisy = spoiled(originals, noise, seed)
    if "method" not in piece.labels:
        some = train.pixels[: settings["choosing_images"]]
        return _run_rivals(noise, noisy, originals, spoiled(some, noise, seed + 1), some, place)
    method = piece.labels["method"]
    forget_former_work(place.device)
    model, _ = trained_model(
        told["model"],
        train,
        method="csm",
        seed=seed,
        device=place.device,
        folder=settings["models_folder"],
        progress=lambda share: place.progress(0.6 * share),
    )
    how = Denoising(**{**told["ours"], **told["paper"]}[method])
    size = settings["batch"]
    if how.method == "particles":
        size = max(1, settings["particles_at_once"] // how.particles)
    synchronise(place.device)
    began = time.perf_counter()
    clean = denoise_images(model, noisy, noise, how, seed=seed, batch_size=size)
    seconds = time.perf_counter() - began
    first = method == next(iter(told["ours"]))
    return {
        "case": case,
        "method": method,
        "seed": seed,
        "settings": told["ours"].get(method, told["paper"].get(method)),
        "views": list(how.views_of(model)),
        "seconds": seconds,
        "side_by_side": place.jobs,
        "images": len(originals),
        "train_seconds": None if model.history is None else model.history.seconds,
        "parameters": model.parameters,
        **measured(clean, originals),
        "grid": _strip(clean),
        "completed": _completed(model, originals, seed) if first and told["completed"] else None,
    }


def spoiled(pixels: np.ndarray, noise: Corruption, seed: int) -> np.ndarray:
    """Return images with noise: uint8, or floats of level/255 where it is Gaussian."""
    random = np.random.default_rng(seed)
    if isinstance(noise, Gaussian):
        return gaussian(pixels, noise.sigma, random)
    return noise.apply(pixels, random)


def measured(clean: np.ndarray, originals: np.ndarray) -> dict[str, Any]:
    """Return means and deviations of PSNR and SSIM; that is None for images too small for it."""
    # A restored image without any error would be infinitely good: one level off in one scalar.
    most = 10 * np.log10(255**2 * float(np.prod(originals.shape[1:])))
    decibels = np.minimum(psnr(clean, originals), most)
    found: dict[str, Any] = {
        "psnr": float(decibels.mean()),
        "psnr_deviation": float(decibels.std()),
    }
    if min(originals.shape[1:3]) < _LEAST_SIDE_OF_SSIM:
        return {**found, "ssim": None, "ssim_deviation": None}
    similar = ssim(clean, originals)
    return {**found, "ssim": float(similar.mean()), "ssim_deviation": float(similar.std())}


def _run_rivals(
    noise: Corruption,
    noisy: np.ndarray,
    originals: np.ndarray,
    known_noisy: np.ndarray,
    known: np.ndarray,
    place: Place,
) -> Raw:
    values, known_values = (
        (pixels / 255.0 if pixels.dtype == np.uint8 else pixels.astype(np.float64))
        for pixels in (noisy, known_noisy)
    )
    found: dict[str, Any] = {
        NOISY: {**measured(to_uint8(values), originals), "settings": {}, "seconds": 0.0}
    }
    grids = {"original": _strip(originals), NOISY: _strip(to_uint8(values))}
    rivals = rivals_for(noise)
    for index, (name, (rival, grid)) in enumerate(rivals.items()):
        try:
            settings = choose_settings(rival, grid, known_values, known)
            began = time.perf_counter()
            clean = apply(rival, values, settings)
        except ImportError as error:
            found[name] = {"missing": f"the package {error.name} is not installed"}
            continue
        seconds = time.perf_counter() - began
        found[name] = {**measured(clean, originals), "settings": settings, "seconds": seconds}
        grids[name] = _strip(clean)
        place.progress((index + 1) / len(rivals))
    return {"rivals": found, "grids": grids, "images": len(originals)}


def _strip(images: np.ndarray) -> str:
    """Return the first images, one below the other, as PNG."""
    enlarge = max(1, 64 // images.shape[1])
    return to_png(picture_grid(images[:_SHOWN], columns=1, enlarge=enlarge))


def _completed(model: ImageModel, originals: np.ndarray, seed: int) -> str:
    """Return images, their upper half, and four completions of it, as PNG."""
    half, some = model.shape[0] // 2, originals[:_SHOWN]
    tops = some.copy()
    tops[:, half:] = 128
    drawn = complete(model, some[:, :half], 4, seed)
    lines = np.concatenate([some[:, None], tops[:, None], drawn], 1)
    enlarge = max(1, 64 // some.shape[1])
    return to_png(picture_grid(lines.reshape(-1, *model.shape), columns=6, enlarge=enlarge))


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return PSNR, SSIM and seconds of all methods."""
    found: list[Metric] = []
    for piece in pieces(settings):
        one, labels = raw[piece.name], {"case": piece.labels["case"], "seed": piece.labels["seed"]}
        if "rivals" in one:
            for name, of in one["rivals"].items():
                found += _of(of, {**labels, "method": name, "by": "rival"}, one["images"])
        else:
            ours = piece.labels["method"] in settings["cases"][labels["case"]]["ours"]
            by = "arcsm" if ours else "the paper's method on the same model"
            about = {**labels, "method": one["method"], "by": by}
            found += _of(one, about, one["images"])
            if one["train_seconds"] is not None:
                trained = one["train_seconds"]
                found.append(Metric("seconds of training", trained, "s", 1, labels=about))
    return found


def _of(one: Mapping[str, Any], labels: Mapping[str, Any], images: int) -> list[Metric]:
    """Return what was measured of one method."""
    if "missing" in one:
        reason = one["missing"]
        return [
            Metric(name, None, unit, 0, labels=labels, reason=reason)
            for name, unit in (("PSNR", "dB"), ("SSIM", "1"))
        ]
    about = {**labels, "settings": str(one["settings"])}
    together = one.get("side_by_side", 1)
    shared = {"methods side by side": together} if together > 1 else {}
    found = [Metric("PSNR", one["psnr"], "dB", images, spread=one["psnr_deviation"], labels=about)]
    if one["ssim"] is None:
        reason = "images are smaller than its window"
        found.append(Metric("SSIM", None, "1", 0, labels=about, reason=reason))
    else:
        deviation = one["ssim_deviation"]
        found.append(Metric("SSIM", one["ssim"], "1", images, spread=deviation, labels=about))
    if one["seconds"]:
        speed = images / one["seconds"]
        found.append(Metric("images a second", speed, "1/s", 1, labels={**about, **shared}))
    return found


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw the results side by side, PSNR of all methods, and completions."""
    drawn = {}
    for name, case in settings["cases"].items():
        seed = settings["seeds"][0]
        rivals = raw[f"{name}.rivals.{seed}"]
        methods = (*case["ours"], *case["paper"])
        runs = {method: raw[f"{name}.{i}.{seed}"] for i, method in enumerate(methods)}
        title = f"{DATA.get(name, name)}, {case['noise'].replace(':', ' ')}"
        shown = {method: runs[method]["grid"] for method in case["paper"]}
        panels = {_short(key): from_png(grid) for key, grid in {**rivals["grids"], **shown}.items()}
        panels["arcsm"] = from_png(runs[case["default"]]["grid"])
        drawn[f"pictures-{name}"] = grid_figure(panels, title=f"{title}: the first test images")
        values = {key: of.get("psnr") for key, of in rivals["rivals"].items()}
        values |= {method: one["psnr"] for method, one in runs.items()}
        ours = set(case["ours"])
        drawn[f"psnr-{name}"] = points_figure(
            {
                "others": {key: [None if key in ours else value] for key, value in values.items()},
                "arcsm": {key: [value if key in ours else None] for key, value in values.items()},
            },
            x="mean PSNR, dB",
            title=f"{title} (more is better)",
        )
        completed = runs[methods[0]]["completed"]
        if completed is not None:
            panel = {"original, what is known, and four draws": from_png(completed)}
            drawn[f"completed-{name}"] = grid_figure(
                panel, title=f"{DATA.get(name, name)}: the lower half, completed"
            )
    return drawn


def _short(name: str) -> str:
    """Return a name that fits above a narrow picture."""
    return {
        NOISY: "noisy",
        "median filter": "median",
        "median of what is neither black nor white": "median 2",
        "non-local means": "NLM",
        "total variation": "TV",
        "the paper's Langevin": "Langevin",
        "the paper's single step": "one step",
    }.get(name, name)


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say of each case whether the default is ahead of all rivals, in both measures."""
    said = []
    for name, case in settings["cases"].items():
        own: dict[str, float] = {}
        best: dict[str, tuple[float, str]] = {}
        missing = set()
        for one in metrics:
            if one.labels.get("case") != name or one.name not in ("PSNR", "SSIM"):
                continue
            if one.value is None:
                if one.labels["by"] == "rival" and "installed" in (one.reason or ""):
                    missing.add(one.labels["method"])
            elif one.labels["method"] == case["default"]:
                own[one.name] = one.value
            elif one.labels["by"] == "rival" and one.value > best.get(one.name, (-1.0, ""))[0]:
                best[one.name] = one.value, one.labels["method"]
        digits = {"PSNR": 1, "SSIM": 3}
        parts = [
            f"{key} {value:.{digits[key]}f} against {best[key][0]:.{digits[key]}f} ({best[key][1]})"
            for key, value in own.items()
        ]
        ahead = all(value > best[key][0] for key, value in own.items())
        left_out = f" Not installed: {', '.join(sorted(missing))}." if missing else ""
        what = f"{DATA.get(name, name)}, {case['noise']}, by {case['default']}"
        text = f"{what}: {'; '.join(parts)}.{left_out}"
        holds = None if not settings["goal"] or (missing and ahead) else ahead
        said.append(Verdict(holds, text))
    return said


EXPERIMENT = Experiment(
    name="image-denoising",
    title="Removing noise from images",
    question="Is a model of clean images better than filters, and than the paper's own methods?",
    claims=[
        Claim(
            "Langevin dynamics removes 10 % salt-and-pepper noise from CIFAR-10, a single step"
            " Gaussian noise of σ = 0.6 from MNIST. (Pictures; the paper gives no number.)",
            "Section 5.4, Figure 5",
        )
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
)
