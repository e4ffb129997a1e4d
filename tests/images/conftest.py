"""A model of each kind."""

import pytest

from arcsm.images import ImageModel, fit_images

from .image_kinds import KINDS, pictures, settings


@pytest.fixture(scope="session")
def models() -> dict[str, ImageModel]:
    """A model of each kind, of pictures 4 x 4; not to be changed."""
    return {kind: fit_images(pictures(40), settings(kind)) for kind in KINDS}
