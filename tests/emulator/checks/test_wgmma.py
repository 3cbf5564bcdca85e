"""Faults planted around a wgmma are found, each at its instruction; and no false alarm."""

import numpy as np
import pytest

from emulator.errors import Divergence, Race, UnfinishedAsync, UninitialisedRead
from tests.emulator.operations.test_wgmma import IMAGES, SUMS, text, whole
from tests.emulator.warpgroups import edited, raises, run
from tests.numerics import from_bf16

PROXY = "fence.proxy.async.shared::cta;\n"
FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"
BARRIER = "bar.sync 0;\n"
ADDED = SUMS[:, :64]
PTX = text(64)
EXPECTED = from_bf16(whole(1, 64, 16)) @ from_bf16(whole(2, 64, 16)).T + ADDED
SEEDS = [None, 0, 1]

WARPS_APART = "{ .reg .pred one; setp.lt.u32 one, %tid, 32; @one bra MEET; PLANTED MEET: }\n"
"""Something that all warps but the first execute."""

OVERWRITE = """\
{ .reg .b32 other; add.u32 other, %tid, 32; and.b32 other, other, 127; shl.b32 other, other, 4;
mov.u32 %to, memory; add.u32 %to, %to, other; st.shared.b32 [%to], 0; }
"""
"""Each thread overwrites 4 bytes of A that belong to another warp's rows."""


def clean(ptx: str) -> None:
    """Assert that a kernel is reported for nothing, in any order, and gives the right numbers."""
    for seed in SEEDS:
        assert np.array_equal(run(ptx, IMAGES, ADDED, seed=seed), EXPECTED)


def found(kind: type, match: str, ptx: str, at: str) -> None:
    """Assert that a kernel is reported, at the instruction with this text, and in any other order too."""
    raises(kind, match, ptx, IMAGES, ADDED, at)
    raises((kind, UninitialisedRead), None, ptx, IMAGES, ADDED, seed=0)


# ---- proxy fences ---------------------------------------------------------------------------------------

ELECTED = "{ .reg .pred not; setp.ne.u32 not, %tid, 0; @not bra MEET; " + PROXY + " MEET: }\n"


@pytest.mark.parametrize(
    "new",
    [
        PROXY + BARRIER,
        BARRIER + PROXY,
        "fence.proxy.async;\n" + BARRIER,
        BARRIER + ELECTED + BARRIER,
    ],
    ids=["writers", "readers", "all memory", "one thread between barriers"],
)
def test_a_fence_in_between(new):
    """By those who wrote, by those who read, or by one thread between the ones and the others."""
    clean(edited(PTX, PROXY + BARRIER, new))


@pytest.mark.parametrize(
    "new",
    [
        BARRIER,
        "fence.proxy.async.global;\n" + BARRIER,
        "fence.acq_rel.gpu;\n" + BARRIER,
        ELECTED + BARRIER,
        WARPS_APART.replace("PLANTED", PROXY) + BARRIER,
        BARRIER + WARPS_APART.replace("PLANTED", PROXY),
    ],
    ids=["none", "global memory", "another fence", "one writer", "one warp of writers not", "one reader not"],
)
def test_no_proxy_fence(new):
    """Operands written by st.shared, and not every write and every read has a fence in between."""
    found(Race, "no fence.proxy.async in between", edited(PTX, PROXY + BARRIER, new), "wgmma.mma_async")


def test_a_proxy_fence_that_is_too_early():
    """Before the stores it says nothing about them."""
    ptx = edited(edited(PTX, PROXY, ""), "FILL:\n", PROXY + "FILL:\n")
    found(Race, "no fence.proxy.async in between", ptx, "wgmma.mma_async")


COPY = "cp.async.cg.shared.global [%to], [%from], 16;"
STORE = "st.shared.v4.b32 [%to], {%v0, %v1, %v2, %v3};"
TRACKED = """\
cp.async.mbarrier.arrive.noinc.shared.b64 [barrier];
{ .reg .pred done; POLL: mbarrier.try_wait.parity.shared::cta.b64 done, [barrier], 0; @!done bra POLL; }
"""
READY = """\
.shared .align 8 .b64 barrier;
{ .reg .pred other; setp.ne.u32 other, %tid, 0; @other bra READY; mbarrier.init.shared.b64 [barrier], 128;
READY: bar.sync 0; }
ld.param.u64 %image, [image];
"""


