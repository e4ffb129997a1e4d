"""What pages are made of."""

import base64
from collections.abc import Mapping
from html import escape


def document(title: str, css: str, body: str) -> str:
    """Return a whole page around its content; `title` is plain text, the others are not."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{css}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def data_uri(png: bytes) -> str:
    """Return an address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def image(png: bytes, what: str, style: str = "") -> str:
    """Return a picture within the page; `what` says in words what it shows."""
    return f'<img class="{style}" src="{data_uri(png)}" alt="{escape(what)}">'


def tile(title: str, content: str) -> str:
    """Return a card with a heading."""
    return f'<div class="tile"><h3>{title}</h3>{content}</div>'


def definitions(entries: Mapping[str, str]) -> str:
    """Return the inside of a list of names and what they stand for, both plain text."""
    return "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items())


def number(value: float, digits: int) -> str:
    """Return a number with so many decimals, and a minus sign instead of a hyphen."""
    return f"{value:,.{digits}f}".replace("-", "−")
