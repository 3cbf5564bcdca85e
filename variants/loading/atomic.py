"""Writes files in one step."""

import contextlib
import os
import threading
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
