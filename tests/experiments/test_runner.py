"""Running piece by piece: nothing is run twice, nothing is lost, nothing is mixed."""

import dataclasses
import importlib
import json
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from counting import Counter, Heard, go

import arcsm.experiments
from arcsm.errors import InputError
from arcsm.experiments import NAMES, Store, command_of, get_experiment, run_experiment, runner
from arcsm.experiments.experiment import BUDGETS, Piece, Place, Raw, Settings
from arcsm.experiments.runner import choose_device
from arcsm.progress import Reporter
from arcsm.results import Metric, read_result


def test_a_run_leaves_a_record_the_curves_and_the_figures(folder: Path) -> None:
    counter = Counter()
    paths = go(counter, folder).written
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(folder).as_posix() for path in paths} == names
    assert names == {
        "counting-smoke.json",
        *(f"counting-smoke/{name}" for name in ("curves.json", "squares.png", "squares.svg")),
    }
    record = read_result(paths[0])
    assert record["experiment"] == "counting" and record["settings"]["budget"] == "smoke"
    assert record["settings"]["experiment"] == {"numbers": [1, 2, 3], "seeds": [0]}
    assert record["command"] == "arcsm reproduce counting --budget smoke --device cpu"
    assert [metric["value"] for metric in record["metrics"]] == [1, 4, 9]
    curves = json.loads((folder / "counting-smoke/curves.json").read_text())
    assert [piece["raw"] for piece in curves["pieces"]] == [{"square": n} for n in (1, 4, 9)]
    assert all(piece["commit"]["id"] and piece["versions"]["torch"] for piece in curves["pieces"])
    assert record["seconds"] == sum(piece["seconds"] for piece in curves["pieces"])


def test_a_second_run_runs_nothing_and_says_the_same(folder: Path) -> None:
    counter = Counter()
    paths = go(counter, folder).written
    before = [path.read_bytes() for path in paths]
    assert go(counter, folder) == (paths, [])
    assert counter.asked == [1, 2, 3]
    assert [path.read_bytes() for path in paths] == before


def test_a_fresh_run_runs_all_again(folder: Path) -> None:
    counter = Counter()
    go(counter, folder)
    go(counter, folder, resume=False)
    assert counter.asked == [1, 2, 3, 1, 2, 3]
    assert counter.fresh == [False] * 3 + [True] * 3


