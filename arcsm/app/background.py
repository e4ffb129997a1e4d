"""Work on a thread of its own that is told of while it goes on, and ends when nobody listens."""

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

Report = TypeVar("Report")
Result = TypeVar("Result")

_LOOK = 0.1  # seconds after which a listener looks whether it is to stop

# What is at work, and how to tell it that nobody listens: for the end of the program, which must
# not come while a thread is inside of torch.
_AT_WORK: dict[threading.Thread, threading.Event] = {}


class Abandoned(Exception):
    """Nobody waits for the work any more; raised in it where it next reports."""


class Stopped(Exception):
    """The listener was told to stop."""


def reports(
    work: Callable[[Callable[[Report], None]], Result], stop: threading.Event | None = None
) -> Generator[Report, None, Result]:
    """Run `work(report)` and yield what it reports; what it returns is the generator's result.

    What `work` raises is raised here. When `stop` is set, Stopped is. After that, and after the
    generator is closed, the next `report` raises Abandoned, which ends the work; nobody waits for
    it.

    >>> def count(report):
    ...     for number in (1, 2):
    ...         report(number)
    ...     return "done"
    >>> list(reports(count))
    [1, 2]
    """
    told: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    left = threading.Event()

    def report(what: Report) -> None:
        if left.is_set():
            raise Abandoned
        told.put(("report", what))

    def run() -> None:
        try:
            told.put(("result", work(report)))
        except Abandoned:
            pass
        except BaseException as error:  # it is the listener's: to be raised there
            told.put(("error", error))
        finally:
            _AT_WORK.pop(threading.current_thread(), None)

    thread = threading.Thread(target=run, name="arcsm-app-work", daemon=True)
    _AT_WORK[thread] = left
    thread.start()
    try:
        while True:
            if stop is not None and stop.is_set():
                raise Stopped
            try:
                kind, what = told.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if kind == "report":
                yield what  # type: ignore[misc]
            elif kind == "error":
                raise what  # type: ignore[misc]
            else:
                return what  # type: ignore[return-value]
    finally:
        left.set()


def end_all(seconds: float) -> None:
    """Abandon all work, and wait for its end, but no longer than so many seconds."""
    deadline = time.monotonic() + seconds
    at_work = list(_AT_WORK.items())
    for _, left in at_work:
        left.set()
    for thread, _ in at_work:
        thread.join(max(0.0, deadline - time.monotonic()))
