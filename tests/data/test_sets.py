"""Named data sets: the form they come in, on small copies and on the real files if present."""

import os
from pathlib import Path

import numpy as np
import pytest

from arcsm.data import (
    ADBENCH,
    POWER_COLUMNS,
    SKLEARN,
    data_folder,
    load_adbench,
    load_power,
    load_sklearn,
)
from arcsm.errors import InputError

POWER_FILE = {
    "global_active_power_W": (76, 11122),
    "global_reactive_power_W": (0, 1390),
    "voltage_cV": (22320, 25415),
    "global_intensity_dA": (2, 484),
    "sub_metering_1": (0, 88),
    "sub_metering_2": (0, 80),
    "sub_metering_3": (0, 31),
    "minute_of_day": (0, 1439),
    "day": (0, 1441),
}


@pytest.fixture
def real() -> Path:
    """The folder with the real files; a test that needs it is skipped without one."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("ARCSM_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("needs the data sets: set ARCSM_DATA to their folder")
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with files of the same form and few rows."""
    random = np.random.default_rng(0)
    (tmp_path / "adbench").mkdir()
    np.savez(tmp_path / "adbench" / "tiny.npz", X=np.eye(3, dtype="int32"), y=np.array([0.0, 1, 0]))
    (tmp_path / "power").mkdir()
    arrays = {
        name: random.integers(low, high, size=1009, endpoint=True).astype("int32")
        for name, (low, high) in POWER_FILE.items()
    }
    np.savez(tmp_path / "power" / "power.npz", **arrays)
    return tmp_path


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARCSM_DATA", raising=False)
    with pytest.raises(InputError, match=r"got none; pass folder=.*export ARCSM_DATA="):
        data_folder()
    assert data_folder(tmp_path) == tmp_path
    monkeypatch.setenv("ARCSM_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    (tmp_path / "inner").mkdir()
    assert data_folder(str(tmp_path / "inner")) == tmp_path / "inner"
    with pytest.raises(InputError, match=r"expected folder to be an existing folder.*'nowhere'"):
        data_folder("nowhere")
    monkeypatch.setenv("ARCSM_DATA", "nowhere")
    with pytest.raises(InputError, match="expected ARCSM_DATA to be an existing folder"):
        data_folder()


def test_adbench(small: Path) -> None:
    table, y = load_adbench("tiny", small)
    assert table.names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(table.to_numpy(), np.eye(3))
    assert y.dtype == np.int64 and y.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="got 'huge'; found there: tiny"):
        load_adbench("huge", small)
    np.savez(small / "adbench" / "odd.npz", X=np.eye(3), y=np.array([0, 1, 2]))
    with pytest.raises(InputError, match="y of 'odd' with 0 or 1"):
        load_adbench("odd", small)
    np.savez(small / "adbench" / "half.npz", X=np.eye(3))
    with pytest.raises(InputError, match=r"the arrays \['y'\] in .*half.npz"):
        load_adbench("half", small)
    (small / "adbench" / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(InputError, match=r"a whole .npz file"):
        load_adbench("torn", small)


def test_power_on_a_small_file(small: Path) -> None:
    split = load_power(small, seed=3)
    # 1009 rows: 100 for test, and 90 of the other 909 for validation.
    assert [len(part) for part in (split.train, split.validation, split.test)] == [819, 90, 100]
    kept = np.concatenate([split.train, split.validation])
    np.testing.assert_allclose(kept.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(kept.std(0), 1, rtol=1e-12)

    with np.load(small / "power" / "power.npz") as file:
        arrays = dict(file)
    names = ["global_active_power_W", "voltage_cV", "sub_metering_1", "sub_metering_2"]
    names += ["sub_metering_3", "minute_of_day"]
    x = np.concatenate([kept, split.test]) * split.scale + split.mean
    # Noise below one step of the meter, and none of it negative: the floor is what was measured.
    steps = np.floor(x[:, :5] * [1000, 100, 1, 1, 1] + 1e-6)
    minutes = np.rint(x[:, 5])
    np.testing.assert_allclose(x[:, 5], minutes, atol=1e-9)
    measured = np.column_stack([steps, minutes]).astype(int)
    original = np.column_stack([arrays[name] for name in names])
    assert sorted(map(tuple, measured.tolist())) == sorted(map(tuple, original.tolist()))
    assert not np.array_equal(measured, original)  # shuffled
    noise = x[:, :5] * [1000, 100, 1, 1, 1] - steps
    assert (np.abs(noise.mean(0) - 0.5) < 5 / np.sqrt(12 * 1009)).all()
    np.testing.assert_allclose(split.quanta * split.scale, [0.001, 0.01, 1, 1, 1, 0])


def test_power_depends_on_the_seed_alone(small: Path) -> None:
    one, again, other = (load_power(small, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.train, again.train)
    assert not np.array_equal(one.train, other.train)


def test_power_that_is_not_there(small: Path) -> None:
    path = small / "power" / "power.npz"
    np.savez(path, **{name: np.arange(5) for name in POWER_FILE})
    with pytest.raises(InputError, match="at least 12 rows"):
        load_power(small)
    np.savez(path, voltage_cV=np.arange(5))
    with pytest.raises(InputError, match="expected the arrays"):
        load_power(small)
    path.unlink()
    with pytest.raises(InputError, match=r"POWER set at .*got nothing"):
        load_power(small)


def test_real_adbench(real: Path) -> None:
    assert sorted(path.stem for path in (real / "adbench").glob("*.npz")) == sorted(ADBENCH)
    for name, rows, columns, share in [
        ("wine", 129, 13, 10 / 129),
        ("shuttle", 49097, 9, 3511 / 49097),
        ("mnist", 7603, 100, 700 / 7603),
    ]:
        table, y = load_adbench(name, real)
        assert (table.rows, len(table.names)) == (rows, columns)
        assert y.mean() == pytest.approx(share)
    for name in ADBENCH:
        table, y = load_adbench(name, real)
        assert table.rows == len(y) and set(y.tolist()) == {0, 1}


@pytest.mark.slow
def test_real_power(real: Path) -> None:
    split = load_power(real)
    assert [len(part) for part in (split.train, split.validation, split.test)] == [
        1_659_900,
        184_433,
        204_925,
    ]
    x = np.concatenate([split.train, split.validation, split.test]) * split.scale + split.mean
    # The known means of the set, and half of one step for the noise.
    known = np.array([1.0916, 240.84, 1.1219, 1.2985, 6.4585])
    half = np.array([0.001, 0.01, 1, 1, 1]) / 2
    np.testing.assert_allclose(x.mean(0)[:5], known + half, atol=6e-3, rtol=0)
    assert all(part.flags["C_CONTIGUOUS"] for part in (split.train, split.validation, split.test))


@pytest.mark.parametrize(
    ("name", "shape", "first", "mean"),
    [
        ("iris", (150, 4), "sepal length (cm)", 5.843333),
        ("wine", (178, 13), "alcohol", 13.000618),
        ("breast_cancer", (569, 30), "mean radius", 14.127292),
        ("diabetes", (442, 10), "age", 48.518100),  # in years, not scaled
        ("digits", (1797, 64), "pixel_0_0", 0.0),
        ("linnerud", (20, 3), "Chins", 9.45),
    ],
)
def test_sklearn_sets(name: str, shape: tuple[int, int], first: str, mean: float) -> None:
    assert name in SKLEARN
    table = load_sklearn(name)
    assert (table.rows, len(table.names)) == shape
    assert table.names[0] == first
    assert table[first].mean() == pytest.approx(mean, abs=1e-6)


def test_unknown_sklearn_sets() -> None:
    assert len(SKLEARN) == 6 and len(POWER_COLUMNS) == 6
    with pytest.raises(InputError, match=r"one of the sets .*iris.*, got 'titanic'"):
        load_sklearn("titanic")
