"""Memory of a wave: where addresses point, bounds and alignment, loads and stores.

Contract
    Implements `wave.protocols.Memory`. Shared memory of all CTAs of the wave is one region with a window for
    each CTA; it and local memory start full of POISON. Addresses are checked for all threads before any byte
    moves.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from emulator.arrays import Array
from emulator.errors import MemoryFault
from emulator.ptx.instruction import Instruction
from emulator.ptx.layout import LOCAL_WINDOW, RANK_SHIFT, SHARED_START, SHARED_WINDOW
from emulator.wave.geometry import Geometry
from emulator.wave.hooks import Hooks
from emulator.wave.observing import Access
from emulator.wave.protocols import Resolved
from emulator.wave.regions import Region
from emulator.wave.threads import Group

POISON = 0xDE
"""Odd bytes of shared memory and registers before anything is written; the even ones are POISON_HIGH."""

POISON_HIGH = 0xFF
"""With POISON it makes 0xFFDE: NaN as BF16, in both halves and as a whole of FP32, and a huge integer."""

_WINDOW_SHIFT = 40


def poison(count: int, dtype: Any) -> Array:
    """An array full of poison; True for predicates."""
    size = np.dtype(dtype).itemsize
    if size == 1:
        return np.ones(count, dtype)
    return np.full(count, int.from_bytes(bytes((POISON, POISON_HIGH)) * (size // 2), "little"), dtype)


class WaveMemory:
    """The memory that threads of one wave see.

    cta_alive: threads of each CTA that have not ended, as the machine keeps it. shared_bytes: a CTA's;
    local_bytes: a thread's.
    """

    def __init__(
        self,
        geometry: Geometry,
        cta_alive: Array,
        hooks: Hooks,
        buffers: Sequence[Region],
        shared_bytes: int,
        local_bytes: int,
    ):
        self.geometry = geometry
        self.cta_alive = cta_alive
        self.hooks = hooks
        self.shared_bytes = shared_bytes
        self.window = -(-shared_bytes // 16) * 16
        shared = poison(geometry.cta_count * self.window // 2, np.uint16).view(np.uint8)
        self.shared = Region("shared", "shared", SHARED_START, shared)
        self.local_bytes = local_bytes
        local = poison(geometry.thread_count * local_bytes // 2, np.uint16).view(np.uint8)
        self.local = Region("local", "local", 0, local)
        self.buffers = sorted(buffers, key=lambda region: region.base)
        self.bases = [region.base for region in self.buffers]

    # -- where addresses point

    def resolve(
        self, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[Resolved]:
        """See `wave.protocols.Memory`."""
        at = addresses.view(np.int64) if addresses.dtype.itemsize == 8 else addresses.astype(np.int64)
        if size & (size - 1) == 0 and (at & (size - 1)).any():
            element = int(np.flatnonzero(at & (size - 1))[0])
            self.fail(f"{size} bytes have to be aligned to {size}", at, element, group, instruction)
        if space == "global":
            return self.resolve_global(at, size, group, instruction)
        if space.startswith("shared"):
            return [(self.shared, self.shared_offsets(space, at, size, group, instruction), None)]
        if space == "local":
            return [(self.local, self.local_offsets(at, size, group, instruction), None)]
        return self.resolve_generic(at, size, group, instruction)

    def resolve_global(
        self, at: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[Resolved]:
        """Of one buffer in most cases: that of the first thread."""
        number = bisect.bisect_right(self.bases, int(at[0])) - 1
        if number >= 0:
            region = self.buffers[number]
            offsets = at - region.base
            if size <= region.nbytes and offsets.view(np.uint64).max() <= region.nbytes - size:
                return [(region, offsets, None)]
        numbers = np.searchsorted(np.array(self.bases, np.int64), at, side="right") - 1
        places: list[Resolved] = []
        for number in np.unique(numbers).tolist():
            elements = np.flatnonzero(numbers == number)
            if number < 0:
                self.outside(at, size, int(elements[0]), group, instruction)
            region = self.buffers[number]
            offsets = at[elements] - region.base
            wrong = offsets > region.nbytes - size
            if wrong.any():
                self.outside(at, size, int(elements[np.argmax(wrong)]), group, instruction)
            places.append((region, offsets, elements))
        return places

    def shared_offsets(
        self, space: str, at: Array, size: int, group: Group, instruction: Instruction
    ) -> Array:
        """Offsets in the region of all CTAs."""
        inside = at - SHARED_START
        cta = group.cta
        if inside.view(np.uint64).max() > (1 << RANK_SHIFT) - SHARED_START - 1:
            # Some addresses name a CTA of the cluster.
            owner = at >> RANK_SHIFT
            wrong = (at < SHARED_START) | (owner > self.geometry.cluster_size)
            if wrong.any():
                self.outside(at, size, int(np.argmax(wrong)), group, instruction)
            named = np.where(owner > 0, group.cta - group.rank + owner - 1, group.cta)
            if space == "shared::cta" and (named != group.cta).any():
                element = int(np.argmax(named != group.cta))
                self.fail(
                    "an address in another CTA's shared memory in an instruction for the CTA's own",
                    at,
                    element,
                    group,
                    instruction,
                )
            cta = named
            inside = (at & ((1 << RANK_SHIFT) - 1)) - SHARED_START
            if (self.cta_alive[cta] == 0).any():
                element = int(np.argmax(self.cta_alive[cta] == 0))
                self.fail("shared memory of a CTA that has exited", at, element, group, instruction)
        if inside.view(np.uint64).max() > self.shared_bytes - size or size > self.shared_bytes:
            wrong = (inside < 0) | (inside > self.shared_bytes - size)
            self.outside(at, size, int(np.argmax(wrong)), group, instruction)
        offsets: Array = inside + cta * self.window
        return offsets

    def local_offsets(self, at: Array, size: int, group: Group, instruction: Instruction) -> Array:
        """Offsets in the region of all threads."""
        wrong = (at < 0) | (at > self.local_bytes - size)
        if wrong.any():
            self.outside(at, size, int(np.argmax(wrong)), group, instruction)
        offsets: Array = at + group.threads * self.local_bytes
        return offsets

    def resolve_generic(
        self, at: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[Resolved]:
        """By the window that an address lies in."""
        window = at >> _WINDOW_SHIFT
        places: list[Resolved] = []
        for name, start in (("shared::cluster", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("global", 0)):
            if start:
                here = window == start >> _WINDOW_SHIFT
            else:
                here = (window != SHARED_WINDOW >> _WINDOW_SHIFT) & (window != LOCAL_WINDOW >> _WINDOW_SHIFT)
            elements = np.flatnonzero(here)
            if not elements.size:
                continue
            found = self.resolve(name, at[elements] - start, size, group.take(elements), instruction)
            places += [
                (region, offsets, elements if sub is None else elements[sub])
                for region, offsets, sub in found
            ]
        return places

    def access(
        self, kind: str, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[Resolved]:
        """See `wave.protocols.Memory`."""
        places = self.resolve(space, addresses, size, group, instruction)
        if kind != "load":
            for region, _, elements in places:
                if not region.writable:
                    at = addresses.astype(np.int64)
                    element = 0 if elements is None else int(elements[0])
                    self.fail(
                        f"a write to {region.name}, which is read-only", at, element, group, instruction
                    )
        if self.hooks.access:
            for region, offsets, elements in places:
                sub = group if elements is None else group.take(elements)
                self.hooks.access(Access(kind, region.space, region, offsets, size, sub, instruction))
        return places

    # -- moving data

    def load_words(
        self, space: str, at: Array, width: int, count: int, group: Group, instruction: Instruction
    ) -> list[Array]:
        """Read `count` words of `width` bytes a thread: unsigned arrays [group.size]."""
        places = self.access("load", space, at, width * count, group, instruction)
        if len(places) == 1:
            region, offsets, _ = places[0]
            return _take(region, offsets, width, count)
        words = [np.empty(group.size, f"u{width}") for _ in range(count)]
        for region, offsets, elements in places:
            for word, found in zip(words, _take(region, offsets, width, count), strict=True):
                word[elements] = found
        return words

    def store_words(
        self, space: str, at: Array, words: Sequence[Array], group: Group, instruction: Instruction
    ) -> None:
        """Write unsigned arrays [group.size], next to each other."""
        width = words[0].dtype.itemsize
        for region, offsets, elements in self.access(
            "store", space, at, width * len(words), group, instruction
        ):
            view = region.words(width)
            index = offsets >> (width.bit_length() - 1)
            for number, word in enumerate(words):
                view[index + number if number else index] = word if elements is None else word[elements]

    # -- errors

    def outside(self, at: Array, size: int, element: int, group: Group, instruction: Instruction) -> NoReturn:
        """Raise MemoryFault for an address in nothing, and say what is near."""
        self.fail(
            f"{size} bytes out of bounds; {self.near(int(at[element]))}", at, element, group, instruction
        )

    def near(self, address: int) -> str:
        """What lies near an address, in words."""
        if self.local_bytes == 0 and abs(address) < 1 << 28:
            low = address & ((1 << RANK_SHIFT) - 1)
            return (
                f"shared memory of a CTA is {self.shared_bytes} bytes from {SHARED_START:#x}, and this "
                f"is byte {low - SHARED_START} of it; no buffer lies here"
            )
        closest, distance = "no buffer is near", 1 << 40
        for region in self.buffers:
            behind, before = address - (region.base + region.nbytes), region.base - address
            if -region.nbytes <= behind < distance and before <= 0:
                distance = max(behind, 0)
                where = f"{behind} bytes behind the end" if behind >= 0 else f"{-behind} bytes before the end"
                closest = f"{where} of {region.name} ({region.nbytes} bytes)"
            elif 0 < before < distance:
                distance, closest = before, f"{before} bytes before {region.name} ({region.nbytes} bytes)"
        return closest

    def fail(self, message: str, at: Array, element: int, group: Group, instruction: Instruction) -> NoReturn:
        """Raise MemoryFault for one thread's address."""
        address = f"{int(at[element]) & (1 << 64) - 1:#x}"
        raise MemoryFault(message, place=instruction.place, thread=group.describe(element), address=address)


def _take(region: Region, offsets: Array, width: int, count: int) -> list[Array]:
    view = region.words(width)
    index = offsets >> (width.bit_length() - 1)
    return [view[index + number if number else index] for number in range(count)]