@pytest.mark.parametrize("tracked", [False, True])
def test_operands_by_cp_async(tracked):
    """cp.async is of the generic proxy, however it is waited for."""
    wait = TRACKED if tracked else "cp.async.wait_all;\n"
    ptx = edited(PTX, STORE, COPY)
    ptx = edited(ptx, "ld.param.u64 %image, [image];\n", READY) if tracked else ptx
    clean(edited(ptx, PROXY + BARRIER, wait + PROXY + BARRIER))
    if tracked:
        clean(edited(ptx, PROXY + BARRIER, wait + PROXY))
    found(Race, "no fence.proxy.async", edited(ptx, PROXY + BARRIER, wait + BARRIER), "wgmma.mma_async")
    found(UnfinishedAsync, "where an asynchronous write is in flight", ptx, "wgmma.mma_async")


def test_operands_of_other_warps_without_a_barrier():
    """What another warp has stored is a race, as for any read."""
    found(Race, "are not ordered", edited(PTX, BARRIER, ""), "wgmma.mma_async")


# ---- registers ------------------------------------------------------------------------------------------


def test_no_wgmma_fence():
    """The first mma_async needs one."""
    found(Race, "no wgmma.fence is before", edited(PTX, FENCE, ""), "wgmma.mma_async")


@pytest.mark.parametrize("planted", ["mov.b32 %d7, 0;\n", "add.u32 %to, %d7, 1;\n", "add.u32 %d7, %to, 1;\n"])
def test_a_register_behind_the_wgmma_fence(planted):
    """Written or read between the fence and the mma_async that accumulates in it."""
    ptx = edited(PTX, FENCE, FENCE + planted)
    found(Race, "the register %d7 has been read or written since", ptx, "wgmma.mma_async")


@pytest.mark.parametrize(
    "planted", ["mov.b32 %d7, 0;\n", "add.u32 %to, %d7, 1;\n", "st.global.b32 [%result], %d7;\n"]
)
@pytest.mark.parametrize("before", [COMMIT, WAIT])
def test_an_accumulator_in_flight(planted, before):
    """Written or read between the mma_async and the wait, before the commit or behind it."""
    ptx = edited(PTX, before, planted + before)
    found(UnfinishedAsync, "the register %d7 is used while it is an accumulator", ptx, planted.strip(";\n"))


def test_a_move_is_a_new_name():
    """As compilers leave them; what the new name holds is in flight like the old."""
    body = "mov.b32 %word, %d7;\n"
    again = "mov.b32 %d7, %word;\n"
    clean(edited(PTX, WAIT, body + WAIT))
    found(
        UnfinishedAsync,
        "the register %d7 is used",
        edited(PTX, WAIT, body + again + WAIT),
        again.strip(";\n"),
    )
    ptx = edited(PTX, WAIT, body + "add.u32 %to, %word, 1;\n" + WAIT)
    found(UnfinishedAsync, "the register %word is used", ptx, "add.u32 %to, %word, 1")


@pytest.mark.parametrize(
    ("old", "new"),
    [(WAIT, ""), (WAIT, WAIT.replace(" 0", " 1")), (COMMIT, ""), (COMMIT + WAIT, WAIT + COMMIT)],
)
def test_no_wait(old, new):
    """None, for one group too few, without a group, or before the group is closed."""
    found(UnfinishedAsync, "%d0 is used while it is an accumulator", edited(PTX, old, new), "+0], %d0;")


def test_the_end_in_flight():
    """Nobody uses the result, and nobody has waited."""
    ptx = edited(PTX, WAIT, "ret;\n")
    found(UnfinishedAsync, "the warp ends and nobody has waited for the mma_async at PTX line", ptx, "")


FROM_REGISTERS = edited(
    PTX, "%left, %right, %add, 1, 1, 0, 0;", "{%a0, %a1, %a2, %a3}, %right, %add, 1, 1, 0;"
)
FROM_REGISTERS = edited(
    FROM_REGISTERS, FENCE, "".join(f"mov.b32 %a{i}, {0x3F803F80};\n" for i in range(4)) + FENCE
)


def test_a_from_registers():
    """It is fenced, and left alone until the wait."""
    for seed in SEEDS:
        got = run(FROM_REGISTERS, IMAGES, ADDED, seed=seed)
        assert np.array_equal(got, from_bf16(whole(2, 64, 16)).sum(axis=1) + ADDED)
    ptx = edited(FROM_REGISTERS, FENCE, FENCE + "mov.b32 %a2, 0;\n")
    found(Race, "the register %a2 has been read or written since", ptx, "wgmma.mma_async")
    ptx = edited(FROM_REGISTERS, WAIT, "mov.b32 %a2, 0;\n" + WAIT)
    found(UnfinishedAsync, "the register %a2 is used while it is A", ptx, "mov.b32 %a2, 0")


