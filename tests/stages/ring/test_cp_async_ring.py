"""The cp.async ring: every element of every page to every warp, read once, in order, and nothing else."""

import re

import numpy as np
import pytest

import emulator
from emulator.counts import Counts
from emulator.errors import Race, UnfinishedAsync, UninitialisedRead
from stages.ring.cp_async_ring import CONTRACT, CpAsyncRing
from tests import layouts, streaming
from tests.device import ARCHITECTURES, compile_kernel
from tests.streaming import HEAD_DIM, PAGE_BYTES, PAGE_SIZE, Streaming, Walk

INT_MAX = 2**31 - 1


def ring(depth: int, pages_per_step: int, warps: int = 4, dead: bool = False) -> Streaming:
    """A micro-kernel around a ring of `depth` pages."""
    return Streaming(CONTRACT, CpAsyncRing(HEAD_DIM, PAGE_SIZE, pages_per_step, warps, depth), warps, dead)


KERNELS = [
    ring(2, 1),
    ring(4, 1),
    ring(16, 1),
    ring(6, 2),
    ring(8, 4),
    ring(10, 4),
    ring(16, 8),
    ring(4, 1, warps=1),
    ring(8, 2, warps=2),
    ring(6, 1, warps=8),
]
"""Rings of 2 to 16 pages, of steps of 1 to 8, of 3 steps, of pages that no step has, and numbers of warps."""


@pytest.mark.pin
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """One barrier and one wait a step; a page takes 4 KiB / 16 B copies, 4 loads a lane and 4 ldmatrix.

    The pages of a whole step are read at once, those of another in a loop; a step of one is always whole.
    """
    ptx = compile_kernel(kernel, arch).ptx
    pages, ahead = kernel.ring.ring_pages_per_step, kernel.ring.steps_ahead
    assert ahead == kernel.ring.depth // pages - 1
    reads = pages + (pages > 1)
    assert ptx.count("bar.sync 0;") == 1
    waits = [int(n) for n in re.findall(r"cp\.async\.wait_group (\d+);", ptx)]
    assert sorted(waits) == sorted([ahead - 1, 0])
    copies = PAGE_BYTES // 16 // (32 * kernel.warps) * pages
    assert ptx.count("cp.async.cg.shared.global") == copies * (ahead + 1)
    assert ptx.count("cp.async.commit_group;") == ahead + 1
    assert ptx.count("ld.shared::cta.v4.b32") == 4 * reads
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16") == 4 * reads


def test_contract():
    """The region holds `depth` pages, and the stage says which launches it was shown to work with."""
    for kernel in KERNELS:
        (region,) = CONTRACT.shared(kernel.ring)
        assert (region.bytes, region.align) == (kernel.ring.depth * PAGE_BYTES, 128)
        assert kernel.warps in CONTRACT.requires["warps"]
        assert kernel.ring.ring_pages_per_step in CONTRACT.requires["ring_pages_per_step"]
        assert kernel.ring.depth in CONTRACT.parameters[0].allowed
    assert CONTRACT.min_arch == 80


def test_a_ring_of_one_step_is_refused():
    """With one step in the ring nothing could be on its way, and no copy would be waited for."""
    for depth, pages in ((2, 2), (6, 4), (8, 8), (4, 8)):
        assert f"depth {depth} holds no two steps of {pages} pages" in CONTRACT.unfit(ring(depth, pages).ring)
    for kernel in KERNELS:
        assert CONTRACT.unfit(kernel.ring) is None


def walks(kernel: Streaming) -> list[int]:
    """Pages of a walk: none, one, as many as the ring has around its end, and several times round."""
    depth = kernel.ring.depth
    return sorted({0, 1, 2, depth - 1, depth, depth + 1, 2 * depth + 1})


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_warp_gets_every_page(kernel, launch):
    """Steps give the walk's pages in order, K in rows and V in columns, to all warps alike.

    The pages are placed at random, the walk begins in the middle of the table, which ends with it, and the
    second of two KV heads is read. A wrong page, head, slot, tile, column or step shows: no word is twice.
    """
    most = max(walks(kernel))
    cache = streaming.make_cache(most + 3, 2)
    table = np.random.default_rng(0).permutation(most + 3).astype(np.int32)
    streaming.check(launch, kernel, cache, table, 1, [Walk(3 + live, 3, live) for live in walks(kernel)])


@pytest.mark.parametrize("kernel", [ring(8, 1, 2), ring(16, 8, 2), ring(48, 1, 2), ring(48, 4, 2)], ids=str)
def test_a_long_walk(kernel, launch):
    """Walks of more than 64 and more than 128 pages: the table's entries are looked up again and again.

    A ring of more than 32 pages asks for the second batch of entries before its first step.
    """
    cache = streaming.make_cache(131, 1)
    table = np.random.default_rng(1).permutation(131).astype(np.int32)
    streaming.check(launch, kernel, cache, table, 0, [Walk(live, 0, live) for live in (65, 131)])


@pytest.mark.parametrize("poison", [-1, INT_MAX, "another page"])
@pytest.mark.parametrize("kernel", [ring(4, 1), ring(4, 2, dead=True), ring(8, 4, dead=True)], ids=str)
def test_dead_pages_are_zeros_and_not_read(kernel, poison, launch):
    """Table entries past the walk are not used, be they no page at all or one that holds NaN.

    Dereferencing the two numbers would leave the cache's allocation. A page of a step that the walk does
    not have is zeros if it is asked for, also where the ring held another page before.
    """
    most = max(walks(kernel))
    cache = streaming.make_cache(most + 1, 1)
    cache[most] = 0x7FC0
    table = np.full(most + 5, most if poison == "another page" else poison, np.int32)
    table[:most] = np.random.default_rng(2).permutation(most)
    streaming.check(launch, kernel, cache, table, 0, [Walk(live + 5, 0, live) for live in walks(kernel)])


