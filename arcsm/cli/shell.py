"""What is the same for every command.

Data go to stdout, all else to stderr. What the user can put right is one line on stderr and exit
code 2, never a traceback; Ctrl-C is one line and exit code 130; a reader that closes the pipe ends
the command without a word. Of several processes the first that fails alone has a line. Commands
raise ArcsmError for the first, and let OSError,
KeyboardInterrupt and BrokenPipeError pass.
"""

import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer.core

from arcsm.cli import together
from arcsm.errors import ArcsmError, InputError
from arcsm.shipped import refuse_shipped_name

USER_ERROR, INTERRUPTED, CLOSED_PIPE = 2, 130, 141


@contextmanager
def exit_codes(command: str = "arcsm") -> Iterator[None]:
    """Turn what a command raises into one line on stderr and an exit code; a bug stays a bug."""
    try:
        yield
    except BrokenPipeError:
        _settle_stdout()
        sys.exit(CLOSED_PIPE)
    except ArcsmError as error:
        _fail(str(error), USER_ERROR)
    except OSError as error:
        where = "" if error.filename is None else f" {os.fspath(error.filename)!r}"
        reason = error.strerror or str(error) or type(error).__name__
        _fail(f"could not read or write{where}: {reason}", USER_ERROR)
    except KeyboardInterrupt as error:
        _fail(str(error) or "interrupted", INTERRUPTED)
    except Exception as error:
        # A usage error of typer's, known by its method: its class has moved between releases.
        if not hasattr(error, "format_message"):
            if together.others_failed():  # which may be felt as anything
                sys.exit(USER_ERROR)
            raise
        context = getattr(error, "ctx", None)
        path = command if context is None else context.command_path
        _fail(f"{error.format_message().rstrip('.')} (see {path} --help)", USER_ERROR)


def _fail(message: str, code: int) -> None:
    if together.first_to_fail():
        print(f"arcsm: {' '.join(message.split())}", file=sys.stderr)
    _settle_stdout()
    sys.exit(code)


def _settle_stdout() -> None:
    """Give up what stdout does not take: Python flushes it at the end, and would complain."""
    try:
        sys.stdout.flush()
    except OSError:
        # What stands in for stdout in a test has no descriptor.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Commands(typer.core.TyperGroup):
    """The commands under `exit_codes`. The words of the command line are the context's `obj`."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; typer would swallow Ctrl-C before `main`."""
        with exit_codes():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, and refuse several processes for one that is not made for them."""
        found = super().resolve_command(ctx, args)
        if found[0] not in together.SHARED:
            together.refuse_several(found[0])
        return found

    def main(self, args: Sequence[str] | None = None, *positional: Any, **options: Any) -> Any:
        """Parse, run and exit, with our lines in the place of typer's boxes."""
        words = list(sys.argv[1:] if args is None else args)
        # An option without its value is found out before there is a context to ask.
        command = f"arcsm {words[0]}" if words and words[0] in self.commands else "arcsm"
        with exit_codes(command):
            together.begin()
            options["standalone_mode"] = False
            code = super().main(words, *positional, obj=words, **options)
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def writing(path: str | os.PathLike[str], advice: str) -> Iterator[None]:
    """Say of an OSError what could not be written, by the name that the user knows."""
    from safetensors import SafetensorError

    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArcsmError(f"could not write {os.fspath(path)!r}: {reason}; {advice}") from error


def check_writable(path: Path) -> None:
    """Refuse an output path that could not be written, before any work is done for it."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(
            f"expected the path of a file, got the directory {os.fspath(path)!r}; add a file name"
        )
    if target.exists() and not target.is_file():
        # It would not be written to but replaced by a file.
        raise InputError(
            f"expected the path of a file, got the device or pipe {os.fspath(path)!r};"
            " choose another one"
        )
    check_place(path)


def check_place(path: Path) -> None:
    """Refuse a path at which neither a file nor a directory could be made."""
    target = Path(os.path.realpath(path))
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:  # which the files of models cannot have for a name
        raise InputError(
            f"expected a path in UTF-8, got {os.fspath(path)!r}; choose another one"
        ) from error
    try:
        existing = next(parent for parent in target.parents if parent.exists())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{existing.name!r} is a file")
        # Permission bits say little to root or on a read-only mount: a file is what tells.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(
            f"expected a path that can be written, got {os.fspath(path)!r}"
            f" ({error.strerror or error}); choose another one"
        ) from error


def check_new_folder(path: Path, option: str) -> None:
    """Refuse a folder that is there already and has something in it."""
    check_place(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"expected a new folder for {option}, got {str(path)!r}, which is there already; choose"
            " another one"
        )


def check_save(save: Path) -> None:
    """Refuse a place of --save that must not or could not become the directory of a model."""
    refuse_shipped_name(save)
    check_place(save)
    if save.exists() and not save.is_dir():
        raise InputError(
            f"expected the path of a directory for --save, got the file {str(save)!r}; choose"
            " another path"
        )
    if save.is_dir() and any(save.iterdir()):
        from arcsm.train import holds_model

        if not holds_model(save):
            raise InputError(
                f"expected a new directory for --save or that of a model, got {str(save)!r}, which"
                " holds other files; choose another path"
            )
