"""Several processes that work as one, on one machine or on many, as `torchrun` starts them.

Each has a rank, from 0 on. Training needs nothing from here: `arcsm.fit` joins the processes by
itself. For work of your own, each process takes its share, and the first one gets all results:

    from arcsm.distributed import gather, shard

    found = gather([model.log_prob(piece) for piece in shard(pieces)])
    if found is not None:  # in the first process
        ...

Processes meet at a store of small values, by which each also learns that another has failed.
"""

import atexit
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from arcsm.errors import ArcsmError, InputError

# How long processes wait for each other to start: hosts may have to be waited for.
_MEETING = timedelta(minutes=10)
# Seconds between two looks at the store.
_LOOK_EVERY = 0.05

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(ArcsmError):
    """Another process has failed, and has said why."""


class Processes(NamedTuple):
    """A process among others: its rank, and how many there are."""

    rank: int
    size: int


class _Meeting(NamedTuple):
    processes: Processes
    store: Any  # torch.distributed.Store


_meeting: _Meeting | None = None
_failed_first: bool | None = None  # once this process has failed
_ending: int | None = None  # the code that this process is to end with
_alone = 0


def processes() -> Processes:
    """Return the rank of this process and the number of all; 0 of 1 outside of `torchrun`.

    >>> processes()
    Processes(rank=0, size=1)
    """
    if _alone or not dist.is_available():
        return Processes(0, 1)
    if dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    if _meeting is not None:
        return _meeting.processes
    return processes_of(os.environ)


def processes_of(variables: Any) -> Processes:
    """Return what the variables of an environment say of rank and number."""
    if variables.get("WORLD_SIZE", "1") == "1":
        return Processes(0, 1)
    missing = [name for name in _VARIABLES if name not in variables]
    if missing:
        raise InputError(
            f"expected the variables {', '.join(_VARIABLES)}, as torchrun sets them, got no"
            f" {', '.join(missing)}; start with torchrun, or unset WORLD_SIZE"
        )
    told = [variables[name] for name in ("RANK", "WORLD_SIZE")]
    if not all(text.isdecimal() for text in told) or not int(told[0]) < int(told[1]):
        raise InputError(
            f"expected RANK and WORLD_SIZE as whole numbers, the first below the second, got"
            f" {told[0]!r} and {told[1]!r}; start with torchrun"
        )
    return Processes(int(told[0]), int(told[1]))


def is_first() -> bool:
    """Say whether this process is the one that writes and speaks."""
    return processes().rank == 0


def meet() -> Processes:
    """Find the other processes, if there are any, so that each learns when another fails."""
    global _meeting
    own = processes()
    if own.size > 1 and _meeting is None and not dist.is_initialized():
        from torch.distributed.rendezvous import rendezvous

        try:
            store, _, _ = next(rendezvous("env://", timeout=_MEETING))
        except (RuntimeError, ValueError) as error:  # of the network, or of a bad address
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise InputError(
                f"expected {own.size} processes to meet at {place}, got: {reason}; check the"
                " address and that all of them were started"
            ) from error
        _meeting = _Meeting(own, _within("arcsm", store))
    return own


def join(device: torch.device | str = "cpu") -> Processes:
    """Let the processes of `torchrun` exchange tensors that lie on a device, from now on."""
    own = meet()
    if own.size > 1 and not dist.is_initialized():
        assert _meeting is not None
        place = torch.device(device)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        # Tensors in either kind of memory, each by what is made for it.
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            store=_within("group", _meeting.store),
            rank=own.rank,
            world_size=own.size,
        )
        atexit.register(_leave)
    return own


def local_device(device: str) -> str:
    """Return the device of this process: of several on a host each has a GPU of its own.

    >>> local_device("cpu")
    'cpu'
    """
    if device != "cuda" or processes().size == 1:
        return device
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def shard(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the share of this process: one of as many items as there are processes.

    >>> list(shard("abc"))  # by a process that is alone
    ['a', 'b', 'c']
    """
    own = processes()
    return islice(iter(items), own.rank, None, own.size)


def gather(mine: Sequence[Any]) -> list[Any] | None:
    """Return, in the first process, what all made of their shares, in the order of the items.

    The others get None. All processes have to call it, with a result for each item of their
    `shard`. What they send has to be small enough for the memory of the first.

    >>> gather([item.upper() for item in shard("abc")])
    ['A', 'B', 'C']
    """
    own = join()
    if own.size == 1:
        return list(mine)
    found: list[Any] | None = [None] * own.size if own.rank == 0 else None
    dist.gather_object(list(mine), found)
    if found is None:
        return None
    total = sum(map(len, found))
    try:
        return [found[place % own.size][place // own.size] for place in range(total)]
    except IndexError:
        raise InputError(
            "expected a result for each item of the shares, got"
            f" {', '.join(str(len(share)) for share in found)} from the processes; return one for"
            " each item"
        ) from None


def by_first(function: Callable[[], Result]) -> Result:
    """Return, in all processes, what the function gives in the first one, which alone calls it."""
    own = join()
    if own.size == 1:
        return function()
    told: list[Any] = [None]
    if own.rank == 0:
        with alone():
            told = [function()]
    dist.broadcast_object_list(told, src=0)
    result: Result = told[0]
    return result


@contextmanager
def alone() -> Iterator[None]:
    """Let this process work, while the block runs, as if there were no others."""
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


# What the command line needs


def first_to_fail() -> bool:
    """Let the others know that this process fails; say, each time, whether none has before it."""
    global _failed_first
    if _meeting is None:
        return True
    if _failed_first is None:
        try:
            _failed_first = _meeting.store.add("failed", 1) == 1
        except RuntimeError:  # the store is gone, and the process with it that held it
            _failed_first = False
    return _failed_first


def others_failed() -> bool:
    """Say whether a process has let the others know that it fails."""
    if _meeting is None:
        return False
    try:
        return bool(_meeting.store.check(["failed"]))
    except RuntimeError:
        return True


def end_with(code: int) -> None:
    """End this process, by an exception, so that files are removed first.

    A signal may come while an object is deleted, where Python drops exceptions. Then the process
    ends when it next tells or asks for something.
    """
    global _ending
    _ending = code
    sys.exit(code)


def _end_if_told_to() -> None:
    if _ending is not None:
        sys.exit(_ending)


def tell(name: str, value: str = "") -> None:
    """Let all processes know a small value, by a name that is used once."""
    _end_if_told_to()
    assert _meeting is not None
    with _stopped_with_the_store():
        _meeting.store.set(name, f"={value}")  # the store does not hold nothing


def is_told(name: str) -> bool:
    """Say whether a process has told the value of this name; raise `Stopped` if one has failed."""
    _end_if_told_to()
    assert _meeting is not None
    with _stopped_with_the_store():
        if _meeting.store.check([name]):
            return True
        if _meeting.store.check(["failed"]):
            raise Stopped("another process has failed")
    return False


def wait_for(name: str) -> str:
    """Wait until a process has told the value of this name, and return it.

    By looking again and again: a signal could not end a wait within the store.
    """
    while not is_told(name):
        time.sleep(_LOOK_EVERY)
    assert _meeting is not None
    with _stopped_with_the_store():
        value: bytes = _meeting.store.get(name)
    return value.decode()[1:]


@contextmanager
def _stopped_with_the_store() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Stopped("the first process is gone") from error


def _within(prefix: str, store: Any) -> Any:
    """Return a part of the store, whose names nobody else uses."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _leave() -> None:
    global _meeting
    # What was trained may still hold the group, in a cycle; its threads must end before Python.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
    _meeting = None
