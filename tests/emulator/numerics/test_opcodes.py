"""Opcodes and the functions they stand for: which are known, with which types, and which are refused."""

import re

import numpy as np
import pytest

from emulator.numerics import opcodes
from tests.golden.instructions import FAMILIES

RECORDED = sorted(
    {
        match
        for _, texts in FAMILIES.values()
        for text in texts
        for match in re.findall(r"[a-z]\w*\.\S+(?= )", text)
    }
    - {"mov.b32", "mov.b16", "selp.b32"}
)
"""Every opcode whose results on an H200 are recorded."""

TYPES = {"f32": np.float32, "bf16": np.uint16, "f16": np.uint16, "b32": np.uint32}
TYPES |= {f"{s}{b}": np.dtype(f"{'i' if s == 's' else 'u'}{b // 8}") for s in "su" for b in (8, 16, 32, 64)}
TYPES |= {"bf16x2": np.uint32, "f16x2": np.uint32}


@pytest.mark.parametrize("opcode", RECORDED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_known(opcode):
    """Takes and gives arrays of the width of its types, of any length, and leaves its inputs alone."""
    function = opcodes.find(opcode)
    for size in (1, 67):
        given = [np.zeros(size, TYPES[kind]) for kind in function.inputs]
        for array in given:
            array.view(np.uint8)[:] = np.random.default_rng(size).integers(0, 256, array.nbytes)
            array.flags.writeable = False
        result = np.asarray(function.run(*given))
        assert result.shape == (size,)
        if function.output == "pred":
            assert result.dtype == np.bool_
        else:
            assert result.dtype.itemsize == np.dtype(TYPES[function.output]).itemsize


@pytest.mark.parametrize(
    "opcode",
    [
        "add.f32",  # may be contracted
        "mul.ftz.f32",
        "fma.f32",
        "add.rn.f64",
        "add.s32",
        "max.s32",
        "max.xorsign.abs.f32",
        "setp.lt.s32",
        "setp.lo.f32",
        "tanh.approx.ftz.f32",
        "tanh.f32",
        "ex2.f32",
        "rsqrt.rn.f32",
        "cvt.f32.s32",  # without a rounding mode
        "cvt.s32.f32",
        "cvt.rn.f16.s32",
        "cvt.rni.rzi.s32.f32",
        "cvt.s64.s32",
        "fma.rn.sat.bf16x2",
        "mma.sync",
        "cvt",
    ],
)
def test_refused(opcode):
    """What is not covered is refused, by name."""
    with pytest.raises(opcodes.UnknownOpcode, match=re.escape(opcode)):
        opcodes.find(opcode)


def test_why_plain_arithmetic_is_refused():
    """The reason names what is missing."""
    with pytest.raises(opcodes.UnknownOpcode, match="rounding mode"):
        opcodes.find("add.f32")
