"""Pickles of plain values and uint8 arrays, read without running anything that they ask for.

A pickle is a program. Here it is read twice: first its instructions are compared with those that
plain values need, then it is loaded by an unpickler that knows three names, those by which numpy
writes an array. Even these are stand-ins: they check what they are given and make an array of
bytes, so that no function of numpy, let alone of any other module, is called by the file.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from arcsm.errors import InputError

_MEMORY = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET")
_NUMBERS = ("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")
_BYTES = ("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_TUPLES = ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_LISTS = ("EMPTY_LIST", "LIST", "APPEND", "APPENDS")
_DICTS = ("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS")
_ARRAYS = ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD")
_PLAIN = frozenset(
    ("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK")
    + (_MEMORY + _NUMBERS + _BYTES + _TEXTS + _TUPLES + _LISTS + _DICTS + _ARRAYS)
)
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
# The unpickler makes room up to the highest number that a value is remembered under.
_MOST_REMEMBERED = 2**20


def unpickle_plain(content: bytes, source: str) -> Any:
    """Return the value pickled in `content`; `source` names it in the error of a pickle refused."""
    try:
        _check_instructions(content)
        return _finished(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except _RefusedError as error:
        raise InputError(
            f"expected a pickle of plain values and arrays of bytes in {source}, got one with"
            f" {error}; nothing of it was run: fetch the file again from where you trust"
        ) from error
    # Whatever else a torn or forged pickle leads the unpickler to, the fault is the file's.
    except Exception as error:
        raise InputError(
            f"expected a whole pickle in {source}, got: {error or type(error).__name__};"
            " fetch the file again"
        ) from error


class _RefusedError(Exception):
    """The pickle asks for what plain values do not need."""


def _check_instructions(content: bytes) -> None:
    for instruction, argument, _ in pickletools.genops(content):
        if instruction.name not in _PLAIN:
            raise _RefusedError(f"the instruction {instruction.name}")
        if instruction.name in _PUTS and not 0 <= int(argument or 0) < _MOST_REMEMBERED:
            raise _RefusedError(f"a value remembered under the number {argument}")


class _StandIn:
    """What a name in a pickle stands for. It cannot be changed: BUILD would set its attributes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise _RefusedError("a change to a name of numpy")


class _NdarrayName(_StandIn):
    """numpy.ndarray, which a pickle of an array names and never calls."""

    __slots__ = ()


class _DtypeName(_StandIn):
    """numpy.dtype, called with "u1" and flags."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> "_Dtype":
        if arguments[:1] not in (("u1",), (b"u1",), ("|u1",), (b"|u1",)):
            raise _RefusedError(f"an array of the type {arguments[:1]}, not bytes")
        return _Dtype()


class _ReconstructName(_StandIn):
    """The function of numpy that makes an empty array, to be filled by BUILD."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> "_Array":
        if not arguments or not isinstance(arguments[0], _NdarrayName):
            raise _RefusedError("an array of a class that is not numpy.ndarray")
        return _Array()


class _Dtype:
    """The type uint8. Its state (byte order, no fields) has nothing to say about single bytes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """An array that the pickle is about to fill."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        try:
            _, shape, dtype, fortran, content = state
            plain = isinstance(dtype, _Dtype) and isinstance(content, bytes) and not fortran
            fits = all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) == len(
                content
            )
        except (TypeError, ValueError):
            plain = fits = False
        if not plain or not fits:
            raise _RefusedError("an array that is not bytes in row order")
        self.value = np.frombuffer(content, dtype=np.uint8).reshape(shape)


_NAMES: dict[tuple[str, str], _StandIn] = {
    ("numpy", "ndarray"): _NdarrayName(),
    ("numpy", "dtype"): _DtypeName(),
    ("numpy.core.multiarray", "_reconstruct"): _ReconstructName(),
    ("numpy._core.multiarray", "_reconstruct"): _ReconstructName(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise _RefusedError(f"the name {module}.{name}")
        return found

    def persistent_load(self, pid: object) -> Any:
        raise _RefusedError("a reference to a value outside of it")


def _finished(value: Any) -> Any:
    """Return what was loaded, with arrays in the place of their stand-ins: a dictionary's alone."""
    if isinstance(value, dict):
        return {key: _finished(entry) for key, entry in value.items()}
    if isinstance(value, _Array):
        if value.value is None:
            raise _RefusedError("an array without content")
        return value.value
    if isinstance(value, (_StandIn, _Dtype)):
        raise _RefusedError("a name of numpy as a value")
    return value
