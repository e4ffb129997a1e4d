"""A command that several processes run together, as `torchrun … -m arcsm COMMAND` starts them.

The first process writes and speaks; of those that fail the first to do so says why. What asks the
environment alone does not import torch, which a command that runs by itself may not need.
"""

import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcsm.errors import InputError

if TYPE_CHECKING:
    from arcsm.data import Table

# Commands that have work for more than one process.
SHARED = ("train", "sample", "score", "detect")

_TERMINATED = 128 + signal.SIGTERM


def several() -> bool:
    """Say whether there are other processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def speaks() -> bool:
    """Say whether this process is the one that writes and speaks."""
    return not several() or os.environ.get("RANK", "0") == "0"


def begin() -> None:
    """Find the other processes before anything can fail in one of them."""
    if not several():
        return
    # Else torch itself has much to say where the first process is gone.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from arcsm.distributed import end_with, meet

    meet()
    # When a process fails, torchrun ends the others by this signal: files are removed first.
    signal.signal(signal.SIGTERM, lambda *_: end_with(_TERMINATED))
    if not speaks():
        warnings.simplefilter("ignore")


def own_device(device: str) -> str:
    """Return the device of this process: of several on a host each has a GPU of its own."""
    if not several():
        return device
    from arcsm.distributed import local_device

    return local_device(device)


def first_to_fail() -> bool:
    """Let the others know that this process fails; say whether none of them has before."""
    if not several():
        return True
    from arcsm.distributed import first_to_fail

    return first_to_fail()


def others_failed() -> bool:
    """Say whether another process has failed."""
    if not several():
        return False
    from arcsm.distributed import others_failed

    return others_failed()


def refuse_several(command: str | None, reason: str = f"which is for {', '.join(SHARED)}") -> None:
    """Refuse several processes for a command that would do the same in each of them."""
    if several():
        raise InputError(
            f"expected one process for `arcsm {command}`, got {os.environ['WORLD_SIZE']}; run it"
            f" without torchrun, {reason}"
        )


def in_order(work: Iterable[Callable[[], "Table"]], output: str) -> "Generator[Table, None, None]":
    """Yield the table of each piece of work, in order; of several processes in the first alone.

    Each process does its share. The others leave their tables in a directory beside `output`,
    which is gone in the end; "-" is stdout.
    """
    if not several():
        for do in work:
            yield do()
        return
    from arcsm.distributed import is_told, processes, tell, wait_for

    own = processes()
    with ExitStack() as stack:
        folder = _meeting_place(output, stack)
        stack.push(_tell_of_failure)  # before the folder goes, which the others would miss
        done = total = 0

        def take() -> "Table":
            nonlocal done
            path = folder / f"{done}.npz"
            done += 1
            return _read(path)

        for total, do in enumerate(work, start=1):
            number = total - 1
            if number % own.size != own.rank:
                continue
            _write(folder / f"{number}.npz", do())
            tell(f"part {number}")
            # What is ready goes on its way, so that few parts wait on the disk.
            while own.rank == 0 and done < total and is_told(f"part {done}"):
                yield take()
        while own.rank == 0 and done < total:
            wait_for(f"part {done}")
            yield take()
        # The folder stays until all have seen it, also those that have nothing to put there.
        for rank in range(1, own.size if own.rank == 0 else 0):
            wait_for(f"here {rank}")


def _tell_of_failure(kind: object, *_: object) -> None:
    if kind is not None:
        first_to_fail()


def _meeting_place(output: str, stack: ExitStack) -> Path:
    """Return the directory for the parts, which the first process makes, and removes in the end."""
    import tempfile

    from arcsm.distributed import Stopped, is_first, processes, tell, wait_for
    from arcsm.files import scratch_directory

    if output == "-":
        if os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
            raise InputError(
                "expected --output for processes on several hosts, got none; add -o FILE in a"
                " directory that all of them share"
            )
        target = Path(tempfile.gettempdir()) / "arcsm-stdout"
    else:
        target = Path(os.path.realpath(output))
    if is_first():
        folder = stack.enter_context(scratch_directory(target))
        tell("folder", folder.name)
        return folder
    folder = target.with_name(wait_for("folder"))
    if not folder.is_dir():
        if others_failed():
            raise Stopped("the first process has failed")
        raise InputError(
            f"expected an --output that all hosts can reach, got {output!r}, beside which this one"
            " does not see what the first has written; choose a directory that they share"
        )
    tell(f"here {processes().rank}")
    return folder


def _write(path: Path, table: "Table") -> None:
    """Keep a table for the first process; text as JSON, which tells nothing from empty text."""
    import json

    import numpy as np

    arrays: dict[str, Any] = {"names": _bytes(json.dumps(table.names))}
    for place, column in enumerate(table.columns.values()):
        text = column.dtype == object
        arrays[f"{'text' if text else 'column'} {place}"] = (
            _bytes(json.dumps(column.tolist())) if text else column
        )
    with path.open("xb") as file:
        np.savez(file, **arrays)


def _read(path: Path) -> "Table":
    """Return what `_write` has kept, which is no longer needed then."""
    import json

    import numpy as np

    from arcsm.data import Table

    with np.load(path, allow_pickle=False) as arrays:
        columns = {}
        for place, name in enumerate(json.loads(arrays["names"].tobytes())):
            if f"text {place}" in arrays.files:
                fields = json.loads(arrays[f"text {place}"].tobytes())
                columns[name] = np.array([*fields, None], dtype=object)[:-1]
            else:
                columns[name] = arrays[f"column {place}"]
    path.unlink()
    return Table(columns)


def _bytes(text: str) -> Any:
    import numpy as np

    return np.frombuffer(text.encode(), dtype=np.uint8)
