import json
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from arcsm import ARCSMDensity, CheckpointError, InputError
from arcsm.data.table import as_table


def quick(**parameters: object) -> ARCSMDensity:
    return ARCSMDensity(**{"max_steps": 20, "hidden": (16, 16), "random_state": 0, **parameters})


def frame(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "height": random.normal(170.0, 10.0, rows),
            "children": random.poisson(1.5, rows),
            "town": random.choice(["Bern", "Basel", "Genf"], rows),
            "member": random.random(rows) < 0.5,
        }
    )


@parametrize_with_checks([ARCSMDensity(max_steps=20)])
def test_scikit_learn_contract(estimator, check) -> None:
    check(estimator)


def test_densities_of_an_array() -> None:
    x = np.random.default_rng(0).normal(size=(300, 2))
    density = quick().fit(x)
    log_prob = density.score_samples(x)
    assert log_prob.shape == (300,) and np.isfinite(log_prob).all()
    assert density.score(x) == pytest.approx(log_prob.mean())
    drawn = density.sample(7, random_state=1)
    assert isinstance(drawn, np.ndarray) and drawn.shape == (7, 2)
    np.testing.assert_array_equal(drawn, density.sample(7, random_state=1))
    assert not np.array_equal(drawn, density.sample(7, random_state=2))


def test_whole_numbers_stay_whole() -> None:
    x = np.random.default_rng(0).poisson(4.0, size=(200, 2))
    drawn = quick().fit(x).sample(50)
    assert (drawn == np.rint(drawn)).all() and (drawn >= 0).all()


def test_a_density_of_known_answer() -> None:
    """A normal column: the log-density is that of the normal distribution, in its own units."""
    random = np.random.default_rng(0)
    x = random.normal(50.0, 0.01, size=(4000, 1))
    density = ARCSMDensity(max_steps=400, random_state=0).fit(x)
    fresh = random.normal(50.0, 0.01, size=(2000, 1))
    exact = -0.5 * ((fresh[:, 0] - 50.0) / 0.01) ** 2 - np.log(0.01 * np.sqrt(2 * np.pi))
    assert 0 <= np.mean(exact - density.score_samples(fresh)) + 0.005 < 0.03


def test_data_frames_come_back_as_they_were() -> None:
    table = frame()
    density = quick().fit(table)
    assert list(density.feature_names_in_) == list(table.columns)
    drawn = density.sample(30, random_state=0)
    assert list(drawn.columns) == list(table.columns)
    assert drawn["children"].dtype == np.int64 and drawn["member"].dtype == bool
    assert set(drawn["town"]) <= {"Bern", "Basel", "Genf"}
    assert np.isfinite(density.score_samples(drawn)).all()
    kinds = [column["kind"] for column in density.columns_]
    assert kinds == ["real", "integer", "category", "category"]


def test_tables_of_arcsm_are_taken_too() -> None:
    table = frame()
    one, other = quick().fit(table), quick().fit(as_table(table))
    np.testing.assert_array_equal(one.score_samples(table), other.score_samples(as_table(table)))


def test_columns_and_order_by_name_and_position() -> None:
    x = np.column_stack([np.arange(100.0), np.random.default_rng(0).random(100)])
    density = quick(columns={0: "real", 1: {"kind": "bounded", "lower": 0, "upper": 2}}).fit(x)
    assert [column["kind"] for column in density.columns_] == ["real", "bounded"]
    assert density.sample(500, random_state=0)[:, 1].max() < 2
    table = frame()
    density = quick(order=["town", "member", "height", "children"]).fit(table)
    assert density.model_.order == ("town", "member", "height", "children")
    assert quick(order=[1, 0]).fit(x).model_.order == ("x1", "x0")
    for wrong in ({"columns": {"age": "real"}}, {"order": [0, 5]}, {"columns": {7: "real"}}):
        with pytest.raises(InputError, match="expected columns among"):
            quick(**wrong).fit(x)


@pytest.mark.parametrize("columns", [["height"], "height"])
def test_kinds_without_their_columns(columns: object) -> None:
    with pytest.raises(InputError, match="expected a mapping from columns, such as"):
        quick(columns=columns).fit(frame())


def test_pipeline_grid_search_and_clone() -> None:
    x = np.random.default_rng(0).normal(size=(90, 2))
    pipeline = make_pipeline(StandardScaler(), quick())
    assert np.isfinite(pipeline.fit(x).score(x))
    search = GridSearchCV(quick(), {"learning_rate": [1e-3, 1e-2]}, cv=2).fit(x)
    assert search.best_params_["learning_rate"] in (1e-3, 1e-2)
    assert clone(quick(max_steps=3)).get_params()["max_steps"] == 3


