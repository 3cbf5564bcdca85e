"""Faults planted in the PTX of real kernels are found, named, in the right place. And no false alarm."""

import functools

import numpy as np
import pytest
import torch

import emulator
from emulator.errors import BarrierFault, Deadlock, EmulatorError, MemoryFault, Race, UnfinishedAsync
from tests.device import compile_kernel
from tests.emulator import handwritten
from tests.emulator.subjects import cluster_ptx, edited, expected, line_of, run_cluster, stage_of
from tests.stages.push.test_dsmem import Pushing
from verification.attention import PAGE_SIZE
from verification.comparison import assert_close
from verification.problems import Layout, Problem, make_problem

SEEDS = [None, *range(19)]


@functools.cache
def problem() -> Problem:
    """Two requests of unlike lengths, the second with a part-filled page."""
    return make_problem([40, 13], max_seq_len=1024, layout=Layout(spare_columns=0))


def plant(kind: type[EmulatorError], match: str, ptx: str, at: str, stage: str, number: int = 0, **more):
    """Assert that an edited kernel fails with this error at an instruction, and in which stage it lies."""
    with pytest.raises(kind, match=match) as caught:
        run_cluster(more.pop("problem", None) or problem(), ptx, **more)
    error = caught.value
    assert error.line == line_of(ptx, at, number), str(error)
    assert stage_of(error) == stage
    assert "attn2_cluster" in error.kernel and "thread" in error.thread
    return error


# ---- the kernel as it is --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cluster_kernel_is_clean(seed):
    """No report, and the right numbers, in any order."""
    given = make_problem([40], max_seq_len=1024)
    assert_close(run_cluster(given, seed=seed), expected(given))


@pytest.mark.parametrize("lengths", [[2048], [0, 5, 1030, 8]])
def test_the_cluster_kernel_is_clean_at_other_lengths(lengths):
    """All steps of a warp, padding, rows without a key."""
    given = make_problem(lengths, max_seq_len=2048)
    for seed in (None, 0):
        assert_close(run_cluster(given, seed=seed), expected(given))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cluster", [1, 4, 16])
def test_the_push_is_clean(cluster, seed):
    """Clusters of one CTA, of some and of the most."""
    kernel = Pushing(cluster, 4)
    run_push(kernel, compile_kernel(kernel, "sm_90a").ptx, seed=seed)


def run_push(kernel: Pushing, ptx: str, **more) -> np.ndarray:
    """The push's micro-kernel on numbers that are all different."""
    where = kernel.where
    given = np.arange(2 * kernel.cluster * 16 * 66, dtype=np.uint32)
    out = np.zeros_like(given)
    emulator.launch(
        ptx,
        grid=where.grid,
        cluster=where.cluster,
        block=where.block,
        shared_bytes=where.shared_bytes,
        arguments=[given, out],
        **more,
    )
    assert np.array_equal(np.sort(out), given)
    return out


# ---- barriers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_missing_cta_barrier(seed):
    """The warps' partials are read with nothing between: a race, though in step the numbers are right."""
    ptx = edited(r"bar\.sync 0;", "")
    if seed is None:
        error = plant(Race, "written by thread", ptx, r"ld\.shared", "stages/warp_merge/shared.py")
        assert f"PTX line {line_of(ptx, 'st.shared', 4)}" in error.message
        assert_close(run_cluster(problem(), ptx, checks=False), expected(problem()))
        return
    with pytest.raises(EmulatorError) as caught:
        run_cluster(problem(), ptx, seed=seed)
    assert stage_of(caught.value) == "stages/warp_merge/shared.py"


def test_a_barrier_that_waits_for_too_many():
    """A deadlock, and the report has who waits where for how many."""
    ptx = edited(r"bar\.sync 0;", "bar.sync 0, 160;")
    with pytest.raises(Deadlock) as caught:
        run_cluster(problem(), ptx)
    text = str(caught.value)
    assert "128 of 160 threads have arrived" in text and f"PTX line {line_of(ptx, 'bar.sync')}" in text


def test_a_barrier_that_a_warp_does_not_reach():
    """One warp has ended; the others wait for 128 threads, by number."""
    body = """
        setp.ge.u32 %p0, %tid, 96;
        @%p0 bra END;
        bar.sync 0, 128;
        END:
    """
    with pytest.raises(Deadlock, match=r"96 of 128 threads have arrived, 32 have ended"):
        handwritten.run(body, block=128)


