"""Writes files in one step, and folders by one writer at a time.

Contract
    Whoever reads a file sees the old content or the new. Of those that `locked` a folder, in whatever thread
    or process, one at a time goes on; readers do not wait.
"""

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a folder alone; gives False where the file system has no locks, and then it is not held."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)


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
