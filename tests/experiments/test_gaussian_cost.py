"""What a step costs: counts against hand counts, and what is made of times."""

import json
from typing import Any

import pytest
import torch

from arcsm.experiments.experiment import Place
from arcsm.experiments.fields import CONTEXT, HEAD, free_parameters, make_field, matched_width
from arcsm.experiments.gaussian_cost import (
    BUDGETS,
    EXPERIMENT,
    count_work,
    growth,
    metrics,
    peak_memory,
    pieces,
    run,
    verdicts,
)
from arcsm.experiments.work import (
    ADAM_PASSES,
    LiveTensors,
    MatrixTraffic,
    measure_machine,
    roofline_seconds,
)

SMOKE = BUDGETS["smoke"]


def test_live_tensors_are_counted_while_they_live() -> None:
    with LiveTensors() as live:
        first = torch.zeros(1000)  # 4 bytes each
        second = first + 1
        view = second[:10]
        assert live.now == 8000
        del first
        assert live.now == 4000
        del second
        assert live.now == 4000  # the view keeps it
        third = view * 2
        del view, third
    assert live.now == 0
    assert live.peak == 8000


def test_only_matrix_products_count_as_traffic() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 5)
    with MatrixTraffic() as traffic:
        (a @ b) + 1
    assert traffic.bytes == 4 * (6 + 15 + 10)


def test_arithmetic_of_a_dsm_step_is_three_products_for_each_layer() -> None:
    dims, batch, width = 8, SMOKE["batch"], SMOKE["joint_width"]
    work = count_work("dsm-0.1", dims, SMOKE, "cpu")
    layers = [(dims, width), (width, width), (width, width), (width, dims)]
    # Forward, gradient of the weights, and gradient of the inputs but for the first layer.
    products = 3 * sum(a * b for a, b in layers) - dims * width
    assert work["flops"] == 2 * batch * products
    # Each product moves a weight (or its gradient), inputs and outputs (or their gradients).
    moved = sum(3 * (a * b + batch * (a + b)) for a, b in layers)
    moved -= dims * width + batch * (dims + width)
    moved += sum(b for _, b in layers)  # the biases, added in the forward product
    stored = sum(a * b + b for a, b in layers)
    assert work["bytes"] == 4 * (moved + ADAM_PASSES * stored)


def test_arithmetic_of_a_csm_step_is_that_of_full_masks_and_two_passes_through_the_head() -> None:
    dims, batch = 8, SMOKE["batch"]
    width = matched_width(dims, SMOKE["joint_width"])
    context = dims * width + 2 * width**2 + width * dims * CONTEXT
    head = dims * (CONTEXT * HEAD + 2 * (HEAD * HEAD + HEAD))
    expected = 2 * batch * (3 * (context + head) - dims * width)
    assert count_work("csm", dims, SMOKE, "cpu")["flops"] == expected


def test_memory_of_sm_grows_with_the_dimension_and_holds_weights_and_moments() -> None:
    settings = {**SMOKE, "joint_width": 16, "batch": 8}
    small, large = (peak_memory("sm", dims, settings, "cpu") for dims in (8, 32))
    assert large > 3 * small
    stored = free_parameters(make_field("joint", 32, joint_width=16, seed=0))
    assert peak_memory("dsm-0.1", 32, settings, "cpu") > 4 * 4 * stored / 2**20


def test_machine_moves_and_computes() -> None:
    machine = measure_machine("cpu", size=64, copy_mib=1)
    assert 1e6 < machine["flops_per_s"] < 1e16
    assert 1e6 < machine["bytes_per_s"] < 1e14


def test_roofline_is_the_slower_of_computing_and_moving() -> None:
    machine = {"flops_per_s": 100.0, "bytes_per_s": 10.0}
    assert roofline_seconds({"flops": 500.0, "bytes": 20.0}, machine) == 5
    assert roofline_seconds({"flops": 500.0, "bytes": 80.0}, machine) == 8


def test_growth_is_the_exponent_of_a_power() -> None:
    assert growth({d: 3 * d**1.5 for d in (2, 16, 32, 64)}) == pytest.approx(1.5)
    # Below an eighth of the largest D, overheads do not count.
    assert growth({2: 100.0, 64: 64.0, 128: 128.0, 256: 256.0}) == pytest.approx(1)
    assert growth({4: 1.0}) is None


def fabricated(sm_ms: float, csm_ms: float = 2.0) -> dict[str, Any]:
    """Return raw data in which CSM takes 2 ms, at D = 400 some other time, and SM grows as D."""
    raw = {}
    for dims in (2, 100, 200, 400):
        csm = csm_ms if dims == 400 else 2.0
        raw[f"d{dims}"] = {
            "D": dims,
            "methods": {
                "csm": {"field": "autoregressive", "ms": [csm] * 3, "mib": 10.0},
                "sm": {"field": "joint", "ms": [sm_ms * dims / 400] * 3, "mib": 1000.0},
            },
            "csm_work": {"flops": 1e9, "bytes": 1e6},
            "machine": {"flops_per_s": 1e12, "bytes_per_s": 1e12},
        }
    return raw


@pytest.mark.parametrize(("sm_ms", "csm_ms", "ratio", "flat"), [(120, 2, 1, 1), (90, 4, 0, 0)])
def test_verdicts_compare_with_what_was_aimed_at(
    sm_ms: float, csm_ms: float, ratio: int, flat: int
) -> None:
    settings = {**SMOKE, "dims": [2, 100, 200, 400]}
    found = metrics(settings, fabricated(sm_ms, csm_ms))
    said = {one.text: one.holds for one in verdicts(settings, found)}
    (is_flat,) = (holds for text, holds in said.items() if text.startswith("A CSM step"))
    (is_slow,) = (holds for text, holds in said.items() if text.startswith("At D = 400"))
    (linear,) = (holds for text, holds in said.items() if "grows as D^1.00" in text)
    assert (is_slow, is_flat, linear) == (bool(ratio), bool(flat), True)
    share = {one.labels["D"]: one.value for one in found if one.name == "share of roofline"}
    assert share[2] == pytest.approx(0.5)  # 1 ms of 2


def test_sm_that_was_not_run_has_a_reason_in_the_place_of_a_time() -> None:
    raw = fabricated(100)
    raw["d400"]["methods"]["sm"] = {"field": "joint", "ms": [], "reason": "out of memory"}
    (one,) = (
        metric
        for metric in metrics({**SMOKE, "dims": [2, 400]}, raw)
        if metric.name == "step time" and metric.labels["method"] == "sm" and metric.value is None
    )
    assert (one.labels["D"], one.reason) == (400, "out of memory")


def test_piece_times_every_method_as_often_as_was_asked() -> None:
    seen: list[float] = []
    piece = next(one for one in pieces(SMOKE) if one.labels["D"] == 8)
    raw = run({**SMOKE, "sm_up_to": 4}, piece, Place("cpu", seen.append))
    assert seen == sorted(seen) and seen[-1] == 1
    assert raw["methods"]["sm"]["ms"] == [] and "beyond D = 4" in raw["methods"]["sm"]["reason"]
    for name in ("csm", "ssm", "dsm-0.1"):
        assert len(raw["methods"][name]["ms"]) == SMOKE["repeats"]
        assert min(raw["methods"][name]["ms"]) > 0
    json.dumps(raw)
    figures = EXPERIMENT.figures(SMOKE, {"d8": raw})
    assert set(figures) == {"time", "memory", "roofline"}
