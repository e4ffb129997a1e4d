"""What was found, as pieces of a page: pictures, tables and lines of HTML.

Names and values of tables are the user's: all of them are escaped.
"""

import io
from html import escape
from typing import Any

import numpy as np
from numpy import ndarray

from arcsm.app.digits import SIDE, Restored
from arcsm.app.learning import Look
from arcsm.app.tables import ColumnNote, Filled, Learned, OddRows, Source
from arcsm.data import Table
from arcsm.demo.figures import DATA_COLOUR, scatter
from arcsm.pages.parts import image, number
from arcsm.plots import density_map, loss_plot, pair_plot, surprise_plot
from arcsm.plots.pictures import picture_grid

_MOST_PAIRED = 4  # columns of a pair plot that can still be told apart on a telephone
_MOST_REASONS = 2
_NOTABLE = 1.0  # nats from which a column is named as a reason
_GROUND = 128  # where nothing is known


def note(text: str) -> str:
    """Return a quiet line of plain text."""
    return f'<p class="arcsm-note">{escape(text)}</p>'


def status(text: str, done: float | None = None) -> str:
    """Return a line that says what goes on, with a bar if a share of it is done."""
    bar = ""
    if done is not None:
        width = 100 * min(max(done, 0.0), 1.0)
        bar = f'<div class="arcsm-bar"><i style="width:{width:.0f}%"></i></div>'
    return f'<div class="arcsm-status">{escape(text)}{bar}</div>'


def problem(text: str) -> str:
    """Return a sentence that says what to put right."""
    return f'<p class="arcsm-status bad">{escape(_sentence(text))}</p>'


def empty(text: str) -> str:
    """Return what stands where nothing has been found yet."""
    return f'<div class="arcsm-empty">{escape(text)}</div>'


def points_view(points: ndarray, look: Look | None = None) -> str:
    """Return the points, and beside them what has been learned of them."""
    if look is None:
        low, high = points.min(0), points.max(0)
        centre, reach = (low + high) / 2, 0.56 * float((high - low).max())
    else:
        left, right, bottom, top = look.extent
        centre, reach = np.array([left + right, bottom + top]) / 2, (right - left) / 2
    dots = scatter(points[:4000], (float(centre[0]), float(centre[1])), reach, DATA_COLOUR)
    tiles = [_tile("The points", image(dots, "the points that are learned from"))]
    if look is None:
        return _tiles(*tiles, empty("The first look comes within seconds."))
    edges = np.array(look.extent)
    inside = (look.samples >= edges[::2]).all(1) & (look.samples <= edges[1::2]).all(1)
    ax = density_map(look.log_density, look.extent, points=look.samples[inside], ax=_axes(4.2, 3.6))
    ax.set_axis_off()
    tiles.append(
        _tile("Learned density, and samples", image(_png(ax), "the density, with samples over it"))
    )
    if look.history.training:
        ax = loss_plot(look.history, ax=_axes(6.4, 2.4))
        tiles.append(_tile("Loss", image(_png(ax), "loss over the steps"), whole=True))
    return _tiles(*tiles)


def source_view(source: Source, notes: list[ColumnNote]) -> str:
    """Return what a table is and what each of its columns is taken for."""
    rows = f"{source.table.rows:,} rows"
    if source.rows > source.table.rows:
        rows = f"{source.table.rows:,} of {source.rows:,} rows, drawn at random"
    words = f"{source.name}: {rows}, {len(notes)} columns."
    return note(words) + columns_view(notes)


