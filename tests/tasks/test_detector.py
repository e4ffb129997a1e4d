"""Outlier scores of rows under a model whose every score is a closed form."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from arcsm.columns import Columns
from arcsm.conditional import Noise
from arcsm.data.table import Table, as_table
from arcsm.ensemble import Ensemble
from arcsm.errors import CheckpointError, InputError
from arcsm.model import ARCSM
from arcsm.tabular import TabularModel
from arcsm.tasks.detect import METHODS, Detector
from arcsm.tasks.detect import detector as module
from arcsm.tasks.detect.novel import chance_of_new, make_familiar


def rows(count: int, seed: int, dims: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dims)) * 3 + 10


def normal_chain(points: np.ndarray, **options: object) -> ARCSM:
    """Return a model of independent columns, each normal with the moments of `points`."""
    chain = ARCSM.made(points.shape[1], hidden=(8,), noise=Noise(3.0, 0.01), seed=0, **options)
    chain.head.normal_at = None
    with torch.no_grad():
        chain.head.output.weight.zero_()
        chain.head.output.bias.zero_()
        chain.head.output.bias[-1] = -30.0
    chain.standardise(torch.from_numpy(points))
    return chain


def model_of(x: np.ndarray, members: int = 1) -> TabularModel:
    table = as_table(x)
    columns = Columns.learn(table, kinds=dict.fromkeys(table.names, "linear"))
    points = columns.encode(table).point
    chains = [normal_chain(points) for _ in range(members)]
    return TabularModel(columns, chains[0] if members == 1 else Ensemble(chains))


TRAIN, TEST = rows(300, 0), rows(40, 1)


def standard(x: np.ndarray) -> np.ndarray:
    return (x - TRAIN.mean(0)) / TRAIN.std(0)


@pytest.fixture(scope="module")
def model() -> TabularModel:
    return model_of(TRAIN)


def score(model: TabularModel, method: str, x: np.ndarray, **options: object) -> np.ndarray:
    detector = Detector.learn(model, as_table(TRAIN), method=method, **options)
    return detector.outlier_score(as_table(x))


def test_negative_log_likelihood(model: TabularModel) -> None:
    expected = -stats.norm(TRAIN.mean(0), TRAIN.std(0)).logpdf(TEST).sum(1)
    np.testing.assert_allclose(score(model, "nll", TEST), expected, rtol=0.02)
    mean = score(model, "nll", TRAIN).mean()
    np.testing.assert_allclose(score(model, "typicality", TEST), np.abs(expected - mean), atol=0.1)


def test_the_integrand_of_score_matching(model: TabularModel) -> None:
    """Of a normal column of variance 1 with noise σ: s = −z/(1 + σ²), s' = −1/(1 + σ²)."""
    z = standard(TEST)
    expected = np.mean(
        [(z * s / (1 + s**2)) ** 2 / 2 - s**2 / (1 + s**2) for s in module.FEW_LEVELS],
        axis=0,
    ).sum(1)
    np.testing.assert_allclose(score(model, "csm", TEST), expected, rtol=1e-3, atol=1e-4)


def test_minus_the_sum_of_scores(model: TabularModel) -> None:
    expected = (standard(TEST) / (1 + 0.01**2)).sum(1)
    np.testing.assert_allclose(score(model, "h", TEST), expected, rtol=1e-3, atol=1e-4)


def neighbour_distance(z: np.ndarray, reference: np.ndarray, count: int) -> np.ndarray:
    distance = np.linalg.norm(z[:, None] - reference[None], axis=-1)
    return np.sort(distance, axis=1)[:, :count].mean(1)


@pytest.mark.parametrize("members", [1, 3])
def test_distances_of_vectors_of_scores(members: int) -> None:
    """Scores are z times σ/(1 + σ²), and the row counts as much as all of them together."""
    weight = math.sqrt(2 * np.mean([(s / (1 + s**2)) ** 2 for s in module.LEVELS]))
    expected = weight * neighbour_distance(standard(TEST), standard(TRAIN), module.NEIGHBOURS)
    found = score(model_of(TRAIN, members), "multiscale", TEST)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    more = weight * neighbour_distance(standard(TEST), standard(TRAIN), 40)
    found = score(model_of(TRAIN, members), "auto", TEST, neighbours=40)
    np.testing.assert_allclose(found, more, rtol=1e-3)


