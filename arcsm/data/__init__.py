"""Data: arrays and tables checked at the door, files, and sets real and with known densities."""

from arcsm.data.arrays import as_rows, as_training_rows
from arcsm.data.images import (
    IMAGE_SETS,
    Images,
    dequantise,
    load_images,
    read_images,
    to_pixels,
)
from arcsm.data.sets import (
    ADBENCH,
    POWER_COLUMNS,
    SKLEARN,
    PowerSplit,
    data_folder,
    load_adbench,
    load_power,
    load_sklearn,
)
from arcsm.data.table import Table, as_table
from arcsm.data.tables import TableWriter, iterate_table, read_table, write_table
from arcsm.data.toy import (
    TOYS,
    Checkerboard,
    EightGaussians,
    Pinwheel,
    Rings,
    Toy,
    TwoMoons,
    TwoSpirals,
    get_toy,
)

__all__ = [
    "ADBENCH",
    "IMAGE_SETS",
    "POWER_COLUMNS",
    "SKLEARN",
    "TOYS",
    "Checkerboard",
    "EightGaussians",
    "Images",
    "Pinwheel",
    "PowerSplit",
    "Rings",
    "Table",
    "TableWriter",
    "Toy",
    "TwoMoons",
    "TwoSpirals",
    "as_rows",
    "as_table",
    "as_training_rows",
    "data_folder",
    "dequantise",
    "get_toy",
    "iterate_table",
    "load_adbench",
    "load_images",
    "load_power",
    "load_sklearn",
    "read_images",
    "read_table",
    "to_pixels",
    "write_table",
]