def test_sample_weights_move_the_density() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.normal(-3, 1, (400, 1)), random.normal(3, 1, (400, 1))])
    weight = np.concatenate([np.full(400, 0.05), np.ones(400)])
    density = quick(max_steps=150).fit(x, sample_weight=weight)
    assert density.score_samples([[3.0]]) > density.score_samples([[-3.0]]) + 1
    for wrong in (-weight, np.zeros(800), weight[:-1]):
        with pytest.raises(ValueError):
            quick().fit(x, sample_weight=wrong)


def test_time_is_kept(monkeypatch) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    density = quick(max_steps=100_000, max_seconds=0.5, validation_fraction=0).fit(x)
    assert density.history_.steps < 100_000 and density.history_.seconds < 5


# On disk.


def test_saved_and_loaded_elsewhere(tmp_path) -> None:
    table = frame()
    density = quick(columns={"height": "real"}).fit(table)
    density.save(tmp_path / "people", data=table)
    names = {path.name for path in (tmp_path / "people").iterdir()}
    assert {"model.safetensors", "config.json", "README.md", "loss.png", "pairs.png"} <= names
    loaded = ARCSMDensity.load(tmp_path / "people")
    assert loaded.get_params() == density.get_params()
    np.testing.assert_array_equal(loaded.score_samples(table), density.score_samples(table))
    pd.testing.assert_frame_equal(loaded.sample(5, 0), density.sample(5, 0))
    assert loaded.history_ == density.history_ and loaded.columns_ == density.columns_
    script = (
        "import sys, pandas as pd, arcsm; "
        "print(arcsm.ARCSMDensity.load(sys.argv[1]).sample(3, 0).to_json())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "people")]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert json.loads(output) == json.loads(density.sample(3, 0).to_json())


def test_saving_replaces_models_alone(tmp_path) -> None:
    density = quick().fit(frame())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        density.save(tmp_path / "other")
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"
    density.save(tmp_path / "model")
    density.save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]
    with pytest.raises(InputError, match="got the file"):
        density.save(tmp_path / "other" / "thesis.txt")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch) -> None:
    density = quick().fit(frame())
    density.save(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("arcsm.estimators.density.write_card", full)
    with pytest.raises(OSError, match="No space left"):
        quick(random_state=1).fit(frame()).save(tmp_path / "model")
    with pytest.raises(OSError, match="No space left"):
        density.save(tmp_path / "new")
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


def test_directories_of_another_kind_or_version(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ARCSMDensity.load(tmp_path)
    quick().fit(frame()).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["version"] = 99
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        ARCSMDensity.load(tmp_path / "model")


def test_pickled_estimators_work_as_well() -> None:
    density = quick().fit(frame())
    copy = pickle.loads(pickle.dumps(density))
    np.testing.assert_array_equal(copy.score_samples(frame()), density.score_samples(frame()))


def test_only_models_of_arcsm_are_replaced(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        quick().fit(frame()).save(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_parameters_come_back_as_names_and_plain_numbers(tmp_path) -> None:
    x = np.random.default_rng(0).integers(1, 4, size=(80, 2)).astype(float)
    x[:, 0] += np.random.default_rng(1).random(80)
    kinds = {0: "real", 1: {"kind": "ordinal", "levels": np.array([1, 2, 3])}}
    density = quick(columns=kinds).fit(x)
    density.save(tmp_path / "m")
    loaded = ARCSMDensity.load(tmp_path / "m")
    assert loaded.columns == {"x0": "real", "x1": {"kind": "ordinal", "levels": [1, 2, 3]}}
    np.testing.assert_array_equal(loaded.score_samples(x), density.score_samples(x))
    assert clone(loaded).fit(x).columns_ == density.columns_


# Surprises.


def test_a_failed_fit_leaves_the_former_one_whole() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    density = quick().fit(x)
    before = density.score_samples(x)
    with pytest.raises(InputError):
        density.fit(pd.DataFrame({"a": [1.0] * 9, "b": [2.0] * 9, "c": [3.0] * 9}))
    np.testing.assert_array_equal(density.score_samples(x), before)
    assert density.n_features_in_ == 2 and not hasattr(density, "feature_names_in_")
    density.fit(frame())
    assert density.n_features_in_ == 4
    density.fit(x)
    assert not hasattr(density, "feature_names_in_")  # nothing of a fit outlives the next


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
def test_names_that_one_side_does_not_have() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    by_array = quick().fit(x)
    expected = by_array.score_samples(x)
    np.testing.assert_array_equal(
        by_array.score_samples(pd.DataFrame(x, columns=["a", "b"])), expected
    )
    for named in (pd.DataFrame(x), pd.DataFrame(x, columns=["a", "b"])):
        density = quick().fit(named)
        np.testing.assert_array_equal(density.score_samples(x), expected)


def test_columns_whose_names_are_numbers() -> None:
    x = pd.DataFrame(np.random.default_rng(0).gamma(2, size=(300, 2)), columns=[1, 0])
    density = quick(columns={0: "real"}).fit(x)
    assert {c["name"]: c["kind"] for c in density.columns_} == {"1": "bounded", "0": "real"}
    with pytest.raises(InputError, match="got True"):
        quick(columns={True: "real"}).fit(x)
    with pytest.raises(InputError, match="each column once"):
        quick(columns={"x0": "real", 0: "real"}).fit(x.to_numpy())


def test_copies_and_constants_written_with_fewer_digits() -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"a": random.normal(size=100)})
    table = table.assign(copy=table["a"] * 3 - 0.1, fixed=0.1)
    density = quick().fit(table)
    assert [column["kind"] for column in density.columns_] == ["real", "duplicate", "constant"]
    for rewritten in (table.astype("float32"), table.round(6)):
        assert np.isfinite(density.score_samples(rewritten)).all()
    assert np.isneginf(density.score_samples(table.assign(copy=table["copy"] + 1e-3))).all()


@pytest.mark.parametrize("name", ["max_steps", "max_seconds", "batch_size", "learning_rate"])
def test_nothing_is_not_the_default(name: str) -> None:
    with pytest.raises(InputError, match=f"expected {name} as "):
        ARCSMDensity(**{"max_steps": 5, name: 0}).fit(frame())


def test_devices_and_weights_that_cannot_be() -> None:
    with pytest.raises(InputError, match="a device that torch can use"):
        quick(device="foo").fit(frame())
    with pytest.raises(InputError, match="outweighs all others"):
        quick().fit(frame(), sample_weight=[1e300] + [1.0] * 199)
    with pytest.raises(InputError, match="positive number"):
        quick().fit(frame()).sample(True)


# Bad input.


def test_columns_that_changed() -> None:
    table = frame()
    density = quick().fit(table)
    swapped = table[["children", "height", "town", "member"]]
    with pytest.raises(ValueError, match="order"):
        density.score_samples(swapped)
    with pytest.raises(ValueError, match="unseen at fit time"):
        density.score_samples(table.rename(columns={"height": "size"}))
    with pytest.raises(ValueError, match="feature"):
        density.score_samples(table.drop(columns="town"))
    with pytest.raises(InputError, match=r"height.*row 3"):
        density.score_samples(
            table.assign(height=["tall" if k == 3 else str(k) for k in range(200)])
        )
    with pytest.raises(InputError, match=r"town.*Paris"):
        density.score_samples(table.assign(town=["Paris"] * 200))
    with pytest.raises(InputError, match="height"):
        density.score_samples(table.assign(height=[np.nan] * 200))


def test_tables_without_a_density() -> None:
    with pytest.raises(InputError, match="equal ones"):
        quick().fit(np.ones((1000, 3)))
    with pytest.raises(ValueError, match="1 sample"):
        quick().fit(frame(1))
    with pytest.raises(NotFittedError):
        quick().score_samples(np.ones((2, 2)))
    with pytest.raises(InputError, match="positive number of samples"):
        quick().fit(frame()).sample(0)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    quick().fit(frame()).sample(3)
    assert torch.equal(before, torch.get_rng_state())


# Ensembles, orders and given columns.


@pytest.mark.parametrize("how", [{"ensemble": 2}, {"order": "any"}])
def test_other_models_are_saved_loaded_and_resumed(how: dict[str, object], tmp_path) -> None:
    table = frame()
    density = quick(**how).fit(table)
    assert clone(density).get_params() == density.get_params()
    assert density.order_ == (() if "ensemble" in how else tuple(table.columns))
    drawn = density.sample(20, random_state=1)
    assert list(drawn.columns) == list(table.columns)
    assert np.isfinite(density.score_samples(drawn)).all()
    density.save(tmp_path / "m", data=table)
    card = (tmp_path / "m" / "README.md").read_text()
    if "ensemble" in how:
        assert "mean of those of 2 models, each with an order of its own" in card
        assert "Order of the chain" not in card
    else:
        assert "Order that scores follow: height → children → town → member" in card
    assert "calibration.png" in card
    loaded = ARCSMDensity.load(tmp_path / "m")
    assert loaded.get_params() == density.get_params() and loaded.order_ == density.order_
    np.testing.assert_array_equal(loaded.score_samples(table), density.score_samples(table))
    pd.testing.assert_frame_equal(loaded.sample(20, 1), drawn)
    copy = pickle.loads(pickle.dumps(density))
    np.testing.assert_array_equal(copy.score_samples(table), density.score_samples(table))
    run = tmp_path / "run"
    quick(**how).fit_resumable(table, directory=run)
    again = quick(**how).fit_resumable(table, directory=run, resume=True)
    np.testing.assert_array_equal(again.score_samples(table), density.score_samples(table))


def test_an_interrupted_ensemble_goes_on_to_the_same_bits(tmp_path) -> None:
    table = frame()

    def interrupt(progress) -> None:
        if progress.step == 20:
            signal.raise_signal(signal.SIGINT)

    whole = quick(max_steps=40, ensemble=2).fit(table)
    with pytest.raises(KeyboardInterrupt):
        quick(max_steps=40, ensemble=2).fit_resumable(
            table, directory=tmp_path / "run", progress=interrupt
        )
    assert (tmp_path / "run" / "training.safetensors").exists()
    rest = quick(max_steps=40, ensemble=2).fit_resumable(
        table, directory=tmp_path / "run", resume=True
    )
    assert rest.history_.steps == 40
    np.testing.assert_array_equal(rest.score_samples(table), whole.score_samples(table))


def test_an_ensemble_of_one_order_keeps_its_conditionals(tmp_path) -> None:
    table = frame()
    order = ["town", "member", "height", "children"]
    density = quick(order=order, ensemble=2).fit(table)
    assert density.order_ == tuple(order)
    density.save(tmp_path / "m", data=table)
    card = (tmp_path / "m" / "README.md").read_text()
    assert "2 models with the same order" in card and "town → member → height" in card
    assert "calibration.png" in card


@parametrize_with_checks(
    [ARCSMDensity(max_steps=5, ensemble=2), ARCSMDensity(max_steps=5, order="any")],
)
@pytest.mark.slow
def test_scikit_learn_contract_of_other_models(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("wrong", [{"ensemble": 0}, {"ensemble": 2, "order": "any"}])
def test_models_that_cannot_be_are_refused_in_fit(wrong: dict[str, object]) -> None:
    density = quick(**wrong)  # scikit-learn wants parameters to be looked at in `fit`
    with pytest.raises(InputError, match="ensemble"):
        density.fit(frame())


def test_columns_given_by_name_position_and_table() -> None:
    table = frame()
    density = quick(order=["town", "member", "height", "children"]).fit(table)
    drawn = density.sample(5, random_state=0, given={"town": "Bern"})
    assert isinstance(drawn, pd.DataFrame) and (drawn["town"] == "Bern").all()
    assert not drawn["height"].eq(drawn["height"].iloc[0]).all()
    pd.testing.assert_frame_equal(
        drawn, density.sample(5, random_state=0, given=pd.DataFrame({"town": ["Bern"]}))
    )
    many = density.sample(3, given=as_table(table.iloc[:3][["member", "town"]]))
    assert many["town"].tolist() == table["town"].tolist()[:3]
    assert many["member"].tolist() == table["member"].tolist()[:3]
    with pytest.raises(InputError, match="town → member → height → children"):
        density.sample(5, given={"height": 170.0})
    x = np.random.default_rng(0).normal(size=(100, 2))
    by_array = quick().fit(x)
    drawn = by_array.sample(4, random_state=0, given={0: 1.25})
    assert isinstance(drawn, np.ndarray) and (drawn[:, 0] == 1.25).all()
    np.testing.assert_array_equal(drawn, by_array.sample(4, 0, given={"x0": 1.25}))
    with pytest.raises(InputError, match="each column once"):
        by_array.sample(4, given={0: 1.25, "x0": 1.0})
    with pytest.raises(InputError, match="columns among"):
        by_array.sample(4, given={7: 1.25})


def test_samples_come_by_the_method_asked_for() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    density = ARCSMDensity(max_steps=3, hidden=(8,), random_state=0).fit(x)
    flow, auto, other = (
        density.sample(4, random_state=1, method=method)
        for method in ("flow", "auto", "quadrature")
    )
    np.testing.assert_array_equal(flow, auto)
    assert np.abs(flow - other).max() > 1e-3
    with pytest.raises(InputError, match="guess"):
        density.sample(4, method="guess")


def test_progress_of_the_race_for_an_order_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcsm.tabular.ordering._STEPS", 2)
    x = np.random.default_rng(0).normal(size=(60, 3))
    told: list[tuple[int, int]] = []
    density = ARCSMDensity(order="auto", max_steps=2, hidden=(8,), random_state=0)
    density.fit_resumable(x, racing=lambda *done: told.append(done))
    race = density.model_.race
    assert race is not None and len(race.candidates) == len(told) == told[-1][1]
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
