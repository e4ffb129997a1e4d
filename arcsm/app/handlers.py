"""What the page's buttons do: generators of what the page shows, one tuple after another.

They know of Gradio only what it takes to warn and to leave a part of the page as it is. What a
user can put right is a warning and a sentence in the status line, never a traceback.
"""

import functools
from collections.abc import Callable, Iterator
from html import escape
from threading import Event
from typing import Any

from arcsm.app import tables, views
from arcsm.app.background import Stopped, reports
from arcsm.app.digits import (
    DigitSizes,
    Restored,
    digit_of,
    restore,
)
from arcsm.app.ink import ink_of, picture_of, points_from_ink
from arcsm.app.learning import LearningSizes, Look, learn, toy_points
from arcsm.app.tables import Filled, Learned, OddRows, Source, Stage, TableSizes
from arcsm.errors import ArcsmError, InputError
from arcsm.images import ImageModel
from arcsm.tasks.images import Corruption, Gaussian, SaltAndPepper

MY_DRAWING = "my drawing"
GAUSSIAN, SALT_AND_PEPPER = "Gaussian", "salt and pepper"
PICKED, DRAWN = "picked", "drawn"

Shown = tuple[Any, ...]
Handler = Callable[..., Iterator[Shown]]
Found = Stage | Learned | OddRows | Filled


def warning(handler: Handler) -> Handler:
    """Turn what a user can put right into a warning, and a sentence in the first output.

    That it was stopped is told there, too.
    """

    @functools.wraps(handler)
    def warned(*arguments: Any) -> Iterator[Shown]:
        import gradio as gr

        width = 1
        try:
            for shown in handler(*arguments):
                width = len(shown)
                yield shown
        except Stopped:
            yield (views.status("Stopped."), *[gr.skip()] * (width - 1))
        except ArcsmError as error:
            yield (problem_of(error), *[gr.skip()] * (width - 1))

    return warned


def problem_of(error: ArcsmError) -> str:
    """Warn of an error, and return the sentence for the page."""
    import gradio as gr

    gr.Warning(escape(str(error)))
    return views.problem(str(error))


@warning
def learn_points(
    sizes: LearningSizes, stop: Event, shape: str, drawing: str | None
) -> Iterator[Shown]:
    """Learn what was drawn, or a toy; show (status, pictures)."""
    import gradio as gr

    yield views.status("Reading the drawing …"), gr.skip()
    if shape == MY_DRAWING:
        points = points_from_ink(ink_of(picture_of(drawing)), sizes.rows)
    else:
        points = toy_points(shape, sizes.rows)
    yield views.status("Learning …", 0.0), views.points_view(points)

    def work(look: Callable[[Look], None]) -> None:
        look(learn(points, sizes, look))

    for look in reports(work, stop):
        yield _told(look), views.points_view(points, look)


def _told(look: Look) -> str:
    if look.final:
        return views.status(
            f"Learned in {look.step:,} steps, {look.seconds:.0f} s. Dots are samples of the model."
        )
    return views.status(
        f"Learning: step {look.step:,} of {look.steps:,}, {look.seconds:.0f} s",
        look.step / look.steps,
    )


def read_table_of(file: str | None, example: str | None) -> tuple[Any, ...]:
    """Read a file, or else an example; return (status, source, columns to choose, view)."""
    import gradio as gr

    nothing = gr.update(choices=[], value=[], visible=False)
    try:
        if file is not None:
            source = tables.read_source(file)
        elif example:
            source = tables.example(example)
        else:
            return "", None, nothing, views.empty(NO_TABLE)
        notes = tables.look_at(source.table)
    except ArcsmError as error:
        return problem_of(error), None, nothing, views.empty(NO_TABLE)
    usable = [column.name for column in notes if column.kind is not None]
    chosen = gr.update(choices=list(source.table.names), value=usable, visible=True)
    return "", source, chosen, views.source_view(source, notes)


NO_TABLE = "Drop a CSV file here on the left, or choose an example."


@warning
def learn_table(
    sizes: TableSizes, stop: Event, source: Source | None, names: list[str]
) -> Iterator[Shown]:
    """Learn a table; show (status, columns, gaps, density, odd rows)."""
    import gradio as gr

    skip = gr.skip()
    yield views.status("Reading the table …"), skip, "", "", ""
    if source is None:
        raise InputError("expected a table, got none; drop a CSV file, or choose an example")
    table = source

    def work(report: Callable[[Found], None]) -> None:
        tables.analyse(table, names, sizes, report)

    for found in reports(work, stop):
        if isinstance(found, Stage):
            yield views.status(f"{found.words} …", found.done), skip, skip, skip, skip
        elif isinstance(found, Filled):
            yield skip, skip, views.filled_view(found), skip, skip
        elif isinstance(found, Learned):
            yield skip, views.columns_view(found.columns), skip, views.learned_view(found), skip
        elif isinstance(found, OddRows):
            yield skip, skip, skip, skip, views.odd_view(found)
    yield views.status(f"Done: {table.name}."), skip, skip, skip, skip


@warning
def clean_digit(
    model: ImageModel,
    examples: Any,
    sizes: DigitSizes,
    stop: Event,
    source: str,
    picked: float,
    drawing: str | None,
    kind: str,
    sigma: float,
    share: float,
) -> Iterator[Shown]:
    """Spoil, clean and complete a digit; show (status, pictures)."""
    import gradio as gr

    yield views.status("Reading the digit …"), gr.skip()
    noise: Corruption = Gaussian(float(sigma)) if kind == GAUSSIAN else SaltAndPepper(float(share))
    digit = examples[int(picked)] if source == PICKED else digit_of(picture_of(drawing))

    def work(report: Callable[[Restored], None]) -> None:
        report(restore(model, digit, noise, sizes, report))

    words = ("Cleaning …", "Drawing completions …", "Done.")
    for told, found in zip(words, reports(work, stop), strict=True):
        yield views.status(told), views.restored_view(found)
