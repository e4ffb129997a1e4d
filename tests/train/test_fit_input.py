"""Bad input is refused before anything is trained or written."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from training_runs import KINDS, build, contents, draw, quick, same_bits

from arcsm.errors import InputError
from arcsm.train import TrainConfig, fit


def with_value(value: float, dtype: type = np.float32) -> np.ndarray:
    x = draw(60).astype(dtype)
    x[7, 1] = value
    return x


def weights_with(value: float) -> np.ndarray:
    weight = np.ones(60)
    weight[5] = value
    return weight


ROWS = {
    "NaN": (with_value(math.nan), "expected finite numbers in x, got nan in row 7, column 1"),
    "infinity": (with_value(-math.inf), "expected finite numbers in x, got -inf in row 7"),
    "too large for float32": (
        with_value(1e200, np.float64),
        "expected numbers in x within the range of torch.float32, got 1e[+]200",
    ),
    "no rows": (draw(60)[:0], r"expected x with rows and columns, got shape \(0, 2\)"),
    "one row": (draw(1), "expected at least two rows in x, got one"),
    "too few columns": (draw(60)[:, :1].copy(), "expected x with 2 columns, got 1"),
    "too many columns": (draw(60).repeat(2, 1), "expected x with 2 columns, got 4"),
    "one axis": (draw(60)[:, 0].copy(), r"expected x of shape \(rows, columns\), got shape \(60,"),
    "constant column": (
        draw(60) * np.float32([1, 0]),
        r"expected columns of x that vary, got constant columns \[1\]",
    ),
    "int": (draw(60).astype(int), "expected x of dtype float32 or float64, got int64"),
    "object": (draw(60).astype(object), "expected x of dtype float32 or float64, got object"),
    "float16": (draw(60).astype(np.float16), "expected x of dtype .*, got float16"),
    "bfloat16": (torch.from_numpy(draw(60)).bfloat16(), "expected x of dtype .*, got bfloat16"),
    "list": (draw(60).tolist(), "expected x as a numpy array or a torch tensor, got list"),
    "None": (None, "expected x as a numpy array or a torch tensor, got NoneType"),
    "column-major": (
        np.asfortranarray(draw(60)),
        "expected x in contiguous memory, .* got strides",
    ),
    "every other row": (draw(120)[::2], "expected x in contiguous memory, .* got strides"),
    "backwards": (draw(60)[::-1], "expected x in contiguous memory, .* got strides"),
    "tensor on its side": (torch.from_numpy(draw(60)).T.contiguous().T, "got strides"),
}

WEIGHTS = {
    "negative": weights_with(-1),
    "NaN": weights_with(math.nan),
    "infinite": weights_with(math.inf),
    "too few": np.ones(59),
    "too many": np.ones(61),
    "one": 1.0,
    "a column": np.ones((60, 1)),
    "all zero": np.zeros(60),
    "all zero but one": np.eye(60)[3],
}

CONDITIONS = {
    "missing": (2, None, "expected a condition of 2 columns, got none"),
    "unexpected": (0, draw(60), "expected a condition of 0 columns, got one"),
    "too few rows": (2, draw(59), "expected 60 rows of condition, got 59"),
    "too many rows": (2, draw(61), "expected 60 rows of condition, got 61"),
    "too few columns": (3, draw(60), "expected condition with 3 columns, got 2"),
    "NaN": (2, with_value(math.nan), "expected finite numbers in condition, got nan in row 7"),
    "int": (2, draw(60).astype(int), "expected condition of dtype .*, got int64"),
    "too large for float32": (2, with_value(1e99, np.float64), "expected .* condition .*, got 1e"),
}


SPREADS = {
    "negative": (with_value(-1e-3), "without negative numbers, got .* least of -"),
    "too few rows": (np.abs(draw(59)), r"a spread of shape \(60, 2\) .* got shape \(59, 2\)"),
    "too many rows": (np.abs(draw(61)), r"a spread of shape \(60, 2\) .* got shape \(61, 2\)"),
    "too few columns": (np.ones((60, 1)), "expected spread with 2 columns, got 1"),
    "a number": (0.5, "expected spread as a numpy array or a torch tensor, got float"),
    "one for each column": (np.ones(2), r"expected spread of shape \(rows, columns\)"),
    "NaN": (np.abs(with_value(math.nan)), "finite numbers in spread, got nan in row 7, column 1"),
    "infinity": (np.abs(with_value(math.inf)), "finite numbers in spread, got inf in row 7"),
    "int": (np.ones((60, 2), int), "expected spread of dtype .*, got int64"),
    "too large for float32": (
        np.abs(with_value(1e99, np.float64)),
        "expected numbers in spread within the range of torch.float32, got 1e",
    ),
}


@pytest.fixture
def refused(tmp_path):
    """Check that a call of fit is refused, and leaves neither files nor another model."""

    def check(message: str, x: object, *, kind: str = "MixtureMADE", condition_dims=0, **options):
        model, same = (build(kind, condition_dims=condition_dims) for _ in range(2))
        for resume in (False, True):
            with pytest.raises(InputError, match=message):
                fit(model, x, quick(), directory=tmp_path / "run", resume=resume, **options)
        assert same_bits(model, same)
        assert contents(tmp_path) == {}

    return check


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_are_refused(name, kind, refused):
    x, message = ROWS[name]
    refused(message, x, kind=kind)


@pytest.mark.parametrize("name", WEIGHTS)
def test_bad_weights_are_refused(name, refused):
    refused(
        r"expected 60 finite weights, none negative and at least two above 0, got shape \(",
        draw(60),
        weight=WEIGHTS[name],
    )


@pytest.mark.parametrize("name", CONDITIONS)
def test_bad_conditions_are_refused(name, refused):
    dims, condition, message = CONDITIONS[name]
    refused(message, draw(60), condition_dims=dims, condition=condition)


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_spreads_are_refused(name, kind, refused):
    spread, message = SPREADS[name]
    refused(message, draw(60), kind=kind, spread=spread)


def test_a_column_that_varies_only_in_rows_of_weight_zero_is_refused(refused):
    x, weight = draw(60), np.ones(60)
    x[:, 1] = 1
    x[7, 1], weight[7] = 2, 0
    refused(r"expected columns that vary, got constant columns \[1\]", x, weight=weight)


def test_tensors_and_arrays_are_the_same_data():
    one, other = build("MixtureMADE"), build("MixtureMADE")
    fit(one, draw(60), quick())
    fit(other, torch.from_numpy(draw(60)), quick())
    assert same_bits(one, other)


def test_the_rows_are_left_as_they_were():
    x = draw(60)
    fit(build("ARCSM"), x, quick(), weight=(weight := np.full(60, 2.0)))
    np.testing.assert_array_equal(x, draw(60))
    assert (weight == 2).all()


BAD_SETTINGS = {
    "steps": [0, -1, 2.5, True, None, "10", math.nan],
    "batch_size": [0, -1, 16.0, None],
    "learning_rate": [0, -1e-3, math.inf, math.nan, None, "fast"],
    "warmup": [-1, 0.5, None],
    "weight_decay": [-0.1, math.inf, math.nan, None],
    "clip": [0, -1, math.nan, None],
    "ema": [-0.1, 1, 1.5, math.nan, None],
    "validation": [-0.1, 1, 60, math.nan, None],
    "evaluate_every": [0, -5, 1.5, None],
    "patience": [0, -1, 1.5, "long"],
    "max_seconds": [0, -1.0, math.inf, math.nan, "long"],
    "checkpoint_every": [0, -5, 1.5, None],
    "compile": ["yes", 1, None],
    "bfloat16": ["yes", 1, None],
    "seed": [0.5, None, "seed", True],
    # What a checkpoint could not hold, or would not give back equal.
    "noise": [None, [], {"levels": np.int64(3)}, {"levels": (1, 2)}, {1: 2}],
    "objective": [None, "csm", {"mix": np.float32(0.5)}, {"mix": torch.ones(())}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_SETTINGS.items() for value in values]
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(InputError, match=rf"expected {name} in its range, got ") as error:
        TrainConfig(**{name: value})
    assert repr(value) in str(error.value)


def test_every_setting_has_its_bad_values():
    assert {field.name for field in fields(TrainConfig)} == BAD_SETTINGS.keys()


def test_ends_of_the_ranges_are_accepted():
    fit(
        build("MixtureMADE"),
        draw(60),
        TrainConfig(
            steps=1,
            batch_size=1,
            learning_rate=1,
            warmup=0,
            weight_decay=0,
            clip=math.inf,
            ema=0,
            validation=0,
            evaluate_every=1,
            patience=1,
            checkpoint_every=1,
            seed=-1,
        ),
    )


def test_settings_do_not_change():
    config = quick()
    with pytest.raises(AttributeError):
        config.steps = 3
    assert replace(config, steps=3).steps == 3