def test_a_training_row_is_not_its_own_neighbour(model: TabularModel) -> None:
    weight = math.sqrt(2 * np.mean([(s / (1 + s**2)) ** 2 for s in module.LEVELS]))
    z = standard(TRAIN)
    distance = np.sort(np.linalg.norm(z[:, None] - z[None], axis=-1), axis=1)
    distance = distance[:, 1 : 1 + module.NEIGHBOURS]
    found = score(model, "multiscale", TRAIN)
    np.testing.assert_allclose(found, weight * distance.mean(1), rtol=2e-3)


def test_between_two_modes_is_not_on_one_though_no_score_tells_them_apart() -> None:
    """At a mode and between two of them s = 0; s' is negative at the one, positive at the other."""
    x = rows(300, 0, 1)
    model = model_of(x)
    head = model.members[0].head
    with torch.no_grad():  # a single step up in the middle, which parts two bumps
        head.output.bias[: 3 * head.steps] = 0.0
        head.output.bias[0] = 0.2
    level = module.LEVELS[-1]
    family = head.family(torch.zeros(1, head.context_width))
    low, high = 0.05, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        risen = family.at(level).jet(torch.tensor([[middle]]))[0].item() > 0
        low, high = (middle, high) if risen else (low, middle)
    points = x.mean() + x.std() * np.array([[0.0], [middle]])
    familiar = make_familiar(model.columns, as_table(points))
    units = np.array([[x.mean()], [x.std()]])
    vectors = module._vectors(model.members, units, familiar) * math.sqrt(len(module.LEVELS))
    scores, bends = vectors[:, : len(module.LEVELS)], vectors[:, len(module.LEVELS) : -1]
    np.testing.assert_allclose(scores[:, -1], 0, atol=1e-3)
    assert bends[0, -1] > 0 > bends[1, -1]


def with_unit() -> tuple[TabularModel, Table]:
    """Return the training rows with a column of ever the same value, and a model of them."""
    table = Table({**as_table(TRAIN).columns, "unit": np.full(300, 7)})
    columns = Columns.learn(table, kinds={"x0": "linear", "x1": "linear"})
    return TabularModel(columns, normal_chain(columns.encode(table).point)), table


@pytest.mark.parametrize("method", METHODS)
def test_a_new_value_is_beyond_all_rows_and_counts_as_a_column_of_its_own(method: str) -> None:
    """One in n + 1 is rarer than the training rows could show."""
    model, table = with_unit()
    other = Table({**as_table(TEST).columns, "unit": np.where(np.arange(40) < 20, 7, 8)})
    same = Table({**other.columns, "unit": np.full(40, 7)})
    rarity = stats.norm.isf(0.5 / 301)

    def mean_square(levels: tuple[float, ...]) -> float:
        return float(np.mean([(s / (1 + s**2)) ** 2 for s in levels]))

    alone = {
        "nll": math.log(301),
        "typicality": math.log(301),
        "csm": mean_square(module.FEW_LEVELS) / 2 * rarity**2,
        "h": rarity,
    }.get(method, math.sqrt(2 * mean_square(module.LEVELS)) * rarity)
    detector = Detector.learn(model, table, method=method)
    known = detector.outlier_score(table)
    np.testing.assert_allclose(detector.state["training_scores"], known, rtol=1e-3, atol=1e-4)
    before, after = detector.outlier_score(same), detector.outlier_score(other)
    np.testing.assert_allclose(after[:20], before[:20], rtol=1e-6)
    middling = np.maximum(before[20:], np.median(known))
    expected = middling + known.max() - np.median(known) + alone
    np.testing.assert_allclose(after[20:], expected, rtol=1e-3)
    assert after[20:].min() > known.max()
    surprise = detector.explain(other)
    np.testing.assert_allclose(surprise[:, 2], np.where(np.arange(40) < 20, 0, math.log(301)))


