"""What the commands print, and how they refuse: standard output, standard error, and the exit status.

Contract
    Text is printed as it is: what looks like rich markup or an emoji code in a path, a name or a message is
    neither, and characters that a terminal would not print are escaped. Whatever a command raises that its
    user can mend becomes a message and an exit status, never a traceback: 2 for a wrong call or spec and for
    what the system refuses, 1 for a stage, a skeleton or a kernel that is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from generator.compiled import CompileError
from generator.errors import CatalogError, SpecError, printable
from generator.link import LinkError


def literal_console(*, stderr: bool = False) -> Console:
    """A console that takes no text for markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


out = literal_console()
err = literal_console(stderr=True)


class Commands(TyperGroup):
    """The commands of the workshop: each refuses in the same way."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was called."""
        with refusals():
            result = super().invoke(ctx)
            sys.stdout.flush()  # so that a full disk behind a redirection is noticed
            return result


def say(message: str, style: str | None = None) -> None:
    """Print a message on standard error, its lines as they are."""
    lines = (printable(line) for line in message.split("\n"))
    err.print("\n".join(lines), style=style, soft_wrap=True)


def named(path: str | os.PathLike[str]) -> str:
    """A path as it may stand in a line."""
    return printable(os.fspath(path))


def refuse(message: str) -> NoReturn:
    """End with exit status 2."""
    say(message, style="red")
    raise typer.Exit(2)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What is raised inside becomes a message and an exit status."""
    try:
        yield
    except SpecError as error:
        refuse(str(error))
    except (CatalogError, LinkError, CompileError) as error:
        say(str(error), style="red")
        raise typer.Exit(1) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read the output has seen enough
            raise
        where = "standard output" if error.filename is None else named(os.fsdecode(error.filename))
        refuse(f"{where}: {error.strerror or type(error).__name__}")


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """A line on a terminal that says what is being done; gives what changes it."""
    with err.status(Text(printable(what))) as status:
        yield lambda text: status.update(Text(printable(text)))


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end. An OSError without a file name gets that of the folder above."""
    try:
        above = tempfile.gettempdir()
    except FileNotFoundError as error:
        wrong = "no folder for temporary files can be written; set TMPDIR to one that can"
        raise FileNotFoundError(errno.ENOENT, wrong, "TMPDIR") from error
    try:
        with tempfile.TemporaryDirectory(dir=above) as name:
            yield Path(name)
    except OSError as error:
        if error.filename is None and error.errno != errno.EPIPE:
            raise OSError(error.errno, error.strerror, above) from error
        raise
