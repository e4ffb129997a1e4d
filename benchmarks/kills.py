"""Runs that are killed at random moments, and go on: do they end with the same bits?

    python benchmarks/kills.py        # writes results/kills.json

Each run is a command line in a process of its own. One is left alone, and tells how long it takes.
The others get a signal at a moment drawn uniformly from that time, mostly SIGKILL, which no program
can answer; then the same command goes on with `--resume`, and may be killed again, up to three
times, until it is left alone. Where the command refuses to go on, its sentence is followed: there
is no state yet, so it is started anew. What it has made at last is compared with what the first run
made, bit for bit: weights and descriptions of a model, raw numbers and metrics of an experiment.
Times are not compared. All processes compute on one thread.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jobs import at_least_one
from safetensors import safe_open

from arcsm.data import Table, write_table
from arcsm.results import Metric, current_commit, write_result

SIGNALS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT")  # the most brutal one twice as often
MOST_KILLS = 3  # of one run
# `arcsm`, but that trainings on tables keep a state every 25 steps and not every 500: runs that are
# short enough to be killed often would not come to their first one.
_PROGRAM = """
import functools
from arcsm.cli import main
from arcsm.tabular import fitting
fitting.TrainConfig = functools.partial(fitting.TrainConfig, checkpoint_every=25)
main()
"""


@dataclass(frozen=True)
class Scenario:
    """A command line, what it makes, and the words that make it go on."""

    words: str
    makes: str
    again: str = "--resume"


SCENARIOS = {
    "table": Scenario("train small.csv -o model --max-steps 150", "model"),
    "order auto": Scenario(
        "train small.csv -o model --order auto --max-steps 60 --drop city --no-card", "model"
    ),
    "ensemble": Scenario(
        "train small.csv -o model --ensemble 2 --max-steps 100 --no-card", "model"
    ),
    "pictures, MADE": Scenario(
        "train pictures -o model --network made --batch 16 --max-steps 40 --no-card", "model"
    ),
    "pictures, PixelCNN++": Scenario(
        "train pictures -o model --network tiny --batch 8 --max-steps 8 --no-card", "model"
    ),
    "experiment": Scenario("reproduce toy-samples --budget smoke", "results", again=""),
}


@dataclass
class Told:
    """What became of one run: the signals it got, when, and whether the bits were the same."""

    scenario: str
    signals: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    anew: int = 0  # how often there was no state to go on from
    wrong: str | None = None

    def __str__(self) -> str:
        """Return a line."""
        kills = ", ".join(
            f"{name} at {moment:.1f} s"
            for name, moment in zip(self.signals, self.moments, strict=True)
        )
        anew = f", {self.anew} times anew" if self.anew else ""
        return f"{self.scenario:22s} {kills or 'ended before'}{anew}: {self.wrong or 'same bits'}"


class Runs:
    """The runs of one scenario: the one that was left alone, and those that are killed."""

    def __init__(self, name: str, scenario: Scenario) -> None:
        self.name, self.scenario = name, scenario
        with tempfile.TemporaryDirectory() as directory:
            place = _inputs(Path(directory) / "place")
            started = time.monotonic()
            code, said = _end(_start(place, scenario.words.split()), place)
            if code != 0:
                raise RuntimeError(f"{scenario.words} ended with {code}: {said}")
            self.seconds = time.monotonic() - started
            self.expected = contents(place / scenario.makes)

    def killed(self, chance: random.Random, kills: int) -> Told:
        """Kill a run so many times at most, let it end, and compare."""
        told = Told(self.name)
        with tempfile.TemporaryDirectory() as directory:
            place = _inputs(Path(directory) / "place")
            inputs = {path.name for path in place.iterdir()}
            told.wrong = self._run(place, chance, kills, told)
            if told.wrong is None:
                told.wrong = self._compare(place, inputs)
        return told

    def _run(self, place: Path, chance: random.Random, kills: int, told: Told) -> str | None:
        """Run, be killed and go on until the command has ended well; return what went wrong."""
        words = first = self.scenario.words.split()
        for _ in range(4 * MOST_KILLS):
            program, hit = _start(place, words), False
            if len(told.signals) < kills:
                name, moment = chance.choice(SIGNALS), chance.uniform(0, self.seconds)
                try:
                    program.wait(moment)
                except subprocess.TimeoutExpired:
                    program.send_signal(getattr(signal, name))
                    told.signals.append(name)
                    told.moments.append(moment)
                    hit = True
            code, said = _end(program, place)
            if code == 0:
                return None
            if code == 2:  # the sentence says what to do
                if "without --resume" in said:
                    words, told.anew = first, told.anew + 1
                elif "add --force" in said and "--force" not in words:
                    words = [*words, "--force"]
                else:
                    return f"refused: {said.strip()}"
            elif hit:
                words = [*first, *self.scenario.again.split()]
            else:
                return f"ended with {code}: {said.strip()[-300:]}"
        return "did not end"

    def _compare(self, place: Path, inputs: set[str]) -> str | None:
        """Return what is not as the run that was left alone has it."""
        got = contents(place / self.scenario.makes)
        names = got.keys() | self.expected.keys()
        differing = sorted(name for name in names if got.get(name) != self.expected.get(name))
        if differing:
            return f"other bits in {', '.join(differing[:5])}"
        known = inputs | {self.scenario.makes}
        litter = sorted(path.name for path in place.iterdir() if path.name not in known)
        return f"left behind: {', '.join(litter)}" if litter else None


def contents(directory: Path) -> dict[str, Any]:
    """Return what must be the same of a model or of results, by the names of the files."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                found[name] = {key: file.get_tensor(key).tobytes() for key in file.keys()}  # noqa: SIM118
                found[f"{name}: header"] = _without_times(json.loads(file.metadata()["header"]))
        elif path.suffix == ".json":
            found[name] = _without_times(json.loads(path.read_text(encoding="utf-8")))
        elif path.is_file() and path.suffix != ".md":  # cards tell of times
            found[name] = path.stat().st_size > 0
    return found


