"""An experiment that squares numbers, to run piece by piece, and what is heard of its runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from arcsm.experiments import run_experiment
from arcsm.experiments.experiment import Experiment, Piece, Place, Raw, Settings, Verdict
from arcsm.experiments.runner import Outcome
from arcsm.results import Metric


class Counter:
    """An experiment that squares numbers, and remembers which it was asked for."""

    def __init__(self, **settings: Any) -> None:
        self.asked: list[int] = []
        self.fresh: list[bool] = []
        self.stop_at: int | None = None
        settings = {"numbers": (1, 2, 3), "seeds": [0], **settings}
        self.experiment = Experiment(
            name="counting",
            title="Counting",
            question="What are squares?",
            claims=(),
            budgets={"smoke": settings, "gpu": {**settings, "numbers": (7,)}},
            pieces=lambda settings: [Piece(f"n={n}/x", {"n": n}) for n in settings["numbers"]],
            run=self.run,
            metrics=self.metrics,
            figures=self.figures,
            verdicts=lambda settings, metrics: [Verdict(True, "yes")],
        )

    def run(self, settings: Settings, piece: Piece, place: Place) -> Raw:
        assert isinstance(settings["numbers"], list)  # as JSON has it
        if piece.labels["n"] == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(piece.labels["n"])
        self.fresh.append(place.fresh)
        place.progress(0.5)
        return {"square": piece.labels["n"] ** 2}

    def metrics(self, settings: Settings, raws: Mapping[str, Raw]) -> list[Metric]:
        return [
            Metric("square", raw["square"], unit="1", n=1, labels={"piece": name})
            for name, raw in raws.items()
        ]

    def figures(self, settings: Settings, raws: Mapping[str, Raw]) -> dict[str, Figure]:
        figure = Figure(figsize=(2, 1))
        figure.add_subplot().plot([raw["square"] for raw in raws.values()])
        return {"squares": figure}


def go(counter: Counter, folder: Path, budget: str = "smoke", **options: Any) -> Outcome:
    return run_experiment(counter.experiment, budget, device="cpu", folder=folder, **options)


class Heard(Console):
    """A console that shows nothing, and keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.text = ""

    def print(self, *objects: Any, **options: Any) -> None:
        self.text += " ".join(map(str, objects))
