"""The little language of `--columns`: NAME=KIND, and after colons what the kind needs."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arcsm.errors import InputError

if TYPE_CHECKING:
    from arcsm.data import Table

# What may follow each kind, in this order; of an ordinal column all that follows are its levels.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "real": (),
    "bounded": ("lower", "upper"),
    "integer": ("lower", "upper"),
    "quantised": ("quantum", "lower", "upper"),
    "ordinal": ("levels",),
    "category": (),
}
# The name is as long as possible, so that it may hold an equals sign itself.
_FORM = re.compile(rf"(?P<name>.+)=(?P<kind>{'|'.join(_OPTIONS)})(?P<rest>(?::.*)?)", re.DOTALL)

SYNTAX = (
    "What a column is, where the data should not decide: NAME=real, NAME=integer, NAME=category,"
    " NAME=bounded:0:1, NAME=bounded:0: (no upper bound), NAME=integer:0:100,"
    " NAME=quantised:0.5 (steps of 0.5), NAME=ordinal:low:middle:high. Once for each column."
)


def parse_kinds(words: Iterable[str], table: "Table") -> dict[Any, Any]:
    """Return what the words of `--columns` say, as ARCSMDensity takes it."""
    kinds: dict[str, Any] = {}
    for word in words:
        match = _FORM.fullmatch(word)
        if match is None:
            raise InputError(
                f"expected --columns as NAME=KIND with a kind among {', '.join(_OPTIONS)}, got"
                f" {word!r}; for example age=integer or share=bounded:0:1"
            )
        name, kind = match["name"], match["kind"]
        if name not in table.columns:
            raise InputError(
                f"expected --columns of a column among {list(table.names)}, got {name!r};"
                " correct the name"
            )
        if name in kinds:
            raise InputError(f"expected --columns once for {name!r}, got it twice; keep one")
        values = match["rest"].split(":")[1:]
        if kind == "ordinal":
            options = {"levels": _levels(word, values, table, name)} if values else {}
        else:
            options = _numbers(word, kind, values)
        kinds[name] = {"kind": kind, **options} if options else kind
    return kinds


def _numbers(word: str, kind: str, values: list[str]) -> dict[str, Any]:
    names = _OPTIONS[kind]
    if len(values) > len(names):
        allowed = ":".join([kind, *(name.upper() for name in names)])
        raise InputError(f"expected at most {allowed} for a column, got {word!r}; drop the rest")
    return {
        name: _number(word, value)
        for name, value in zip(names, values, strict=False)
        if value != ""
    }


def _levels(word: str, values: list[str], table: "Table", name: str) -> list[Any]:
    text = table.columns[name].dtype == object
    return values if text else [_number(word, value) for value in values]


def _number(word: str, value: str) -> float | int:
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise InputError(
            f"expected numbers after the colons in --columns, got {value!r} in {word!r};"
            " for example share=bounded:0:1"
        ) from None
