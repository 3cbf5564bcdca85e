"""A text becomes a program once; instructions and operands that are not covered are named."""

import pytest

import emulator
from emulator.errors import PtxError, Unsupported
from emulator.ptx.blocks import compiled
from tests.emulator.written import kernel, raised


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;", "tcgen05.alloc"),
        ("add.cc.u32 %r1, %r2, %r3;", "add.cc.u32 is not covered"),
        ("mul.f32 %r1, %r2, %r3;", "contracted"),
        ("add.rn.f64 %rd1, %rd2, %rd3;", "add.rn.f64 is not covered"),
        ("ld.global.L1::no_allocate.unknown.b32 %r1, [%rd1];", "modifier .unknown"),
        ("ld.const.b32 %r1, [%rd1];", "constant memory"),
        ("mov.u64 %rd1, %clock64;", "special register %clock64 is not covered"),
        ("atom.global.add.bf16x2 %r1, [%rd1], %r2;", "atom.global.add.bf16x2"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};", "mma.sync"),
        ("bar.red.popc.u32 %r1, 0, %p1;", "bar.red"),
    ],
)
def test_instructions_outside_the_coverage(code, said):
    text = raised(Unsupported, f"\n\n{code}\nret;")
    assert (
        said in text and f"PTX line: {kernel('').count(chr(10), 0, kernel('').index('%rd<32>')) + 4}" in text
    )


@pytest.mark.parametrize(
    "code",
    [
        "add.s32 %r1, %r2;",
        "add.s64 %rd1, %r2, %rd3;",
        "mov.b64 %r1, 5;",
        "ld.global.v4.b32 {%r1, %r2}, [%rd1];",
        "selp.b32 %r1, %r2, %r3, %r4;",
        "setp.eq.and.s32 %p1, %r1, %r2;",
        "st.global.b32 [%rd1], {%r1, %r2};",
        "add.s32 5, %r1, %r2;",
        "add.rn.ftz.f32 %r1, %r2, 5;",
        "mov.b32 %r1, nowhere;",
    ],
)
def test_operands_that_do_not_fit(code):
    text = raised(PtxError, f"\n{code}\nret;")
    assert code.rstrip(";") in text and "PTX line" in text


def test_a_text_is_compiled_once():
    text = kernel("mov.b32 %r1, 12345; ret;", "")
    first = compiled(text)
    emulator.launch(text, grid=1, block=1, arguments=[])
    assert compiled(str(text)) is first
