"""The page: one HTML file with everything inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from arcsm.demo import charts, figures
from arcsm.demo.digits import PEAK, SIDE, DigitsResult
from arcsm.demo.rivals import Rival
from arcsm.demo.style import CSS
from arcsm.demo.toy import ToyResult
from arcsm.pages import definitions, document, image, number, tile

_CONDITIONAL = "q(x<sub>2</sub> | x<sub>1</sub>)"


@dataclass(frozen=True)
class About:
    """The foot of the page: how it came to be."""

    command: str
    settings: Mapping[str, str]
    versions: Mapping[str, str]
    seconds: Mapping[str, float]
    total: float


def render(toy: ToyResult, digits: DigitsResult, about: About) -> str:
    """Return the whole page."""
    return document(
        f"AR-CSM on {toy.name} and digits",
        CSS,
        f"{_head(toy, digits, about)}\n{_toy(toy)}\n{_likelihood(toy, digits)}\n{_digits(digits)}\n"
        f"{_loss(toy, digits)}\n{_foot(about)}",
    )


def _head(toy: ToyResult, digits: DigitsResult, about: About) -> str:
    kl, kl_error = _mean(toy.true_log_prob - toy.log_prob)
    rival = max(digits.rivals, key=lambda rival: rival.log_prob.mean())
    ahead, ahead_error = _mean(digits.log_prob - rival.log_prob)
    facts = (
        (_spread(kl, kl_error, 3), "nats", f"KL(truth ‖ model) on {escape(toy.name)}"),
        (
            _spread(abs(ahead), ahead_error, 1),
            "nats",
            f"{'ahead of' if ahead > 0 else 'behind'} the best rival on unseen digits"
            f" ({rival.name})",
        ),
        (
            f"{number(digits.psnr_noisy, 1)} → {number(digits.psnr_denoised, 1)}",
            "dB",
            "PSNR of noisy digits before and after denoising in one pass",
        ),
        (f"{about.total:.0f}", "s", "for everything on this page, on this CPU"),
    )
    cells = "".join(
        f"<div><strong>{value} <small>{unit}</small></strong><span>{text}</span></div>"
        for value, unit, text in facts
    )
    return f"""<header id="what">
<p class="kicker">arcsm</p>
<h1>A density, learned one slope at a time</h1>
<p class="lead">An autoregressive conditional score model (AR-CSM) splits a joint density into a
chain of one-dimensional conditionals q(x<sub>d</sub> | x<sub>&lt;d</sub>) and learns each through
its score, the slope of its logarithm, so that nothing needs to be normalised in training.
Afterwards every conditional is a function of one number, which is easily integrated: the same
network yields normalised likelihoods, samples without a Markov chain, and denoising.</p>
<div class="diagram">{charts.diagram()}</div>
<div class="facts">{cells}</div>
</header>"""


def _toy(toy: ToyResult) -> str:
    kl, error = _mean(toy.true_log_prob - toy.log_prob)
    top = float(np.quantile(toy.truth, 0.998)) or float(toy.truth.max())
    marks = "".join(
        f'<i style="left:{50 + 50 * (part.x1 - toy.centre[0]) / toy.reach:.2f}%"></i>'
        for part in toy.slices
    )
    tallest = max(float(max(part.density.max(), part.truth.max())) for part in toy.slices)
    # Where there is no mass scores run away; those where there is some set the scale.
    steepest = 1.3 * max(
        float(np.abs(part.score[part.density > 0.02 * part.density.max()]).max())
        for part in toy.slices
    )
    slices = "".join(
        tile(
            f"given <b>x<sub>1</sub> = {number(part.x1, 2)}</b>",
            charts.slice_chart(part, top=tallest, steepest=steepest),
        )
        for part in toy.slices
    )
    scatter = [
        image(figures.scatter(points, toy.centre, toy.reach, colour), f"points of {what}")
        for points, colour, what in (
            (toy.data, figures.DATA_COLOUR, "the data"),
            (toy.samples, figures.MODEL_COLOUR, "the model"),
        )
    ]
    maps = [
        image(figures.heat_map(density, top), f"{what} density", "pixels round")
        for density, what in ((toy.truth, "true"), (toy.density, "learned"))
    ]
    return f"""<section id="toy">
