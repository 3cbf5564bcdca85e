"""What a compiled kernel's ELF says of the local memory that its threads take.

ptxas says it too, in a remark, but the DSL collects remarks only while it also looks up the source line of
every operation, which more than doubles the time that a compilation takes.
"""

import struct
from collections.abc import Iterator

_FRAME_BYTES, _LEAST_STACK_BYTES = 0x11, 0x12
"""Attributes of `.nv.info`: (symbol of the function, bytes a thread)."""

_SIZED = 4
"""The format of attributes whose payload's size stands before it; the others have two bytes of payload."""


def stack_bytes(cubin: bytes) -> int:
    """The most local memory that a thread of any function takes: its stack frame, with spilled registers."""
    found = [
        struct.unpack("<II", payload)[1]
        for number, payload in _attributes(_section(cubin, b".nv.info"))
        if number in (_FRAME_BYTES, _LEAST_STACK_BYTES)
    ]
    assert found, "the cubin says nothing about stack frames"
    return max(found)


def _section(elf: bytes, wanted: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 40)
    each, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + number * each) for number in range(count)]
    for name, _, _, _, start, size in headers:
        at = headers[names][4] + name
        if elf[at : elf.index(b"\0", at)] == wanted:
            return elf[start : start + size]
    raise AssertionError(f"the cubin has no section {wanted.decode()}")


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(info):
        form, number, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield number, info[at : at + size]
            at += size
