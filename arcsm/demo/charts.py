"""Drawings made of lines: inline SVG, coloured by the page's style sheet, light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from arcsm.demo.toy import Slice

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Frame:
    """A rectangle of the drawing, and the range of values that it shows."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a value lies; what is out of range lies on the edge."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        across, up = min(max(across, 0.0), 1.0), min(max(up, 0.0), 1.0)
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def path(self, points: Points, style: str, *, closed: bool = False) -> str:
        """Return a polyline through values; closed ones stand on the frame's lower edge."""
        places = [self.at(x, y) for x, y in points]
        if closed:
            floor = self.top + self.height
            places = [(places[0][0], floor), *places, (places[-1][0], floor)]
        route = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        return f'<path class="{style}" d="M{route}{"Z" if closed else ""}"/>'

    def level(self, y: float, style: str) -> str:
        """Return a horizontal line at a value."""
        _, height = self.at(self.x[0], y)
        ends = f'x1="{self.left:g}" x2="{self.left + self.width:g}"'
        return f'<line class="{style}" {ends} y1="{height:.1f}" y2="{height:.1f}"/>'


def loss_chart(training: Points, validation: Points, *, best: int | None = None) -> str:
    """Draw both losses over the steps, the first fall cut off; mark the step that was kept."""
    # Batches differ more than models do: a running mean over a twelfth of the training.
    window = max(1, len(training) // 12)
    training = [
        (
            step,
            sum(loss for _, loss in training[max(0, i - window + 1) : i + 1]) / min(i + 1, window),
        )
        for i, (step, _) in enumerate(training)
    ]
    # The first tenth falls from far above and would flatten the rest.
    settled = [loss for step, loss in (*training, *validation) if step > validation[-1][0] / 10]
    low, high = min(settled), max(settled)
    margin = 0.06 * (high - low) or 1.0
    frame = Frame(52, 10, 484, 168, (0, validation[-1][0]), (low - margin, high + margin))
    parts = []
    for tick in _ticks(*frame.y, count=4):
        _, height = frame.at(0, tick)
        parts += [frame.level(tick, "grid"), _text(46, height + 4, _number(tick), "end")]
    for tick in _ticks(*frame.x, count=5):
        place, _ = frame.at(tick, 0)
        parts.append(_text(place, 197, f"{tick:,.0f}", "middle"))
    for losses, style in ((training, "line data"), (validation, "line model")):
        shown = [(step, loss) for step, loss in losses if loss <= frame.y[1]]
        parts.append(frame.path(shown, style))
    if best is not None:
        loss = dict(validation)[best]
        x, y = frame.at(best, loss)
        parts.append(f'<circle class="dot model" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    return _svg(560, 204, parts, "training and held-out loss over the training steps")


def slice_chart(part: Slice, *, top: float, steepest: float) -> str:
    """Draw a conditional density over the true one, and the scores below, on the same axis.

    Scores are drawn in full where there is mass, and faintly in the gaps, where nothing was seen.
    """
    ends = (float(part.x2[0]), float(part.x2[-1]))
    density = Frame(4, 6, 332, 130, ends, (0, top * 1.06))
    score = Frame(4, 150, 332, 84, ends, (-steepest, steepest))
    parts = [
        density.path(_zip(part.x2, part.density), "area model", closed=True),
        density.path(_zip(part.x2, part.truth), "line truth"),
        density.path(_zip(part.x2, part.density), "line model"),
        density.level(0, "axis"),
        score.level(0, "axis"),
        *_scores(score, part, steepest),
    ]
    for tick in _ticks(*ends, count=5):
        place, _ = score.at(tick, 0)
        parts.append(_text(place, 252, _number(tick), "middle"))
    return _svg(340, 258, parts, f"density and score of x₂ given x₁ = {part.x1:.2f}")


def _scores(frame: Frame, part: Slice, steepest: float) -> list[str]:
    within = np.abs(part.score) <= steepest
    mass = part.density > 0.01 * part.density.max()
    true_mass = part.truth > 0.01 * part.truth.max()
    true_within = true_mass & (np.abs(np.nan_to_num(part.true_score, nan=np.inf)) <= steepest)
    return [
        *_runs(frame, part.x2, part.score, within & ~mass, "line score faint"),
        *_runs(frame, part.x2, part.true_score, true_within, "line truth"),
        *_runs(frame, part.x2, part.score, within & mass, "line score"),
    ]


def _runs(frame: Frame, x: ndarray, y: ndarray, where: ndarray, style: str) -> list[str]:
    """Return one line for each stretch of points that belong together."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], where, [False]]).astype(int)))
    return [
        frame.path(_zip(x[start:end], y[start:end]), style)
        for start, end in edges.reshape(-1, 2)
        if end - start > 1
    ]


def diagram() -> str:
    """Draw the model: scalars, context network, head, score, and what follows from it."""
    boxes = []
    for index, name in enumerate(("x₁", "x₂", "⋯", "x_d")):
        style = "scalar now" if name == "x_d" else "scalar"
        y = 8 + 42 * index
        boxes.append(f'<rect class="{style}" x="2" y="{y}" width="52" height="33" rx="7"/>')
        boxes.append(_label(28, y + 22, name))
    arrows = [
        *(_arrow(54, 24 + 42 * index, 88, 58 + 8 * index) for index in range(3)),
        _arrow(234, 66, 270, 66, "c_d"),
        '<path class="arrow" d="M54 150H336V106" marker-end="url(#tip)"/>',
        _arrow(402, 66, 428, 66),
    ]
    rooms = [
        _room(90, 26, 144, 80, "context network", "sees x₁ … x_d₋₁ only"),
        _room(272, 26, 130, 80, "score head", "one scalar, noise σ"),
        '<rect class="room out" x="430" y="10" width="196" height="112" rx="10"/>',
        _label(528, 36, "s_d = ∂ log q(x_d | x_<d) / ∂x_d", "small"),
        '<line class="axis" x1="444" x2="612" y1="84" y2="84"/>',
        '<path class="line score" d="M448 92 C 470 32, 486 54, 504 84 S 534 112, 550 76'
        ' S 590 54, 608 108"/>',
    ]
    follows = [
        _label(528, 143, "integrated: log q and samples", "small muted"),
        _label(528, 163, "x̃ + σ² s: denoised", "small muted"),
    ]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8Z"/></marker></defs>'
    )
    return _svg(
        630,
        174,
        [tip, *arrows, *boxes, *rooms, *follows],
        "scalars before d enter the context network, its output and x_d enter the head,"
        " which returns the score",
    )


def _room(left: float, top: float, width: float, height: float, name: str, note: str) -> str:
    middle = left + width / 2
    return (
        f'<rect class="room" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
        f' rx="10"/>{_label(middle, top + height / 2 - 4, name, "strong")}'
        f"{_label(middle, top + height / 2 + 17, note, 'small muted')}"
    )


def _arrow(x1: float, y1: float, x2: float, y2: float, name: str = "") -> str:
    line = f'<path class="arrow" d="M{x1:g} {y1:g}L{x2:g} {y2:g}" marker-end="url(#tip)"/>'
    return line + (_label((x1 + x2) / 2, y1 - 8, name, "small") if name else "")


def _label(x: float, y: float, text: str, style: str = "") -> str:
    """Return centred text in which `_` makes what follows it, up to a blank, a subscript."""
    spans = []
    for word in text.replace("<", "&lt;").split(" "):
        stem, _, low = word.partition("_")
        close = low[len(low.rstrip(")")) :]
        low = low.rstrip(")")
        if low:
            stem += f'<tspan class="sub" dy="4">{low}</tspan><tspan dy="-4">{close}&#8203;</tspan>'
        spans.append(stem)
    return (
        f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="middle">{" ".join(spans)}</text>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">'
        f"{''.join(parts)}</svg>"
    )


def _ticks(low: float, high: float, *, count: int) -> list[float]:
    """Return about `count` round values between two."""
    rough = (high - low) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _zip(x: ndarray, y: ndarray) -> Points:
    return list(zip(np.asarray(x).tolist(), np.asarray(y).tolist(), strict=True))
