"""The times of a step of VAEs: those of all methods, and what is said of them."""

from typing import Any

import pytest

from arcsm.experiments import vae_times
from arcsm.experiments.experiment import Place
from arcsm.experiments.vae_budgets import BUDGETS, METHODS
from arcsm.experiments.vae_parts import Pictures, make_stack

SMOKE = BUDGETS["smoke"]


def test_times_are_those_of_all_methods() -> None:
    settings = {**SMOKE, "tables": [{"data": "mnist", "latent": 2}]}
    (piece,) = vae_times.pieces(settings)
    raw = vae_times.run(settings, piece, Place("cpu", lambda share: None))
    assert set(raw["ms"]) == set(METHODS) and min(raw["ms"].values()) > 0
    assert not any(raw["captured"].values()) and raw["seeds"] == 2
    assert set(vae_times.figures(settings, {"mnist.2": raw})) == {"times"}
    stack = make_stack(settings, Pictures(settings, "mnist"), "csm", 2, [0, 1], "cpu")
    assert stack.settings.particles == 4 and stack.seeds == (0, 1)


def test_times_on_celeba_are_those_of_one_run() -> None:
    settings = {**SMOKE, "tables": [{"data": "celeba", "latent": 3}], "methods": ["elbo", "csm"]}
    (piece,) = vae_times.pieces(settings)
    raw = vae_times.run(settings, piece, Place("cpu", lambda share: None))
    assert raw["seeds"] == 1 and len(settings["celeba_seeds"]) == 2


def test_times_depend_on_nothing_that_is_said_of_another_set() -> None:
    told = vae_times.EXPERIMENT.budgets["cpu"]

    def depends(name: str, **changes: Any) -> Any:
        found = {piece.name: piece.depends_on for piece in vae_times.pieces({**told, **changes})}
        return found[name]

    longer = {**told["training"], "celeba": {**told["training"]["celeba"], "batch": 7}}
    for changes in ({"training": longer}, {"width": 8}):
        assert depends("mnist.8", **changes) == depends("mnist.8")
        assert depends("celeba.32", **changes) != depends("celeba.32")
    assert depends("mnist.8", tables=told["tables"][:1], celeba_seeds=[7]) == depends("mnist.8")
    assert depends("mnist.8") != depends("mnist.16")
    for changes in ({"seeds": [0, 1]}, {"hidden": 17}, {"methods": ["csm"]}, {"particles": {}}):
        assert depends("mnist.8", **changes) != depends("mnist.8")


def test_times_become_verdicts() -> None:
    settings = {**BUDGETS["paper"], "tables": [{"data": "mnist", "latent": 8}]}
    ms = {**dict.fromkeys(METHODS, 1.0), "csm": 1.4, "spectral": 9.0}
    raw = {"data": "mnist", "latent": 8, "ms": ms, "captured": dict.fromkeys(ms, True), "seeds": 3}
    found = vae_times.metrics(settings, {"mnist.8": raw})
    minutes = {m.labels["method"]: m.value for m in found if m.unit == "min"}
    assert minutes["csm"] == pytest.approx(1.4e-3 * 100_000 / 60)
    first, second = vae_times.verdicts(settings, found)
    assert first.holds is True and "1.40 times" in first.text
    assert second.holds is True and "up to 2.3 minutes (CSM)" in second.text
    ms["csm"] = 2.0
    first, second = vae_times.verdicts(settings, vae_times.metrics(settings, {"mnist.8": raw}))
    assert first.holds is False and second.holds is False
    raw["captured"] = dict.fromkeys(ms, False)  # no GPU
    first, second = vae_times.verdicts(settings, vae_times.metrics(settings, {"mnist.8": raw}))
    assert first.holds is second.holds is None
