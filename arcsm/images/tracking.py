"""Loss curves and sample grids in TensorBoard while a model is trained."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from arcsm.errors import InputError
from arcsm.train import Progress

# The share of the time of training that may go into drawing images.
SHARE = 0.1


class Tracker:
    """A callback for `fit` that writes what it is told, and images that `draw` returns.

    The first images are drawn at the first evaluation; after that they wait until all of them
    together, the next included, take no more than a tenth of the time.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        draw: Callable[[], np.ndarray] | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        writer = _summary_writer()
        self._writer, self._draw, self._clock = writer(os.fspath(folder)), draw, clock
        self._spent = self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        """Write the losses and, if there is time for it, a grid of images."""
        self._writer.add_scalar("loss/training", progress.loss, progress.step)
        if progress.validation is not None:
            self._writer.add_scalar("loss/held out", progress.validation, progress.step)
        if self._draw is not None and self._spent + self._last <= SHARE * progress.seconds:
            began = self._clock()
            images = self._draw()
            self._last = self._clock() - began
            self._spent += self._last
            self._writer.add_images("samples", images, progress.step, dataformats="NHWC")
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()


@contextmanager
def tracking(
    folder: str | os.PathLike[str] | None, draw: Callable[[], np.ndarray] | None
) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that writes to `folder`, or one that does nothing if there is none."""
    if folder is None:
        yield lambda _: None
        return
    tracker = Tracker(folder, draw)
    try:
        yield tracker
    finally:
        tracker.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "expected TensorBoard, which keeps the curves of a training, got none installed;"
            " install it with: pip install 'arcsm[track]'"
        ) from error
    return SummaryWriter
