"""`arcsm reproduce vae`: pieces chosen by data set, latents and method."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcsm.experiments import Outcome

Run = Callable[..., Any]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a recorder in the place of the runner; its entries are the pieces asked for."""
    found: list[Any] = []

    def run_experiment(experiment: Any, budget: str, **options: Any) -> Outcome:
        found.append(options.get("only"))
        return Outcome([], ["a piece"])

    monkeypatch.setattr("arcsm.experiments.run_experiment", run_experiment)
    return found


def test_labels_choose_pieces(run: Run, chosen: list[Any], tmp_path: Path) -> None:
    common = ("reproduce", "vae", "--budget", "paper", "--out", tmp_path)
    for options in (
        ("--data", "mnist", "--latent", 8, "--method", "csm"),
        ("--data", "celeba"),
        ("--method", "elbo"),
        (),
    ):
        result = run(*common, *options)
        assert result.exit_code == 0, result.output
    assert chosen[0] == ["mnist.8.csm"]
    assert len(chosen[1]) == 6 and all(name.startswith("celeba.32.") for name in chosen[1])
    assert chosen[2] == ["mnist.8.elbo", "mnist.16.elbo", "celeba.32.elbo.0"]
    assert chosen[3] is None


def test_what_no_piece_has_is_refused_with_what_there_is(run: Run, tmp_path: Path) -> None:
    result = run("reproduce", "vae", "--budget", "paper", "--latent", 9, "--out", tmp_path)
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and "--latent 9" in said and "--latent 16, 32, 8" in said
