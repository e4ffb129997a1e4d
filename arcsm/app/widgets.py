"""A pad to draw on with mouse, pen or finger, and pictures to pick from.

What was drawn and picked stays in the browser until a button is pressed: see `reading`.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from arcsm.pages.parts import image
from arcsm.plots.palette import INK

if TYPE_CHECKING:
    import gradio as gr

SIDE = 420
_UPLOAD = """<label class="arcsm-button">Upload a picture<input type="file" accept="image/*"
 style="display:none"></label>"""

# A picture fills the pad as far as its form allows; its pixels stay squares. The event `input`
# tells that something was drawn.
_SCRIPT = """
const canvas = element.querySelector("canvas");
const pen = canvas.getContext("2d");
Object.assign(pen, {lineCap: "round", lineJoin: "round", lineWidth: BRUSH, strokeStyle: "COLOUR"});
let last = null;
const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * canvas.width / box.width,
          (event.clientY - box.top) * canvas.height / box.height];
};
const line = (to) => {
  pen.beginPath(); pen.moveTo(...last); pen.lineTo(...to); pen.stroke(); last = to;
};
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId); last = place(event); line(last);
});
canvas.addEventListener("pointermove", (event) => { if (last) line(place(event)); });
const end = () => { if (last) { last = null; trigger("input"); } };
canvas.addEventListener("pointerup", end);
canvas.addEventListener("pointercancel", end);
element.querySelector(".clear").addEventListener(
  "click", () => pen.clearRect(0, 0, canvas.width, canvas.height));
const file = element.querySelector("input[type=file]");
if (file) file.addEventListener("change", () => {
  if (!file.files.length) return;
  const picture = new Image();
  picture.onload = () => {
    const scale = Math.min(canvas.width / picture.width, canvas.height / picture.height);
    const [width, height] = [picture.width * scale, picture.height * scale];
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = scale < 1;
    pen.drawImage(
      picture, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
    URL.revokeObjectURL(picture.src);
    trigger("input");
  };
  picture.onerror = () => alert("This file is no picture that the browser can read.");
  picture.src = URL.createObjectURL(file.files[0]);
  file.value = "";
});
"""

_CHOOSING = """
const buttons = [...element.querySelectorAll("button")];
for (const button of buttons) button.addEventListener("click", () => {
  for (const other of buttons) other.classList.toggle("chosen", other === button);
});
"""


def drawing_pad(name: str, words: str, *, brush: int = 30, upload: bool = False) -> "gr.HTML":
    """Return a pad with a line of `words` above it; `name` is its id in the page."""
    import gradio as gr

    template = (
        f'<p class="arcsm-note">{words}</p>'
        f'<canvas class="arcsm-pad" width="{SIDE}" height="{SIDE}" aria-label="{words}"></canvas>'
        '<div class="arcsm-buttons"><button type="button" class="arcsm-button clear">Clear</button>'
        f"{_UPLOAD if upload else ''}</div>"
    )
    script = _SCRIPT.replace("BRUSH", str(brush)).replace("COLOUR", INK)
    return gr.HTML(html_template=template, js_on_load=script, elem_id=name)


def picture_picker(name: str, pictures: Sequence[tuple[bytes, str]]) -> "gr.HTML":
    """Return pictures, PNG with what they show, of which one can be chosen: at first the first."""
    import gradio as gr

    buttons = "".join(
        f'<button type="button" data-index="{place}" aria-label="{escape(what)}"'
        f' class="{"chosen" if place == 0 else ""}">{image(png, what, "pixels")}</button>'
        for place, (png, what) in enumerate(pictures)
    )
    return gr.HTML(
        html_template=f'<div class="arcsm-picker">{buttons}</div>',
        js_on_load=_CHOOSING,
        elem_id=name,
    )


def pad_picture(name: str) -> str:
    """Return a script for what is on a pad: an address that holds it as PNG, transparent ground."""
    return f"document.querySelector('#{name} canvas')?.toDataURL() ?? null"


def picked_place(name: str) -> str:
    """Return a script for the place of the picture that was picked, from 0."""
    return f"Number(document.querySelector('#{name} .chosen')?.dataset.index ?? 0)"


def reading(scripts: Mapping[int, str], count: int) -> dict[str, Any]:
    """Return the option of an event of `count` inputs that takes some of them from the browser.

    >>> reading({1: "document.title"}, 2)
    {'js': '(v0, v1) => [v0, document.title]'}
    """
    values = [f"v{place}" for place in range(count)]
    taken = [scripts.get(place, value) for place, value in enumerate(values)]
    return {"js": f"({', '.join(values)}) => [{', '.join(taken)}]"}
