"""Resident CTAs: against values of NVIDIA's own calculator, and at the edges of each resource."""

import pytest

from generator.occupancy import Residency, by_registers, by_shared_memory, residency

CALCULATED = {
    # (registers a thread, threads, shared bytes): CTAs a multiprocessor
    (16, 32, 0): 32,
    (32, 1024, 0): 2,
    (40, 1024, 0): 1,
    (40, 256, 33000): 6,
    (64, 96, 21768): 10,
    (96, 160, 0): 4,
    (127, 96, 21768): 5,
    (127, 128, 21768): 4,
    (127, 128, 50184): 4,
    (128, 512, 0): 1,
    (160, 96, 1024): 4,
    (168, 128, 50184): 3,
    (169, 128, 50184): 2,
    (168, 128, 82984): 2,
    (168, 128, 214024): 1,
    (195, 128, 50184): 2,
    (255, 128, 76800): 2,
    (16, 128, 76800): 3,
    (16, 128, 76801): 2,
    (16, 128, 115712): 2,
    (16, 128, 115713): 1,
    (16, 128, 232448): 1,
    (255, 512, 0): 0,
}
"""What `cudaOccMaxActiveBlocksPerMultiprocessor` of CUDA 13.0's cuda_occupancy.h gives.

For compute capabilities 9.0 and 10.0 alike, with 65,536 registers, 2,048 threads and 228 KiB of shared memory
a multiprocessor, 1 KiB reserved a CTA, and no carveout asked for.
"""


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("kernel", "ctas"), CALCULATED.items())
def test_as_the_occupancy_calculator(arch, kernel, ctas):
    """Every resource limits some of them."""
    registers, threads, shared = kernel
    found = residency(arch, registers=registers, threads=threads, shared_bytes=shared)
    assert found is not None and found.ctas == ctas


def test_the_limiting_resource_is_named():
    """The one that allows the fewest CTAs."""
    for kernel, limit in (
        ((168, 128, 50184), "registers"),
        ((16, 128, 82984), "shared memory"),
        ((16, 1024, 0), "threads"),
        ((16, 32, 0), "slots"),
    ):
        registers, threads, shared = kernel
        found = residency("sm_90a", registers=registers, threads=threads, shared_bytes=shared)
        assert found is not None and found.limit == limit


def test_registers_are_those_of_a_quarter():
    """65,536 registers hold 12 warps of 168: a quarter's 16,384 hold 3, although 65,536 // 5,376 is 12 too.

    With 200 registers a thread the file would hold 10 warps of 6,400, and its quarters hold 2 each.
    """
    assert by_registers(168, 32) == 12
    assert 65536 // (200 * 32) == 10 and by_registers(200, 32) == 8


def test_reserved_shared_memory_counts():
    """Three CTAs of a third of 228 KiB less 1 KiB fit, and of one byte more two."""
    third = 228 * 1024 // 3
    assert by_shared_memory(third - 1024) == 3
    assert by_shared_memory(third - 1023) == 2
    assert (by_shared_memory(227 * 1024), by_shared_memory(227 * 1024 + 1)) == (1, 0)


def test_unknown_architectures_have_no_answer():
    """Other architectures have other limits."""
    assert residency("sm_120a", registers=32, threads=128, shared_bytes=0) is None
    assert Residency(3, 4, 16).ctas == 3