@pytest.mark.parametrize("resume", [True, False])
def test_pieces_side_by_side_know_whether_they_are_fresh(
    folder: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter()
    # In threads, not in processes, which would not know of this experiment.
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(arcsm.experiments, "get_experiment", lambda name: counter.experiment)
    go(counter, folder, resume=resume, jobs=2)
    assert sorted(counter.asked) == [1, 2, 3] and counter.fresh == [not resume] * 3


def test_a_fresh_run_that_cannot_begin_discards_nothing(folder: Path) -> None:
    counter = Counter()
    go(counter, folder, only=["n=1/x"])
    for options in ({"device": "nonsense"}, {"only": ["n=9"]}):
        with pytest.raises(InputError):
            run_experiment(counter.experiment, "smoke", folder=folder, resume=False, **options)
    go(counter, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def run(settings: Settings, piece: Piece, place: Place) -> Raw:
        raise InputError("expected a data set, got none")

    with pytest.raises(InputError, match="data set"):
        broken = dataclasses.replace(counter.experiment, run=run)
        run_experiment(broken, "smoke", device="cpu", folder=folder, resume=False)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    go(counter, folder)
    assert counter.asked == [1, 2, 3]


def test_a_fresh_run_whose_first_piece_cannot_be_written_discards_nothing(folder: Path) -> None:
    counter = Counter()
    go(counter, folder)
    broken = dataclasses.replace(counter.experiment, run=lambda *_: {"x": float("nan")})
    for only in (None, ["n=2/x"]):
        with pytest.raises(InputError, match="JSON"):
            run_experiment(broken, "smoke", device="cpu", folder=folder, resume=False, only=only)
    assert len(Store(folder, counter.experiment, "smoke").load()) == 3


def test_a_fresh_run_leaves_alone_what_others_finish_meanwhile(folder: Path) -> None:
    counter, other = Counter(), Counter()
    go(counter, folder, only=["n=2/x", "n=3/x"])
    plain = counter.run

    def run(settings: Settings, piece: Piece, place: Place) -> Raw:
        go(other, folder, only=["n=1/x"])
        go(other, folder, only=["n=2/x"], resume=False)
        return plain(settings, piece, place)

    counter.experiment = dataclasses.replace(counter.experiment, run=run)
    go(counter, folder, only=["n=3/x"], resume=False)
    # The last piece of the other made one file of all: that is none of those given up.
    assert list(Store(folder, counter.experiment, "smoke").load()) == ["n=1/x", "n=2/x", "n=3/x"]
    assert counter.asked == [2, 3, 3] and other.asked == [1, 2]


def test_a_choice_that_chooses_nothing_runs_and_discards_nothing(folder: Path) -> None:
    counter = Counter()
    go(counter, folder)
    assert not go(counter, folder, only=[], resume=False).left and counter.asked == [1, 2, 3]


def test_discarding_that_is_interrupted_is_done_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter()
    go(counter, folder)
    store = Store(folder, counter.experiment, "smoke")
    kept = store.load()
    del kept["n=2/x"]
    store.begin_anew(kept)

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("arcsm.experiments.store.write_json", interrupt)
        store.discard()
    assert len(store.load()) == 3
    assert store.discard() and list(store.load()) == ["n=1/x", "n=3/x"]
    assert not store.discard()


def test_ctrl_c_keeps_what_is_finished_and_the_next_run_goes_on(folder: Path) -> None:
    counter = Counter()
    counter.stop_at = 3
    with pytest.raises(KeyboardInterrupt, match="2 of 3 pieces of counting are finished and kept"):
        go(counter, folder)
    assert not (folder / "counting-smoke.json").exists()
    assert Store(folder, counter.experiment, "smoke").state() == "2 of 3 pieces"
    counter.stop_at = None
    assert not go(counter, folder).left
    assert counter.asked == [1, 2, 3]
    assert Store(folder, counter.experiment, "smoke").state().startswith("run 20")


def test_time_ends_between_pieces_and_what_is_left_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 10_000, 10))  # each look at the clock is ten seconds later
    monkeypatch.setattr("arcsm.experiments.runner.time.monotonic", lambda: next(clock))
    counter = Counter(numbers=tuple(range(1, 10)))
    assert go(counter, folder, max_seconds=1e-3, reporter=Reporter(heard := Heard())).left
    # However little time there is, one piece is run: or else nothing ever would be.
    assert counter.asked == [1]
    assert "1 of 9 pieces are finished" in heard.text and "n=2/x" in heard.text
    # From the start to the end of the third piece: 4 looks each, the longest took 10 s.
    assert go(counter, folder, max_seconds=60).left
    assert 1 < len(counter.asked) < 9
    while go(counter, folder, max_seconds=60).left:
        pass
    assert counter.asked == list(range(1, 10))


def test_under_a_filter_it_is_said_which_pieces_are_left_and_how_to_run_them(
    folder: Path,
) -> None:
    counter, heard = Counter(), Heard()
    reporter = Reporter(heard)
    go(counter, folder, only=["n=2/x"], reporter=reporter)
    assert "counting: the pieces chosen are finished; left are others: n=1/x, n=3/x." in heard.text
    assert "To run these: arcsm reproduce counting --budget smoke --device cpu" in heard.text
    assert heard.text.endswith(f" --out {folder}") and "goes on" not in heard.text
    heard.text = ""
    go(counter, folder, only=["n=1/x", "n=2/x"], max_seconds=1e-9, resume=False, reporter=reporter)
    assert "counting: 1 of 2 pieces chosen are finished; left: n=2/x." in heard.text
    # The very same would discard what is there.
    assert "The same command without --fresh goes on." in heard.text
    heard.text = ""
    go(counter, folder, max_seconds=1e-9, reporter=reporter)
    assert "2 of 3 pieces are finished; left: n=3/x. The same command goes on." in heard.text


def test_ctrl_c_in_a_fresh_run_does_not_say_to_begin_anew(folder: Path) -> None:
    counter = Counter()
    counter.stop_at = 2
    with pytest.raises(KeyboardInterrupt, match=r"the same command without --fresh goes on$"):
        go(counter, folder, resume=False)
    counter.stop_at = 1
    with pytest.raises(KeyboardInterrupt, match=r"0 of 3 .* goes on; those of before .* discarded"):
        go(counter, folder, resume=False)
    assert Store(folder, counter.experiment, "smoke").state() is None


