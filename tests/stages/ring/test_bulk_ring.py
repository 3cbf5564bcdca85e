"""The bulk ring: what the cp.async ring's tests ask, V in rows, and its mbarriers' arithmetic."""

import re

import numpy as np
import pytest

import emulator
from emulator.counts import Counts
from emulator.errors import EmulatorError
from stages.ring.bulk_ring import BARRIER_BYTES, CONTRACT, BulkRing
from tests import streaming
from tests.device import ARCHITECTURES, compile_kernel
from tests.streaming import HEAD_DIM, PAGE_BYTES, PAGE_SIZE, Streaming, Walk


def ring(depth: int, pages_per_step: int, warps: int = 4) -> Streaming:
    """A micro-kernel around a ring of `depth` pages."""
    return Streaming(CONTRACT, BulkRing(HEAD_DIM, PAGE_SIZE, pages_per_step, depth), warps)


KERNELS = [ring(2, 1), ring(4, 1), ring(2, 2), ring(6, 2), ring(8, 4), ring(16, 8), ring(6, 1, warps=8)]
"""Rings of 2 to 16 pages, of a single step too, steps of 1 to 8, and numbers of warps."""


def walks(kernel: Streaming) -> list[int]:
    """Pages of a walk: none, one, as many as the ring has around its end, and several times round."""
    depth = kernel.ring.depth
    return sorted({0, 1, 2, depth - 1, depth, depth + 1, 2 * depth + 1, 4 * depth})


@pytest.mark.pin
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """A barrier for each step of the ring with one arrival; one bulk copy a page; 16-byte loads.

    The pages of a whole step are read at once, those of another in a loop; a step of one is always whole.
    """
    ptx = compile_kernel(kernel, arch).ptx
    steps, pages = kernel.ring.steps, kernel.ring.ring_pages_per_step
    reads = pages + (pages > 1)
    assert re.findall(r"mbarrier\.init\S* \[%\w+\], (\d+);", ptx) == ["1"] * steps
    assert ptx.count("cp.async.bulk.shared::cluster.global") == steps * pages
    assert ptx.count("bar.sync 0;") == 2
    assert ptx.count("ld.shared::cta.v4.b32") == 8 * reads


def test_contract():
    """The region holds the pages, and behind them a barrier for each step, of which there is one at least."""
    for kernel in KERNELS:
        (region,) = CONTRACT.shared(kernel.ring)
        assert region.bytes == kernel.ring.depth * PAGE_BYTES + kernel.ring.steps * BARRIER_BYTES
        assert region.align == 128
        assert CONTRACT.unfit(kernel.ring) is None
        assert not kernel.ring.v_columns
    assert CONTRACT.unfit(ring(4, 8).ring) == "a ring of depth 4 holds no step of 8 pages"


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_warp_gets_every_page(kernel, launch):
    """Steps give the walk's pages in order, K and V in rows, to all warps alike.

    The pages are placed at random, the walk begins in the middle of the table, the second of two KV heads is
    read, and entries past the walk are no pages. No word is twice.
    """
    most = max(walks(kernel))
    cache = streaming.make_cache(most + 3, 2)
    placement = np.random.default_rng(0).permutation(most + 3).astype(np.int32)
    for dead in (0, 3):
        table = np.concatenate([placement, np.full(dead, -1, np.int32)])
        across = [Walk(3 + live + dead, 3, live) for live in walks(kernel)]
        streaming.check(launch, kernel, cache, table, 1, across)


@pytest.mark.parametrize("kernel", [ring(8, 4, warps=2), ring(48, 1, warps=2)], ids=str)
def test_a_long_walk(kernel, launch):
    """The table's entries are looked up again and again, in the ring's first steps too."""
    cache = streaming.make_cache(131, 1)
    table = np.random.default_rng(1).permutation(131).astype(np.int32)
    streaming.check(launch, kernel, cache, table, 0, [Walk(131, 0, 131)])


def watch(kernel: Streaming, live: int, ptx: str, **more) -> tuple[Counts, np.ndarray, bool]:
    """Run on the emulator, with counts: (counts, the table, whether what the warps read is right)."""
    cache, counts = streaming.make_cache(live + 2, 2), Counts()
    table = np.random.default_rng(3).permutation(live + 2).astype(np.int32)
    taken = np.zeros(streaming.taken_shape(kernel, live), np.uint32)
    steps = np.zeros((streaming.CTAS, kernel.warps), np.int32)
    where = kernel.where
    emulator.launch(
        ptx,
        grid=1,
        block=where.block,
        shared_bytes=where.shared_bytes,
        arguments=streaming.arguments(kernel, cache, table, 1, [Walk(live + 2, 0, live)], taken, steps),
        observers=[counts],
        **more,
    )
    right = np.array_equal(taken, streaming.expected(kernel, cache, table[:live], 1))
    return counts, table, right


@pytest.mark.pin
@pytest.mark.parametrize("live", [1, 7, 20])
@pytest.mark.parametrize("kernel", [ring(4, 1), ring(8, 4), ring(16, 8)], ids=str)
def test_each_page_is_read_once(kernel, live):
    """The CTA reads each byte of its live pages once, and of the cache nothing else; no bank conflicts."""
    counts, table, right = watch(kernel, live, compile_kernel(kernel, ARCHITECTURES[0]).ptx)
    assert right
    traffic = counts.buffers["argument 0"]
    assert traffic.loaded == live * PAGE_BYTES
    for entry in table[:live]:
        assert traffic.loads_of_each_byte((2 * int(entry) + 1) * PAGE_BYTES, PAGE_BYTES) == (1.0, 1.0)
    assert counts.shared.extra == 0, counts.conflicts


FAULTS = {
    "no wait": r"\{ \.reg \.pred done; WAIT_\d+:.*\}",
    "no barrier in the loop": r"bar\.sync 0;(?![\s\S]*bar\.sync 0;)",
}


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault, seed):
    """A missing wait or barrier is reported."""
    kernel = ring(4, 1)
    ptx = compile_kernel(kernel, ARCHITECTURES[0]).ptx
    assert watch(kernel, 9, ptx, seed=seed)[2]
    planted, found = re.subn(FAULTS[fault], "", ptx)
    assert found == 1
    with pytest.raises(EmulatorError):
        watch(kernel, 9, planted, seed=seed)
