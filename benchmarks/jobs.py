"""Jobs of a benchmark: worked off in processes of one thread each, and kept as they finish.

A job is the arguments of a function that returns entries, which are dataclasses that JSON can hold.
The function appends them to a file of JSON lines beside the output, from which a run that was cut
short goes on with --resume.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

Entry = TypeVar("Entry")
Key = TypeVar("Key", bound=Hashable)


# The command line


def add_options(parser: argparse.ArgumentParser, *, limit: bool = False, what: str = "job") -> None:
    """Add --jobs and --resume, and --limit if results may lack what was not begun in time."""
    parser.add_argument(
        "--jobs", type=at_least_one, default=1, help="processes, of one thread each"
    )
    if limit:
        about = f"begin no {what} after seconds"
        parser.add_argument("--limit", type=float, default=math.inf, help=about)
    about = f"keep the {what}s of a run cut short"
    parser.add_argument("--resume", action="store_true", help=about)


def at_least_one(text: str) -> int:
    """Read a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text}")
    return number


# What is kept


def partial_file(output: Path, *, resume: bool) -> Path:
    """Return the path of the lines beside the output, without lines unless a run goes on."""
    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.with_name(f".{output.name}l.partial")
    if not resume:
        path.unlink(missing_ok=True)
    elif path.is_file() and not path.read_bytes().endswith(b"\n"):
        _append(path, "\n")  # lest the next line goes on with one that was cut
    return path


def append_entries(path: Path, entries: Iterable[Any]) -> None:
    """Append a line for each entry, all in one write: other processes write to the same file."""
    _append(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in entries))


def _append(path: Path, text: str) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


def read_entries(path: Path, kind: type[Entry]) -> list[Entry]:
    """Return the entries of an interrupted run, none if there is no such file."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entries.append(kind(**json.loads(line)))
        except (ValueError, TypeError):  # the line during which the run was interrupted
            continue
    return entries


def by_job(entries: Iterable[Entry], job_of: Callable[[Entry], Key]) -> dict[Key, list[Entry]]:
    """Return the entries of each job."""
    found: dict[Key, list[Entry]] = {}
    for entry in entries:
        found.setdefault(job_of(entry), []).append(entry)
    return found


def jobs_left(jobs: Iterable[Key], done: Container[Key]) -> list[Key]:
    """Return the jobs that are not done, each of them once."""
    return [job for job in dict.fromkeys(jobs) if job not in done]


def commit_name(commit: Mapping[str, Any]) -> str:
    """Return how an entry names the commit it was made by."""
    return str(commit["id"]) + ("-dirty" if commit["dirty"] else "")


def reason_of(error: Exception) -> str:
    """Return how an entry tells of a failure: the first line, and not all of a long one."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


# Processes


def run_jobs(
    work: Callable[..., list[Entry]],
    jobs: Sequence[tuple[Any, ...]],
    told: Callable[[list[Entry]], str],
    *,
    processes: int,
    end: float = math.inf,
) -> list[Entry]:
    """Call `work` with each job, in this order; begin none after the time `end`.

    Prints the lines that `told` makes of each job's entries, and returns the entries of all. What
    `work` raises ends the run.
    """
    # Fresh processes: threads of a copied one would hang.
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_one_thread)
    found: list[Entry] = []
    try:
        futures = [pool.submit(_begin, work, job, end) for job in jobs]
        for place, future in enumerate(as_completed(futures), 1):
            entries = future.result()
            if entries is None:
                continue
            found += entries
            for line in told(entries).splitlines():
                print(f"[{place}/{len(futures)}] {line}", flush=True)
    finally:
        # After an interruption: what has not begun shall not begin.
        pool.shutdown(cancel_futures=True)
    return found


def _begin(
    work: Callable[..., list[Entry]], job: tuple[Any, ...], end: float
) -> list[Entry] | None:
    """Return what a job finds, None if it is too late to begin."""
    return None if time.time() > end else work(*job)


def _one_thread() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1)
