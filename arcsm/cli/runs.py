"""Where a run of training keeps its state, and what goes on with it."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from arcsm.cli.shell import check_place
from arcsm.errors import InputError
from arcsm.shipped import refuse_shipped_name

_STATE = "training.safetensors"  # what a run that can be resumed keeps in its directory


def check_places(output: Path, *, resume: bool, force: bool) -> Path:
    """Refuse a MODEL_DIR that cannot be made; return the directory of the run meanwhile."""
    refuse_shipped_name(output)
    target = Path(os.path.abspath(output))
    if not target.name:
        raise InputError(f"expected a new directory, got {str(output)!r}; choose another path")
    partial = target.with_name(f"{target.name}.partial")
    check_place(target)
    if target.exists() and not target.is_dir():
        raise InputError(
            f"expected the path of a directory, got the file {str(output)!r}; choose another path"
        )
    if target.is_dir() and any(target.iterdir()):
        from arcsm.train import holds_model

        if not holds_model(target):
            raise InputError(
                f"expected a new directory or that of a model, got {str(output)!r}, which holds"
                " other files; choose another path"
            )
        if not force:
            raise InputError(
                f"expected a new directory, got {str(output)!r}, which holds a model; add --force"
                " to replace it, or choose another path"
            )
    _remove_leftovers(partial)
    run = has_state(partial)
    if resume and not run:
        raise InputError(
            f"expected an interrupted run in {str(partial)!r} to resume, got none; start one"
            " without --resume"
        )
    if run and not resume:
        raise InputError(
            f"expected no unfinished run, got one in {str(partial)!r}; add --resume to go on with"
            " it, or remove that directory to start anew"
        )
    if not run and partial.exists() and not (partial.is_dir() and not any(partial.iterdir())):
        raise InputError(
            f"expected nothing at {str(partial)!r}, where the run keeps its state, got other"
            " files; move them away, or choose another MODEL_DIR"
        )
    return partial


def _remove_leftovers(partial: Path) -> None:
    """Remove what a run leaves that is killed before its first state is whole."""
    from arcsm.files import remove_stale_temporaries

    if partial.parent.is_dir():
        remove_stale_temporaries(partial.parent, partial.name)
    if not partial.is_dir():
        return
    for directory in (*partial.glob("stage-*/"), partial):
        remove_stale_temporaries(directory)
        if directory != partial and not any(directory.iterdir()):
            directory.rmdir()


def has_state(partial: Path) -> bool:
    """Say whether a run that can be resumed has its state in a directory, or a stage of it."""
    return (partial / _STATE).exists() or any(partial.glob(f"stage-*/{_STATE}"))


def words_to_resume(words: Sequence[str]) -> str:
    """Return the command line that goes on with the run of these words."""
    return shlex.join(["arcsm", *words, *([] if "--resume" in words else ["--resume"])])


@contextmanager
def told_how_to_resume(partial: Path, again: str) -> Iterator[None]:
    """Say, after Ctrl-C, how to go on with a run that has left a state."""
    try:
        yield
    except KeyboardInterrupt:
        if has_state(partial):
            raise KeyboardInterrupt(f"interrupted; go on with: {again}") from None
        raise
