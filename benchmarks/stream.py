"""Tables larger than memory: how much the command line needs for them, and how fast it is.

    python benchmarks/stream.py                    # writes results/stream.json
    python benchmarks/stream.py --processes 2      # by torchrun, writes results/stream-2.json
    python benchmarks/stream.py --commands "score csv" -o results/stream-score.json

A model is trained on a small table of real columns, five hidden factors behind them; then `arcsm`
is run as a process of its own on files of many rows, in a temporary folder:

- score a .csv into a .csv, and a .parquet into a .parquet;
- detect: judge the rows of the .csv by a detector trained on the small table;
- sample as many rows into a .parquet.

Told are the largest resident memory of the process (all threads, and what it shares with others)
and the rows a second, its start included, for one row, for a tenth of the rows and for all: what
the first needs is the libraries, and from the second to the third nothing should be added. Of
several processes the memory is that of the largest.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from arcsm.data import TableWriter
from arcsm.results import Metric, current_commit, write_result

LIMIT = 2.0  # GiB
COMMANDS = ("score csv", "score parquet", "detect csv", "sample parquet")
_AT_ONCE = 50_000  # rows that are made at one time
_FACTORS = 5

# A process begins with the memory of the one that starts it, and that counts: this one is small.
_STARTER = """
import os, sys
_, status, usage = os.wait4(os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    gib: float


def write_rows(path: Path, rows: int, columns: int, seed: int) -> None:
    """Write correlated normal columns; the first rows are the same for any number of them."""
    # The loadings are the same for every seed: other seeds are other rows of the same table.
    loadings = np.random.default_rng(0).normal(size=(_FACTORS, columns))
    random = np.random.default_rng(seed + 1)
    with TableWriter(path) as writer:
        for start in range(0, rows, _AT_ONCE):
            some = min(_AT_ONCE, rows - start)
            factors = random.normal(size=(some, _FACTORS))
            x = factors @ loadings + random.normal(size=(some, columns))
            writer.append({f"x{place}": column for place, column in enumerate(x.T)})


def run(words: Sequence[str]) -> Cost:
    """Run a process to its end; what it takes is that of the largest of those that it starts."""
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-S", "-c", _STARTER, *words], stdout=subprocess.PIPE, text=True
    )
    seconds = time.monotonic() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(seconds, int(process.stdout.split()[-1]) * unit / 2**30)


def arcsm(*words: object, processes: int = 1) -> list[str]:
    """Return the command line of a command, in several processes if asked for."""
    alone = [sys.executable, "-m", "arcsm"]
    together = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    together += [f"--nproc-per-node={processes}", "-m", "arcsm"]
    return [*(alone if processes == 1 else together), *map(str, words), "--quiet"]


def measure(
    chosen: Sequence[str], folder: Path, rows: int, columns: int, seed: int, processes: int
) -> list[tuple[str, Cost]]:
    """Return what the chosen commands cost for so many rows; their files are gone after that."""
    csv, parquet = folder / "rows.csv", folder / "rows.parquet"
    for path, reader in ((csv, ("score csv", "detect csv")), (parquet, ("score parquet",))):
        if any(name in reader for name in chosen):
            write_rows(path, rows, columns, seed + 1)
    model, detector = folder / "model", folder / "detector"
    lines: Sequence[list[object]] = (
        ["score", model, csv, "-o", folder / "out.csv"],
        ["score", model, parquet, "-o", folder / "out.parquet"],
        ["detect", csv, "--model", detector, "-o", folder / "out.csv"],
        ["sample", model, "-n", rows, "-o", folder / "out.parquet"],
    )
    words = dict(zip(COMMANDS, lines, strict=True))
    found = []
    for name in chosen:
        cost = run(arcsm(*words[name], processes=processes))
        found.append((name, cost))
        print(
            f"{name:15} {rows:>10,} rows  {cost.gib:.2f} GiB  {rows / cost.seconds:,.0f} rows/s"
            f"  {cost.seconds:.1f} s",
            flush=True,
        )
    for path in (csv, parquet, folder / "out.csv", folder / "out.parquet"):
        path.unlink(missing_ok=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--training-rows", type=int, default=10_000)
    parser.add_argument("--training-seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output")
    arguments = parser.parse_args()
    if arguments.output is None and list(arguments.commands) != list(COMMANDS):
        parser.error("expected -o FILE for some of the commands, got none; say where they go")
    started, commit = time.monotonic(), current_commit()
    processes = arguments.processes
    metrics: list[Metric] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small = folder / "small.csv"
        write_rows(small, arguments.training_rows, arguments.columns, arguments.seed)
        limits = ["--max-seconds", arguments.training_seconds, "--seed", arguments.seed]
        run(arcsm("train", small, "-o", folder / "model", "--no-card", *limits))
        if "detect csv" in arguments.commands:
            words = ["--train", small, "--save", folder / "detector", *limits]
            run(arcsm("detect", small, *words, "-o", folder / "out.csv"))
        for rows in sorted({1, max(1, arguments.rows // 10), arguments.rows}):
            for name, cost in measure(
                arguments.commands, folder, rows, arguments.columns, arguments.seed, processes
            ):
                labels = {"command": name, "rows": rows}
                metrics += [
                    Metric("peak memory", cost.gib, unit="GiB", n=1, labels=labels),
                    Metric("speed", rows / cost.seconds, unit="rows/s", n=1, labels=labels),
                ]
    most = max(metric.value or 0.0 for metric in metrics if metric.name == "peak memory")
    print(f"largest: {most:.2f} GiB, {'below' if most < LIMIT else 'above'} {LIMIT:g} GiB")
    default = "results/stream.json" if processes == 1 else f"results/stream-{processes}.json"
    write_result(
        arguments.output or default,
        experiment="stream",
        metrics=metrics,
        seeds=[arguments.seed],
        settings={
            "commands": list(arguments.commands),
            "rows": arguments.rows,
            "columns": arguments.columns,
            "training rows": arguments.training_rows,
            "training seconds": arguments.training_seconds,
            "processes": processes,
            "limit GiB": LIMIT,
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    main()
