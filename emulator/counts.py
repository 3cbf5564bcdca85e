"""Counts what a launch does: instructions, global traffic, shared-memory conflicts.

Contract
    An observer; it judges nothing. Counts add up over the waves of a launch, and over launches if one
    `Counts` watches several.

    Instructions are counted by opcode as it stands in the PTX, a predicated one as if its predicate held.
    "Warps" counts an instruction once for each warp that issues it, which is what an issue slot costs; the
    lanes of a warp that come by separately are counted separately.

    Traffic is what threads ask for; there is no cache. A sector is 32 aligned bytes of a buffer; a warp's
    access touches each sector once, however many lanes ask for it.

    Shared memory has 32 banks of 4 bytes. A warp's access is split as the hardware splits it: 32 lanes of up
    to 4 bytes together, 8 bytes by half-warps, 16 bytes by quarter-warps. Each part takes as many wavefronts
    as the most different words that fall into one bank; all but the first are extra. Lanes that read the
    same word do not conflict.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

import numpy as np

from emulator.arrays import Array
from emulator.ptx.program import Block
from emulator.wave.observing import Access, Observer, Wave
from emulator.wave.threads import Group

SECTOR = 32
"""Bytes of a sector."""

BANKS = 32
"""Banks of shared memory, each 4 bytes wide."""

_READS = ("load", "atomic", "async read")
_WRITES = ("store", "atomic", "async write")


@dataclass
class BufferTraffic:
    """What was asked of one global buffer.

    loaded, stored: bytes. load_sectors, store_sectors: 32-byte sectors, summed over the warps' accesses.
    by_sector: bytes loaded from each sector, uint32; the buffer begins `shift` bytes into the first.
    """

    name: str
    bytes: int
    shift: int = 0
    loaded: int = 0
    stored: int = 0
    load_sectors: int = 0
    store_sectors: int = 0
    by_sector: Array = field(repr=False, default_factory=lambda: np.zeros(0, np.uint32))

    def loaded_from(self, offset: int, size: int) -> int:
        """Bytes loaded from `size` bytes at `offset`, which begin and end with a sector."""
        return int(self._sectors(offset, size).sum())

    def loads_of_each_byte(self, offset: int, size: int) -> tuple[float, float]:
        """How often the bytes of a range were loaded: the least and the most, by whole sectors.

        (1.0, 1.0) says that each byte was loaded once. The range has to be whole sectors.
        """
        often = self._sectors(offset, size) / SECTOR
        return float(often.min()), float(often.max())

    def _sectors(self, offset: int, size: int) -> Array:
        first = offset + self.shift
        if first % SECTOR or size % SECTOR:
            raise ValueError(f"{size} bytes from byte {offset} are not whole sectors of {SECTOR} bytes")
        return self.by_sector[first // SECTOR : (first + size) // SECTOR]


@dataclass
class SharedTraffic:
    """What was asked of shared memory.

    loaded, stored: bytes, remote ones too. remote: bytes to or from another CTA's memory. accesses: of warps.
    wavefronts: all, extra: those that bank conflicts cost.
    """

    loaded: int = 0
    stored: int = 0
    remote: int = 0
    accesses: int = 0
    wavefronts: int = 0
    extra: int = 0


@dataclass
class _Ran:
    """A basic block, and how often threads and warps have run it."""

    block: Block
    threads: int = 0
    warps: int = 0


class Counts(Observer):
    """Counts of a launch; read them when it has ended."""

    def __init__(self) -> None:
        self.shared = SharedTraffic()
        self.conflicts: collections.Counter[str] = collections.Counter()
        """Extra wavefronts, by the access's place: "opcode, PTX line n"."""
        self.buffers: dict[str, BufferTraffic] = {}
        self._ran: dict[int, _Ran] = {}
        self._window = 0

    # ---- what happened -----------------------------------------------------------------------------

    def begin(self, machine: Wave) -> None:
        """Another wave."""
        self._window = machine.shared_window

    def block(self, block: Block, group: Group) -> None:
        """A block runs: its instructions are added up when someone asks."""
        entry = self._ran.setdefault(id(block), _Ran(block))
        entry.threads += group.size
        entry.warps += _warps(group.warp)

    def access(self, access: Access) -> None:
        """Bytes are touched."""
        if access.group.size == 0:
            return
        if access.space == "global":
            self._global(access)
        elif access.space == "shared":
            self._shared(access)

    def _global(self, access: Access) -> None:
        region = access.region
        traffic = self.buffers.get(region.name)
        if traffic is None:
            size, shift = int(region.nbytes), int(region.base % SECTOR)
            by_sector = np.zeros(-(-(size + shift) // SECTOR), np.uint32)
            traffic = self.buffers[region.name] = BufferTraffic(region.name, size, shift, by_sector=by_sector)
        total = access.size * access.group.size
        sectors = _sectors(access, traffic.shift)
        if access.kind in _READS:
            traffic.loaded += total
            traffic.load_sectors += sectors
            first = (access.offsets + traffic.shift) // SECTOR
            if access.size <= SECTOR:
                np.add.at(traffic.by_sector, first, access.size)
            else:
                for i in range(access.size // SECTOR):
                    np.add.at(traffic.by_sector, first + i, SECTOR)
        if access.kind in _WRITES:
            traffic.stored += total
            traffic.store_sectors += sectors

    def _shared(self, access: Access) -> None:
        total, shared = access.size * access.group.size, self.shared
        shared.loaded += total * (access.kind in _READS)
        shared.stored += total * (access.kind in _WRITES)
        here = access.offsets // self._window == access.group.cta
        shared.remote += access.size * int(access.group.size - np.count_nonzero(here))
        if access.size > 16 or not here.all() or access.kind.startswith("async"):
            # Copies take their own way, and what a peer's banks do is not this warp's wait.
            return
        accesses, wavefronts, parts = _wavefronts(access, self._window)
        shared.accesses += accesses
        shared.wavefronts += wavefronts
        shared.extra += wavefronts - parts
        if wavefronts > parts:
            instruction = access.instruction
            self.conflicts[f"{instruction.opcode}, PTX line {instruction.line}"] += wavefronts - parts

    # ---- what it adds up to ------------------------------------------------------------------------

    @property
    def by_opcode(self) -> dict[str, tuple[int, int]]:
        """For each opcode: (times a thread executed it, times a warp issued it)."""
        found: dict[str, list[int]] = {}
        for ran in self._ran.values():
            for instruction in ran.block.instructions:
                entry = found.setdefault(instruction.opcode, [0, 0])
                entry[0] += ran.threads
                entry[1] += ran.warps
        return {opcode: (threads, warps) for opcode, (threads, warps) in sorted(found.items())}

    def threads(self, beginning: str = "") -> int:
        """Times that threads executed an opcode that begins so, by whole dotted parts; "" for all."""
        return self._sum(beginning, 0)

    def warps(self, beginning: str = "") -> int:
        """Times that warps issued an opcode that begins so, by whole dotted parts; "" for all."""
        return self._sum(beginning, 1)

    @property
    def mma(self) -> int:
        """Matrix multiplications that warps issued."""
        return self.warps("mma")

    def _sum(self, beginning: str, which: int) -> int:
        wanted = beginning.split(".") if beginning else []
        items = self.by_opcode.items()
        return sum(count[which] for opcode, count in items if opcode.split(".")[: len(wanted)] == wanted)


def _warps(warp: Array) -> int:
    """How many warps there are in an ascending list of each thread's warp."""
    return int(np.count_nonzero(warp[1:] != warp[:-1])) + 1 if len(warp) else 0


def _distinct(keys: Array) -> Array:
    """The different ones of some keys, ascending."""
    keys = np.sort(keys)
    return keys[np.concatenate(([True], keys[1:] != keys[:-1]))]


def _sectors(access: Access, shift: int) -> int:
    """Sectors that the warps' accesses touch."""
    if access.size > SECTOR:
        return access.group.size * (access.size // SECTOR)
    sectors = (access.offsets + shift) // SECTOR
    if access.group.full_warps:
        rows = np.sort(sectors.reshape(-1, 32), axis=1)
        return int(np.count_nonzero(rows[:, 1:] != rows[:, :-1])) + len(rows)
    # The warp above, the sector below: 2**40 sectors are 32 TiB.
    return len(_distinct((access.group.warp << 40) | sectors))


def _wavefronts(access: Access, window: int) -> tuple[int, int, int]:
    """(warps' accesses, wavefronts, parts that each take at least one) of an access to shared memory."""
    # Lanes that go together: 32 of 4 bytes, 16 of 8, 8 of 16. A lane's aligned words lie in as many banks
    # side by side, so it is enough to look at each lane's first.
    width = max(access.size, 4)
    group = access.group
    part = group.warp * 4 + group.lane * width // 128
    unit = access.offsets % window // width
    banks = BANKS * 4 // width
    keys = _distinct((part << 32) | unit)
    slot = (keys >> 32) * banks + (keys & 0xFFFFFFFF) % banks
    words = np.bincount(slot, minlength=(int(keys[-1] >> 32) + 1) * banks)
    deepest = words.reshape(-1, banks).max(axis=1)
    return _warps(group.warp), int(deepest.sum()), int(np.count_nonzero(deepest))
