"""Atomics: threads that meet in one cell, of every width and in every memory."""

import numpy as np
import pytest

from tests.emulator.written import launch, load, store

LANES = np.arange(32, dtype=np.uint32)
DYNAMIC = ".extern .shared .align 16 .b8 dynamic[];\n"


def update(opcode: str, start, operand: np.ndarray, extra: str = "", **more):
    """Threads update one cell; returns the cell and what each thread saw."""
    cell, seen = np.array([start], operand.dtype), np.zeros(len(operand), operand.dtype)
    size = operand.dtype.itemsize
    r = "%rd" if size == 8 else "%r"
    body = load(f"{r}1", 2, size) + f"ld.param.u64 %rd10, [a0]; {opcode} {r}9, [%rd10], {r}1{extra};"
    launch(body + store(f"{r}9", 1, size) + "ret;", cell, seen, operand, threads=len(operand), **more)
    return cell[0], seen


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_atomics_meet_in_one_cell(seed):
    values = np.arange(1, 65, dtype=np.uint32)
    cell, seen = update("atom.global.add.u32", 10, values, seed=seed)
    assert cell == 10 + values.sum()
    order = np.argsort(seen)
    np.testing.assert_array_equal(seen[order], 10 + np.cumsum(values[order]) - values[order])
    assert update("atom.relaxed.gpu.global.max.s32", -5, values.view(np.int32), seed=seed)[0] == 64
    assert update("atom.global.min.u32", 5, values, seed=seed)[0] == 1
    assert update("atom.global.or.b32", 128, values, seed=seed)[0] == 255
    assert update("atom.global.and.b32", 0xFF, values, seed=seed)[0] == 0
    assert update("atom.global.xor.b32", 0, values, seed=seed)[0] == np.bitwise_xor.reduce(values)
    cell, seen = update("atom.global.exch.b32", 7, values, seed=seed)
    assert sorted([*seen, cell]) == sorted([7, *values])
    cell, seen = update("atom.global.inc.u32", 0, np.full(64, 9, np.uint32), seed=seed)
    assert cell == 4 and sorted(seen) == sorted(i % 10 for i in range(64))
    cell, seen = update("atom.global.dec.u32", 3, np.full(64, 9, np.uint32), seed=seed)
    assert sorted(seen) == sorted([3, 2, 1, *((9 - i) % 10 for i in range(61))]) or cell <= 9


def test_atomics_of_64_bits():
    values = np.full(33, 1 << 40, np.uint64)
    assert update("atom.acq_rel.gpu.global.add.u64", 3, values)[0] == 3 + 33 * (1 << 40)


def test_compare_and_swap():
    expected = np.full(32, 5, np.uint32)
    body = ", %r2"
    cell, seen = np.array([5], np.uint32), np.zeros(32, np.uint32)
    code = load("%r1", 2) + "mov.u32 %r2, %laneid; add.s32 %r2, %r2, 100; ld.param.u64 %rd10, [a0];"
    code += f"atom.global.cas.b32 %r9, [%rd10], %r1{body};" + store("%r9", 1) + "ret;"
    launch(code, cell, seen, expected)
    winner = np.flatnonzero(seen == 5)
    assert len(winner) == 1 and cell[0] == 100 + winner[0]


def test_float_atomics_and_reductions():
    values = np.full(64, 0.5, np.float32)
    cell = np.zeros(1, np.float32)
    body = load("%r1", 1) + "ld.param.u64 %rd10, [a0]; red.relaxed.gpu.global.add.f32 [%rd10], %r1; ret;"
    launch(body, cell, values, threads=64)
    assert cell[0] == 32.0


def test_atomics_in_shared_memory():
    out = np.zeros(64, np.uint32)
    body = """
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; mov.b32 %r2, dynamic; @%p1 bra GO; mov.b32 %r3, 0;
    st.shared.b32 [%r2], %r3; GO: bar.sync 0; atom.shared.add.u32 %r4, [%r2], 2; bar.sync 0;
    ld.shared.b32 %r9, [%r2];
    """
    launch(body + store("%r9") + "ret;", out, threads=64, shared_bytes=16, before=DYNAMIC)
    assert (out == 128).all()
