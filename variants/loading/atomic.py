"""Writes files in one step, and folders by one writer at a time.

Contract
    Whoever reads a file sees the old content or the new. Of those that `locked` a folder, in whatever thread
    or process, one at a time goes on; readers do not wait.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that others see the old content or the new, and no part of it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
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
