"""How many CTAs a multiprocessor holds at once: by registers, shared memory, threads and slots.

Contract
    Limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", for
    compute capabilities 9.0 and 10.0, which agree in all of them. Rounding is that of the occupancy
    calculator (`cuda_occupancy.h` of the CUDA toolkit): registers are allocated a warp, in units of 256, from
    the quarter of the multiprocessor that the warp runs on; shared memory a CTA, in units of 128 bytes, with
    1 KiB more that the driver reserves. That the CTAs of a cluster have to be resident together is not
    counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.contract import MAX_SHARED_BYTES

CAPABILITIES = (90, 100)
"""The architectures whose limits these are: 90 for sm_90 and sm_90a."""

REGISTERS = 65_536
"""Of a multiprocessor, 32 bits each."""

REGISTER_UNIT = 256
"""Registers of a warp are allocated in multiples of this."""

QUARTERS = 4
"""Parts of a multiprocessor; each has its share of the registers, and runs its share of the warps."""

MAX_REGISTERS = 255
"""Of a thread."""

SHARED_BYTES = 228 * 1024
"""Shared memory of a multiprocessor."""

RESERVED_BYTES = 1024
"""Shared memory that the driver reserves in each CTA."""

SHARED_UNIT = 128
"""Shared memory is allocated in multiples of this."""

WARP = 32
"""Threads of a warp."""

THREADS = 2048
"""Threads of a multiprocessor."""

CTA_THREADS = 1024
"""The most threads of one CTA."""

SLOTS = 32
"""CTAs of a multiprocessor, however small."""


@dataclass(frozen=True)
class Residency:
    """CTAs that fit on a multiprocessor, by each resource alone."""

    registers: int
    shared_memory: int
    threads: int
    slots: int = SLOTS

    @property
    def ctas(self) -> int:
        """By all of them."""
        return min(self.registers, self.shared_memory, self.threads, self.slots)

    @property
    def limit(self) -> str:
        """The resource that allows the fewest, in words; of equals the first."""
        by_resource = {
            "registers": self.registers,
            "shared memory": self.shared_memory,
            "threads": self.threads,
            "slots": self.slots,
        }
        return min(by_resource, key=lambda name: by_resource[name])


def residency(arch: str, *, registers: int, shared_bytes: int, threads: int) -> Residency | None:
    """How many CTAs fit; None for an architecture whose limits are not known here.

    registers: a thread's. shared_bytes: a CTA's, without what the driver reserves. threads: a CTA's.
    """
    if capability(arch) not in CAPABILITIES:
        return None
    return Residency(by_registers(registers, threads), by_shared_memory(shared_bytes), by_threads(threads))


def capability(arch: str) -> int:
    """The number in an architecture's name: 90 for sm_90a."""
    return int(re.sub(r"\D", "", arch))


def by_registers(registers: int, threads: int) -> int:
    """CTAs of so many threads whose registers fit."""
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    # The launch check takes a CTA's warps to be spread evenly over the quarters.
    if registers > MAX_REGISTERS or of_a_warp * (-(-warps // QUARTERS) * QUARTERS) > REGISTERS:
        return 0
    return REGISTERS // QUARTERS // of_a_warp * QUARTERS // warps if of_a_warp else SLOTS


def allocated_bytes(shared_bytes: int) -> int:
    """Shared memory that a CTA takes of its multiprocessor, the reserved bytes included."""
    return -(-(shared_bytes + RESERVED_BYTES) // SHARED_UNIT) * SHARED_UNIT


def by_shared_memory(shared_bytes: int) -> int:
    """CTAs whose shared memory fits."""
    if shared_bytes > MAX_SHARED_BYTES:
        return 0
    return SHARED_BYTES // allocated_bytes(shared_bytes)


def by_threads(threads: int) -> int:
    """CTAs whose warps fit."""
    return 0 if threads > CTA_THREADS else THREADS // (-(-threads // WARP) * WARP)
