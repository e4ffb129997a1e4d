"""Context networks: output d is a vector that sees only the scalars before d in the order."""

from arcsm.context.made import MADE
from arcsm.context.order import resolve_order
from arcsm.context.pixels import PixelCNN, PixelStreams
from arcsm.context.protocol import ContextCursor, ContextNetwork
from arcsm.context.subset import SubsetNetwork

__all__ = [
    "MADE",
    "ContextCursor",
    "ContextNetwork",
    "PixelCNN",
    "PixelStreams",
    "SubsetNetwork",
    "resolve_order",
]