def test_ctrl_c_among_pieces_side_by_side_discards_as_well(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter()
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(arcsm.experiments, "get_experiment", lambda name: counter.experiment)
    go(counter, folder)
    counter.stop_at = 1
    with pytest.raises(KeyboardInterrupt, match=r"those of before .* discarded"):
        go(counter, folder, only=["n=1/x"], resume=False, jobs=2)
    assert list(Store(folder, counter.experiment, "smoke").load()) == ["n=2/x", "n=3/x"]


def test_a_longest_piece_that_would_not_fit_is_not_begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, now = Counter(numbers=(100, 1, 2, 3)), [0.0]
    monkeypatch.setattr("arcsm.experiments.runner.time.monotonic", lambda: now[0])

    def run(settings: Settings, piece: Piece, place: Place) -> Raw:
        now[0] += piece.labels["n"]
        counter.asked.append(piece.labels["n"])
        return {"square": 0}

    experiment = dataclasses.replace(counter.experiment, run=run)
    assert run_experiment(experiment, "smoke", device="cpu", folder=folder, max_seconds=199).left
    assert counter.asked == [100]
    run_experiment(experiment, "smoke", device="cpu", folder=folder, max_seconds=201)
    # The first of a call always; then 100 + 1 s and 100 + 3 s fit into 201 s.
    assert counter.asked == [100, 1, 2, 3]


def test_only_the_pieces_named_are_run(folder: Path) -> None:
    counter = Counter()
    assert go(counter, folder, only=["n=2/x"]).left
    assert counter.asked == [2]
    assert not go(counter, folder, only=["n=1/x", "n=3/x"]).left
    assert counter.asked == [2, 1, 3]
    # In the order of the experiment, whatever the order of running.
    metrics = read_result(folder / "counting-smoke.json")["metrics"]
    assert [metric["value"] for metric in metrics] == [1, 4, 9]


def test_pieces_of_other_settings_are_refused_unless_fresh(folder: Path) -> None:
    go(Counter(), folder, only=["n=2/x"])
    other = Counter(numbers=(2, 3))
    with pytest.raises(InputError, match="--fresh"):
        go(other, folder)
    assert other.asked == []
    assert not go(other, folder, resume=False).left and other.asked == [2, 3]
    with pytest.raises(InputError, match="--fresh"):  # the same of a finished run
        go(Counter(), folder)


def test_pieces_stay_while_what_they_depend_on_stays(folder: Path) -> None:
    def counter(**settings: Any) -> Counter:
        found = Counter(**settings)
        plain = found.experiment.pieces

        def pieces(settings: Settings) -> list[Piece]:
            return [
                dataclasses.replace(
                    piece, depends_on={"own": settings.get("own", {}).get(str(piece.labels["n"]))}
                )
                for piece in plain(settings)
            ]

        found.experiment = dataclasses.replace(found.experiment, pieces=pieces)
        return found

    go(counter(), folder, only=["n=2/x"])
    more = counter(numbers=(2, 5), own={"5": "new"})
    assert not go(more, folder).left and more.asked == [5]
    changed = counter(numbers=(2, 5), own={"2": "new", "5": "new"})
    with pytest.raises(InputError, match="--fresh"):
        go(changed, folder)
    # Of one file that has both, what is of other settings goes, and the other stays.
    assert not go(changed, folder, only=["n=2/x"], resume=False).left
    assert changed.asked == [2]
    # What the run no longer has is no reason to refuse it, and what it has more is counted.
    fewer = counter(numbers=(5, 6), own={"5": "new"})
    assert Store(folder, fewer.experiment, "smoke").state().startswith("run 20")
    go(fewer, folder, only=["n=5/x"])
    assert fewer.asked == []
    more = counter(numbers=(2, 5, 6, 7), own={"2": "new", "5": "new"})
    go(more, folder, only=["n=6/x"])
    assert Store(folder, more.experiment, "smoke").state() == "3 of 4 pieces"


def test_pieces_of_other_settings_are_named(folder: Path) -> None:
    go(Counter(), folder, only=["n=2/x", "n=3/x"])
    with pytest.raises(InputError, match=r"some of others: n=2/x, n=3/x; --fresh discards these"):
        go(Counter(seeds=[1]), folder)


def test_pieces_of_another_kind_of_device_are_not_mixed(folder: Path) -> None:
    counter = Counter()
    go(counter, folder, only=["n=1/x"])
    (path,) = (folder / "counting-smoke/pieces").iterdir()
    piece = json.loads(path.read_text())
    path.write_text(json.dumps({**piece, "device": "cuda"}))
    with pytest.raises(InputError, match=r"run on cpu .* from cuda; use --device cuda"):
        go(counter, folder)


def test_pieces_that_are_run_anywhere_stand_beside_those_of_another_device(folder: Path) -> None:
    counter = Counter()
    plain = counter.experiment.pieces
    counter.experiment = dataclasses.replace(
        counter.experiment,
        pieces=lambda settings: [
            dataclasses.replace(piece, anywhere=piece.labels["n"] == 3) for piece in plain(settings)
        ],
    )
    go(counter, folder, only=["n=1/x", "n=2/x"])
    for path in (folder / "counting-smoke/pieces").iterdir():
        piece = json.loads(path.read_text())
        path.write_text(json.dumps({**piece, "device": "cuda"}))
    assert not go(counter, folder, only=["n=3/x"]).left
    record = read_result(folder / "counting-smoke.json")
    assert record["settings"]["device"] == "cuda" and record["command"].endswith("--device cuda")
    assert counter.asked == [1, 2, 3]


def test_what_several_machines_did_is_said_of_the_last_and_of_all_commits(folder: Path) -> None:
    counter = Counter()
    go(counter, folder, only=["n=1/x", "n=2/x"])
    for path in (folder / "counting-smoke/pieces").iterdir():
        piece = json.loads(path.read_text())
        piece["commit"] = {"id": f"old{piece['labels']['n']}", "dirty": False}
        piece["date"] = f"2020-01-0{piece['labels']['n']}T00:00:00+00:00"
        piece["hardware"]["cpu"] = "another"
        path.write_text(json.dumps(piece))
    go(counter, folder)
    record = read_result(folder / "counting-smoke.json")
    assert record["hardware"]["cpu"] != "another" and not record["date"].startswith("2020")
    assert record["settings"]["commits"] == sorted(["old1", "old2", record["commit"]["id"]])


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe", b"[]", b'{"format": "arcsm-piece", "version": 9}', b'{"format": "x"}'],
)
def test_a_damaged_piece_is_named(folder: Path, content: bytes) -> None:
    counter = Counter()
    go(counter, folder, only=["n=1/x"])
    (path,) = (folder / "counting-smoke/pieces").iterdir()
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{path.name}.*delete it"):
        go(counter, folder)


