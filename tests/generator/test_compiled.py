"""What the compiler makes of the generated kernels, with no GPU: resources and arithmetic, pinned."""

import re
from pathlib import Path

import pytest

from generator.compiled import CompileError, compile_variant, count_instructions, load_module, opcodes

GENERATED = Path(__file__).resolve().parent.parent.parent / "generated" / "attn2.py"

PINNED = {
    ("cluster", "sm_90a"): (121, 21768),
    ("cluster", "sm_100a"): (124, 21768),
    ("split", "sm_90a"): (161, 67592),
    ("split", "sm_100a"): (182, 67592),
    ("split windowed", "sm_90a"): (168, 67592),
    ("split windowed", "sm_100a"): (196, 67592),
}
"""Registers a thread and shared bytes a CTA, of the compiler in constraints.txt, of every form without PDL.

More registers can mean fewer CTAs an SM. Change a number here only together with a new measurement.
"""

PARAMETERS = {"cluster": (12, 1), "split": (14, 2)}
"""The 64-bit parameters of a kernel, pointers and strides, and its integers; each has two numbers besides."""


@pytest.fixture(scope="module")
def module():
    return load_module(GENERATED)


@pytest.fixture(scope="module", params=PINNED, ids="-".join)
def form(request):
    """A variant, perhaps its windowed form, and an architecture."""
    return request.param


@pytest.fixture(scope="module")
def report(form, module):
    name, arch = form
    variant, _, windowed = name.partition(" ")
    shared = next(v for v in module.VARIANTS if v.name == variant).kernel.shared_bytes
    return compile_variant(module, "attn2", variant, shared, arch, windowed=bool(windowed))


def test_every_form_is_pinned(module):
    """What the module has is what is pinned: a variant that serves windows has a form for them."""
    forms = {v.name for v in module.VARIANTS}
    forms |= {f"{v.name} windowed" for v in module.VARIANTS if v.windows}
    assert {name for name, _ in PINNED} == forms


def test_registers_and_shared_memory_are_pinned(form, report):
    """No spills, no stack, and the registers that were measured."""
    assert (report.spill_bytes, report.stack_bytes) == (0, 0)
    assert (report.registers, report.shared_bytes) == PINNED[form]


def test_all_fp32_arithmetic_is_spelled_out(report):
    """`mul.f32` without rounding and flushing leaves bits to the compiler; so does a contracted fma."""
    kinds = r"(add|sub|mul|fma|mad|div|ex2|rcp|rsqrt|sqrt)\."
    arithmetic = [o for o in opcodes(report.ptx) if re.match(kinds, o)]
    floating = [o for o in arithmetic if o.endswith(".f32")]
    assert len(floating) > 100
    assert {o for o in floating if ".ftz." not in o} == set()
    assert {o.split(".")[0] for o in floating if ".rn." not in o} == {"ex2", "rcp", "rsqrt"}


def test_the_entry_takes_pointers_and_scalars(report):
    """The PTX signature is readable: pointers, strides, integers, two numbers, in the order of the call."""
    parameters = re.search(r"\.entry \w+\((.*?)\)", report.ptx, re.DOTALL).group(1)
    kinds = re.findall(r"\.param (\.\w+)", parameters)
    wide, integers = PARAMETERS[report.variant]
    assert kinds == [".u64"] * wide + [".u32"] * integers + [".f32"] * 2
    assert f"attn2_{report.variant}" in report.ptx


def test_each_page_is_loaded_with_16_bytes_a_lane(report):
    """K and V of two pages: 2 * 4 KiB / 32 lanes / 16 B = 16 loads, kept out of L1; none is narrower.

    The split kernel loads one page before its loop and one in it. Its ring copies 4 KiB / 128 threads / 16 B
    = 2 chunks a thread, seven pages before its loop and one in it.
    """
    loads = [o for o in opcodes(report.ptx) if o.startswith("ld.global.L1::no_allocate")]
    assert loads == ["ld.global.L1::no_allocate.v4.b32"] * 16
    copies = [o for o in opcodes(report.ptx) if o.startswith("cp.async.cg")]
    assert len(copies) == (16 if report.variant == "split" else 0)
    assert set(copies) <= {"cp.async.cg.shared.global"}


def test_pdl_changes_the_kernel(module):
    """With PDL the kernel waits for its producers before it reads anything."""
    plain = compile_variant(module, "attn2", "cluster", 0, "sm_90a")
    pdl = compile_variant(module, "attn2", "cluster", 0, "sm_90a", pdl=True)
    assert "griddepcontrol" not in plain.ptx
    order = [o for o in opcodes(pdl.ptx) if o.startswith(("griddepcontrol", "ld.global"))]
    assert order[:2] == ["griddepcontrol.launch_dependents", "griddepcontrol.wait"]


def test_compiling_twice_gives_the_same_ptx(module):
    """The kernel's text depends on its source alone."""
    first, second = (compile_variant(module, "attn2", "cluster", 0, "sm_90a").ptx for _ in range(2))
    assert first == second


def test_an_unknown_architecture_is_an_error(module):
    """The compiler's own complaint, under the kernel's name."""
    with pytest.raises(CompileError, match=r"attn2.cluster does not compile for sm_12"):
        compile_variant(module, "attn2", "cluster", 0, "sm_12")


def test_instructions_are_counted():
    """Labels, directives, predicates and comments are no instructions."""
    ptx = """
    .visible .entry k(.param .u64 a) .reqntid 32, 1, 1 {
        .reg .b32 %r<4>; // add.s32 in a comment
    $L__BB0_3:
        @%p1 bra $L__BB0_3;
        ld.shared::cta.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];
        { .reg .pred done; WAIT_1: mbarrier.try_wait.parity.b64 done, [%r1], 0; @!done bra WAIT_1; }
        ld.global.b32 %r1, [%rd1]; ex2.approx.ftz.f32 %r1, %r2;
        ret;
    }"""
    counts = count_instructions(ptx)
    assert (counts["all"], counts["ld.shared"], counts["ld.global"], counts["ex2"]) == (7, 1, 1, 1)
