"""What the user sees meanwhile, on stderr: lines for stages, bars with the time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from arcsm.train import Progress as TrainingProgress


class TrainingBar:
    """The callback for `fit`; `racing` is told of the orders that are tried before."""

    def __init__(self, bar: Progress, task: TaskID):
        self._bar, self._task = bar, task

    def __call__(self, progress: "TrainingProgress") -> None:
        """Show a report of the training."""
        state = f"{progress.step:>5}/{progress.steps}  loss {progress.loss:.2f}"
        if progress.validation is not None:
            state += f"  held out {progress.validation:.2f}"
        self._bar.update(self._task, completed=progress.done, state=state)

    def racing(self, done: int = 0, total: int | None = None) -> None:
        """Show how many orders were tried, and out of how many."""
        count = "…" if total is None else f"{done}/{total}"
        self._bar.update(self._task, state=f"learning the order {count}")


class Reporter:
    """Shows the stages on stderr and keeps the seconds that each of them took."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False):
        self.console = console or Console(stderr=True, highlight=False, quiet=quiet)
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
    def training(self, name: str, steps: int | None) -> Iterator["TrainingBar"]:
        """Show a bar with losses and the time left, then a line; yield the callback for `fit`.

        `steps` are those of the run, shown before its first report; None where it decides itself.
        """
        started = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        with self._bar(*columns) as bar:
            state = "" if steps is None else f"{0:>5}/{steps}  loss –"
            task = bar.add_task(name, total=1.0, state=state)

            yield TrainingBar(bar, task)
        self._done(name, started)

    @contextmanager
    def rows(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show how many rows are done; yield what is called with the number of further ones."""
        count = (
            "{task.completed:,.0f} rows"
            if total is None
            else "{task.completed:,.0f}/{task.total:,.0f} rows"
        )
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn(count)]
        with self._bar(*columns, TimeRemainingColumn()) as bar:
            task = bar.add_task(name, total=total)
            yield lambda further: bar.advance(task, further)

    @contextmanager
    def share(self, name: str) -> Iterator[Callable[[float, str], None]]:
        """Show a bar with the time left; yield what is told the share done, and a few words."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        with self._bar(*columns) as bar:
            task = bar.add_task(name, total=1.0, state="")
            yield lambda done, state: bar.update(task, completed=done, state=state)

    def _bar(self, *columns: ProgressColumn) -> Progress:
        return Progress(
            *columns,
            console=self.console,
            transient=True,
            expand=True,
            # In a log file the last line says it all.
            disable=not self.console.is_terminal or self.console.quiet,
        )

    def _done(self, name: str, started: float) -> None:
        self.seconds[name] = time.monotonic() - started
        self.console.print(f"[green]✓[/] {name} [dim]{self.seconds[name]:.1f} s[/]")
