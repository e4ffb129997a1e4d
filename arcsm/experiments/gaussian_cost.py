"""What a training step costs against the dimension: CSM, SM, SSM and DSM (Section 5.1, Figure 1a).

CSM trains the autoregressive field, the others the joint one with as many parameters. A step draws
its noise, computes the loss and its gradient, and moves the weights by Adam; rows stay where they
are. The paper gives neither the width nor the batch: they are assumptions, in the settings. Steps
of all methods are timed in turn, so that ratios mean something on a busy machine. What a step of
CSM has to compute and to move at the least is counted, and compared with what the machine does in
a matrix product and in a copy, timed in the same run.
"""

import functools
import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from arcsm.experiments.experiment import Claim, Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.fields import (
    METHODS,
    AutoregressiveField,
    IsotropicGaussian,
    free_parameters,
    make_field,
)
from arcsm.experiments.lines import Line, line_figure
from arcsm.experiments.work import (
    ADAM_PASSES,
    LiveTensors,
    MatrixTraffic,
    Step,
    measure_machine,
    on_gpu,
    roofline_seconds,
    seconds,
)
from arcsm.objectives import csm
from arcsm.results import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"csm": "CSM", "csm-compiled": "CSM, compiled", "sm": "SM", "ssm": "SSM", "dsm-0.1": "DSM"}
# Steps that take longer than this are timed three times only.
SLOW_SECONDS = 0.5
_COMMON = {
    "assumed": "batch, widths, Adam 2e-4 and unit variance: the paper does not state them",
    "methods": ["csm", "sm", "ssm", "dsm-0.1"],
    "fields": {name: METHODS[name].field for name in ("csm", "sm", "ssm", "dsm-0.1")},
    "learning_rate": 2e-4,
    "std": 0.1,
    "batch": 128,
    "projections": 1,
    "compile_at": [],
    "seeds": [0],
}
_EVERY = [2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 400, 512]
_GPU = {
    **_COMMON,
    "dims": [*_EVERY, 1024, 2048, 4096],
    "sm_up_to": 4096,
    "joint_width": 512,
    "repeats": 20,
    "compile_at": [8, 100, 400, 1024, 4096],
    "matrix": 4096,
    "copy_mib": 1024,
}
BUDGETS: dict[str, Settings] = {
    "smoke": {
        **_COMMON,
        "dims": [2, 8, 32],
        "sm_up_to": 32,
        "joint_width": 32,
        "batch": 32,
        "repeats": 3,
        "matrix": 256,
        "copy_mib": 8,
    },
    "cpu": {
        **_COMMON,
        "dims": [*_EVERY, 1024],
        "sm_up_to": 400,
        "joint_width": 256,
        "repeats": 9,
        "matrix": 1024,
        "copy_mib": 128,
    },
    "gpu": _GPU,
    "paper": _GPU,
}


def make_step(name: str, dims: int, settings: Settings, device: str) -> Step:
    """Return a function that takes one training step; "csm-compiled" is that of CSM, compiled."""
    method, seed = METHODS[name.removesuffix("-compiled")], settings["seeds"][0]
    field = make_field(method.field, dims, joint_width=settings["joint_width"], seed=seed)
    field = field.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    truth = IsotropicGaussian(dims, settings["std"])
    x = truth.sample(settings["batch"], generator=generator, device=device)
    optimizer = torch.optim.Adam(field.parameters(), lr=settings["learning_rate"], fused=True)

    def loss() -> torch.Tensor:
        projections = settings["projections"]
        return method.loss_of(field, x, projections=projections, generator=generator)

    if name == "csm-compiled":
        assert isinstance(field, AutoregressiveField)
        mode = "reduce-overhead" if on_gpu(device) else "default"
        loss = torch.compile(functools.partial(csm, field.conditional_scores, x), mode=mode)

    def step() -> None:
        value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    return step


def peak_memory(name: str, dims: int, settings: Settings, device: str) -> float:
    """Return the MiB of weights, optimiser and graph at the peak of the second step."""
    gc.collect()
    if on_gpu(device):
        # Libraries take workspaces at their first call, and keep them for good.
        make_step(name, dims, settings, device)()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        step = make_step(name, dims, settings, device)
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with LiveTensors() as live:
        step = make_step(name, dims, settings, device)
        step()
        live.peak = live.now
        step()
    return live.peak / 2**20


def count_work(name: str, dims: int, settings: Settings, device: str) -> dict[str, float]:
    """Return the FLOPs of the matrix products of one step, and the bytes that it has to move."""
    step = make_step(name, dims, settings, device)
    step()
    with FlopCounterMode(display=False) as flops, MatrixTraffic() as traffic:
        step()
    method = METHODS[name]
    field = make_field(method.field, dims, joint_width=settings["joint_width"], seed=0)
    stored = sum(p.numel() * p.element_size() for p in field.parameters())
    moved = traffic.bytes + ADAM_PASSES * stored
    return {"flops": float(flops.get_total_flops()), "bytes": float(moved)}


