"""Work that several processes share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from several import finish, start

from arcsm import ARCSM, TrainConfig, distributed, fit, learn_order
from arcsm.data import as_table
from arcsm.distributed import Processes, by_first, gather, processes_of, shard
from arcsm.errors import ArcsmError, InputError
from arcsm.tabular import Settings, fit_table
from arcsm.tabular.pieces import generators_of_pieces

MEETING = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def test_one_process_has_all_the_work() -> None:
    assert list(shard(range(5))) == [0, 1, 2, 3, 4] and gather("ab") == ["a", "b"]
    assert by_first(lambda: 3) == 3 and distributed.is_first()
    assert distributed.join() == distributed.meet() == (0, 1)
    assert distributed.local_device("cuda") == "cuda"
    assert distributed.first_to_fail() and not distributed.others_failed()


def test_the_environment_tells_the_rank() -> None:
    assert processes_of({}) == processes_of({"WORLD_SIZE": "1"}) == Processes(0, 1)
    assert processes_of({"WORLD_SIZE": "4", "RANK": "3", **MEETING}) == Processes(3, 4)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"WORLD_SIZE": "2"}, "no RANK, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x"}, "no MASTER_PORT"),
        ({"WORLD_SIZE": "2", "RANK": "2", **MEETING}, "'2' and '2'"),
        ({"WORLD_SIZE": "two", "RANK": "0", **MEETING}, "'two'"),
        ({"WORLD_SIZE": "2", "RANK": "-1", **MEETING}, "'-1'"),
    ],
)
def test_an_environment_that_is_not_that_of_torchrun(
    variables: dict[str, str], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        processes_of(variables)


def test_a_place_where_nobody_can_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", **MEETING}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "no number")
    with pytest.raises(InputError, match="2 processes to meet at localhost:no number"):
        distributed.meet()


def share(rank: int) -> None:
    assert distributed.processes() == Processes(rank, 2)
    found = gather([item * 10 for item in shard(range(5))])
    assert found == ([0, 10, 20, 30, 40] if rank == 0 else None)
    assert distributed.local_device("cuda") == f"cuda:{rank}"
    assert distributed.local_device("cpu") == "cpu"
    assert by_first(lambda: (rank, distributed.processes())) == (0, Processes(0, 1))
    with distributed.alone():
        assert list(shard("abc")) == ["a", "b", "c"]
        assert distributed.join() == (0, 1)
    if rank == 1:
        distributed.tell("name", "value")
    assert distributed.wait_for("name") == "value"
    # As many results as items, or the order could not be told.
    try:
        gather([1] if rank == 0 else [1, 2, 3])
        assert rank == 1
    except InputError as error:
        assert rank == 0 and "got 1, 3 from the processes" in str(error)
    assert not distributed.others_failed()
    gather([])
    if rank == 1:
        assert distributed.first_to_fail() and distributed.first_to_fail()
    else:
        with pytest.raises(distributed.Stopped):
            distributed.wait_for("never told")
        assert distributed.others_failed() and not distributed.first_to_fail()
    gather([])  # the process that holds the store stays to the end


def test_two_processes_share_their_work(tmp_path: Path) -> None:
    ended = finish(start(share, 2, tmp_path), tmp_path)
    assert [process.code for process in ended] == [0, 0], ended


def resume_apart(rank: int, folder: Path) -> None:
    """Resume a run whose state the first process alone can see."""
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    config = TrainConfig(steps=4, batch_size=8, checkpoint_every=2)
    with distributed.alone():
        fit(ARCSM.made(2, hidden=(8,), seed=0), x, config, directory=folder / f"run {rank}")
    path = folder / ("run 0" if rank == 0 else "nothing")
    with pytest.raises(InputError, match="got steps 0 to 4 in"):
        fit(ARCSM.made(2, hidden=(8,), seed=0), x, config, directory=path, resume=True)


def test_a_state_that_not_all_processes_see_is_refused(tmp_path: Path) -> None:
    ended = finish(start(resume_apart, 2, tmp_path, tmp_path), tmp_path)
    assert [process.code for process in ended] == [0, 0], ended


def race(rank: int) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    told: list[int] = []
    # Told so little time, processes would not try as many orders each.
    learned = learn_order(
        x, seconds=0.01, steps=2, progress=lambda done, _: told.append(done), seed=0
    )
    assert bool(told) == (rank == 0)
    everyone = gather([(learned.order, learned.candidates, learned.left_out)])
    assert everyone is None or everyone[0] == everyone[1]


def test_one_process_alone_races_for_an_order(tmp_path: Path) -> None:
    ended = finish(start(race, 2, tmp_path), tmp_path)
    assert [process.code for process in ended] == [0, 0], ended


def draws(generator: torch.Generator | None) -> list[float]:
    return [
        torch.rand((), generator=own, dtype=torch.float64).item()
        for own in generators_of_pieces(generator, 4)
    ]


def test_pieces_have_random_numbers_of_their_own() -> None:
    first, again, other = (draws(torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert first == again and len({*first, *other}) == 8
    # Drawn alone, a piece is the same.
    last = list(generators_of_pieces(torch.Generator().manual_seed(1), 4))[3]
    assert torch.rand((), generator=last, dtype=torch.float64).item() == first[3]
    # The first is the generator itself, so that a second call goes on.
    generator = torch.Generator().manual_seed(1)
    assert draws(generator) == first and not set(draws(generator)) & set(first)
    torch.manual_seed(5)
    expected = [torch.rand((), dtype=torch.float64).item() for _ in range(4)]
    torch.manual_seed(5)
    assert draws(None) == expected


@pytest.mark.parametrize(("told", "batch"), [(None, 129), (64, 64)])
def test_a_batch_of_a_table_is_one_that_all_can_share(
    told: int | None, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(Exception):
        pass

    def begin(_: object, __: object, config: TrainConfig, **options: object) -> None:
        assert config.batch_size == batch
        raise Begun

    monkeypatch.setattr("arcsm.tabular.fitting.join", lambda _: Processes(0, 3))
    monkeypatch.setattr("arcsm.tabular.fitting.fit", begin)
    table = as_table(np.random.default_rng(0).normal(size=(50, 2)))
    with pytest.raises(Begun):
        fit_table(table, Settings(batch_size=told))


def test_being_stopped_is_an_error_of_ours() -> None:
    assert issubclass(distributed.Stopped, ArcsmError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ask", [distributed.is_told, distributed.tell, distributed.wait_for])
def test_an_end_that_is_lost_comes_later(
    ask: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_ending", None)

    class Deleted:
        def __del__(self) -> None:
            distributed.end_with(143)

    held = Deleted()
    del held  # what is raised in there is dropped
    with pytest.raises(SystemExit) as ended:
        ask("anything")
    assert ended.value.code == 143
