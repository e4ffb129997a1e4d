"""Models of tables: columns as people have them, on top of a chain of real scalars."""

from arcsm.tabular.fitting import Settings, fit_table
from arcsm.tabular.model import TabularModel
from arcsm.tabular.soundness import check_table
from arcsm.tabular.store import load_tabular, save_tabular

__all__ = [
    "Settings",
    "TabularModel",
    "check_table",
    "fit_table",
    "load_tabular",
    "save_tabular",
]
