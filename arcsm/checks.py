"""Numbers and truth values that are asked for, and what is refused in their place."""

import math
from numbers import Integral, Real

from arcsm.errors import InputError


def check_whole(value: object, name: str, least: int = 1) -> int:
    """Return a size or count as an int; refuse what is none. Whole numbers of NumPy are welcome."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(
            f"expected {name} to be a whole number of at least {least}, got {value!r}; correct it"
        )
    return int(value)


def check_seed(seed: object) -> int:
    """Return the seed of a generator as an int; refuse what is none."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise InputError(f"expected a seed from 0 to 2⁶³ − 1, a whole number, got {seed!r}; take 0")
    return int(seed)


def is_real(value: object) -> bool:
    """Say whether a value is a number, one of Python or of NumPy, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_positive(value: float, name: str) -> None:
    """Refuse what is no positive, finite number."""
    if not (is_real(value) and 0 < value < math.inf):
        raise InputError(
            f"expected {name} to be a positive, finite number, got {value!r}; correct it"
        )


def check_flag(value: object, name: str) -> None:
    """Refuse what is no truth value."""
    if not isinstance(value, bool):
        raise InputError(f"expected True or False as {name}, got {value!r}; correct it")