def test_a_missing_cluster_wait():
    """A store may meet a peer whose mbarrier is not there yet."""
    ptx = edited(r"barrier\.cluster\.wait\.acquire\.aligned;", "")
    match = "behind the mbarrier's initialisation"
    error = plant(BarrierFault, match, ptx, r"st\.async", "stages/push/dsmem.py")
    assert f"PTX line {line_of(ptx, 'mbarrier.init')}" in error.message


def test_a_missing_cluster_barrier():
    """Found too when the CTAs happen to be in step."""
    ptx = edited(r"barrier\.cluster\.(wait\.acquire|arrive\.relaxed)\.aligned;", "", count=2)
    plant(BarrierFault, "initialisation", ptx, r"st\.async", "stages/push/dsmem.py")


def test_a_missing_fence_behind_the_initialisation():
    """The cluster barrier is relaxed: without the fence it orders nothing."""
    ptx = edited(r"fence\.mbarrier_init\.release\.cluster;", "")
    plant(BarrierFault, "initialisation", ptx, r"st\.async", "stages/push/dsmem.py")


# ---- transaction bytes, and what is in flight -----------------------------------------------------------


def test_too_many_transaction_bytes_expected():
    """The kernel hangs: what is missing is in the report."""
    ptx = edited(r"_, \[(%\w+)\], 4224;", r"_, [\1], 4240;")
    with pytest.raises(Deadlock) as caught:
        run_cluster(problem(), ptx)
    text = str(caught.value)
    assert "0 of 1 arrivals and 16 transaction bytes are pending, 0 bytes in flight" in text
    assert f"PTX line {line_of(ptx, 'try_wait')}" in text


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_too_few_transaction_bytes_expected(seed):
    """The phase may end before everything is here."""
    ptx = edited(r"_, \[(%\w+)\], 4224;", r"_, [\1], 4208;")
    with pytest.raises((BarrierFault, UnfinishedAsync, Race)) as caught:
        run_cluster(problem(), ptx, seed=seed)
    if seed is None:
        assert isinstance(caught.value, BarrierFault) and "16 bytes more" in caught.value.message


def test_a_missing_wait_for_the_ranks():
    """Rows are merged while they are in flight."""
    ptx = edited(r"\{ \.reg \.pred done; WAIT_0:.*\}", "")
    where = line_of(ptx, r"st\.async.*v2\.b32")
    number = sum(line_of(ptx, r"ld\.shared", i) < where for i in range(12))
    match = "a read where an asynchronous write is in flight"
    plant(UnfinishedAsync, match, ptx, r"ld\.shared", "stages/cluster_merge/rank_order.py", number)


def test_a_wait_at_cta_scope():
    """What other CTAs have sent needs an acquire at cluster scope."""
    ptx = edited(r"try_wait\.parity\.acquire\.cluster", "try_wait.parity")
    where = line_of(ptx, r"st\.async.*v2\.b32")
    number = sum(line_of(ptx, r"ld\.shared", i) < where for i in range(12))
    plant(Race, "asynchronously", ptx, r"ld\.shared", "stages/cluster_merge/rank_order.py", number)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_cta_that_ends_too_early(seed):
    """Nobody waits, and the CTA's memory goes while its peers still send."""
    ptx = edited(r"\{ \.reg \.pred done; WAIT_0:.*\}", "ret;")
    with pytest.raises((UnfinishedAsync, MemoryFault), match=r"CTA ends|exited") as caught:
        run_cluster(problem(), ptx, seed=seed)
    assert stage_of(caught.value) == "stages/push/dsmem.py"
    with pytest.raises((UnfinishedAsync, MemoryFault), match=r"CTA ends|exited"):
        kernel = Pushing(4, 4)
        push = edited(r"\{ \.reg \.pred done; WAIT_0:.*\}", "ret;", compile_kernel(kernel, "sm_90a").ptx)
        run_push(kernel, push, seed=seed)


