"""Processes that work as one, as torchrun would start them.

They are forked from a server that has torch imported, and meet at a port of this machine.
"""

import multiprocessing
import os
import pkgutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    code: int | None
    stdout: str
    stderr: str


def start(target: Callable[..., None], count: int, folder: Path, *words: Any) -> list[BaseProcess]:
    """Start `target`(*words) in so many processes; each has its rank in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["arcsm.estimators", "torch._dynamo"])
    found = []
    for rank in range(count):
        process = context.Process(
            target=_be, args=(rank, count, port, folder, target, words), daemon=True
        )
        process.start()
        found.append(process)
    return found


def finish(processes: Sequence[BaseProcess], folder: Path, seconds: float = 60) -> list[Ended]:
    """Wait for processes and return what each has left; those that hang are killed."""
    found = []
    for rank, process in enumerate(processes):
        process.join(seconds)
        if process.exitcode is None:
            for other in processes:
                other.kill()
            raise TimeoutError(f"expected process {rank} to end within {seconds} s")
        texts = [(folder / f"{rank}.{name}").read_text() for name in ("out", "err")]
        found.append(Ended(process.exitcode, *texts))
    return found


def arcsm(*each: Sequence[object], folder: Path, patches: Mapping[str, Any] = {}) -> list[Ended]:
    """Run `arcsm` in two processes, with the same words or with those of each.

    `patches` give numbers in modules other values.
    """
    words = [[str(word) for word in (each * 2)[rank]] for rank in (0, 1)]
    return finish(start(command, 2, folder, words, dict(patches)), folder)


def command(rank: int, words: Sequence[Sequence[str]], patches: Mapping[str, Any]) -> None:
    """Be one of the processes of a command line."""
    from arcsm.cli import main

    for name, value in patches.items():
        module, _, attribute = name.rpartition(".")
        setattr(pkgutil.resolve_name(module), attribute, value)
    sys.argv = ["arcsm", *words[rank]]
    main()


def _be(
    rank: int, count: int, port: int, folder: Path, target: Callable[..., None], words: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    sys.stdout = (folder / f"{rank}.out").open("w")
    sys.stderr = (folder / f"{rank}.err").open("w")
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": os.environ.get("LOCAL_WORLD_SIZE", str(count)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    target(rank, *words)
