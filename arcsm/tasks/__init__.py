"""What a trained model is good for."""

from arcsm.tasks.denoise import denoise

__all__ = ["denoise"]
