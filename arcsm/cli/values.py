"""The little language of `--given`: NAME=VALUE, the value as a field of a CSV file has it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arcsm.errors import InputError

if TYPE_CHECKING:
    from arcsm.columns import Columns

# What a field must be for each type of column, and how to say so.
_FAMILIES = {
    "float64": ("number", "a number"),
    "int64": ("number", "a whole number"),
    "bool": ("truth", "true or false"),
}


def parse_given(words: Iterable[str], columns: "Columns") -> dict[str, Any]:
    """Return what the words of `--given` say, each value in the type of its column."""
    from arcsm.data.fields import infer

    types = {column["name"]: column["type"] for column in columns.config["columns"]}
    given: dict[str, Any] = {}
    for word in words:
        # The longest name that fits: it may hold an equals sign itself, and so may the value.
        name = max((n for n in types if word.startswith(f"{n}=")), key=len, default=None)
        if name is None:
            raise InputError(
                f"expected --given as NAME=VALUE with a column among {list(types)}, got {word!r};"
                " for example age=40"
            )
        if name in given:
            raise InputError(f"expected --given once for {name!r}, got it twice; keep one")
        value = word[len(name) + 1 :]
        if types[name] == "text":
            given[name] = value
            continue
        column, family = infer([value])
        expected, said = _FAMILIES[types[name]]
        if family != expected:
            raise InputError(
                f"expected {said} for the column {name!r}, got {value!r} in --given {word!r};"
                " correct the value"
            )
        given[name] = column[0].item()
    return given
