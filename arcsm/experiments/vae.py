"""VAEs with implicit encoders, trained by six estimators of the entropy gradient (Section 6).

All methods have the same decoder, steps and hardware. ELBO has a normal encoder; Stein, Spectral
and SSM a free implicit one; SSM-AR and CSM one of the form z_d = h_d(ε_d, z_<d, x), which their
conditional scores need. As that is a difference of encoders, too, SSM is on MNIST also given the
encoder of CSM: a control, which stands beside the paper's methods.

The runs of a method on MNIST, one for each seed, are trained side by side; they are judged by
log p(x), estimated by AIS on test images and bounded by IWAE. On CelebA each run is a piece of its
own, judged by FID.

The bounds in the curves have a normal proposal with the moments of the encoder's draws, the same
way for all methods: implicit encoders have no bound of their own.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.image_figures import grid_figure
from arcsm.experiments.image_parts import (
    DATA,
    distances,
    forget_former_work,
    from_png,
    load_features,
    name_features,
    reference_statistics,
)
from arcsm.experiments.lines import Line, line_figure
from arcsm.experiments.summaries import over_seeds
from arcsm.experiments.vae_budgets import (
    BUDGETS,
    CONTROL,
    METHODS,
    NAMES,
    OF_LIKELIHOODS,
    OF_SAMPLES,
)
from arcsm.experiments.vae_parts import (
    Pictures,
    alone_with,
    check_pieces,
    draw_pictures,
    draw_samples,
    make_stack,
    measure_likelihood,
    seeds_together,
    settings_for,
    settings_of,
    state_folder,
    title_of,
    train_stack,
    walked_latents,
)
from arcsm.files import discard_directory
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER: dict[tuple[str, int], dict[str, float]] = {
    ("mnist", 8): dict(zip(METHODS, (96.74, 96.90, 96.85, 95.61, 95.85, 95.02), strict=True)),
    ("mnist", 16): dict(zip(METHODS, (91.82, 88.86, 88.76, 88.44, 88.98, 88.42), strict=True)),
    ("celeba", 32): dict(zip(METHODS, (66.31, 108.84, 121.51, 62.50, 66.88, 62.20), strict=True)),
}
AIS, FID = "−log p by AIS", "FID"
# Those of the set-up that the paper follows.
PAPER_STEPS = 100_000
# Test images whose mean may stand beside the paper's: a few hundred, the first ones, are no sample.
_IMAGES = 2000
# The share of the steps after which bounds are drawn: the first ones would dwarf the others.
_SHOWN_FROM = 0.1
# Methods beside one another in a picture.
_ACROSS = 3
# Settings that no piece depends on but in its own part, by their labels.
_OF_PIECES = ("tables", "methods", "controls", "seeds", "celeba_seeds")
_OF_NONE = ("save_seconds", "timed_steps")
_OF_OTHERS = {"mnist": ("width", *OF_SAMPLES), "celeba": OF_LIKELIHOODS}


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return a piece for each set, latent size and method, and for each seed of CelebA.

    One depends on nothing that is said of another set, or of another method.
    """
    found = []
    for table in settings["tables"]:
        data = table["data"]
        common = settings_of(settings, data, {*_OF_PIECES, *_OF_NONE, *_OF_OTHERS[data]})
        controls = [one["method"] for one in settings["controls"] if table.items() <= one.items()]
        for seeds in seeds_together(settings, data):
            for method in (*settings["methods"], *controls):
                labels = {**table, "method": method, "seeds": seeds}
                name = f"{data}.{table['latent']}.{method}"
                if data != "mnist":
                    name += f".{seeds[0]}"
                depends_on = {**settings_for(common, method), **labels}
                found.append(Piece(name, labels, depends_on=depends_on))
    return found


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Train runs of a method, one for each of its seeds, and judge them.

    The state of the training is kept in the cache of the user until all is done, so that a piece
    that was interrupted goes on, be it in its training or after that; a fresh one discards it.
    """
    folder = state_folder(piece, place.device)
    with alone_with(folder, piece):
        return _run(settings, piece, place, folder)


def _run(settings: Settings, piece: Piece, place: Place, folder: Path) -> Raw:
    data, latent, method = (piece.labels[key] for key in ("data", "latent", "method"))
    pictures = Pictures(settings, data)
    forget_former_work(place.device)
    # Before an hour of training: the network of FID may not be there.
    features = None if pictures.binary else load_features(settings, place.device)
    if place.fresh and folder.exists():
        discard_directory(folder)
    seeds = piece.labels["seeds"]
    stack = make_stack(settings, pictures, method, latent, seeds, place.device)
    curve = train_stack(
        settings, pictures, stack, folder, lambda share: place.progress(0.7 * share), place.tell
    )
    runs: list[dict[str, Any]] = []
    for index, seed in enumerate(stack.seeds):
        encoder, decoder = stack.run(index)

        def progress(share: float, index: int = index) -> None:
            place.progress(0.7 + 0.3 * (index + share) / len(stack.seeds))

        found: dict[str, Any] = {"seed": seed}
        if features is None:
            found |= measure_likelihood(
                settings, pictures, encoder, decoder, place.device, progress
            )
        else:
            reference = reference_statistics(settings, pictures.train, features, place.device)
            samples = draw_samples(pictures, decoder, settings["samples"], seed, place.device)
            found |= {
                **distances(settings, samples, features, reference),
                "note": pictures.train.note,
            }
            found["images"] = reference.count
        if index == 0:
            found["pictures"] = draw_pictures(pictures, encoder, decoder, place.device)
        runs.append(found)
    discard_directory(folder)
    return {
        "data": data,
        "latent": latent,
        "method": method,
        "captured": stack.captured,
        "side_by_side": place.jobs,
        "curve": curve,
        "runs": runs,
    }


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return the table of the paper, gaps to ELBO, bounds, and checks of AIS, as far as they go."""
    found: list[Metric] = []
    for table in settings["tables"]:
        values: dict[str, list[float]] = {}
        for method, ones in _by_method(settings, raw, table).items():
            labels = {**table, "method": method}
            runs = [run for one in ones for run in one["runs"]]
            key = "ais" if table["data"] == "mnist" else "fid"
            values[method] = [run[key] for run in runs]
            found += _of_runs(settings, runs, labels)
            seconds = [one["curve"]["seconds"][-1] for one in ones]
            told = {**labels, "seeds side by side": len(ones[0]["runs"])}
            together = max(one["side_by_side"] for one in ones)
            if together > 1:
                told["pieces side by side"] = together
            found.append(over_seeds("seconds of training", seconds, "s", told))
        if "elbo" in values:
            base = statistics.mean(values["elbo"])
            found += [
                Metric(
                    "gap to ELBO",
                    statistics.mean(of) - base,
                    "nats" if table["data"] == "mnist" else "1",
                    len(of),
                    labels={**table, "method": method},
                )
                for method, of in values.items()
                if method != "elbo"
            ]
    return found


