"""Control flow: divergence and reconvergence, predicated instructions, loops."""

import numpy as np
import pytest

from tests.emulator.written import launch, load, run, store

LANES = np.arange(32)


SEEDS = [None, 0, 1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_part_and_meet(seed):
    """Each lane takes its own number of turns in a loop with two ways through it."""
    body = """
    mov.u32 %r1, %tid.x; mov.b32 %r9, 0; mov.b32 %r2, 0;
    LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
    and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
    add.s32 %r9, %r9, 100; bra NEXT;
    EVEN: add.s32 %r9, %r9, 1;
    NEXT: add.s32 %r2, %r2, 1; bra LOOP;
    DONE: activemask.b32 %r4; setp.eq.s32 %p3, %r4, -1; @%p3 bra END;
    mov.b32 %r9, -1;
    END:
    """
    n = np.arange(96)
    np.testing.assert_array_equal(run(body, 96, seed=seed), (n + 1) // 2 + 100 * (n // 2))


def test_predicated_instructions():
    """They keep what was there where the predicate does not hold, moves and constants too."""
    body = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 10;
    mov.b32 %r9, 7; @%p1 mov.b32 %r9, %r1; @!%p1 add.s32 %r9, %r9, 1;
    """
    np.testing.assert_array_equal(run(body), np.where(LANES < 10, LANES, 8))


def test_predicated_memory_instructions():
    """Those threads that do not execute a load may hold any address."""
    data, out = np.arange(100, 132, dtype=np.uint32), np.zeros(32, np.uint32)
    body = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; setp.lt.u32 %p2, %r1, 5; mov.b32 %r9, 3;
    ld.param.u64 %rd1, [a1]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    @!%p2 mov.b64 %rd1, 1;
    @%p2 ld.global.b32 %r9, [%rd1];
    """
    launch(body + store("%r9") + "ret;", out, data)
    np.testing.assert_array_equal(out, np.where(LANES < 5, data, 3))


def test_predicated_return():
    body = "mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 20; @%p1 ret; mov.b32 %r9, 5;"
    np.testing.assert_array_equal(run(body), np.where(LANES > 20, 0, 5))


def test_a_kernel_may_end_without_a_return():
    launch("mov.b32 %r1, 1;")
    launch("")


def test_two_registers_that_were_one():
    """A copy is a copy, though moves cost nothing: partial writes to one leave the other alone."""
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 8; @%p1 bra SOME; bra ALL;
    SOME: add.s32 %r2, %r2, 50;
    ALL: mov.u32 %r4, %laneid; mov.u32 %r9, %r1; @%p1 bra FEW; bra END;
    FEW: add.s32 %r9, %r9, %r2;
    END: add.s32 %r9, %r9, %r1;
    """
    np.testing.assert_array_equal(run(body), np.where(LANES < 8, 3 * LANES + 50, 2 * LANES))
    np.testing.assert_array_equal(run("mov.u32 %r9, %laneid;"), LANES)


def test_values_that_were_loaded_stay():
    """What a block loads outlives a later store to the same place."""
    data = np.arange(32, dtype=np.uint32)
    body = load("%r1", 0) + "st.global.b32 [%rd30], 99;" + "add.s32 %r9, %r1, 1;" + store("%r9", 0) + "ret;"
    launch(body, data)
    np.testing.assert_array_equal(data, LANES + 1)
