"""Pages of HTML that need nothing from elsewhere: the demonstration and the report."""

from arcsm.pages.parts import data_uri, definitions, document, image, number, tile

__all__ = ["data_uri", "definitions", "document", "image", "number", "tile"]