def pieces(settings: Settings) -> Sequence[Piece]:
    """Return one piece for each dimension: its methods are timed in turn."""
    return [Piece(f"d{dims}", {"D": dims}) for dims in settings["dims"]]


def run(settings: Settings, piece: Piece, place: Place) -> Raw:
    """Time the steps of all methods at one dimension, and count what CSM computes."""
    dims, device = piece.labels["D"], place.device
    found: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}
    names = list(settings["methods"])
    if dims in settings["compile_at"]:
        names.insert(1, "csm-compiled")
    for i, name in enumerate(names):
        found[name] = {"field": METHODS[name.removesuffix("-compiled")].field, "ms": []}
        if name == "sm" and dims > settings["sm_up_to"]:
            found[name]["reason"] = f"not tried beyond D = {settings['sm_up_to']}"
            continue
        try:
            if name != "csm-compiled":  # graphs keep memory that the allocator does not tell of
                found[name]["mib"] = peak_memory(name, dims, settings, device)
            step = make_step(name, dims, settings, device)
            for _ in range(3 if name == "csm-compiled" else 1):
                step()
            found[name]["first_s"] = seconds(step, device)
            steps[name] = step
        except torch.OutOfMemoryError:
            found[name]["reason"] = "out of memory"
        if "reason" in found[name] and on_gpu(device):  # the error no longer holds the graph
            gc.collect()
            torch.cuda.empty_cache()
        place.progress(0.5 * (i + 1) / len(names))
    for repeat in range(settings["repeats"]):
        for name, step in steps.items():
            first = found[name]["first_s"]
            if repeat < 3 or first < SLOW_SECONDS:
                inner = max(1, min(10, int(0.02 / first)))
                found[name]["ms"].append(1000 * seconds(step, device, inner))
        place.progress(0.5 + 0.5 * (repeat + 1) / settings["repeats"])
    fields = {
        kind: make_field(kind, dims, joint_width=settings["joint_width"], seed=0)
        for kind in ("joint", "autoregressive")
    }
    if dims in settings["compile_at"]:
        torch.compiler.reset()
    return {
        "D": dims,
        "methods": found,
        "free_parameters": {kind: free_parameters(field) for kind, field in fields.items()},
        "stored_parameters": {
            kind: sum(p.numel() for p in field.parameters()) for kind, field in fields.items()
        },
        "csm_work": count_work("csm", dims, settings, device),
        "machine": measure_machine(device, size=settings["matrix"], copy_mib=settings["copy_mib"]),
    }


def metrics(settings: Settings, raw: Mapping[str, Raw]) -> Sequence[Metric]:
    """Return times, memory, ratios to CSM, growth with D, and how near CSM is to the roofline."""
    found: list[Metric] = []
    times: dict[str, dict[int, float]] = {}
    for data in _by_dims(raw):
        dims = data["D"]
        for name, one in data["methods"].items():
            labels = {"method": name, "field": one["field"], "D": dims}
            if not one["ms"]:
                reason = one.get("reason", "no step was timed")
                found.append(Metric("step time", None, "ms", 0, labels=labels, reason=reason))
                continue
            value = times.setdefault(name, {})[dims] = statistics.median(one["ms"])
            spread = statistics.stdev(one["ms"]) if len(one["ms"]) > 1 else None
            found.append(
                Metric("step time", value, "ms", len(one["ms"]), spread=spread, labels=labels)
            )
            if "mib" in one:
                found.append(Metric("peak memory", one["mib"], "MiB", 1, labels=labels))
            for base in ("csm", "csm-compiled"):
                if name not in ("csm", "csm-compiled") and data["methods"].get(base, {}).get("ms"):
                    ratios = [
                        a / b for a, b in zip(one["ms"], data["methods"][base]["ms"], strict=False)
                    ]
                    found.append(
                        Metric(
                            "step time / that of CSM",
                            statistics.median(ratios),
                            "1",
                            len(ratios),
                            spread=statistics.stdev(ratios) if len(ratios) > 1 else None,
                            labels={**labels, "CSM": base},
                        )
                    )
            if name in ("csm", "csm-compiled"):
                bound = 1000 * roofline_seconds(data["csm_work"], data["machine"])
                labels = {"method": name, "D": dims}
                found.append(Metric("roofline time", bound, "ms", 1, labels=labels))
                found.append(Metric("share of roofline", bound / value, "1", 1, labels=labels))
    for name, curve in times.items():
        slope = growth(curve)
        if slope is not None:
            labels = {"method": name, "from D": min(d for d in curve if d >= max(curve) / 8)}
            labels["to D"] = max(curve)
            found.append(
                Metric("exponent of step time in D", slope, "1", len(curve), labels=labels)
            )
    return found


