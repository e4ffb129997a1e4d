import math
from typing import Any

import pytest
import torch

from arcsm.baselines import MixtureMADE
from arcsm.errors import InputError
from arcsm.experiments.experiment import Piece, Place
from arcsm.experiments.toy_samples import EXPERIMENT, LEAD, OURS, make_model
from arcsm.model import ARCSM

SMOKE = EXPERIMENT.budgets["smoke"]


@pytest.mark.parametrize("budget", EXPERIMENT.budgets)
def test_ar_csm_has_strictly_fewer_parameters_than_every_mixture(budget: str) -> None:
    settings = EXPERIMENT.budgets[budget]
    ours = make_model(settings, OURS, 0.01, seed=0)
    assert isinstance(ours, ARCSM)
    size = sum(parameter.numel() for parameter in ours.parameters())
    for n in settings["components"]:
        theirs = make_model(settings, f"mixture-{n}", 0.01, seed=0)
        assert isinstance(theirs, MixtureMADE) and theirs.components == n
        assert size < sum(parameter.numel() for parameter in theirs.parameters())
        # And no wider anywhere.
        assert max(ours.context.hidden) < min(theirs.context.hidden)


def test_a_head_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InputError, match="smaller"):
        make_model({**SMOKE, "head": {"width": 64, "steps": 64}}, OURS, 0.01, seed=0)


def run(method: str, **changes: Any) -> dict[str, Any]:
    settings = {**SMOKE, "steps": 3, "fresh": 20, "shown": 4, "rows": 200, **changes}
    piece = Piece("x", {"toy": "two-moons", "method": method, "seed": 0})
    return dict(EXPERIMENT.run(settings, piece, Place("cpu", lambda share: None)))


def test_all_methods_are_judged_on_the_same_rows_and_pieces_repeat() -> None:
    ours, again, theirs = run(OURS), run(OURS), run("mixture-1")
    for raw in (ours, again, theirs):
        raw.pop("training seconds")
    assert ours == again
    assert ours["data"] == theirs["data"] and ours["samples"] != theirs["samples"]
    # log p − log q in the mean: with the same rows, the truth of both is the same.
    truth = [raw["divergence"] + raw["log-likelihood"] for raw in (ours, theirs)]
    assert truth[0] == pytest.approx(truth[1], abs=1e-9)


def test_the_likelihood_of_one_logistic_per_column_is_the_closed_form() -> None:
    """A mixture of one whose context is constant: two independent logistics."""
    model = make_model({**SMOKE, "components": [1]}, "mixture-1", 0.01, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    x = torch.tensor([[0.3, -1.0], [2.0, 0.0]])
    exact = (x - 2 * torch.log1p(x.exp())).sum(1)
    assert torch.allclose(model.log_prob(x), exact, atol=1e-6)


def raws(leads: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Likelihoods in which AR-CSM leads the better of two mixtures by so much, seed by seed."""
    found = {}
    for toy, values in leads.items():
        for seed, lead in enumerate(values):
            base = -2.0 - 0.1 * seed
            for method, likelihood in ((OURS, base + lead), ("mixture-1", base - 1),
                                       ("mixture-5", base)):  # fmt: skip
                found[f"{toy}.{method}.{seed}"] = {
                    "log-likelihood": likelihood,
                    "divergence": -likelihood,
                    "training seconds": 1.0,
                    "parameters": 100 if method == OURS else 101,
                }
    return found


def test_leads_are_paired_over_seeds_and_the_verdict_counts_sets() -> None:
    leads = {"a": [0.1, 0.31], "b": [-0.2, -0.2], "c": [0.5, -0.3]}
    settings = {**SMOKE, "toys": list(leads), "components": [1, 5], "seeds": [0, 1]}
    metrics = EXPERIMENT.metrics(settings, raws(leads))
    found = {metric.labels["toy"]: metric for metric in metrics if metric.name == LEAD}
    assert found["a"].value == pytest.approx(0.205) and found["a"].n == 2
    # Of the differences, not of the likelihoods, which vary by 0.1 from seed to seed as well.
    assert found["a"].spread == pytest.approx(0.21 / math.sqrt(2))
    assert found["b"].spread == pytest.approx(0, abs=1e-12)
    assert found["c"].value == pytest.approx(0.1)
    assert {metric.labels["best mixture"] for metric in found.values()} == {"mixture-5"}
    ahead, size = EXPERIMENT.verdicts(settings, metrics)
    assert ahead.holds is False and "on 2 of 3 sets" in ahead.text
    # 0.205 is less than two standard errors of 0.105, and 0.1 is far from clear.
    assert "on 0 by more than two standard errors" in ahead.text
    assert "b −0.200" in ahead.text and "a +0.205" in ahead.text
    assert size.holds and "100" in size.text


def test_a_lead_that_is_clear_counts_as_such() -> None:
    leads = {"a": [0.1, 0.11], "b": [0.2, 0.21]}
    settings = {**SMOKE, "toys": list(leads), "components": [1, 5], "seeds": [0, 1]}
    ahead, _ = EXPERIMENT.verdicts(settings, EXPERIMENT.metrics(settings, raws(leads)))
    assert ahead.holds and "on 2 of 2 sets, on 2 by more" in ahead.text