def test_a_missing_wait_for_copies():
    """A ring of two slots that reads the one that is being filled."""
    body = """
        mov.u32 %r0, memory;
        shl.b32 %r1, %tid, 4;
        add.u32 %r2, %r0, %r1;
        cvt.u64.u32 %d4, %r1;
        add.u64 %d5, %d0, %d4;
        add.u64 %d6, %d1, %d4;
        cp.async.cg.shared.global [%r2], [%d5], 16;
        cp.async.commit_group;
        cp.async.cg.shared.global [%r2+512], [%d5+512], 16;
        cp.async.commit_group;
        mov.b32 %r8, 0;
        LOOP:
        cp.async.wait_group {pending};
        {meet}
        xor.b32 %r9, %r2, 16;
        ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r9];
        st.global.v4.b32 [%d6], {{%r10, %r11, %r12, %r13}};
        bar.warp.sync -1;
        add.u64 %d5, %d5, 512;
        add.u64 %d6, %d6, 512;
        setp.ge.u32 %p1, %r8, 2;
        @%p1 bra NO_MORE;
        cp.async.cg.shared.global [%r2], [%d5+512], 16;
        NO_MORE:
        cp.async.commit_group;
        xor.b32 %r2, %r2, 512;
        add.u32 %r8, %r8, 1;
        setp.lt.u32 %p0, %r8, 4;
        @%p0 bra LOOP;
        cp.async.wait_all;
    """
    given, out = np.arange(512, dtype=np.uint32), np.zeros(512, np.uint32)

    def made(pending: int, meet: str) -> str:
        return body.format(pending=pending, meet=meet)

    for seed in SEEDS:
        handwritten.run(made(1, "bar.warp.sync -1;"), given, out, seed=seed)
        swapped = given.reshape(4, 16, 2, 4)[:, :, ::-1].ravel()
        assert np.array_equal(out, swapped)
    for seed in (None, 0, 1):
        with pytest.raises(UnfinishedAsync, match="in flight") as caught:
            handwritten.run(made(2, "bar.warp.sync -1;"), given, out, seed=seed)
        text = handwritten.kernel(made(2, ""), 2)
        assert caught.value.line == line_of(text, r"ld\.shared")
        # The wait covers a thread's own copies only: to read another lane's, the warp has to meet.
        with pytest.raises(Race, match="written by thread"):
            handwritten.run(made(1, ""), given, out, seed=seed)


# ---- addresses ------------------------------------------------------------------------------------------


def test_a_table_entry_past_the_end():
    """The clamp of the column, off by one: the last request's row ends with its memory."""
    first = line_of(cluster_ptx(), r"min\.s32")
    above = "\n".join(cluster_ptx().splitlines()[:first])
    clamp = above[above.rindex("add.s32") :].split(";")[0]
    assert clamp.endswith(", -1")
    ptx = edited(clamp, clamp[: -len("-1")] + "0")
    error = plant(
        MemoryFault,
        "behind the end of argument 3",
        ptx,
        r"ld\.global\.b32",
        "stages/pages/walk.py",
        2,
    )
    assert error.address


def test_a_page_too_many():
    """Where a request ends with a page, the next entry is used: it may say anything."""
    given = make_problem([48], max_seq_len=1024)
    given.block_table[0, 48 // PAGE_SIZE] = -1
    run_cluster(given)
    ptx = edited(r"add\.s32\s+(%r\d+), (%r\d+), 15;", r"add.s32 \1, \2, 16;")
    with pytest.raises(MemoryFault, match="out of bounds") as caught:
        run_cluster(given, ptx)
    assert stage_of(caught.value) == "stages/pages/register_prefetch.py"
    assert "ld.global" in caught.value.place.text


@pytest.mark.parametrize(
    ("half", "select"),
    [
        ("k", r"selp\.f32\s+(%r\d+), (%r\d+), 0f00000000, (%p\d+);"),
        ("v", r"selp\.b32\s+(%r\d+), (-?6553[56]), 0, (%p\d+);"),
    ],
)
def test_a_masked_slot_that_is_computed_with(half, select):
    """Poison in slots that no row sees comes out in the numbers: no check sees it, the reference does."""
    ptx = edited(select, r"selp.b32 \1, \2, \2, \3;", count=None)
    layout = Layout(v_poison=0.0) if half == "k" else Layout(k_poison=0.0)
    given = make_problem([13], max_seq_len=1024, layout=layout)
    assert_close(run_cluster(given), expected(given))
    out = run_cluster(given, ptx)
    assert torch.isnan(out.float()).any()
    with pytest.raises(AssertionError):
        assert_close(out, expected(given))


def test_what_is_planted_is_all_that_is_wrong():
    """The edits leave the text's lines where they are."""
    ptx = edited(r"bar\.sync 0;", "bar.sync 0, 128;")
    assert ptx.count("\n") == cluster_ptx().count("\n")
    assert_close(run_cluster(problem(), ptx), expected(problem()))
