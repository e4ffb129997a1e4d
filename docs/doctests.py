"""An extension of Griffe: examples in the text of a docstring are shown as code."""

import re
from typing import Any

import griffe

# A paragraph that begins with the prompt of an interpreter, with its indentation.
EXAMPLE = re.compile(r"(?:(?<=\n\n)|\A)([ ]*)>>> .*?(?=\n[ ]*\n|\Z)", re.DOTALL)


class FencedExamples(griffe.Extension):
    """Puts fences around doctests that stand outside a section of examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        docstring = obj.docstring
        if docstring is None or "\nExamples\n---" in docstring.value:
            return
        docstring.value = EXAMPLE.sub(
            lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", docstring.value
        )
