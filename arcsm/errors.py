"""The errors arcsm raises for its users to read.

Each message says what was expected, what came instead, and what to do about it. Every class also
derives from the built-in exception a caller would have caught without knowing arcsm.
"""


class ArcsmError(Exception):
    """Base of every error that arcsm raises on purpose."""


class InputError(ArcsmError, ValueError):
    """An argument, an array or a file does not have the form that was asked for."""


class CheckpointError(ArcsmError, ValueError):
    """A checkpoint is damaged, foreign, or does not belong to the model it is loaded into."""


class NonFiniteLossError(ArcsmError, ArithmeticError):
    """Training reached a loss or a gradient that is not a finite number."""