def _without_times(content: Any) -> Any:
    """Return what a description or a record says, without dates and times of computing."""
    if isinstance(content, dict):
        kept = {k: v for k, v in content.items() if k != "date" and "seconds" not in k}
        return {key: _without_times(value) for key, value in kept.items()}
    if isinstance(content, list):
        times = [isinstance(one, dict) and one.get("unit") == "s" for one in content]
        return [_without_times(c) for c, time in zip(content, times, strict=True) if not time]
    return content


def _inputs(place: Path) -> Path:
    """Write a small table and small pictures, the same ones each time."""
    from PIL import Image

    chance = np.random.default_rng(0)
    age = chance.integers(18, 80, 400)
    income = np.exp(0.02 * age + chance.normal(size=400))
    city = np.array(["Bern", "Basel", "Chur"], dtype=object)[chance.integers(0, 3, 400)]
    table = {"age": age, "income": income, "spent": income * chance.uniform(size=400), "city": city}
    write_table(place / "small.csv", Table(table))
    (place / "pictures").mkdir(parents=True)
    for number in range(48):
        pixels = chance.integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(place / "pictures" / f"{number:02d}.png")
    return place


def _start(place: Path, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    # What is said goes to a file: a pipe that nobody reads would stop the program.
    with (place.parent / f"{place.name}.said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words, "--quiet"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # What a shell starts in its background begins with Ctrl-C ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def _end(program: "subprocess.Popen[bytes]", place: Path) -> tuple[int, str]:
    """Wait for the end; return the code and what was said."""
    program.wait()
    said = place.parent / f"{place.name}.said"
    return program.returncode, said.read_text(encoding="utf-8", errors="replace")


def run_scenario(name: str, count: int, seed: int) -> list[Told]:
    """Kill so many runs of a scenario, and tell of each."""
    # Moments and signals do not depend on what else is run.
    chance = random.Random(f"{seed} {name}")
    runs = Runs(name, SCENARIOS[name])
    print(f"{name:22s} left alone: {runs.seconds:.1f} s", flush=True)
    told = []
    for number in range(count):
        told.append(runs.killed(chance, 1 + number % MOST_KILLS))
        print(told[-1], flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--runs", type=int, default=4, help="runs of each scenario")
    parser.add_argument("--jobs", type=at_least_one, default=1, help="scenarios side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="results/kills.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        told = list(
            pool.map(
                lambda name: run_scenario(name, arguments.runs, arguments.seed),
                arguments.scenarios,
            )
        )
    everything = [run for runs in told for run in runs]
    metrics = summary(everything, {"scenario": "all"})
    for name, runs in zip(arguments.scenarios, told, strict=True):
        metrics += summary(runs, {"scenario": name})
    write_result(
        arguments.output,
        experiment="kills",
        metrics=metrics,
        seeds=[arguments.seed],
        settings={
            "scenarios": {name: SCENARIOS[name].words for name in arguments.scenarios},
            "runs": arguments.runs,
            "signals": list(SIGNALS),
            "most kills of a run": MOST_KILLS,
            "wrong": [str(run) for run in everything if run.wrong],
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )
    print(f"{sum(not run.wrong for run in everything)} of {len(everything)} with the same bits")


def summary(told: Sequence[Told], labels: dict[str, Any]) -> list[Metric]:
    """Return the metrics of some runs."""
    count = len(told)
    same = sum(run.wrong is None for run in told)
    kills = {name: sum(run.signals.count(name) for run in told) for name in sorted(set(SIGNALS))}
    return [
        Metric("runs with the same bits", same / count, unit="1", n=count, labels=labels),
        Metric("started anew", float(sum(r.anew for r in told)), unit="1", n=count, labels=labels),
        *(
            Metric(
                "signals", float(kills[name]), unit="1", n=count, labels={**labels, "signal": name}
            )
            for name in kills
        ),
    ]


if __name__ == "__main__":
    main()
