"""The page: three tabs, each with what it takes on the left and what was found on the right."""

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from arcsm.app import handlers, views
from arcsm.app.digits import DigitSizes, example_digits
from arcsm.app.learning import LearningSizes
from arcsm.app.tables import EXAMPLES, TableSizes
from arcsm.app.widgets import (
    drawing_pad,
    pad_picture,
    picked_place,
    picture_picker,
    reading,
)
from arcsm.data import TOYS
from arcsm.images import ImageModel

if TYPE_CHECKING:
    import gradio as gr

_HEAD = """<div class="arcsm-head"><h1>arcsm</h1>
<p>Densities made of one-dimensional scores: draw one, learn one from a table, clean digits with
one. All of it is computed on the machine that serves this page.</p></div>"""

# Trainings, and what else keeps all cores busy, wait for each other.
_QUEUE: dict[str, Any] = {"concurrency_id": "training", "concurrency_limit": 1}
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


@dataclass(frozen=True)
class AppSizes:
    """How much of everything, tab by tab."""

    learning: LearningSizes = field(default_factory=LearningSizes)
    tables: TableSizes = field(default_factory=TableSizes)
    digits: DigitSizes = field(default_factory=DigitSizes)


def build_page(model: ImageModel, sizes: AppSizes | None = None) -> "gr.Blocks":
    """Return the page; `model` is that of digits."""
    import gradio as gr

    sizes = sizes or AppSizes()
    # What is uploaded is forgotten an hour later.
    with gr.Blocks(title="arcsm", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML(_HEAD)
        with gr.Tabs():
            with gr.Tab("Draw a density", id="draw"):
                _draw_tab(sizes.learning)
            with gr.Tab("A table", id="table"):
                _table_tab(sizes.tables)
            with gr.Tab("Noisy digits", id="digits"):
                _digits_tab(model, sizes.digits)
    page.queue(default_concurrency_limit=8, max_size=64, api_open=False)
    return page


def _draw_tab(sizes: LearningSizes) -> None:
    import gradio as gr

    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            shape = gr.Dropdown(
                [handlers.MY_DRAWING, *TOYS],
                value=handlers.MY_DRAWING,
                label="What to learn",
                elem_id="shape",
            )
            pad = drawing_pad("pad", "Draw here, with the mouse or a finger: ink is density.")
            with gr.Row():
                start, stop = _buttons("Learn", "learn")
            told = gr.HTML(elem_id="learn-status")
        with gr.Column(scale=7, min_width=320):
            shown = gr.HTML(
                views.empty("Draw something and press Learn, or choose a shape from the list."),
                elem_id="learn-view",
            )
    # Who draws wants to have that learned.
    pad.input(lambda: handlers.MY_DRAWING, None, shape, **_QUIET)
    handler = partial(handlers.learn_points, sizes)
    _job(start, stop, handler, [shape, pad], [told, shown], **reading({1: pad_picture("pad")}, 2))


def _table_tab(sizes: TableSizes) -> None:
    import gradio as gr

    source = gr.State(None)
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            file = gr.File(
                label="A table as CSV, with a header line",
                file_types=[".csv", ".tsv"],
                height=170,
                elem_id="table-file",
            )
            example = gr.Dropdown(
                list(EXAMPLES),
                value=None,
                label="or an example",
                elem_id="table-example",
            )
            names = gr.CheckboxGroup([], label="Columns to learn", visible=False)
            with gr.Row():
                start, stop = _buttons("Learn", "table-learn")
            told = gr.HTML(elem_id="table-status")
        with gr.Column(scale=7, min_width=320):
            columns = gr.HTML(views.empty(handlers.NO_TABLE), elem_id="table-columns")
            gaps = gr.HTML(elem_id="table-gaps")
            odd = gr.HTML(elem_id="table-odd")
            density = gr.HTML(elem_id="table-density")
    read = {
        "fn": lambda file, example: (*handlers.read_table_of(file, example), "", "", ""),
        "outputs": [told, source, names, columns, gaps, odd, density],
        **_QUIET,
    }
    # A file takes the place of an example, and the other way round.
    file.upload(lambda: None, None, example, **_QUIET)
    file.upload(inputs=[file, gr.State(None)], **read)
    file.clear(inputs=[gr.State(None), example], **read)
    example.input(lambda: None, None, file, **_QUIET)
    example.input(inputs=[gr.State(None), example], **read)
    _job(
        start,
        stop,
        partial(handlers.learn_table, sizes),
        [source, names],
        [told, columns, gaps, density, odd],
    )


def _digits_tab(model: ImageModel, sizes: DigitSizes) -> None:
    import gradio as gr

    examples = example_digits()
    taken = gr.State(handlers.PICKED)
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            with gr.Tabs():
                with gr.Tab("Pick a digit") as pick:
                    shown_digits = [
                        (views.digit_png(digit), str(kind)) for kind, digit in enumerate(examples)
                    ]
                    picker = picture_picker("digit-picker", shown_digits)
                with gr.Tab("Draw or upload one") as draw:
                    pad = drawing_pad("digit-pad", "Draw a digit, large.", upload=True)
            kind = gr.Radio(
                [handlers.GAUSSIAN, handlers.SALT_AND_PEPPER],
                value=handlers.GAUSSIAN,
                label="Noise",
                elem_id="noise",
            )
            sigma = gr.Slider(
                0.1, 1.5, 0.3, step=0.05, label="σ, for pixels from −1 to 1", elem_id="sigma"
            )
            share = gr.Slider(
                0.05, 0.8, 0.3, step=0.05, label="Share of spoiled pixels", visible=False,
                elem_id="share",
            )  # fmt: skip
            with gr.Row():
                start, stop = _buttons("Spoil and clean", "clean")
            told = gr.HTML(elem_id="digits-status")
        with gr.Column(scale=7, min_width=320):
            shown = gr.HTML(
                views.empty("Pick a digit, choose how to spoil it, and press the button."),
                elem_id="digits-view",
            )
    pick.select(lambda: handlers.PICKED, None, taken, **_QUIET)
    draw.select(lambda: handlers.DRAWN, None, taken, **_QUIET)
    kind.change(
        lambda chosen: (
            gr.update(visible=chosen == handlers.GAUSSIAN),
            gr.update(visible=chosen != handlers.GAUSSIAN),
        ),
        kind,
        [sigma, share],
        **_QUIET,
    )
    _job(
        start,
        stop,
        partial(handlers.clean_digit, model, examples, sizes),
        [taken, picker, pad, kind, sigma, share],
        [told, shown],
        **reading({1: picked_place("digit-picker"), 2: pad_picture("digit-pad")}, 6),
    )


def _job(
    start: "gr.Button",
    stop: "gr.Button",
    handler: handlers.Handler,
    inputs: list[Any],
    outputs: list[Any],
    **options: Any,
) -> None:
    """Let one button start a handler and another stop it; the first output is the status line."""
    import gradio as gr

    buttons = [start, stop]
    wishes: dict[str | None, threading.Event] = {}  # to stop, by session

    def run(request: gr.Request, *values: Any) -> Any:
        wish = wishes[request.session_hash] = threading.Event()
        try:
            for shown in handler(wish, *values):
                yield (*shown, *_running(True))
        finally:
            wishes.pop(request.session_hash, None)
        yield (*[gr.skip()] * len(outputs), *_running(False))

    def wish(request: gr.Request) -> Any:
        if request.session_hash in wishes:
            wishes[request.session_hash].set()
        return gr.update(interactive=False)

    working = start.click(
        run,
        inputs,
        [*outputs, *buttons],
        show_progress="minimal",
        show_progress_on=outputs[:1],
        api_visibility="private",
        **_QUEUE,
        **options,
    )
    # Also where a bug has ended it.
    working.then(lambda: _running(False), None, buttons, queue=False, **_QUIET)
    stop.click(wish, None, stop, queue=False, **_QUIET)


def _running(running: bool) -> tuple[Any, Any]:
    import gradio as gr

    return gr.update(interactive=not running), gr.update(interactive=running)


def _buttons(words: str, name: str) -> "tuple[gr.Button, gr.Button]":
    import gradio as gr

    start = gr.Button(words, variant="primary", elem_id=name, min_width=120)
    stop = gr.Button("Stop", interactive=False, elem_id=f"{name}-stop", min_width=120)
    return start, stop