def columns_view(notes: list[ColumnNote]) -> str:
    """Return what each column is taken for, and why."""
    gaps = any(column.gaps for column in notes)
    lines = []
    for column in notes:
        cells = [
            f'<td class="narrow"><b>{escape(column.name)}</b></td>',
            f'<td class="narrow{"" if column.kind else " out"}">'
            f"{escape(column.kind or 'left out')}</td>",
            f"<td>{escape(column.reason if column.kind else _sentence(column.reason))}</td>",
        ]
        if gaps:
            cells.append(f'<td class="narrow">{column.gaps or ""}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = ["column", "taken for", "because", *(["empty cells"] if gaps else [])]
    return _tile("What the columns are", _table(heads, lines))


def learned_view(learned: Learned) -> str:
    """Return how probable held-out rows are, and data beside samples."""
    scores = learned.held_out
    finite = scores[np.isfinite(scores)]
    words = []
    if len(finite):
        error = finite.std(ddof=1) / np.sqrt(len(finite)) if len(finite) > 1 else float("nan")
        spread = f" ± {number(float(error), 2)}" if np.isfinite(error) else ""
        words.append(
            f"<b>{number(float(finite.mean()), 2)}{spread} nats</b>: the mean log-density of"
            f" {len(finite)} rows that were held out, in the units of the table."
        )
    if len(finite) < len(scores):
        words.append(f"{len(scores) - len(finite)} held-out rows cannot be, says the model.")
    words.append(
        f"Learned from {learned.trained:,} rows in {learned.steps:,} steps,"
        f" {learned.seconds:.0f} s. Below: data under the diagonal, samples above it."
    )
    shown = [column.name for column in learned.columns if column.kind != "constant"]
    axes = pair_plot(learned.data, learned.samples, columns=shown[:_MOST_PAIRED])
    picture = image(_png(axes.flat[0], dpi=110), "data beside samples, pair by pair")
    return _tile("The density", f"<p>{' '.join(words)}</p>{picture}")


def odd_view(odd: OddRows) -> str:
    """Return the most unusual rows, with the columns to blame."""
    names = odd.table.names
    lines = []
    for place, row in enumerate(odd.rows):
        surprise = odd.surprise[place]
        blamed = [i for i in np.argsort(-surprise)[:_MOST_REASONS] if surprise[i] >= _NOTABLE]
        reasons = "; ".join(
            f"<b>{escape(names[i])}</b> = {escape(_cell(odd.table, names[i], place))}"
            f" ({number(float(surprise[i]), 1)} nats)"
            for i in blamed
        )
        mark = ' class="narrow out"' if odd.outlier[place] else ' class="narrow"'
        lines.append(
            f"<tr><td{mark}>row {row + 1:,}</td>"
            f"<td>{reasons or 'all columns together, none by itself'}</td></tr>"
        )
    words = (
        f"{odd.beyond:,} of {odd.of:,} rows lie beyond the threshold; they are red here."
        if odd.beyond
        else "No row lies beyond the threshold: these are rare, not out of place."
    )
    if odd.left_out:
        words += f" {odd.left_out:,} rows with gaps were left out here."
    ax = surprise_plot(
        odd.surprise[0],
        names=names,
        values=[odd.table[name][0] for name in names],
        title=f"Row {odd.rows[0] + 1:,}: surprise of each column given the others",
        most=8,
    )
    picture = image(_png(ax, dpi=110), "surprise of each column of the most unusual row")
    table = _table(["most unusual", "values that the other columns speak against"], lines)
    return _tile("Odd rows", f"{table}<p>{words}</p>{picture}")


def filled_view(filled: Filled) -> str:
    """Return some rows that had empty cells, with what was put there."""
    lines = []
    for place, row in enumerate(filled.rows):
        cells = "".join(
            f'<td class="narrow{" filled" if was_empty else ""}">'
            f"{escape(_cell(filled.table, name, place))}</td>"
            for name, was_empty in zip(filled.table.names, filled.was_empty[place], strict=True)
        )
        lines.append(f'<tr><td class="narrow">{row + 1:,}</td>{cells}</tr>')
    heads = ["row", *filled.table.names]
    words = (
        f"{filled.cells:,} empty cells were filled, each given what is known of its row; here are"
        f" the first {len(filled.rows)} rows that had some. What was filled in is blue."
    )
    return _tile("Gaps", f"{_table(heads, lines)}<p>{words}</p>")


def restored_view(found: Restored) -> str:
    """Return a digit, the noisy one, the cleaned one, and completions of its upper half."""
    tiles = [
        _tile("Digit", _pixels(found.digit[None], "the digit")),
        _tile("With noise", _pixels(found.noisy[None], "the digit with noise")),
    ]
    gain = found.gain
    if found.cleaned is None or gain is None:
        return _tiles(*tiles, empty("Cleaning …"), three=True)
    tiles[1] = _tile(
        "With noise",
        _pixels(found.noisy[None], "the digit with noise") + f"<p>PSNR {_decibels(gain[0])}</p>",
    )
    tiles.append(
        _tile(
            "Cleaned",
            _pixels(found.cleaned[None], "the digit without the noise")
            + f"<p>PSNR {_decibels(gain[1])}</p>",
        )
    )
    if found.completed is None:
        tiles.append(f'<div class="whole">{empty("Completing …")}</div>')
        return _tiles(*tiles, three=True)
    top = found.digit.copy()
    top[SIDE // 2 :] = _GROUND
    line = np.concatenate([top[None], found.completed])
    tiles.append(
        _tile(
            "The upper half, and how it might go on",
            _pixels(line, "the upper half of the digit and completions of it"),
            whole=True,
        )
    )
    return _tiles(*tiles, three=True)


def _sentence(text: str) -> str:
    """Return a message with a capital and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _decibels(value: float) -> str:
    return f"<b>{number(value, 1)} dB</b>" if np.isfinite(value) else "<b>∞</b>: nothing differs"


def _cell(table: Table, name: str, row: int) -> str:
    value = table[name][row]
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float):
        return f"{plain:.0f}" if plain.is_integer() and abs(plain) < 1e15 else f"{plain:.4g}"
    return str(plain)


def _table(heads: list[str], lines: list[str]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return (
        f'<div class="arcsm-wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _tile(title: str, content: str, *, whole: bool = False) -> str:
    kind = "arcsm-tile whole" if whole else "arcsm-tile"
    return f'<div class="{kind}"><h3>{escape(title)}</h3>{content}</div>'


def _tiles(*tiles: str, three: bool = False) -> str:
    kind = "arcsm-tiles three" if three else "arcsm-tiles"
    return f'<div class="{kind}">{"".join(tiles)}</div>'


def _axes(width: float, height: float) -> Any:
    """Return axes of a figure so small that its letters can be read on a page."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def _png(ax: Any, *, dpi: float = 130) -> bytes:
    """Return the figure of some axes."""
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def digit_png(*digits: ndarray) -> bytes:
    """Return digits, uint8 (28, 28, 1), side by side."""
    from PIL import Image

    gap = 0 if len(digits) == 1 else 6
    grid = picture_grid(np.stack(digits), columns=len(digits), enlarge=4, gap=gap)
    buffer = io.BytesIO()
    Image.fromarray(grid[..., 0]).save(buffer, format="PNG")
    return buffer.getvalue()


def _pixels(images: ndarray, what: str) -> str:
    return image(digit_png(*images), what, "pixels")