def test_several_mma_async_of_one_shape():
    """They follow each other without a fence; of another shape, or in use as A, they do not."""
    line = next(line for line in PTX.splitlines() if line.startswith("wgmma.mma_async")) + "\n"
    for seed in SEEDS:
        got = run(edited(PTX, line, 2 * line), IMAGES, ADDED, seed=seed)
        assert np.array_equal(got, 2 * EXPECTED - ADDED)
    other = line.replace("n64", "n32").replace(", ".join(f"%d{i}" for i in range(16, 32)), "")
    other = other.replace("%d15, }", "%d15}")
    found(UnfinishedAsync, "the register %d", edited(PTX, line, line + other), other.strip(";\n"))


def test_two_groups():
    """A wait for all but the youngest group frees the older one's registers and operands alone."""
    line = next(line for line in PTX.splitlines() if line.startswith("wgmma.mma_async")) + "\n"
    ptx = edited(PTX, ".reg .b32 %a<4>;\n", ".reg .b32 %a<4>;\n.reg .b32 %e<32>;\n")
    zeros = "".join(f"mov.b32 %e{i}, 0;\n" for i in range(32))
    ptx = edited(ptx, FENCE, zeros + FENCE)
    ptx = edited(ptx, COMMIT, COMMIT + line.replace("%d", "%e").replace("%left", "%right") + COMMIT)
    ptx = edited(ptx, WAIT, WAIT.replace(" 0", " 1"))
    ptx = edited(ptx, "ret;\n", WAIT + "ret;\n")
    clean(ptx)
    planted = "add.u32 %to, %e3, 1;\n"
    found(UnfinishedAsync, "%e3 is used while", edited(ptx, WAIT, planted + WAIT), planted.strip(";\n"))
    clean(edited(ptx, WAIT, BARRIER + OVERWRITE + WAIT))
    second = BARRIER + OVERWRITE.replace("%to, %to, other", "%to, %to, other; add.u32 %to, %to, 32768")
    match = "of a wgmma that may still read it"
    found(UnfinishedAsync, match, edited(ptx, WAIT, second + WAIT), "st.shared.b32 [%to], 0")


def test_warps_that_do_not_do_the_same():
    """One warp has another group than the other three."""
    ptx = edited(PTX, WAIT, WAIT + WARPS_APART.replace("PLANTED", COMMIT + WAIT))
    with_match = "did not execute the same wgmma instructions"
    raises(Divergence, with_match, ptx, IMAGES, ADDED)


# ---- shared memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [COMMIT, WAIT])
def test_an_operand_overwritten_in_flight(before):
    """Before the wait any write is too early, whatever orders it."""
    ptx = edited(PTX, before, BARRIER + OVERWRITE + before)
    raises(UnfinishedAsync, "of a wgmma that may still read it", ptx, IMAGES, ADDED, "st.shared.b32 [%to], 0")


def test_an_operand_overwritten_behind_the_wait():
    """The wait is that of the reading warp: for others a barrier has to follow."""
    found(Race, "are not ordered; read", edited(PTX, WAIT, WAIT + OVERWRITE), "st.shared.b32 [%to], 0")
    clean(edited(PTX, WAIT, WAIT + BARRIER + OVERWRITE))


def test_an_operand_overwritten_by_a_bulk_copy():
    """Its issue is a write."""
    bulk = """\
    { .reg .pred other; setp.ne.u32 other, %tid, 0; @other bra READY; mbarrier.init.shared.b64 [barrier], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 64; mov.u32 %to, memory;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%to], [%image], 64, [barrier];
    READY: bar.sync 0;
    POLL: mbarrier.try_wait.parity.shared::cta.b64 other, [barrier], 0; @!other bra POLL; }
    """
    declared = ".shared .align 8 .b64 barrier;\n"
    for before, kind, match in ((WAIT, UnfinishedAsync, "may still read it"), ("ret;\n", Race, "; read")):
        ptx = edited(PTX, ".reg .b32 %a<4>;\n", declared + ".reg .b32 %a<4>;\n")
        ptx = edited(ptx, before, bulk + before)
        raises(kind, match, ptx, IMAGES, ADDED, "cp.async.bulk")
    clean(edited(ptx, bulk, BARRIER + bulk))
