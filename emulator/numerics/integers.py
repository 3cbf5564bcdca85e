"""Integer arithmetic, shifts and bit fields that are more than one NumPy expression.

Contract
    Arrays or NumPy scalars in, new arrays out; unsigned unless said otherwise. Compiled blocks call these as
    attributes of `H`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array


def bits(x: Array) -> int:
    """Bits of an element."""
    return 8 * int(x.dtype.itemsize)


def shl(a: Array, amount: Array) -> Array:
    """Shift left; amounts (uint32) past the width give 0."""
    width = bits(a)
    inside = np.minimum(amount, width - 1).astype(a.dtype)
    shifted: Array = np.where(amount < width, a << inside, a.dtype.type(0))
    return shifted


def shr(a: Array, amount: Array) -> Array:
    """Shift right, of signed numbers with the sign; amounts (uint32) past the width act as the width."""
    width = bits(a)
    inside = np.minimum(amount, width - 1).astype(a.dtype)
    shifted: Array = a >> inside
    return shifted if a.dtype.kind == "i" else np.where(amount < width, shifted, a.dtype.type(0))


def mul_hi(a: Array, b: Array) -> Array:
    """The upper half of the product, of signed or unsigned numbers."""
    width = bits(a)
    if width < 64:
        wide = np.dtype(f"{a.dtype.kind}8")
        product: Array = ((a.astype(wide) * b.astype(wide)) >> wide.type(width)).astype(a.dtype)
        return product
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    high: Array = x1 * y1 + (middle >> half) + ((x0 * y1 + (middle & mask)) >> half)
    if a.dtype.kind == "i":
        # Each negative factor was counted 2^64 too large.
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


def div(a: Array, b: Array) -> Array:
    """The quotient rounded toward zero; all bits set for a division by zero, as the hardware gives."""
    a, b = np.broadcast_arrays(a, b)
    by = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // by
    if a.dtype.kind == "i":
        quotient = np.where(
            (quotient * by != a) & ((a < 0) != (by < 0)), quotient + a.dtype.type(1), quotient
        )
    return np.where(b == 0, ~b.dtype.type(0), quotient)


def rem(a: Array, b: Array) -> Array:
    """a - b * (a / b): the sign of a."""
    remainder: Array = a - b * div(a, b)
    return remainder


def sad(a: Array, b: Array, c: Array) -> Array:
    """c + |a - b|."""
    return c + np.where(a < b, b - a, a - b)


def saturated(a: Array, b: Array, subtract: bool) -> Array:
    """a + b or a - b of s32, clamped."""
    wide = a.astype(np.int64) - b if subtract else a.astype(np.int64) + b
    return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def popcount(a: Array) -> Array:
    """How many bits are set, as uint32."""
    return np.bitwise_count(a).astype(np.uint32)


def smear(a: Array) -> Array:
    """Every bit at or below the highest that is set."""
    shift = 1
    while shift < bits(a):
        a = a | (a >> a.dtype.type(shift))
        shift *= 2
    return a


def clz(a: Array) -> Array:
    """Zeros above the highest bit that is set, as uint32."""
    return (np.uint32(bits(a)) - popcount(smear(a))).astype(np.uint32)


def bfind(a: Array, shift_amount: bool) -> Array:
    """Position of the highest bit that differs from the sign, or the shift that brings it to the top."""
    pattern = np.where(a < 0, ~a, a).view(f"u{a.dtype.itemsize}")
    position = popcount(smear(pattern)) - np.uint32(1)
    if not shift_amount:
        return position
    return np.where(pattern == 0, np.uint32(0xFFFFFFFF), np.uint32(bits(a) - 1) - position)


def brev(a: Array) -> Array:
    """The bits in reverse order."""
    width, kind = bits(a), a.dtype.type
    swap, mask = width // 2, (1 << width) - 1
    pattern = mask
    while swap:
        pattern ^= (pattern << swap) & mask
        a = ((a >> kind(swap)) & kind(pattern)) | ((a & kind(pattern)) << kind(swap))
        swap //= 2
    return a


def bfe(a: Array, position: Array, length: Array) -> Array:
    """`length` bits from bit `position` (uint32, of both the low 8 bits), sign-extended if a is signed."""
    width = bits(a)
    position, length = position & np.uint32(255), length & np.uint32(255)
    last = np.minimum(position.astype(np.int64) + length - 1, width - 1).astype(np.uint32)
    unsigned = a.view(f"u{a.dtype.itemsize}")
    sign = (
        np.where(length == 0, 0, shr(unsigned, last) & unsigned.dtype.type(1)) if a.dtype.kind == "i" else 0
    )
    ones = unsigned.dtype.type((1 << width) - 1)
    mask = np.where(length >= width, ones, ~shl(np.broadcast_to(ones, np.shape(length)), length))
    taken = shr(unsigned, position) & mask
    if a.dtype.kind == "u":
        return taken
    # Bits of the field that lie behind the number, and all above the field, are copies of its sign.
    real = np.maximum(0, np.minimum(length.astype(np.int64), width - position.astype(np.int64)))
    fill = shl(np.broadcast_to(ones, np.shape(length)), real.astype(np.uint32))
    return np.where(sign != 0, taken | fill, taken).astype(unsigned.dtype).view(a.dtype)


def bfi(field: Array, into: Array, position: Array, length: Array) -> Array:
    """`length` bits of `field` put into `into` at bit `position` (the low 8 bits of both count)."""
    position, length = position & np.uint32(255), length & np.uint32(255)
    ones = field.dtype.type((1 << bits(field)) - 1)
    mask = np.where(length >= bits(field), ones, ~shl(np.broadcast_to(ones, np.shape(length)), length))
    placed = shl(mask.astype(field.dtype), position)
    return (into & ~placed) | (shl(field, position) & placed)


def funnel(low: Array, high: Array, amount: Array, left: bool, clamp: bool) -> Array:
    """shf: 32 bits of the 64-bit number high:low, shifted."""
    n = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    n64 = n.astype(np.uint64)
    shifted = (both << n64) >> np.uint64(32) if left else both >> n64
    return (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def lop3(a: Array, b: Array, c: Array, table: int) -> Array:
    """The bitwise function of three numbers that the table names."""
    found = np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c)), np.uint32)
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


def prmt(a: Array, b: Array, selector: Array) -> Array:
    """Four bytes picked from b:a; bit 3 of a nibble copies the byte's sign instead."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.zeros(both.shape, np.uint64)
    for byte in range(4):
        nibble = (selector >> np.uint32(4 * byte)) & np.uint32(15)
        picked = (both >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(np.uint64)) & np.uint64(255)
        signs = np.where(picked & np.uint64(128), np.uint64(255), np.uint64(0))
        result |= np.where(nibble & np.uint32(8), signs, picked) << np.uint64(8 * byte)
    return result.astype(np.uint32)


def clamp_to(x: Array, kind: str, signed: bool, size: int) -> Array:
    """cvt.sat between integers: `x` limited to the range of a type of `size` bytes."""
    low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if signed else (0, (1 << 8 * size) - 1)
    info = np.iinfo(x.dtype)
    low, high = max(low, int(info.min)), min(high, int(info.max))
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(np.dtype(kind))


def join(*parts: Array) -> Array:
    """Two or four parts next to each other, the first lowest."""
    size = parts[0].dtype.itemsize
    joined: Any = parts[0].astype(f"u{size * len(parts)}")
    for number, part in enumerate(parts[1:], 1):
        joined = joined | (part.astype(joined.dtype) << joined.dtype.type(8 * size * number))
    return np.asarray(joined)


def parts_of(word: Array, count: int) -> list[Array]:
    """The parts of a word, the lowest first."""
    size = word.dtype.itemsize // count
    return [(word >> word.dtype.type(8 * size * n)).astype(f"u{size}") for n in range(count)]
