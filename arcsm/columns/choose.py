"""The kind of a column: as the user says, else as its values suggest."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from arcsm.columns.category import Category
from arcsm.columns.checks import such_rows
from arcsm.columns.continuous import Bounded, Real
from arcsm.columns.discrete import Grid, Ordinal
from arcsm.columns.fixed import Constant, is_constant
from arcsm.columns.grids import GridPoints, find_grid, whole_grid
from arcsm.columns.kind import Kind
from arcsm.columns.natural import natural_bounds
from arcsm.columns.sample import Sample
from arcsm.errors import InputError

MOST_VALUES = 256
# A quantum below this part of the standard deviation is as good as continuous.
_LEAST_QUANTUM = 0.002
_FEW_QUANTA = 3
_FEW_LEVELS, _EMPTY = 20, 4
_LEAST_ROWS_OF_TWO_VALUES = 5
_OPTIONS: dict[str, set[str]] = {
    "real": set(),
    "linear": set(),
    "bounded": {"lower", "upper"},
    "integer": {"quantum", "lower", "upper"},
    "quantised": {"quantum", "lower", "upper"},
    "ordinal": {"levels"},
    "category": set(),
}


def wish(name: str, given: Any) -> tuple[str, dict[str, Any]]:
    """Check what a user said of the column called `name`; return the kind and its options."""
    options = dict(given) if isinstance(given, Mapping) else {"kind": given}
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in _OPTIONS:
        raise InputError(
            f"expected one of the kinds {', '.join(_OPTIONS)} for column {name!r}, got {kind!r}"
        )
    unknown = sorted(set(options) - _OPTIONS[kind])
    if unknown:
        allowed = ", ".join(sorted(_OPTIONS[kind])) or "none"
        raise InputError(
            f"expected options of the kind {kind!r} for column {name!r} among: {allowed};"
            f" got {', '.join(unknown)}"
        )
    for option, value in options.items():
        if option != "levels" and (
            isinstance(value, bool)
            or not isinstance(value, int | float | np.integer | np.floating)
            or not math.isfinite(value)
        ):
            raise InputError(
                f"expected a finite number as {option} of column {name!r}, got {value!r}"
            )
    if options.get("quantum", 1) <= 0:
        raise InputError(
            f"expected a positive quantum for column {name!r}, got {options['quantum']!r}"
        )
    lower, upper = options.get("lower"), options.get("upper")
    if lower is not None and upper is not None and lower >= upper:
        raise InputError(f"expected lower < upper for column {name!r}, got {lower!r} and {upper!r}")
    levels = options.get("levels")
    if levels is not None:
        if isinstance(levels, str) or not isinstance(levels, Iterable):
            raise InputError(f"expected a list as levels of column {name!r}, got {levels!r}")
        options["levels"] = list(levels)
    # A file of settings holds plain numbers, not those of numpy.
    return kind, {option: _plain(value) for option, value in options.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def choose_text(
    name: str, values: np.ndarray, weight: np.ndarray | None, wished: tuple[str, dict] | None
) -> Kind:
    """Return the kind of a column of text."""
    rows = values.tolist()
    counts = Counter(rows)
    kind, options = wished or ("category", {})
    if len(counts) == 1:
        return Constant("one value", rows[0])
    if kind == "ordinal" and "levels" in options:
        return _ordinal(name, values, weight, list(options["levels"]))
    if kind != "category":
        raise InputError(
            f"expected numbers in column {name!r} for the kind {kind!r}, got text; choose the kind"
            " 'category', or {'kind': 'ordinal', 'levels': [...]} with the values in order"
        )
    if len(counts) > MOST_VALUES or 2 < len(counts) == len(rows):
        raise InputError(
            f"expected at most {MOST_VALUES} different texts, each more than once, in column"
            f" {name!r}, got {len(counts)} in {len(rows)} rows; it looks like an identifier:"
            " leave it out"
        )
    mass: Mapping[str, float] = counts
    if weight is not None:
        summed = dict.fromkeys(counts, 0.0)
        for value, amount in zip(rows, weight.tolist(), strict=True):
            summed[value] += amount
        mass = summed
    return _category(list(counts), [mass[value] for value in counts], "values")


def choose_bool(name: str, sample: Sample, wished: tuple[str, dict] | None) -> Kind:
    """Return the kind of a column of truth values."""
    if wished is not None and wished[0] != "category":
        raise InputError(
            f"expected the kind 'category' for the truth values in column {name!r},"
            f" got {wished[0]!r}; turn the column into numbers to have another"
        )
    values = [bool(value) for value in sample.values]
    if len(values) == 1:
        return Constant("one value", values[0])
    return _category(values, sample.mass.tolist(), "truth values")


def choose_numbers(
    name: str, values: np.ndarray, sample: Sample, wished: tuple[str, dict] | None
) -> Kind:
    """Return the kind of a column of numbers, float64 or int64."""
    if is_constant(sample):
        return Constant("one value", sample.values[0].item())
    if wished is not None:
        return _as_wished(name, values, sample, *wished)
    if sample.distinct == 2 and sample.rows >= _LEAST_ROWS_OF_TWO_VALUES:
        return _category(sample.values.tolist(), sample.mass.tolist(), "values")
    grid = _grid_of(sample)
    if grid is not None and not _is_sparse(sample, grid):
        return Grid.learn(sample, grid, *_grid_bounds(sample, grid))
    if _has_levels(sample):
        return Ordinal.learn(sample.values.tolist(), sample.counts, sample.mass)
    found = natural_bounds(sample)
    kind = Bounded.learn(sample, *found) if found is not None else None
    return kind or Real.learn(sample)


def _as_wished(
    name: str, values: np.ndarray, sample: Sample, kind: str, options: dict[str, Any]
) -> Kind:
    if kind == "real":
        return Real.learn(_as_floats(sample))
    if kind == "linear":
        return Real.learn(_as_floats(sample), linear=True)
    if kind == "category":
        if sample.distinct > MOST_VALUES:
            raise InputError(
                f"expected at most {MOST_VALUES} different values in column {name!r} for the kind"
                f" 'category', got {sample.distinct}; choose another kind"
            )
        return _category(sample.values.tolist(), sample.mass.tolist(), "values")
    if kind == "ordinal":
        levels = options.get("levels")
        if levels is not None:
            return _ordinal(name, values, None, list(levels), sample)
        return Ordinal.learn(sample.values.tolist(), sample.counts, sample.mass)
    lower, upper = options.get("lower"), options.get("upper")
    _check_inside(name, values, lower, upper)
    if kind == "bounded":
        return _bounded(name, _as_floats(sample), lower, upper)
    grid = _wished_grid(name, sample, options.get("quantum"))
    if lower is None and upper is None:
        lower, upper = _grid_bounds(sample, grid)
    return Grid.learn(sample, grid, lower, upper)


def _as_floats(sample: Sample) -> Sample:
    return sample.at(sample.values.astype(np.float64))


def _category(values: list[Any], mass: list[float], what: str) -> Category:
    # The most frequent first; equal ones in the order of their values, to be reproducible.
    order = sorted(range(len(values)), key=lambda i: (-mass[i], values[i]))
    return Category(f"{len(values)} {what}", tuple(values[i] for i in order))


def _grid_of(sample: Sample) -> GridPoints | None:
    if sample.values.dtype == np.int64:
        return whole_grid(sample.values)
    plain = sample.unweighted()
    deviation, robust = plain.mean_and_deviation()[1], plain.robust_scale()
    # The smaller of the two: a few wild rows do not make the steps of the others any finer.
    width = min(deviation, robust) if robust > 0 else deviation
    return find_grid(sample.values, least=_LEAST_QUANTUM * width)


def _grid_bounds(sample: Sample, grid: GridPoints) -> tuple[float | None, float | None]:
    """Return 0 as lower bound of a grid that starts near it, else what the values suggest."""
    if 0 <= sample.values[0] <= _FEW_QUANTA * grid.quantum:
        return 0.0, None
    found = natural_bounds(_as_floats(sample))
    return (None, None) if found is None else found[:2]


def _wished_grid(name: str, sample: Sample, quantum: float | None) -> GridPoints:
    whole_column = sample.values.dtype == np.int64
    if quantum is None:
        if whole_column:
            return whole_grid(sample.values)
        if (sample.values == np.rint(sample.values)).all() and abs(sample.values).max() < 2**53:
            return whole_grid(sample.values.astype(np.int64))
        grid = find_grid(sample.values, least=0.0)
        if grid is None:
            raise InputError(
                f"expected values on a grid in column {name!r} for the kind 'integer', found none;"
                " give its step as {'kind': 'integer', 'quantum': ...} or choose 'real'"
            )
        return grid
    if float(quantum).is_integer():
        first = sample.values[0].item()
        whole_offset = float(first).is_integer() and abs(first) < 2**53
        if whole_column or whole_offset:
            return GridPoints(int(first), int(quantum))
    elif whole_column:
        raise InputError(
            f"expected a whole quantum for the whole numbers in column {name!r}, got {quantum!r}"
        )
    offset = float(sample.values[0])
    for decimals in range(1, 13):
        scaled = np.array([offset, float(quantum)]) * 10.0**decimals
        if np.abs(scaled - np.rint(scaled)).max() < 1e-6 and np.abs(scaled).max() < 1e15:
            return GridPoints(round(offset, decimals), float(quantum), decimals)
    return GridPoints(offset, float(quantum))


def _is_sparse(sample: Sample, grid: GridPoints) -> bool:
    """Return whether a few repeated decimals only happen to lie on a grid that is mostly empty."""
    if sample.values.dtype != np.float64 or sample.distinct > _FEW_LEVELS:
        return False
    points = (sample.values[-1] - sample.values[0]) / grid.quantum
    return bool(points > _EMPTY * sample.distinct) and _has_levels(sample)


def _has_levels(sample: Sample) -> bool:
    """Return whether few values, each repeated, fill the column.

    No value that occurs once means, after Good and Turing, that next to none are still unseen.
    """
    repeats = sample.rows / sample.distinct
    enough = repeats >= 10 or (sample.distinct <= 10 and repeats >= 4)
    return enough and bool((sample.counts > 1).all())


def _ordinal(
    name: str,
    values: np.ndarray,
    weight: np.ndarray | None,
    levels: list[Any],
    sample: Sample | None = None,
) -> Ordinal:
    """Return the kind for levels in the order given by the user."""
    text = values.dtype == object
    if (
        len(levels) < 2
        or len(set(levels)) < len(levels)
        or any(isinstance(level, str) != text for level in levels)
    ):
        expected = "texts" if text else "numbers"
        raise InputError(
            f"expected at least two different {expected} as levels of column {name!r},"
            f" got {levels!r}"
        )
    unit = Ordinal.learn(levels, np.ones(len(levels), np.int64), np.ones(len(levels)))
    positions = unit.positions(name, values)
    counts = np.bincount(positions, minlength=len(levels))
    if sample is not None:
        mass = np.zeros(len(levels))
        mass[unit.positions(name, sample.values)] = sample.mass
    else:
        mass = np.bincount(positions, weight, minlength=len(levels)).astype(np.float64)
    return Ordinal.learn(levels, counts, mass)


def _check_inside(name: str, values: np.ndarray, lower: float | None, upper: float | None) -> None:
    outside = np.zeros(len(values), dtype=bool)
    if lower is not None:
        outside |= values < lower
    if upper is not None:
        outside |= values > upper
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        bounds = f"{'−∞' if lower is None else lower} to {'∞' if upper is None else upper}"
        raise InputError(
            f"expected values from {bounds} in column {name!r}, got {values[row].item()!r} in row"
            f" {row} ({such_rows(outside)}); correct the bounds or the values"
        )


def _bounded(name: str, sample: Sample, lower: float | None, upper: float | None) -> Kind:
    reason = "bounds given"
    if lower is None and upper is None:
        found = natural_bounds(sample)
        if found is not None:
            lower, upper, reason = found
        elif sample.values[0] >= 0:
            lower, reason = 0.0, "positive values"
        elif sample.values[-1] <= 0:
            upper, reason = 0.0, "negative values"
        else:
            raise InputError(
                f"expected bounds for column {name!r}, whose values have both signs;"
                " write {'kind': 'bounded', 'lower': ..., 'upper': ...}"
            )
    kind = Bounded.learn(
        sample,
        None if lower is None else float(lower),
        None if upper is None else float(upper),
        reason,
    )
    if kind is None:
        raise InputError(
            f"expected values strictly inside the bounds in column {name!r}, got none;"
            " choose the kind 'category'"
        )
    return kind
