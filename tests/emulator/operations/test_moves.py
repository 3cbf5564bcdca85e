"""Moves: packing and unpacking of registers, floating-point constants."""

import numpy as np

from tests.emulator.written import apply, launch, load, store

LANES = np.arange(32, dtype=np.uint32)


def test_packing():
    low, high = LANES + 7, LANES * 3
    body = load("%r1", 1) + load("%r2", 2) + "mov.b64 %rd1, {%r1, %r2}; mov.b64 {%r3, %r4}, %rd1;"
    body += (
        "mov.b32 {%rs1, %rs2}, %r3; mov.b32 %r5, {%rs2, %rs1}; mov.b64 {_, %r6}, %rd1; xor.b32 %r9, %r5, %r6;"
    )
    out = np.zeros(32, np.uint32)
    launch(body + store("%r9") + "ret;", out, low, high)
    np.testing.assert_array_equal(out, (low << 16) ^ high)


def test_float_constants():
    body = "mov.b32 %r1, 0f3F800000; mov.f32 %r2, 0f40000000; add.rn.ftz.f32 %r9, %r1, %r2;"
    out = np.zeros(32, np.float32)
    launch(body + store("%r9") + "ret;", out)
    assert (out == 3.0).all()
    body = "mov.f32 %r1, 1.5; setp.lt.f32 %p1, %r1, 2.5; selp.f32 %r9, -0.75, 1.0, %p1;"
    launch(body + store("%r9") + "ret;", out)
    assert (out == -0.75).all()
    one = np.ones(4, np.float32)
    assert (apply("mul.rn.ftz.f32", np.float32, one, extra=", 0f40400000") == 3.0).all()
    assert (apply("fma.rn.ftz.f32", np.float32, one, extra=", 2.0, 0.5") == 2.5).all()
