"""Model cards: what a model is, what it was told by the data, and how good it is."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from arcsm.data.table import Table
from arcsm.files import write_text
from arcsm.images import ImageModel
from arcsm.images.model import in_words
from arcsm.plots import loss_plot, pair_plot, pit_difference_plot, pit_plot, save_figure
from arcsm.plots.pictures import picture_grid, save_picture
from arcsm.results import current_versions
from arcsm.tabular import TabularModel
from arcsm.train import History

_ROWS = 2000  # of the data and of samples that the pictures show
_IMAGES = 64  # of a grid
_COVERAGES = (0.5, 0.8, 0.9, 0.95)  # of intervals that are counted


def write_card(
    directory: str | os.PathLike[str],
    model: TabularModel,
    history: History,
    *,
    title: str,
    data: Table | None = None,
    about_data: str = "",
    seed: int = 0,
) -> None:
    """Write README.md and its pictures into the directory of a model.

    With `data`, rows that the model was not trained on if possible, the card shows them beside
    samples, the log-density that they have, and whether the conditionals are calibrated;
    `about_data` is a sentence that says which rows these are.
    """
    folder, version = Path(directory), current_versions()["arcsm"]
    parts = [
        front_matter("tabular"),
        f"# {title}",
        *_what_it_is(model, title, version),
        "## Columns",
        _columns(model),
    ]
    parts += [*_order(model)]
    parts += ["## Training", _training(model, history)]
    if history.training:
        save_figure(loss_plot(history), folder / "loss.png")
        parts.append("![Loss during training](loss.png)")
    if data is not None:
        parts.append("## Data against samples")
        parts += [about_data] if about_data else []
        parts += [*_comparison(folder, model, data, seed)]
    parts += [
        "## Limits",
        "The density is that of the rows seen in training, smoothed by"
        f" {model.members[0].noise.sigma_min:g} standard deviations of each column. It knows"
        " nothing beyond their range but how the tails of its columns were seen to fall off.",
    ]
    write_text(folder / "README.md", "\n\n".join(parts) + "\n")


def write_image_card(
    directory: str | os.PathLike[str],
    model: ImageModel,
    *,
    title: str,
    bits: tuple[float, int] | None = None,
    command: str | None = None,
    seed: int = 0,
) -> None:
    """Write README.md and its pictures into the directory of a model of images.

    `bits` are those per dimension of some held-out images, and the number of these; `command` is
    the command line that made the model.
    """
    folder, version = Path(directory), current_versions()["arcsm"]
    settings, history = model.settings, model.history
    how = (
        "maximum likelihood" if settings.method == "likelihood" else "autoregressive score matching"
    )
    save_picture(folder / "samples.png", picture_grid(model.sample(_IMAGES, seed=seed)))
    parts = [
        front_matter("images"),
        f"# {title}",
        f"A density over images of {in_words(model.shape)} (`{model.name}`), learned by {how}"
        f" (arcsm {version}): network {settings.network}, {model.parameters:,} parameters.",
        "```python\nfrom arcsm.images import ImageModel\n\n"
        f'model = ImageModel.load("{title}")\n'
        "model.sample(64)  # uint8 (64, height, width, channels)\n"
        "model.bits_per_dim(images)\n```",
        f"Uncurated samples, the first {_IMAGES} of seed {seed}:",
        "![Samples](samples.png)",
        "## Training",
    ]
    if command is not None:
        parts.append(f"`{command}`")
    if history is not None:
        parts.append(
            f"{history.steps} steps of {settings.batch} images in {history.seconds:.0f} s."
        )
        if history.training:
            save_figure(loss_plot(history), folder / "loss.png")
            parts.append("![Loss during training](loss.png)")
    if bits is not None:
        parts.append(f"{bits[1]} held-out images: {bits[0]:.3f} bits per dimension on average.")
    parts += ["## What is scored", f"Log-probabilities are of {model.about_probability}."]
    write_text(folder / "README.md", "\n\n".join(parts) + "\n")


def write_plain_card(directory: str | os.PathLike[str], *, title: str) -> None:
    """Write a README.md without pictures, for any model."""
    parts = [
        front_matter(),
        f"# {title}",
        f"A model learned by autoregressive score matching (arcsm {current_versions()['arcsm']}).",
        f'```python\nimport arcsm\n\nmodel = arcsm.load("{title}")\n```',
    ]
    write_text(Path(directory) / "README.md", "\n\n".join(parts) + "\n")


def front_matter(*tags: str) -> str:
    """Return the head of a card, by which the Hugging Face hub knows what the model is.

    >>> print(front_matter("tabular"))
    ---
    library_name: arcsm
    tags:
    - arcsm
    - density-estimation
    - tabular
    ---
    """
    listed = [f"- {tag}" for tag in ("arcsm", "density-estimation", *tags)]
    return "\n".join(["---", "library_name: arcsm", "tags:", *listed, "---"])


def _what_it_is(model: TabularModel, title: str, version: str) -> list[str]:
    """Return what a model of a table gives, and how to ask for it."""
    load = f'```python\nimport arcsm\n\ndensity = arcsm.ARCSMDensity.load("{title}")\n'
    if model.columns.covariates:
        given = ", ".join(_text(name) for name in model.columns.covariates)
        predicted = ", ".join(_text(name) for name in model.chained)
        return [
            f"The density of {predicted} given {given}, learned by autoregressive score matching"
            f" (arcsm {version}). It gives quantiles, intervals and means, draws, and log-densities"
            " in nats and in the units of the table.",
            f"{load}density.quantile(table, [0.05, 0.5, 0.95])  # a data frame of what is given\n"
            "density.interval(table, 0.9), density.mean(table)\n"
            "density.sample(given=table)\n```",
        ]
    return [
        "A density over the columns of a table, learned by autoregressive score matching"
        f" (arcsm {version}). It gives the log-density of rows, in nats and in the units of the"
        " table, and draws new rows.",
        f"{load}density.score_samples(table)  # a data frame or array with the columns below\n"
        "density.sample(10)\n```",
    ]


def _columns(model: TabularModel) -> str:
    rows = [
        f"| {_text(column['name'])} | {column['kind']} | {_text(column['reason'])} |"
        for column in model.columns.describe()
    ]
    return "\n".join(["| column | taken for | because |", "|---|---|---|", *rows])


def _order(model: TabularModel) -> list[str]:
    """Return what there is to say of the order, and of several models."""
    count, chain = len(model.members), " → ".join(_text(name) for name in model.order)
    if count > 1 and model.order:
        parts = [f"The density is the mean of those of {count} models with the same order."]
    elif count > 1:
        parts = [
            f"The density is the mean of those of {count} models, each with an order of its own; it"
            " has no conditionals in an order."
        ]
    elif model.any_order:
        parts = ["One model for any order: it draws any columns given any others."]
    else:
        parts = []
    if len(model.order) > 1:
        scores = " that scores follow" if model.any_order else " of the chain"
        parts.append(f"Order{scores}: {chain}")
    return parts


def _training(model: TabularModel, history: History) -> str:
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    noise = model.members[0].noise
    text = (
        f"{history.steps} steps in {history.seconds:.0f} s; {parameters:,} parameters;"
        f" noise levels from {noise.sigma_max:g} to {noise.sigma_min:g}."
    )
    if history.validation:
        text += f" The weights are those of step {history.best_step}, the best on held-out rows."
    return text


def _comparison(folder: Path, model: TabularModel, data: Table, seed: int) -> list[str]:
    """Return the parts of the card that need data, after their pictures were written."""
    random = np.random.default_rng(seed)
    if data.rows > _ROWS:
        data = data.take(np.sort(random.choice(data.rows, _ROWS, replace=False)))
    log_prob = model.log_prob(data)
    possible = np.isfinite(log_prob)
    parts = [
        f"Mean log-density of {data.rows} rows: {log_prob.mean():.3f} nats."
        if possible.all()
        else f"{np.count_nonzero(~possible)} of {data.rows} rows are impossible under the model;"
        f" the others have a mean log-density of {log_prob[possible].mean():.3f} nats."
        if possible.any()
        else f"All of {data.rows} rows are impossible under the model."
    ]
    shown = [name for name in model.columns.names if name in model.chained]
    generator = torch.Generator(model.model.device).manual_seed(seed)
    if model.columns.covariates:
        given = data.select(model.columns.covariates)
        shown += [name for name in given.names if (given[name] != given[name][0]).any()]
        samples = model.sample(data.rows, given=given, generator=generator)
    else:
        samples = model.sample(min(_ROWS, max(data.rows, 500)), generator=generator)
    save_figure(pair_plot(data.select(shown), samples.select(shown)), folder / "pairs.png")
    parts.append("![Data below the diagonal, samples above](pairs.png)")
    if np.count_nonzero(possible) >= 20:
        evaluate = model.pit if model.order else model.pit_of_members
        pit = evaluate(data.take(np.flatnonzero(possible)), random=random)
        if pit:
            save_figure(
                pit_difference_plot(np.column_stack(list(pit.values())), names=list(pit)),
                folder / "calibration.png",
            )
            parts.append(
                "Calibration: how far the distribution of each conditional's probability values"
                " is from the uniform one; the band is where 95 % of perfect models stay."
            )
            parts.append("![Calibration of each column](calibration.png)")
        if pit and model.columns.covariates:
            name, values = next(iter(pit.items()))
            save_figure(pit_plot(values, name=name), folder / "pit.png")
            parts += ["![Histogram of predicted probabilities](pit.png)", _coverage(pit)]
    return parts


def _coverage(pit: Mapping[str, np.ndarray]) -> str:
    """Return how often values lie in central intervals: where their PIT is that near to 1/2."""
    rows = [
        f"| {_text(name)} | "
        + " | ".join(f"{np.mean(np.abs(values - 0.5) <= c / 2):.1%}" for c in _COVERAGES)
        + " |"
        for name, values in pit.items()
    ]
    heads = " | ".join(f"{coverage:.0%}" for coverage in _COVERAGES)
    title = "Share of the rows in intervals that should hold so many of them:"
    return "\n".join([title, "", f"| column | {heads} |", "|---" * 5 + "|", *rows])


def _text(value: object) -> str:
    """Return text that a Markdown table can hold."""
    return str(value).replace("|", "\\|").replace("\n", " ")