def test_new_values_are_no_news_where_they_are_frequent() -> None:
    """Of 300 rows 60 have a name that no other has: so one in five of the next will."""
    names = [f"only {i}" if i < 60 else f"twice {i // 2}" for i in range(300)]
    model, table = with_unit()
    named = Table({**table.columns, "name": np.array(names, dtype=object)})
    kinds = {"x0": "linear", "x1": "linear", "name": "category"}
    columns = Columns.learn(named, kinds=kinds)
    np.testing.assert_allclose(chance_of_new(columns, named), [1 / 301] * 3 + [61 / 301])
    model = TabularModel(columns, normal_chain(columns.encode(named).point))
    detector = Detector.learn(model, named, method="nll")
    some = named.take(np.arange(100, 140))
    new = Table({**some.columns, "name": np.array([f"new {i}" for i in range(40)], dtype=object)})
    scores, ordinary = detector.outlier_score(new), detector.state["training_scores"]
    # A middling row with a new name is unusual as one in five are.
    assert np.median(scores) < np.quantile(ordinary, 0.99)
    np.testing.assert_allclose(detector.explain(new)[:, 3], math.log(301 / 61))


def test_held_out_rows_tell_how_unusual_new_ones_are(model: TabularModel) -> None:
    """Of what the weights were trained on a model thinks too well."""
    held_out = np.argsort(-np.abs(standard(TRAIN)).sum(1))[:30]
    detector = Detector.learn(model, as_table(TRAIN), method="nll", held_out=held_out)
    known = detector.state["training_scores"]
    expected = np.median(known[held_out]) - np.median(np.delete(known, held_out))
    assert detector.state["drop"] == pytest.approx(expected) and expected > 0
    inner = np.argsort(np.abs(standard(TRAIN)).sum(1))[:30]
    assert Detector.learn(model, as_table(TRAIN), held_out=inner).state["drop"] == 0.0


def test_rows_that_are_not_kept_are_scored_and_not_compared_with(model: TabularModel) -> None:
    kept = np.arange(300) < 200
    some = Detector.learn(model, as_table(TRAIN), kept=kept)
    alone = Detector.learn(model, as_table(TRAIN[:200]))
    np.testing.assert_array_equal(some.state["reference"], alone.state["reference"])
    assert some.state["training_scores"].shape == (300,)
    np.testing.assert_allclose(
        some.outlier_score(as_table(TEST)), alone.outlier_score(as_table(TEST))
    )


def test_of_many_rows_some_are_kept(model: TabularModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFERENCE", 100)
    detector = Detector.learn(model, as_table(TRAIN), neighbours=30)
    assert detector.state["reference"].shape[0] == 100
    assert detector.state["neighbours"] == 10  # as large a share
    assert Detector.learn(model, as_table(TRAIN)).state["neighbours"] == module.NEIGHBOURS


def test_pieces_and_precision_do_not_matter(
    model: TabularModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in METHODS:
        whole = score(model, method, TEST)
        with monkeypatch.context() as patch:
            patch.setattr(module, "ROWS", 7)
            patch.setattr(module, "_NUMBERS", 50)
            patch.setattr(module, "_PRECISE", 0)
            np.testing.assert_allclose(score(model, method, TEST), whole, rtol=1e-3, atol=1e-3)


def test_no_rows_have_no_scores(model: TabularModel) -> None:
    detector = Detector.learn(model, as_table(TRAIN))
    assert detector.outlier_score(as_table(TEST).take([])).shape == (0,)
    assert detector.explain(as_table(TEST).take([])).shape == (0, 2)


def test_a_missing_value_is_found_wherever_it_is(
    model: TabularModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 7)
    x = TEST.copy()
    x[33, 1] = np.nan
    detector = Detector.learn(model, as_table(TRAIN))
    for call in (detector.outlier_score, detector.explain):
        with pytest.raises(InputError, match=r"'x1', got a missing value in row 33"):
            call(as_table(x))


def test_what_is_not_there(model: TabularModel) -> None:
    with pytest.raises(InputError, match="expected a method among"):
        Detector.learn(model, as_table(TRAIN), method="magic")
    state = Detector.learn(model, as_table(TRAIN), method="nll").state
    with pytest.raises(CheckpointError, match="nothing called 'reference'"):
        Detector(model, "auto", state)


def test_a_detector_of_other_levels_is_refused(model: TabularModel) -> None:
    state = Detector.learn(model, as_table(TRAIN)).state
    assert Detector(model, "auto", state).outlier_score(as_table(TEST)).shape == (len(TEST),)
    with pytest.raises(CheckpointError, match=r"got one of \(1\.0, 0\.5\); fit it again"):
        Detector(model, "auto", {**state, "levels": np.array([1.0, 0.5])})
