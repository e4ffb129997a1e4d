"""A reader of the demonstration's page that says what is wrong with it."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
from PIL import Image

SECTIONS = (
    "what",
    "toy",
    "samples",
    "density",
    "conditional",
    "likelihood",
    "digits",
    "generated",
    "denoise",
    "unusual",
    "loss",
    "about",
)
PNG = "data:image/png;base64,"
INLINE = {"sub", "sup", "b", "i", "em", "tspan"}
VOID = {"meta", "img", "br", "link", "input", "hr", "base"}


class Page(HTMLParser):
    """The parsed page: ids, images, references, captions, and the text under each id."""

    def __init__(self, html: str):
        super().__init__()
        self.ids: list[str] = []
        self.images: list[dict[str, str]] = []
        self.references: list[str] = []
        self.tags: dict[str, int] = {}
        self.captions: list[str] = []
        self.text: dict[str, str] = {}
        self.unclosed: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        self.unclosed += [tag for tag, _ in self._open]
        self.text = {name: " ".join(text.split()) for name, text in self.text.items()}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if "id" in given:
            self.ids.append(given["id"])
            self.text[given["id"]] = ""
        if tag == "img":
            self.images.append(given)
        if tag == "figcaption":
            self.captions.append("")
        for name in ("src", "href", "srcset", "data", "poster", "action", "xlink:href"):
            if name in given:
                self.references.append(given[name])
        self.references += re.findall(r"url\(([^)]*)\)", given.get("style", ""))
        if tag not in INLINE:  # words of different boxes are different words
            for _, name in self._open:
                if name is not None:
                    self.text[name] += " "
        if tag not in VOID:
            self._open.append((tag, given.get("id")))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.unclosed.append(tag)
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        within = [tag for tag, _ in self._open]
        if "style" in within:
            self.references += re.findall(r"url\(([^)]*)\)|@import\s*([^;]*)", data)
            return
        if "figcaption" in within:
            self.captions[-1] += data
        for _, name in self._open:
            if name is not None:
                self.text[name] += data


def pixels(uri: str) -> np.ndarray:
    """Decode an inline picture."""
    content = base64.b64decode(uri.removeprefix(PNG), validate=True)
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGBA"))


def problems(html: str) -> list[str]:
    """Return what is wrong with a page: parts that are missing, blank, or loaded from elsewhere."""
    page = Page(html)
    found = [f"no {name}" for name in SECTIONS if page.ids.count(name) != 1]
    found += [f"empty {name}" for name in SECTIONS if not page.text.get(name, " x").strip()]
    found += [f"unbalanced <{tag}>" for tag in page.unclosed]
    if re.search(r"https?:", html):
        found.append("an address")
    found += [
        f"reference {reference}"
        for reference in page.references
        if not str(reference).startswith(PNG) and not str(reference).startswith("#")
    ]
    found += [f"<{tag}>" for tag in ("script", "link", "iframe", "object") if tag in page.tags]
    for image in page.images:
        what = image.get("alt", "")
        if not what:
            found.append("an image without alt")
        if image.get("src", "").startswith(PNG):
            shown = pixels(image["src"])
            if (shown == shown[0, 0]).all():
                found.append(f"blank image {what!r}")
    found += ["an empty caption" for caption in page.captions if len(caption.strip()) < 20]
    if re.search(r"\b(nan|inf|None)\b", " ".join(page.text.values()), re.IGNORECASE):
        found.append("a number that is none")
    return found
