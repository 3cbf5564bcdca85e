"""Arguments of a launch: arrays of every layout, scalars, and what does not fit the parameters."""

import numpy as np
import pytest
import torch

from emulator.errors import (
    LaunchError,
    Unsupported,
)
from tests.emulator.written import fault, launch, load, store

LANES = np.arange(32, dtype=np.uint32)


COPY_ROW = """
    mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [a1]; ld.param.u32 %r2, [a2];
    mul.wide.s32 %rd2, %r1, %r2; add.s64 %rd1, %rd1, %rd2; ld.global.b32 %r9, [%rd1];
"""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_strided_arguments(kind):
    """The kernel gets the address of the first element and may touch what lies up to the last."""
    whole = np.arange(32 * 12, dtype=np.int32).reshape(32, 12)
    column = whole[:, 5] if kind == "numpy" else torch.from_numpy(whole)[:, 5]
    out = np.zeros(32, np.uint32)
    launch(COPY_ROW + store("%r9") + "ret;", out, column, 48)
    np.testing.assert_array_equal(out, whole[:, 5])
    # One column further the last row's element lies behind the last byte of the argument.
    fault("ld.param.u64 %rd1, [a1]; ld.global.b32 %r9, [%rd1+1492]; ret;", out, column, 48)


def test_negative_strides():
    data, out = LANES.copy(), np.zeros(32, np.uint32)
    launch(COPY_ROW + store("%r9") + "ret;", out, data[::-1], -4, parameters=".u64 .u64 .u32")
    np.testing.assert_array_equal(out, data[::-1])


def test_tensors_are_written_in_place():
    out = torch.zeros(32, dtype=torch.bfloat16)
    launch("mov.b32 %r9, 16256;" + store("%r9", 0, 2) + "ret;", out)
    assert (out == 1.0).all()


def test_a_slice_keeps_its_misalignment():
    data = np.zeros(65, np.uint32)[1:]
    body = "ld.param.u64 %rd1, [a0]; ld.global.v2.b32 {%r1, %r2}, [%rd1]; ret;"
    assert "aligned to 8" in fault(body, data)
    assert "aligned to 8" in fault(body, torch.zeros(65)[1:])


def test_the_same_array_twice_is_one_buffer():
    data = LANES.copy()
    body = load("%r1", 1) + "add.s32 %r1, %r1, 1;" + store("%r1", 0) + "ret;"
    launch(body, data, data)
    np.testing.assert_array_equal(data, LANES + 1)
    out = np.zeros(1, np.uint32)
    body = "ld.param.u64 %rd1, [a1]; ld.param.u64 %rd2, [a2]; setp.eq.u64 %p1, %rd1, %rd2;"
    body += "selp.b32 %r9, 1, 0, %p1;"
    launch(body + store("%r9") + "ret;", out, data, data, threads=1)
    assert out[0] == 1


def test_scalars():
    out = np.zeros(4, np.uint64)
    body = """
    ld.param.u64 %rd1, [a0]; ld.param.u32 %r1, [a1]; ld.param.f32 %r2, [a2]; ld.param.b64 %rd3, [a3];
    cvt.u64.u32 %rd4, %r1; cvt.u64.u32 %rd5, %r2;
    st.global.b64 [%rd1], %rd4; st.global.b64 [%rd1+8], %rd5; st.global.b64 [%rd1+16], %rd3; ret;
    """
    launch(body, out, -2, 1.5, -3, threads=1, parameters=".u64 .u32 .f32 .u64")
    assert out.tolist() == [0xFFFFFFFE, 0x3FC00000, 0xFFFFFFFFFFFFFFFD, 0]


def test_parts_of_scalars():
    """A register may take a part of an argument, little-endian, as compilers have it do."""
    out = np.zeros(4, np.uint32)
    body = """
    ld.param.u64 %rd1, [a0]; ld.param.b32 %r1, [a1]; ld.param.b32 %r2, [a1+4]; ld.param.b16 %rs1, [a1+2];
    cvt.u32.u16 %r3, %rs1; st.global.b32 [%rd1], %r1; st.global.b32 [%rd1+4], %r2;
    st.global.b32 [%rd1+8], %r3; ret;
    """
    launch(body, out, 0x0123456789ABCDEF, threads=1, parameters=".u64 .u64")
    assert out.tolist() == [0x89ABCDEF, 0x01234567, 0x89AB, 0]


@pytest.mark.parametrize("at", ["[a1+8]", "[a1+2]", "[a1+-4]"])
def test_parts_that_no_scalar_has(at):
    with pytest.raises(Unsupported, match=r"4 bytes at -?\d of a parameter of 8"):
        launch(f"ld.param.b32 %r1, {at}; ret;", 0, 1, threads=1, parameters=".u64 .u64")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1.0, 2, 3.0), "argument 0 is 1.0, and the parameter .u64: a whole number"),
        ((0, 2.5, 3.0), "argument 1 is 2.5"),
        ((0, 2, "x"), "argument 2 is 'x', and the parameter .f32: a float"),
        ((0, LANES, 3.0), "argument 1 is an array, and the parameter .u32"),
        ((0, 1 << 32, 3.0), "which 32 bits cannot hold"),
        ((0, True, 3.0), "argument 1 is True"),
        ((0, 2), r"2 arguments for 3 parameters \(.u64, .u32, .f32\)"),
        ((0, 2, 3.0, 4), "4 arguments for 3 parameters"),
    ],
)
def test_arguments_that_do_not_fit(arguments, said):
    with pytest.raises(LaunchError, match=said):
        launch("ret;", *arguments, parameters=".u64 .u32 .f32")
