"""The demonstration: train on a toy and on digits, and show what came of it on one page."""

from arcsm.demo.run import Settings, run_demo

__all__ = ["Settings", "run_demo"]
