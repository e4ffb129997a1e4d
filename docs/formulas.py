"""A hook of MkDocs: formulas become MathML as the pages are built, so that no script is needed."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</\1>', re.DOTALL
)


def on_page_content(page_html: str, **_: Any) -> str:
    """Replace the formulas that arithmatex has marked."""

    def replaced(match: re.Match[str]) -> str:
        display = "block" if match["open"] == "[" else "inline"
        return convert(html.unescape(match["latex"]).strip(), display=display)

    return FORMULA.sub(replaced, page_html)