@pytest.mark.parametrize("pieces", [[1], [{"name": "n=1/x"}], {"a": 1}, None])
def test_a_file_of_all_that_is_damaged_is_named(folder: Path, pieces: Any) -> None:
    counter = Counter()
    go(counter, folder)
    path = folder / "counting-smoke/curves.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pieces": pieces}))
    with pytest.raises(InputError, match=r"curves\.json.*delete it, or run with --fresh"):
        go(counter, folder)
    assert not go(counter, folder, resume=False).left and counter.asked == [1, 2, 3] * 2


def test_what_is_not_there_is_one_sentence(folder: Path) -> None:
    counter = Counter()
    with pytest.raises(InputError, match="budget of counting among smoke, gpu, got 'cpu'"):
        go(counter, folder, "cpu")
    with pytest.raises(InputError, match=r"pieces among n=1/x, .* got 'n=9'"):
        go(counter, folder, only=["n=9"])
    with pytest.raises(InputError, match="positive number of seconds"):
        go(counter, folder, max_seconds=0)
    with pytest.raises(InputError, match="device"):
        run_experiment(counter.experiment, "smoke", device="nonsense", folder=folder)
    assert counter.asked == [] and not folder.exists()


def test_the_budget_of_a_gpu_is_not_spent_on_a_cpu_unasked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    counter = Counter()
    with pytest.raises(InputError, match="--device cpu"):
        run_experiment(counter.experiment, "gpu", folder=folder)
    assert not go(counter, folder, "gpu").left  # said so
    # And once all is there no device is needed to make the results anew.
    assert run_experiment(counter.experiment, "gpu", folder=folder).written
    assert counter.asked == [7]


