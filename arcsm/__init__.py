"""Autoregressive score matching: density models trained through univariate conditional scores."""

__version__ = "0.1.0"
