"""The experiment on unusual images: the sets, a piece, the choice of a default, verdicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data.images import Images
from arcsm.errors import InputError
from arcsm.experiments.experiment import Place
from arcsm.experiments.image_models import trained_model
from arcsm.experiments.image_parts import from_png, stand_in
from arcsm.experiments.ood import (
    NAMES,
    best_by_choosing,
    figures,
    metrics,
    pieces,
    run,
    verdicts,
)
from arcsm.experiments.ood_budgets import BUDGETS
from arcsm.experiments.ood_sets import blemished, make_unusual, smoothed
from arcsm.shipped import directory_of

SMOKE: Any = BUDGETS["smoke"]
PLACE = Place("cpu", lambda share: None)


def test_sets_are_what_they_are_called() -> None:
    spare = stand_in(6, 8, 3)
    flat = make_unusual({"kind": "constant"}, spare, 50, 0)
    assert flat.shape == (50, 8, 8, 3) and (flat == flat[:, :1, :1]).all()
    assert len(np.unique(flat[:, 0, 0], axis=0)) > 45
    noise = make_unusual({"kind": "uniform"}, spare, 50, 0)
    assert abs(noise.mean() - 127.5) < 3 and abs(noise.std() - 73.9) < 3
    permuted = make_unusual({"kind": "permuted"}, spare, 4, 0)
    assert len(permuted) == 4 and not np.array_equal(permuted, spare[:4])
    for one, other in zip(permuted, spare, strict=False):  # whole pixels, all of them
        a, b = (sorted(map(tuple, x.reshape(-1, 3).tolist())) for x in (one, other))
        assert a == b
    blurred = smoothed(spare, 1.0)
    assert blurred.shape == spare.shape and blurred.std() < spare.std()
    steps = [np.abs(np.diff(x.astype(int), axis=2)).max() for x in (spare, blurred)]
    assert steps[1] < steps[0]
    with pytest.raises(InputError, match="kind of unusual"):
        make_unusual({"kind": "odd"}, spare, 2, 0)


def test_a_set_that_is_not_there_is_an_error_of_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCSM_DATA", str(tmp_path))
    told = {"kind": "set", "name": "svhn", "part": "test"}
    with pytest.raises(InputError):
        make_unusual(told, np.zeros((1, 32, 32, 3), np.uint8), 2, 0)


def test_a_blemish_is_a_square_of_shuffled_pixels() -> None:
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    spoiled = blemished(pixels, 0)
    changed = (spoiled != pixels).any(3)
    assert (changed.sum((1, 2)) > 4).all() and (changed.sum((1, 2)) <= 16).all()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both pieces of a small run."""
    settings = {**SMOKE, "models_folder": str(tmp_path_factory.mktemp("models"))}
    return {piece.name: dict(run(settings, piece, PLACE)) for piece in pieces(settings)}


def test_pieces_judge_all_pairs(raw: dict[str, Any]) -> None:
    one = raw["squares.csm.0"]
    pairs = SMOKE["cases"]["squares"]["pairs"]
    assert {"nll", "typicality", "gaussian", "h at σ = 0.05", "csm at σ = 0.5"} <= set(one["areas"])
    for areas in one["areas"].values():
        assert set(areas) == set(pairs)
        for value, low, high in areas.values():
            assert 0 <= low <= value <= high <= 1
    # Noise is nothing like squares.
    assert one["areas"]["nll"]["uniform"][0] > 0.95
    assert set(raw["squares.likelihood.0"]["areas"]) == {"nll", "typicality"}
    assert set(one["speed"]) >= {"nll", "h", "gaussian"} and one["heat"] is not None
    assert from_png(one["heat"]).ndim == 3 and raw["squares.likelihood.0"]["heat"] is None
    assert all(rate > 0 for rates in one["speed"].values() for rate in rates.values())


def test_what_is_made_of_the_pieces(raw: dict[str, Any]) -> None:
    found = metrics(SMOKE, raw)
    areas = [one for one in found if one.name == "AUROC"]
    pairs = len(SMOKE["cases"]["squares"]["pairs"])
    assert len(areas) == pairs * sum(len(one["areas"]) for one in raw.values())
    assert all(one.interval is not None and one.n == 48 for one in areas)
    said = verdicts(SMOKE, found)
    assert "chosen on other pairs" in said[0].text and said[0].holds is None
    assert "-h at σ = 0.05" in said[1].text and "Over all levels" in said[1].text
    assert "maximum likelihood" in said[-1].text
    assert set(figures(SMOKE, raw)) == {"auroc-squares", "heat-squares"}


