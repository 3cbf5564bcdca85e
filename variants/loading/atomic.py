"""Writes files in one step."""

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that others see the old content or the new, and no part of it.

    Of a symbolic link the target is written, and a file that is replaced keeps its mode. Raises OSError, with
    `path` as its file name; for what exists and is no regular file, too.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:32]}.{os.getpid()}.{threading.get_ident()}")
    try:
        mode = _mode(path)
        temporary.write_bytes(content)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _mode(path: Path) -> int | None:
    """The permissions of a regular file; None if there is no file yet."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return stat.S_IMODE(mode)