def test_the_device_is_chosen_by_what_there_is_and_by_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    chosen = {budget: choose_device("auto", budget) for budget in BUDGETS}
    assert chosen == {"smoke": "cuda", "cpu": "cpu", "gpu": "cuda", "paper": "cuda"}
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert {choose_device("auto", budget) for budget in ("smoke", "cpu", "paper")} == {"cpu"}


def test_raw_data_that_json_cannot_hold_are_refused(folder: Path) -> None:
    counter = Counter()
    experiment = dataclasses.replace(counter.experiment, run=lambda *_: {"x": float("nan")})
    with pytest.raises(InputError, match="JSON"):
        run_experiment(experiment, "smoke", device="cpu", folder=folder)
    assert list(folder.rglob("*.json")) == []


def test_figures_of_a_former_run_go(folder: Path) -> None:
    counter = Counter()
    go(counter, folder)
    (folder / "counting-smoke/old.png").write_bytes(b"")
    go(counter, folder)
    assert sorted(path.name for path in (folder / "counting-smoke").iterdir()) == [
        "curves.json",
        "squares.png",
        "squares.svg",
    ]


def test_every_module_with_an_experiment_is_listed_under_its_name() -> None:
    found = set()
    for module in pkgutil.iter_modules(arcsm.experiments.__path__):
        loaded = importlib.import_module(f"arcsm.experiments.{module.name}")
        if hasattr(loaded, "EXPERIMENT"):
            assert loaded.EXPERIMENT.name == module.name.replace("_", "-")
            found.add(loaded.EXPERIMENT.name)
    assert found == set(NAMES)
    with pytest.raises(InputError, match="toy-samples"):
        get_experiment("toys")


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_whole(name: str, tmp_path: Path) -> None:
    experiment = get_experiment(name)
    assert experiment.question.endswith("?") and experiment.title
    assert "smoke" in experiment.budgets and set(experiment.budgets) <= set(BUDGETS)
    for budget in experiment.budgets:
        store = Store(tmp_path, experiment, budget)
        assert store.pieces and store.state() is None
        assert all(isinstance(seed, int) for seed in store.settings["seeds"])
    assert command_of(name, "cpu") == f"arcsm reproduce {name} --budget cpu"
    there = command_of(name, "cpu", folder="my results")
    assert there == f"arcsm reproduce {name} --budget cpu --out 'my results'"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke_of_every_experiment(name: str, tmp_path: Path) -> None:
    experiment = get_experiment(name)
    paths = run_experiment(experiment, "smoke", device="cpu", folder=tmp_path).written
    record = read_result(paths[0])
    assert any(path.suffix == ".png" for path in paths)
    metrics = [Metric(**metric) for metric in record["metrics"]]
    verdicts = experiment.verdicts(record["settings"]["experiment"], metrics)
    assert verdicts and all(verdict.text for verdict in verdicts)
    names = {metric.name for metric in metrics}
    assert {claim.metric for claim in experiment.claims if claim.metric} <= names


@pytest.mark.slow
def test_pieces_side_by_side_are_the_same_as_one_after_another(tmp_path: Path) -> None:
    experiment = get_experiment("objective-variance")
    names = [piece.name for piece in Store(tmp_path, experiment, "smoke").pieces][:2]
    raws = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        assert run_experiment(experiment, "smoke", folder=folder, only=names, jobs=jobs).left
        finished = Store(folder, experiment, "smoke").load()
        assert list(finished) == names
        raws.append([piece["raw"] for piece in finished.values()])
    assert raws[0] == raws[1]


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_jobs_at_all_are_refused(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(InputError, match="at least one job"):
        run_experiment(Counter().experiment, "smoke", folder=tmp_path, jobs=jobs)


def test_times_are_not_measured_side_by_side(tmp_path: Path) -> None:
    timed = dataclasses.replace(Counter().experiment, measures_time=True)
    with pytest.raises(InputError, match="busy machine"):
        run_experiment(timed, "smoke", folder=tmp_path, jobs=2)
    assert not list(tmp_path.iterdir())
    assert run_experiment(timed, "smoke", folder=tmp_path).written


def test_experiments_that_time_steps_say_so() -> None:
    assert get_experiment("gaussian-cost").measures_time
    assert get_experiment("mnist-likelihood").measures_time