def growth(curve: Mapping[int, float]) -> float | None:
    """Return the slope of log time in log D over the last three doublings, None for one point."""
    points = [(math.log(d), math.log(t)) for d, t in curve.items() if d >= max(curve) / 8]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def figures(settings: Settings, raw: Mapping[str, Raw]) -> "Mapping[str, Figure]":
    """Draw times and memory over D, and the share of the roofline."""
    every = _by_dims(raw)

    def lines(value: Callable[[Raw, str], float | None]) -> dict[str, Line]:
        drawn = {}
        for name, label in LABELS.items():
            points = [
                (data["D"], found)
                for data in every
                if name in data["methods"] and (found := value(data, name)) is not None
            ]
            # A curve without points is none, but keeps its colour from the next one.
            drawn[label] = Line(*(zip(*points, strict=True) if points else ([], [])))
        return drawn

    def milliseconds(data: Raw, name: str) -> float | None:
        values = data["methods"][name]["ms"]
        return statistics.median(values) if values else None

    def share(data: Raw, name: str) -> float | None:
        value = milliseconds(data, name) if name.startswith("csm") else None
        bound = 1000 * roofline_seconds(data["csm_work"], data["machine"])
        return None if value is None else bound / value

    def memory(data: Raw, name: str) -> float | None:
        return data["methods"][name].get("mib")

    step = f"one training step, batch {settings['batch']}"
    return {
        key: line_figure(lines(value), x="D", y=unit, title=title, doublings=True)
        for key, value, unit, title in (
            ("time", milliseconds, "ms", f"Time of {step}"),
            ("memory", memory, "MiB", f"Peak memory of {step}"),
            ("roofline", share, "share", "CSM: roofline time / measured time"),
        )
    }


def verdicts(settings: Settings, metrics: Sequence[Metric]) -> Sequence[Verdict]:
    """Say whether CSM is flat, SM linear, and SM fifty times as slow at D = 400."""
    time_of = {
        (one.labels["method"], one.labels["D"]): one.value
        for one in metrics
        if one.name == "step time"
    }
    said: list[Verdict] = []
    least, at = min(settings["dims"]), min(400, max(settings["dims"]))
    small, large = time_of.get(("csm", least)), time_of.get(("csm", at))
    if small is not None and large is not None:
        said.append(
            Verdict(
                large <= 1.5 * small,
                f"A CSM step takes {large / small:.2f} times as long at D = {at} as at D = {least}"
                " (flat: at most 1.5 times).",
            )
        )
    for one in metrics:
        labels = one.labels
        if one.value is None:
            continue
        if one.name == "exponent of step time in D" and labels["method"] == "sm":
            said.append(
                Verdict(
                    0.8 <= one.value <= 1.2,
                    f"The time of an SM step grows as D^{one.value:.2f} from D = {labels['from D']}"
                    f" to {labels['to D']} (linear: an exponent of 0.8 to 1.2).",
                )
            )
        if one.name == "step time / that of CSM" and (labels["method"], labels["D"]) == ("sm", 400):
            said.append(
                Verdict(
                    one.value >= 50,
                    f"At D = 400 an SM step takes {one.value:.0f} times as long as one of"
                    f" {LABELS[labels['CSM']]} (aim: at least 50 times).",
                )
            )
        if one.name == "peak memory" and (labels["method"], labels["D"]) == ("sm", 200):
            said.append(
                Verdict(
                    None,
                    f"At D = 200 an SM step needs {one.value / 1024:.2f} GiB; the paper's ran out"
                    " of 12 GB near there, with a width and a batch that it does not state.",
                )
            )
    if ("sm", 400) not in time_of:
        said.append(Verdict(None, "D = 400 was not run: no ratio of SM to CSM there."))
    return said


def _by_dims(raw: Mapping[str, Raw]) -> list[Raw]:
    return sorted(raw.values(), key=lambda data: data["D"])


EXPERIMENT = Experiment(
    name="gaussian-cost",
    measures_time=True,
    title="Time and memory of a training step against the dimension",
    question="Does a step of CSM stay cheap while the dimension grows, where one of SM does not?",
    claims=[
        Claim(
            "The time of a CSM step stays stable as the dimension grows.", "Section 5.1, Figure 1a"
        ),
        Claim(
            "The time of an SM step grows linearly with the dimension.",
            "Section 5.1, Figure 1a",
            metric="exponent of step time in D",
            value=1.0,
            labels={"method": "sm"},
        ),
        Claim("SM runs out of 12 GB of memory near D = 200; CSM does not.", "Section 5.1"),
        Claim(
            "At D = 400 an SM step takes at least 50 times as long as a CSM step.",
            "aimed at, not in the paper",
            metric="step time / that of CSM",
            value=50.0,
            labels={"method": "sm", "D": 400},
        ),
    ],
    budgets=BUDGETS,
    pieces=pieces,
    run=run,
    metrics=metrics,
    figures=figures,
    verdicts=verdicts,
)
