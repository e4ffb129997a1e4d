"""What benchmarks/orders.py makes of its fits."""

import math
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
orders = import_module("orders")


def entry(method: str, log_density: list[float | None], name: str = "wine", seed: int = 0):  # type: ignore[no-untyped-def]
    race = {"candidates": [["natural", -1.0, 0.0, 2.0]]} if method == "auto" else {}
    return orders.Entry(name, seed, method, "c", 10, 2, ["a", "b"], log_density, 1.0, **race)


def fits(values: dict[str, float], **about: object):  # type: ignore[no-untyped-def]
    return {method: entry(method, [value, value], **about) for method, value in values.items()}


def test_an_ensemble_is_the_mean_of_densities_on_the_rows_that_all_can_judge() -> None:
    row = [math.log(p) for p in (0.1, 0.2, 0.3, 0.6)]
    own = dict(zip(("auto", *orders.RANDOM), row, strict=True))
    entries = {method: entry(method, [value, -1.0, -2.0]) for method, value in own.items()}
    entries["natural"] = entry("natural", [math.log(0.5), None, -2.0])
    table, left_out = orders.judge(entries)
    assert left_out == 1
    assert table["ensemble of auto"] == pytest.approx([math.log(0.3), -2.0])
    assert table["ensemble of natural"] == pytest.approx([math.log(0.4), -2.0])
    means = orders.mean_scores(table)
    assert means["random"] == pytest.approx((sum(row[1:]) / 3 - 2) / 2)
    assert means["best of ensemble of auto"] == pytest.approx((math.log(0.6) - 2) / 2)


def test_sets_are_counted_by_their_mean_over_seeds() -> None:
    done = {}
    for name, seed, auto in (("wine", 0, -1.0), ("wine", 1, -3.5), ("glass", 0, -2.5)):
        values = {"natural": -2.0, "auto": auto} | dict.fromkeys(orders.RANDOM, -3.0)
        for found in fits(values, name=name, seed=seed).values():
            done[found.key] = found
    # Of glass the fits with seed 1 are not done.
    metrics = orders.summarise(done, ["wine", "glass"], [0, 1])
    found = {
        (m.name, m.labels["beats"]): (m.value, m.n)
        for m in metrics
        if m.labels.get("method") == "auto" and "beats" in m.labels
    }
    assert found["sets won", "natural"] == (0, 1)
    assert found["mean gain", "natural"] == (pytest.approx(-0.25), 1)
    assert found["sets won", "random"] == (1, 1)
    assert found["sets won", "natural and random"] == (0, 1)
    assert found["mean gain", "natural and random"] == (pytest.approx(-0.25), 1)
    metrics = orders.summarise(done, ["wine", "glass"], [0])
    won = next(m for m in metrics if m.name == "sets won" and m.labels["beats"] == "natural")
    assert (won.value, won.n) == (1, 2)


def test_rows_of_a_large_set_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, most in ((3, 5000), (60, 2500)):
        rows = np.random.default_rng(0).normal(size=(6000, columns))
        monkeypatch.setattr(orders, "read_set", lambda name, rows=rows: rows)
        split = orders.load("any", 1)
        assert len(split.train) + len(split.test) == most
        assert not np.array_equal(split.train, orders.load("any", 2).train)