<p class="kicker">Two dimensions, known truth</p>
<h2>{_title(toy.name)}</h2>
<p class="note">Trained on {toy.training_rows:,} points; the exact density is known, so every
picture has a right answer beside it.</p>
<figure id="samples">
<div class="pair">
{tile("<b>Data</b>", scatter[0])}
{tile("<b>Samples</b> of the model", scatter[1])}
</div>
<figcaption>{len(toy.data):,} points each; samples are drawn x<sub>1</sub> first, then x<sub>2</sub>
given x<sub>1</sub>, by inverting the cumulative distribution.</figcaption>
</figure>
<figure class="block" id="density">
<div class="pair">
{tile("<b>True</b> density", maps[0])}
{tile("<b>Learned</b> density", f'<div class="over">{maps[1]}{marks}</div>')}
</div>
<div class="scale"><span>0</span>{image(figures.heat_scale(), "colour scale")}<span>{top:.2g} per
unit area, both maps</span></div>
<figcaption>The learned density is normalised by construction: <b>KL(truth ‖ model) =
{_spread(kl, error, 4)} nats</b> on {len(toy.log_prob):,} unseen points; dashed lines mark the
slices below.</figcaption>
</figure>
<figure class="block" id="conditional">
<h3>{_CONDITIONAL}, and its score below</h3>
<div class="triple">{slices}</div>
<figcaption><span class="key model"></span>learned density &ensp;<span class="key score"></span>its
score ∂ log q/∂x<sub>2</sub>, a closed form &ensp;<span class="key truth"></span>the truth of
either: the score falls through zero at every peak, and is all that the network was trained on;
it is faint where there is no mass to learn from.</figcaption>
</figure>
</section>"""


def _likelihood(toy: ToyResult, digits: DigitsResult) -> str:
    truth = Rival("Truth", "minus the entropy", toy.true_log_prob)
    tables = [
        _table(_title(toy.name), toy.log_prob, [truth, *toy.rivals], 3),
        _table("Digits, 8 × 8", digits.log_prob, digits.rivals, 1),
    ]
    return f"""<section id="likelihood">
<p class="kicker">Against what one would use instead</p>
<h2>Held-out log-likelihood</h2>
<p class="note">Nats per row, higher is better, all on the same {len(toy.log_prob):,} points and
{len(digits.log_prob):,} digits that no model has seen; ± is one standard error, of the paired
difference in the last column.</p>
<div class="pair stack apart">{"".join(tables)}</div>
<p class="note block">The mixture's size and covariance are those of lowest BIC, the bandwidth is
cross-validated, and both are fitted to standardised columns. AR-CSM was trained on
fewer rows: a tenth of the training rows served to watch its loss.</p>
</section>"""


def _digits(digits: DigitsResult) -> str:
    def picture(images: ndarray, columns: int, what: str) -> str:
        png = figures.montage(images, columns, peak=PEAK, side=SIDE)
        return image(png, what, "pixels")

    columns = 10
    count = len(digits.unusual)
    top = 6.0
    blame = figures.blame(digits.unusual, digits.excess, count, peak=PEAK, side=SIDE, top=top)
    labels = "".join(
        f"<span><b>{label}</b>{number(value, 0)}</span>"
        for label, value in zip(digits.unusual_labels, digits.unusual_log_prob, strict=True)
    )
    kinds = (
        ("<b>clean</b>", digits.clean, "clean digits"),
        (f"<b>noisy</b><br>{digits.psnr_noisy:.1f} dB", digits.noisy, "noisy digits"),
        (f"<b>denoised</b><br>{digits.psnr_denoised:.1f} dB", digits.denoised, "denoised digits"),
    )
    denoised = "".join(
        f"<span>{name}</span>{picture(images, len(images), what)}" for name, images, what in kinds
    )
    return f"""<section id="digits">
