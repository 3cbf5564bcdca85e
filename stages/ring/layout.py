"""How a page lies in a ring's shared memory, as the lanes of a warp read it.

Contract
    A page is `page_size` slots of K and V side by side, 4 * head_dim bytes a slot, slot after slot. Lane
    4 g + t reads, of slot 8 n + g, the 16-byte chunks that are its fragments (`stages.fragments`). Where the
    bytes lie within a slot is up to the ring: two slots are a multiple of all 32 banks apart, so that without
    care neighbouring slots' chunks would meet in the same banks.

    Pure functions; they touch no memory.
"""

from stages.fragments import TILE

REGION_ALIGN = 128
"""Alignment of a ring's region: what moves chunks about flips bits of their addresses, all below it."""


def slot_bytes(head_dim: int) -> int:
    """Bytes of one slot: K and V of one cache entry and KV head."""
    return 4 * head_dim


def page_bytes(head_dim: int, page_size: int) -> int:
    """Bytes of one page of one KV head."""
    return page_size * slot_bytes(head_dim)


def tiles(page_size: int) -> int:
    """Tiles of 8 slots in a page."""
    return page_size // TILE
