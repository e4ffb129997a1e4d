"""Work on another thread, and those who stop listening to it."""

import threading
from collections.abc import Callable

import pytest

from arcsm.app.background import Abandoned, Stopped, end_all, reports


def test_reports_come_in_order_and_the_result_at_the_end() -> None:
    def work(report: Callable[[int], None]) -> str:
        assert threading.current_thread() is not threading.main_thread()
        for number in range(3):
            report(number)
        return "done"

    listening = reports(work)
    assert [next(listening) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StopIteration) as end:
        next(listening)
    assert end.value.value == "done"


def test_what_the_work_raises_is_raised_to_the_listener() -> None:
    def work(report: Callable[[int], None]) -> None:
        report(1)
        raise ZeroDivisionError("as it was")

    listening = reports(work)
    assert next(listening) == 1
    with pytest.raises(ZeroDivisionError, match="as it was"):
        next(listening)


def test_work_ends_where_it_next_reports_once_nobody_listens() -> None:
    ended, closed = threading.Event(), threading.Event()
    seen: list[object] = []

    def work(report: Callable[[int], None]) -> None:
        report(0)
        closed.wait(5)
        try:
            report(1)
        except Abandoned as error:
            seen.append(error)
            raise
        finally:
            ended.set()

    listening = reports(work)
    assert next(listening) == 0
    listening.close()
    closed.set()
    assert ended.wait(5)
    assert len(seen) == 1


def test_a_listener_stops_at_once_though_the_work_is_silent() -> None:
    stop, silent, ended = threading.Event(), threading.Event(), threading.Event()

    def work(report: Callable[[int], None]) -> None:
        report(0)
        silent.wait(5)
        with pytest.raises(Abandoned):
            report(1)
        ended.set()

    listening = reports(work, stop)
    assert next(listening) == 0
    stop.set()
    with pytest.raises(Stopped):
        next(listening)
    silent.set()
    assert ended.wait(5)


def test_all_work_can_be_ended() -> None:
    started, ended = threading.Event(), threading.Event()

    def work(report: Callable[[int], None]) -> None:
        started.set()
        try:
            while True:
                report(0)
        finally:
            ended.set()

    listening = reports(work)
    assert next(listening) == 0 and started.is_set()
    end_all(5.0)
    assert ended.is_set()
