"""The little language of --columns."""

import re
from typing import Any

import numpy as np
import pytest

from arcsm.cli.kinds import parse_kinds
from arcsm.data import Table
from arcsm.errors import InputError

TABLE = Table(
    {
        "age": np.array([1, 2, 3]),
        "a=real": np.array([0.1, 0.2, 0.3]),
        "size": np.array(["S", "M", "L"], dtype=object),
    }
)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("age=real", {"age": "real"}),
        ("age=bounded", {"age": "bounded"}),
        ("age=bounded:0:1", {"age": {"kind": "bounded", "lower": 0, "upper": 1}}),
        ("age=bounded:-1.5:", {"age": {"kind": "bounded", "lower": -1.5}}),
        ("age=bounded::1e3", {"age": {"kind": "bounded", "upper": 1000.0}}),
        ("age=integer:0:100", {"age": {"kind": "integer", "lower": 0, "upper": 100}}),
        ("age=quantised:0.5", {"age": {"kind": "quantised", "quantum": 0.5}}),
        ("age=quantised:2:0:", {"age": {"kind": "quantised", "quantum": 2, "lower": 0}}),
        ("age=ordinal", {"age": "ordinal"}),
        ("age=ordinal:1:2:3", {"age": {"kind": "ordinal", "levels": [1, 2, 3]}}),
        ("size=ordinal:S:M:L", {"size": {"kind": "ordinal", "levels": ["S", "M", "L"]}}),
        ("a=real=category", {"a=real": "category"}),
    ],
)
def test_words_and_what_they_say(word: str, expected: dict[str, Any]) -> None:
    assert parse_kinds([word], TABLE) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["age"], "NAME=KIND .* got 'age'"),
        (["age=whole"], "among real, bounded, integer.* got 'age=whole'"),
        (["agee=real"], "a column among .*'age'.* got 'agee'"),
        (["age=real", "age=integer"], "once for 'age'"),
        (["age=bounded:low"], "numbers after the colons .* got 'low' in 'age=bounded:low'"),
        (["age=bounded:0:1:2"], "at most bounded:LOWER:UPPER"),
        (["age=real:0"], "at most real for"),
        (["age=ordinal:one:two"], "got 'one'"),
    ],
)
def test_words_that_say_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_kinds(words, TABLE)
    assert re.search(message, str(error.value)), str(error.value)
