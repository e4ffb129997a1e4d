"""Ticks of logarithmic axes in plain numbers: 0.2, 0.5, 1, 2, 5."""

from typing import Any


def plain_log_ticks(axis: Any, *, dense: bool = True) -> None:
    """Put ticks at every power of ten of an axis and, if there is room, at 2 and 5 times that."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if dense else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())
