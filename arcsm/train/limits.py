"""What ends a run of training: its steps, its time, or Ctrl-C."""

import signal
import threading
import time
from typing import Any

import torch
import torch.distributed as dist


class Clock:
    """How much of a run is done: of its steps or, if that is more, of its time."""

    def __init__(self, steps: int, max_seconds: float | None, spent: float, world: int):
        self._steps, self._max_seconds, self._world = steps, max_seconds, world
        self._began = time.monotonic() - spent
        self._answer = (-1, 0.0)
        self._kept_back = 0.0

    @property
    def seconds(self) -> float:
        """The time spent, in this process and in those that it resumes."""
        return time.monotonic() - self._began

    def keep_back(self, seconds: float) -> None:
        """Leave so much of the time, at most half, for what comes after the last step."""
        if self._max_seconds is not None:
            self._kept_back = min(seconds, self._max_seconds / 2)

    def share_done(self, step: int) -> float:
        """Return the share that is done before `step`; asked twice it says the same."""
        if self._max_seconds is None:
            return step / self._steps
        if self._answer[0] != step:
            limit = self._max_seconds - self._kept_back
            spent = torch.tensor(self.seconds / limit, dtype=torch.float64)
            if self._world > 1:  # all processes must end, and lower their rates, together
                device = "cuda" if dist.get_backend() == "nccl" else "cpu"
                spent = spent.to(device)
                dist.all_reduce(spent, dist.ReduceOp.MAX)
            self._answer = (step, max(step / self._steps, spent.item()))
        return self._answer[1]


class Interruption:
    """Ctrl-C between two steps instead of within one, so that the state can still be written."""

    def __init__(self, active: bool):
        self.requested = False
        # Python hands signals to the main thread alone, and only it may choose what they do.
        self._active = active and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interruption":
        if self._active:
            self._former = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._restore()
        if self.requested and kind is None:
            raise KeyboardInterrupt

    def _request(self, *_: Any) -> None:
        if self.requested:  # asked twice: at once, then
            self._restore()
            raise KeyboardInterrupt
        self.requested = True

    def _restore(self) -> None:
        if self._active:
            # None, unlike SIG_DFL, which is 0, stands for a handler that Python did not set.
            former = signal.default_int_handler if self._former is None else self._former
            signal.signal(signal.SIGINT, former)
            self._active = False
