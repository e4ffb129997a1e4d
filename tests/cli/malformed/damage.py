"""Bytes and JSON that were whole, and are no longer."""

import copy
import json
import struct
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (-1, 0, 1, 2, 1e308, -1e-300, 0.5, 10**6, 10**12, 10**30)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "nan", [], {}, [[]], [None], {"x": 1}, [1, 2], *ODD_NUMBERS,
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Return `content` cut, with other bytes, or with bytes too many."""
    size = len(content)
    # What matters to a reader stands at the beginning and at the end of most files.
    position = st.one_of(
        st.integers(0, size), st.integers(0, min(200, size)), st.integers(max(0, size - 200), size)
    )
    how = draw(st.sampled_from(("cut", "flip", "flip", "put in", "leave out", "twice", "zeros")))
    start, end = sorted((draw(position), draw(position)))
    if how == "cut":
        return content[:start]
    if how == "put in":
        return content[:start] + draw(st.binary(min_size=1, max_size=12)) + content[start:]
    if how == "leave out":
        return content[:start] + content[end:]
    if how == "twice":
        return content[:end] + content[start:]
    if how == "zeros":
        return content[:start] + bytes(end - start) + content[end:]
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = min(draw(position), size - 1)
        changed[place] ^= draw(st.integers(1, 255))
    return bytes(changed)


@st.composite
def odd_json(draw: st.DrawFn, content: Any) -> Any:
    """Return JSON in which one place has another value, is left out, or has company."""
    changed = copy.deepcopy(content)
    here, places = changed, []
    while isinstance(here, dict | list) and here:
        key = draw(st.sampled_from(sorted(here))) if isinstance(here, dict) else 0
        if isinstance(here, list):
            key = draw(st.integers(0, len(here) - 1))
        places.append((here, key))
        here = here[key]
    parent, key = draw(st.sampled_from(places[-1:] + places))
    how = draw(st.sampled_from(("other", "other", "other", "gone", "more")))
    if how == "gone":
        del parent[key]
    elif how == "more" and isinstance(parent, dict):
        parent["added"] = draw(st.sampled_from(ODD_VALUES))
    else:
        parent[key] = draw(st.sampled_from(ODD_VALUES))
    return changed


@st.composite
def odd_json_text(draw: st.DrawFn, content: bytes) -> bytes:
    """Return the text of JSON that is changed, damaged, of another program, or no JSON."""
    how = draw(st.sampled_from(("changed", "changed", "damaged", "other", "deep")))
    if how == "changed":
        return json.dumps(draw(odd_json(json.loads(content)))).encode()
    if how == "damaged":
        return draw(damaged(content))
    if how == "deep":
        return b'{"a":' * draw(st.sampled_from((100, 100_000)))
    return draw(st.sampled_from((b"", b"null", b"[]", b"{}", b"1", b'"x"', b"\xff\xfe{}", b"\0")))


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file, and the numbers after it."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join_safetensors(header: dict[str, Any], numbers: bytes) -> bytes:
    """Return a safetensors file."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + numbers


@st.composite
def odd_safetensors(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a file of tensors that is damaged, or has other names, shapes, types or numbers."""
    header, numbers = split_safetensors(content)
    names = sorted(name for name in header if name != "__metadata__")
    name = draw(st.sampled_from(names))
    entry = header[name]
    how = draw(
        st.sampled_from(("damaged", "name", "shape", "type", "gone", "numbers", "metadata", "more"))
    )
    if how == "damaged":
        return draw(damaged(content))
    if how == "name":
        header[f"{name}x"] = header.pop(name)
    elif how == "shape":
        entry["shape"] = draw(
            st.sampled_from((entry["shape"][::-1], [1, *entry["shape"]], [-1], [10**12], "x"))
        )
    elif how == "type":
        entry["dtype"] = draw(st.sampled_from(("I32", "F16", "BOOL", "U8", "F64", "X")))
    elif how == "gone":
        del header[name]
    elif how == "metadata":
        header["__metadata__"] = draw(
            st.sampled_from(({}, {"header": "x"}, {"header": "[]"}, {"header": "{" * 9}))
        )
    elif how == "more":
        header["added"] = draw(
            st.sampled_from(({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, entry, 1))
        )
    else:
        start, end = entry["data_offsets"]
        odd = struct.pack("<f", draw(st.sampled_from((float("nan"), float("inf"), 3e38, -1e30))))
        where = start + 4 * draw(st.integers(0, max(0, (end - start) // 4 - 1)))
        numbers = numbers[:where] + odd + numbers[where + 4 :]
    return join_safetensors(header, numbers)
