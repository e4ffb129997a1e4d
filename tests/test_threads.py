import threading

import pytest
import torch

from arcsm.threads import even_sizes, limited_threads, map_pieces

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    former = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(former)


def test_limits_hold_for_the_block_alone(two_threads) -> None:
    with limited_threads(1):
        assert torch.get_num_threads() == 1
    with limited_threads(0):
        assert torch.get_num_threads() == 1
    with limited_threads(99):  # not more than there were
        assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), limited_threads(1):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_pieces_come_back_in_order_from_threads_of_their_own(two_threads) -> None:
    together = threading.Barrier(2, timeout=20)

    def square(piece: int) -> tuple[int, int, bool, str]:
        together.wait()  # passes only if two pieces are worked on at a time
        threads, name = torch.get_num_threads(), threading.current_thread().name
        return piece**2, threads, torch.is_grad_enabled(), name

    found = map_pieces(square, [1, 2, 3, 4], CPU)
    assert [value for value, *_ in found] == [1, 4, 9, 16]
    assert {(threads, grad) for _, threads, grad, _ in found} == {(1, False)}
    assert threading.main_thread().name not in {name for *_, name in found}
    assert torch.get_num_threads() == 2 and torch.is_grad_enabled()


def test_one_piece_or_one_thread_needs_no_others(two_threads) -> None:
    def where(_: int) -> str:
        assert not torch.is_grad_enabled()
        return threading.current_thread().name

    here = threading.current_thread().name
    assert map_pieces(where, [1], CPU) == [here] and map_pieces(where, [], CPU) == []
    assert map_pieces(where, [1, 2], torch.device("meta")) == [here, here]
    with limited_threads(1):
        assert map_pieces(where, [1, 2], CPU) == [here, here]


def test_errors_come_through(two_threads) -> None:
    def fail(piece: int) -> None:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        map_pieces(fail, [1, 2], CPU)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, [0]),
        (1, [1]),
        (1000, [1000]),  # halves are not worth it
        (1024, [512, 512]),
        (4096, [2048, 2048]),
        (4097, [2048, 2049]),
        (10_000, [2500, 2500, 2500, 2500]),  # three would leave one thread without work
        (12_288, [3072, 3072, 3072, 3072]),
    ],
)
def test_pieces_keep_both_threads_at_work(two_threads, count: int, sizes: list[int]) -> None:
    assert even_sizes(count, 4096, CPU) == sizes


def test_pieces_are_as_large_as_may_be_on_other_devices(two_threads) -> None:
    assert even_sizes(10_000, 4096, torch.device("meta")) == [3333, 3333, 3334]
    assert even_sizes(4096, 4096, torch.device("meta")) == [4096]
