"""Models that come with arcsm: `arcsm:NAME` stands for the directory of one.

Such a name is never a path, whatever lies in the working directory.

- `arcsm:digits`: handwritten digits of 28 × 28 pixels. Its card tells the command that made it.
"""

import os
from pathlib import Path

from arcsm.errors import InputError

PREFIX = "arcsm:"
_FOLDER = Path(__file__).parent / "checkpoints"


def shipped_names() -> list[str]:
    """Return the names of the models that come with this installation."""
    return sorted(config.parent.name for config in _FOLDER.glob("*/config.json"))


def directory_of(model: str | os.PathLike[str]) -> Path:
    """Return the directory of a model, told by its path or by the name of one that is shipped."""
    told = os.fspath(model)
    if not told.startswith(PREFIX):
        return Path(model)
    names = [f"{PREFIX}{name}" for name in shipped_names()]
    if told not in names:
        raise InputError(
            f"expected a model that comes with arcsm ({', '.join(names) or 'there is none here'}),"
            f" got {told!r}; choose one of these, or pass the directory of another"
        )
    return _FOLDER / told.removeprefix(PREFIX)


def refuse_shipped_name(path: str | os.PathLike[str]) -> None:
    """Refuse a place for a model whose name would be that of a shipped one, and not be found."""
    if os.fspath(path).startswith(PREFIX):
        raise InputError(
            f"expected a directory for the model, got {os.fspath(path)!r}: names that begin with"
            f" {PREFIX!r} are those of models that come with arcsm; choose another"
        )
