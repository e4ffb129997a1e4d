"""What the user sees meanwhile: a line for each stage, a bar with the time left in training."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from arcsm.train.loop import Progress as TrainingProgress


class Reporter:
    """Shows the stages on stderr and keeps the seconds that each of them took."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(stderr=True, highlight=False)
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @property
    def total(self) -> float:
        """Seconds since the reporter was made."""
        return time.monotonic() - self._started

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a spinner while the block runs, then a line with its seconds."""
        started = time.monotonic()
        with self.console.status(f"{name} …"):
            yield
        self._done(name, started)

    @contextmanager
    def training(self, name: str, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
        """Show a bar with the time left; yield the callback for `fit`."""
        started = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>5.0f}/{task.total:.0f}  loss {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        shown = Progress(
            *columns,
            console=self.console,
            transient=True,
            expand=True,
            disable=not self.console.is_terminal,  # in a log file the last line says it all
        )
        with shown as bar:
            task = bar.add_task(name, total=steps, loss="–")

            def update(progress: TrainingProgress) -> None:
                bar.update(task, completed=progress.step, loss=f"{progress.loss:.2f}")

            yield update
        self._done(name, started)

    def _done(self, name: str, started: float) -> None:
        self.seconds[name] = time.monotonic() - started
        self.console.print(f"[green]✓[/] {name} [dim]{self.seconds[name]:.1f} s[/]")