def test_the_default_is_chosen_on_other_pairs_than_it_is_judged_on(raw: dict[str, Any]) -> None:
    pairs = SMOKE["cases"]["squares"]["pairs"]
    changed = {**raw["squares.csm.0"], "areas": {}}
    for detector, (choosing, judging) in {"a": (0.9, 0.1), "b": (0.2, 1.0)}.items():
        changed["areas"][detector] = {
            pair: [choosing if told["for"] == "choosing" else judging] * 3
            for pair, told in pairs.items()
        }
    found = metrics(SMOKE, {**raw, "squares.csm.0": changed})
    assert best_by_choosing(found, "squares") == "a"
    assert best_by_choosing(found, "squares", ["b"]) == "b"
    said = verdicts({**SMOKE, "goal": True}, found)
    assert said[0].holds is False and f"{NAMES['uniform']} 0.100" in said[0].text


def test_the_level_of_h_is_one_of_the_paper_s_ladder_chosen_on_other_pairs(
    raw: dict[str, Any],
) -> None:
    pairs = SMOKE["cases"]["squares"]["pairs"]
    changed = {**raw["squares.csm.0"], "areas": {}}
    # The best on the pairs that are judged, and the best outside of the ladder, are not asked.
    for level, choosing, judging in ((0.08, 0.6, 0.9), (0.3, 0.7, 0.5), (0.6, 0.9, 0.8)):
        changed["areas"][f"h at σ = {level:g}"] = {
            pair: [choosing if told["for"] == "choosing" else judging] * 3
            for pair, told in pairs.items()
        }
    settings = {**SMOKE, "goal": True, "levels": [0.08, 0.3, 0.6]}
    said = verdicts(settings, metrics(settings, {**raw, "squares.csm.0": changed}))
    assert (
        "-h at σ = 0.3, has mean AUROC 0.5000 beside squares" in said[1].text
        and said[1].holds is False
    )


def test_pairs_that_are_missing_are_said_to_be(raw: dict[str, Any]) -> None:
    one = {**raw["squares.csm.0"]}
    one["missing"] = {"constant": "nothing there"}
    one["areas"] = {
        name: {pair: area for pair, area in areas.items() if pair != "constant"}
        for name, areas in one["areas"].items()
    }
    found = metrics(SMOKE, {**raw, "squares.csm.0": one})
    gone = [m for m in found if m.value is None]
    assert len(gone) == 1 and gone[0].labels["pair"] == "constant" and gone[0].reason
    assert "one colour none" in verdicts(SMOKE, found)[0].text


def test_without_pairs_to_choose_on_the_default_is_judged(raw: dict[str, Any]) -> None:
    case = SMOKE["cases"]["squares"]
    judging = {name: {**told, "for": "judging"} for name, told in case["pairs"].items()}
    settings = {**SMOKE, "cases": {"squares": {**case, "pairs": judging}}}
    said = verdicts(settings, metrics(settings, raw))
    assert said[0].holds is None and "'neighbours', the default," in said[0].text
    assert "inverted" in said[0].text and "Aims" not in said[0].text
    assert "-h at σ = 0.05" in said[1].text and "other pairs" not in said[1].text


def test_digits_are_judged_by_the_model_that_comes_with_arcsm(tmp_path: Path) -> None:
    told = BUDGETS["cpu"]["cases"]["mnist"]
    assert told["pairs"]["fashion"]["for"] == "judging"
    images = Images(np.zeros((1, 28, 28, 1), np.uint8), None, "mnist", "train")
    model, place = trained_model(
        told["model"],
        images,
        method="csm",
        seed=0,
        device="cpu",
        folder=str(tmp_path),
        progress=lambda share: None,
    )
    assert model.shape == (28, 28, 1) and place == directory_of("arcsm:digits")
    assert not list(tmp_path.iterdir())  # nothing was trained


def test_the_paper_s_pairs_are_judged_and_others_choose() -> None:
    told = BUDGETS["gpu"]["cases"]["cifar10"]["pairs"]
    judging = {pair for pair, one in told.items() if one["for"] == "judging"}
    assert judging == {"svhn", "constant", "uniform"}
    assert BUDGETS["gpu"]["images"] >= 1083