def test_reference_has_distinct_words():
    """No element is twice in a page of the cache of these tests, and no pair of neighbours anywhere."""
    cache = streaming.make_cache(40, 2)
    assert np.all([len(np.unique(page)) == page.size for page in cache.reshape(80, -1)])
    words = cache.view(np.uint32)
    assert len(np.unique(words)) == words.size


# ---- what it costs, and what the emulator sees of a fault ------------------------------------------------


def watch(
    kernel: Streaming, live: int, ptx: str | None = None, **more
) -> tuple[Counts, np.ndarray, np.ndarray]:
    """Run on the emulator, with counts: (counts, the table, what the warps read)."""
    cache, counts = streaming.make_cache(live + 2, 2), Counts()
    table = np.random.default_rng(3).permutation(live + 2).astype(np.int32)
    taken = np.zeros(streaming.taken_shape(kernel, live), np.uint32)
    steps = np.zeros((streaming.CTAS, kernel.warps), np.int32)
    where = kernel.where
    emulator.launch(
        ptx or compile_kernel(kernel, ARCHITECTURES[0]).ptx,
        grid=1,
        block=where.block,
        shared_bytes=where.shared_bytes,
        arguments=streaming.arguments(kernel, cache, table, 1, [Walk(live + 2, 0, live)], taken, steps),
        observers=[counts],
        **more,
    )
    return counts, table, taken


@pytest.mark.pin
@pytest.mark.parametrize("live", [1, 7, 20])
@pytest.mark.parametrize(
    "kernel", [ring(4, 1), ring(8, 4), ring(16, 8), ring(4, 1, warps=1), ring(6, 1, warps=8)], ids=str
)
def test_each_page_is_read_once(kernel, live):
    """The CTA reads each byte of its live pages once, and of the cache nothing else; no bank conflicts."""
    counts, table, _ = watch(kernel, live)
    traffic = counts.buffers["argument 0"]
    assert traffic.loaded == live * PAGE_BYTES
    for entry in table[:live]:
        assert traffic.loads_of_each_byte((2 * int(entry) + 1) * PAGE_BYTES, PAGE_BYTES) == (1.0, 1.0)
    assert counts.shared.accesses > 0
    assert counts.shared.extra == 0, counts.conflicts


def test_without_the_exchange_of_chunks_there_are_conflicts():
    """The count above sees conflicts: if V is read as though its chunks were in order, the banks collide."""
    kernel = ring(8, 4)
    ptx = compile_kernel(kernel, ARCHITECTURES[0]).ptx
    slots = "|".join(re.findall(r"and\.b32\s+(%r\d+), %r\d+, 7;", ptx))
    plain, edits = re.subn(rf"xor\.b32(\s+%r\d+, %r\d+), (?:{slots});", r"mov.b32\1;", ptx)
    assert edits == 1
    counts, _, _ = watch(kernel, 8, plain, checks=False)
    assert counts.shared.extra > 0


def conflicts(chunks: np.ndarray) -> int:
    """The most 16-byte accesses to one bank, of 8 lanes whose accesses go to these chunks."""
    banks = (4 * chunks[:, None] + np.arange(4)) % 32
    return int(np.bincount(banks.ravel(), minlength=32).max())


def test_copies_fill_all_banks():
    """The 8 chunks that a quarter-warp copies, half a slot, lie in different banks as well."""
    ptx_order = np.arange(PAGE_BYTES // 16).reshape(-1, 8)
    for chunks in ptx_order:
        slot, column = chunks // 16, chunks % 16
        moved = 16 * slot + (column ^ np.where(column >= 8, slot % 8, slot % 2 * 4))
        assert conflicts(moved) == 1
        assert set(moved) == set(chunks)


def planted(kernel: Streaming, old: str, new: str) -> str:
    """The kernel's PTX with one edit."""
    text, found = re.subn(old, new, compile_kernel(kernel, ARCHITECTURES[0]).ptx)
    assert found == 1, f"{old} occurs {found} times"
    return text


FAULTS = {
    "no wait": (r"cp\.async\.wait_group 2;", ""),
    "a wait for one step less": (r"cp\.async\.wait_group 2;", "cp.async.wait_group 3;"),
    "no barrier": (r"bar\.sync 0;", ""),
    "copies left when the CTA ends": (r"cp\.async\.wait_group 0;", ""),
}


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault, seed):
    """A missing wait, one that waits for too little, and a missing barrier are all reported."""
    kernel = ring(4, 1)
    _, table, taken = watch(kernel, 9, seed=seed)
    cache = streaming.make_cache(11, 2)
    assert np.array_equal(taken, streaming.expected(kernel, cache, table[:9], 1))
    # A warp that is far ahead reads what nobody has begun to copy yet.
    with pytest.raises((Race, UnfinishedAsync, UninitialisedRead)) as caught:
        watch(kernel, 9, planted(kernel, *FAULTS[fault]), seed=seed)
    assert re.search(r"ld\.shared|ldmatrix|cp\.async", caught.value.place.text)


def test_the_lanes_of_a_row_get_their_own_chunks():
    """The tests' reference is the layout that the other stages agree on: K in rows, V in columns."""
    page = np.arange(16 * 128, dtype=np.uint16).reshape(16, 128)
    k, v = layouts.fold_page(page[:, :64]), layouts.fold_page_columns(page[:, 64:])
    lane = 4 * 3 + 2  # g = 3, t = 2
    assert k[0, lane] == int(page[3, 16]) | int(page[3, 17]) << 16
    assert v[8 + 5, lane] == int(page[8 + 4, 64 + 43]) | int(page[8 + 5, 64 + 43]) << 16