<p class="kicker">64 dimensions, real data</p>
<h2>Digits</h2>
<p class="note">Scikit-learn's handwritten digits, 8 × 8 pixels of 0 … 16, made continuous by adding
uniform noise of one unit; trained on {digits.training_rows:,} digits, pixel after pixel.</p>
<figure id="generated">
<div class="pair stack">
{tile("<b>Real</b>, held out", picture(digits.real, columns, "real digits"))}
{tile("<b>Generated</b>, not selected", picture(digits.generated, columns, "generated digits"))}
</div>
<figcaption>Each generated digit is 64 draws in a row, every pixel from its own conditional given
those before it.</figcaption>
</figure>
<figure class="block" id="denoise">
<h3>Denoising in one pass</h3>
<div class="rows">{denoised}</div>
<figcaption>Gaussian noise of σ = {digits.sigma:g} on pixels of 0 … 16; each pixel becomes
x̃ + σ² s(x̃, σ), its mean given the noisy value and the pixels <em>already</em> cleaned (PSNR over
all {len(digits.log_prob)} held-out digits).</figcaption>
</figure>
<figure class="block" id="unusual">
<h3>The least likely held-out digits, and the pixels to blame</h3>
{picture(digits.unusual, count, "the least likely digits")}
<div class="block" style="margin-top:12px">{image(blame, "surprising pixels", "pixels")}</div>
<div class="under" style="grid-template-columns:repeat({count},1fr)">{labels}</div>
<figcaption>Red is surprise, −log q(x<sub>d</sub> | x<sub>&lt;d</sub>), beyond what is typical of
that pixel, in full from {top:g} nats on; below, the digit's label and its log-likelihood (the
median is {number(float(np.median(digits.log_prob)), 0)}).</figcaption>
</figure>
</section>"""


def _loss(toy: ToyResult, digits: DigitsResult) -> str:
    history = toy.history
    tiles = (
        tile(
            f"<b>{_title(toy.name)}</b>",
            charts.loss_chart(history.training, history.validation, best=history.best_step),
        ),
        tile("<b>Digits</b>", charts.loss_chart(digits.training, digits.validation)),
    )
    return f"""<section id="loss">
<p class="kicker">Training</p>
<h2>Loss</h2>
<figure>
<div class="pair stack">{"".join(tiles)}</div>
<figcaption><span class="key data"></span>training, running
mean &ensp;<span class="key model"></span>held-out
part of the training rows &ensp;composite score matching ½s² + ∂s/∂x over all noise levels, by
optimiser steps: lower is better, its zero means nothing, and the dot marks the weights
kept.</figcaption>
</figure>
</section>"""


def _foot(about: About) -> str:
    seconds = "".join(
        f'<dt>{escape(name)}</dt><dd class="number">{value:.1f} s</dd>'
        for name, value in about.seconds.items()
    )
    return f"""<footer id="about">
<p><code>{escape(about.command)}</code></p>
<div class="pair">
<dl>{definitions(about.settings)}{definitions(about.versions)}</dl>
<dl>{seconds}<dt><b>together</b></dt><dd class="number"><b>{about.total:.1f} s</b></dd></dl>
</div>
</footer>"""


def _table(title: str, own: Float[ndarray, "rows"], others: Sequence[Rival], digits: int) -> str:
    """Return a table of log-likelihoods, the highest first."""
    ours = Rival("AR-CSM", "this model", own)
    lines = []
    for rival in sorted([ours, *others], key=lambda rival: -rival.log_prob.mean()):
        style = {"AR-CSM": "ours", "Truth": "truth"}.get(rival.name, "")
        against = "" if rival is ours else _spread(*_mean(rival.log_prob - own), digits, sign=True)
        lines.append(
            f'<tr class="{style}"><td>{rival.name}<small>{escape(rival.choice)}</small></td>'
            f"<td>{_spread(*_mean(rival.log_prob), digits)}</td><td>{against}</td></tr>"
        )
    return (
        f'<div class="wide"><table><thead><tr><th>{title}</th><th>nats per row</th>'
        f"<th>against AR-CSM</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _title(name: str) -> str:
    return escape(name.replace("-", " ").capitalize())


def _mean(values: Float[ndarray, "rows"]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def _spread(value: float, error: float, digits: int, *, sign: bool = False) -> str:
    plus = "+" if sign and value > 0 else ""
    return f'{plus}{number(value, digits)} <span class="se">± {number(error, digits)}</span>'