def _by_method(
    settings: Settings, raw: Mapping[str, Raw], table: Mapping[str, Any]
) -> dict[str, list[Raw]]:
    """Return what there is of each method in a table, piece by piece."""
    found: dict[str, list[Raw]] = {}
    for piece in pieces({**settings, "tables": [table]}):
        if piece.name in raw:
            found.setdefault(piece.labels["method"], []).append(raw[piece.name])
    return {method: found[method] for method in NAMES if method in found}


def _of_runs(
    settings: Settings, runs: Sequence[Mapping[str, Any]], labels: Mapping[str, Any]
) -> list[Metric]:
    if "fid" in runs[0]:
        against = f"{runs[0]['images']:,} training images"
        if runs[0]["note"]:
            against += f" ({runs[0]['note']})"
        measured = {
            **labels,
            "samples": settings["samples"],
            "against": against,
            "features": name_features(settings),
        }
        return [
            over_seeds(FID, [run["fid"] for run in runs], "1", measured),
            over_seeds("KID", [run["kid"] for run in runs], "1", measured),
        ]
    of_ais = {**labels, "images": runs[0]["ais_images"]}
    of_all = {**labels, "images": runs[0]["iwae_images"], "draws": settings["iwae_samples"]}
    return [
        over_seeds(AIS, [run["ais"] for run in runs], "nats", of_ais),
        over_seeds("−log p, bound by IWAE", [run["iwae"] for run in runs], "nats", of_all),
        over_seeds("−ELBO with a normal proposal", [run["elbo"] for run in runs], "nats", of_all),
        over_seeds(
            "gap of AIS from both sides, simulated images",
            [run["gap"] for run in runs],
            "nats",
            labels,
        ),
        over_seeds("moves of AIS accepted", [run["acceptance"] for run in runs], "1", labels),
        over_seeds(
            "images whose AIS chains all reject", [run["stuck"] for run in runs], "1", labels
        ),
    ]


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw bounds over steps, and samples, reconstructions and walks of every method."""
    drawn = {}
    for table in settings["tables"]:
        data, latent = table["data"], table["latent"]
        there = _by_method(settings, raw, table)
        # Of posteriors far from normal, as those of controls may be, such bounds say little.
        found = {method: ones for method, ones in there.items() if method in METHODS}
        if not found:
            continue
        title = title_of(data, latent)
        lines = {}
        for method, ones in found.items():
            bounds: dict[int, list[float]] = {}
            for curve in (one["curve"] for one in ones):
                for step, of in zip(curve["step"], curve["iwae"], strict=True):
                    bounds.setdefault(step, []).extend(of)
            points = [
                (step, -statistics.mean(of), -max(of), -min(of))
                for step, of in bounds.items()
                if of and all(map(math.isfinite, of)) and step >= _SHOWN_FROM * max(bounds)
            ]
            if points:
                lines[METHODS[method]] = Line(*zip(*points, strict=True))
        drawn[f"bounds-{data}-{latent}"] = line_figure(
            lines,
            x="step",
            y=f"−log p(x), bound by {settings['validation_draws']} draws, nats",
            title=f"{title}: validation images",
            log_x=False,
            log_y=False,
        )
        walked = walked_latents(latent, binary=data == "mnist")
        some = "each latent" if walked == latent else f"each of the first {walked}"
        for kind, told in (
            ("samples", "samples, none chosen"),
            ("reconstructions", "reconstructions"),
            ("traversal", f"rows along {some}, from its 5 % to its 95 % quantile"),
        ):
            panels = {
                METHODS[method]: from_png(ones[0]["runs"][0]["pictures"][kind])
                for method, ones in found.items()
            }
            drawn[f"{kind}-{data}-{latent}"] = grid_figure(
                panels, title=f"{title}: {told}", across=_ACROSS
            )
    return drawn


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say how CSM stands to the paper's figures and to the other methods."""
    said: list[Verdict] = []
    for table in settings["tables"]:
        data, latent = table["data"], table["latent"]
        title, paper = title_of(data, latent), PAPER.get((data, latent))
        tells = paper is not None and settings["sources"][data]["name"] == data
        found = {
            one.labels["method"]: one
            for one in metrics
            if one.name in (AIS, FID) and table.items() <= one.labels.items()
        }
        if "csm" not in found:
            continue
        own, unit = found["csm"], " nats" if data == "mnist" else ""
        steps = settings["training"][data]["steps"]
        control = found.pop(CONTROL, None)
        values = {method: one.value or 0.0 for method, one in found.items()}
        if data == "mnist" and paper is not None:
            images = own.labels["images"]
            text = (
                f"{title}: CSM has {values['csm']:.2f} nats on the first {images:,} test images"
                f" after {steps:,} steps, the paper {paper['csm']:.2f}"
            )
            if "elbo" in values:
                text += f" (ELBO {values['elbo']:.2f}, the paper's {paper['elbo']:.2f})"
            enough = images >= _IMAGES
            text += "" if enough else "; these are too few to stand beside it"
            text += "." if own.n > 1 else "; of one seed."
            whole = tells and steps >= PAPER_STEPS and own.n > 1 and enough
            said.append(Verdict(values["csm"] <= paper["csm"] if whole else None, text))
        missing = [METHODS[m] for m in settings["methods"] if m not in values]
        best = min(values, key=lambda method: values[method])
        behind = values["csm"] - values[best]
        listed = ", ".join(f"{METHODS[method]} {value:.2f}" for method, value in values.items())
        how = ""
        if data != "mnist":
            how = f" by the FID of {own.labels['samples']:,} samples after {steps:,} steps"
        text = f"{title}: {METHODS[best]} is best{how} ({listed}{unit})"
        error = math.hypot(_standard_error(own), _standard_error(found[best]))
        fewest, most = (of(one.n for one in found.values()) for of in (min, max))
        if best != "csm":
            text += f"; CSM is {behind:.2f} behind it"
            text += f", with a standard error of {error:.2f}" if fewest > 1 else ""
        wanted = sum(map(len, seeds_together(settings, data)))
        if fewest < wanted:
            of_seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            text += f"; of {wanted} seeds there are {of_seeds} so far"
        elif wanted == 1:
            text += ", of one seed"
        text += f"; not run yet: {', '.join(missing)}." if missing else "."
        whole = tells and 1 < fewest == wanted and not missing
        said.append(Verdict(behind <= error if whole else None, text))
        if paper is not None and len(values) == len(paper):
            ours, theirs = (
                " < ".join(METHODS[m] for m in sorted(of, key=lambda m: of[m]))
                for of in (values, paper)
            )
            said.append(Verdict(None, f"{title}: the order is {ours}; the paper's {theirs}."))
        if paper is not None and "elbo" in values:
            gaps = ", ".join(
                f"{METHODS[m]} {value - values['elbo']:+.2f} ({paper[m] - paper['elbo']:+.2f})"
                for m, value in values.items()
                if m != "elbo"
            )
            said.append(Verdict(None, f"{title}: gaps to ELBO, and the paper's: {gaps}."))
        if control is not None and control.value is not None:
            text = f"{title}: {NAMES[CONTROL]} has {control.value:.2f}{unit}"
            text += f", CSM {values['csm']:.2f}" + (
                f", SSM with its own {values['ssm']:.2f}." if "ssm" in values else "."
            )
            said.append(Verdict(None, text))
    return said


def _standard_error(metric: Metric) -> float:
    return 0.0 if metric.spread is None else metric.spread / math.sqrt(metric.n)


EXPERIMENT = Experiment(
    name="vae",
    title="VAEs with implicit encoders",
    question="Which estimator of the entropy gradient trains the best VAE?",
    claims=[
        Claim(
            f"{METHODS[method]}, {DATA[data]} with {latent} latents.",
            "Section 6, Table 2",
            AIS if data == "mnist" else FID,
            value,
            "nats" if data == "mnist" else "1",
            {"data": data, "latent": latent, "method": method},
        )
        for (data, latent), values in PAPER.items()
        for method, value in values.items()
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
    check=check_pieces,
    tells_of_some=True,
)
