"""What the compiler makes of the generated kernels, with no GPU.

Of every shipped variant: that it compiles, and how. Of the variants of the tests' own spec: numbers.
"""

import copy
import re

import pytest
import yaml

from generator.compiled import (
    ARCHITECTURES,
    CompileError,
    Report,
    compile_variant,
    count_instructions,
    load_module,
    opcodes,
)
from generator.render import generate
from tests.modules import PINNED as SPEC
from tests.modules import VARIANTS, module_of
from variants.kernels.base import SHARED_ALIGN

PINNED = {
    ("cluster", "sm_90a"): (127, 0, 21768),
    ("cluster", "sm_100a"): (122, 0, 21768),
    ("split", "sm_90a"): (168, 0, 50184),
    ("split", "sm_100a"): (168, 64, 50184),
    ("split windowed", "sm_90a"): (168, 0, 50184),
    ("split windowed", "sm_100a"): (168, 0, 50184),
    ("batch", "sm_90a"): (168, 0, 50184),
    ("batch", "sm_100a"): (168, 128, 50184),
    ("batch windowed", "sm_90a"): (168, 0, 50184),
    ("batch windowed", "sm_100a"): (168, 136, 50184),
}
"""Registers a thread, spilled bytes and shared bytes a CTA, of every form without PDL.

They are those of the compiler in constraints.txt. More registers can mean fewer CTAs an SM; 168 are the most
with which an SM has three of 128 threads. Change a number here only together with a new measurement.
"""

RINGS = {
    ("cp_async_ring", 2, "sm_100a"): (195, 50184),
    ("bulk_ring", 3, "sm_90a"): (168, 50200),
    ("bulk_ring", 2, "sm_100a"): (195, 50200),
}
"""Registers and shared bytes of the split kernel, by its ring and the most `resident_ctas` without spills.

What is shipped is not repeated.
"""

PARAMETERS = {
    "cluster": [".u64"] * 12 + [".u32"] + [".f32"] * 2,
    "split": [".u64"] * 14 + [".u32"] * 3 + [".f32"] * 2,
    "batch": [".u64"] * 14 + [".u32"] * 3 + [".f32"] * 2,
}
"""What a kernel is given: pointers and strides, integers, two numbers."""


SHIPPED = [
    (name, windowed, arch)
    for name, (_, variant) in VARIANTS.items()
    for windowed in ((False, True) if variant.windows else (False,))
    for arch in ARCHITECTURES
]
"""Every form without PDL of every shipped variant, for each architecture."""

REPORTS: dict[tuple, Report] = {}
"""What was compiled, by the digest of its module and by its form."""


def compiled(module, name: str, variant: str, arch: str, windowed: bool = False) -> Report:
    """A form of a variant, compiled once: a shipped module may be equal to that of the tests' spec."""
    key = module.DIGEST, variant, arch, windowed
    if key not in REPORTS:
        shared = next(v for v in module.VARIANTS if v.name == variant).kernel.shared_bytes
        REPORTS[key] = compile_variant(module, name, variant, shared, arch, windowed=windowed)
    return REPORTS[key]


@pytest.fixture(scope="module")
def module():
    """A variant of each skeleton."""
    return module_of(SPEC, "attn2")


@pytest.fixture(params=PINNED, ids="-".join)
def form(request):
    """A variant, perhaps its windowed form, and an architecture."""
    return request.param


@pytest.fixture
def report(form, module):
    name, arch = form
    variant, _, windowed = name.partition(" ")
    return compiled(module, "attn2", variant, arch, bool(windowed))


@pytest.fixture(params=SHIPPED, ids=lambda form: f"{form[0]}{'-windowed' * form[1]}-{form[2]}")
def shipped(request):
    name, windowed, arch = request.param
    module, variant = VARIANTS[name]
    return compiled(module, module.NAME, variant.name, arch, windowed)


def test_every_form_is_pinned(module):
    """What the module has is what is pinned: a variant that serves windows has a form for them."""
    forms = {v.name for v in module.VARIANTS}
    forms |= {f"{v.name} windowed" for v in module.VARIANTS if v.windows}
    assert {name for name, _ in PINNED} == forms


@pytest.mark.pin
def test_no_shipped_kernel_spills_on_hopper(shipped):
    """Each compiles for every architecture; for sm_90a, all that a thread holds is in registers."""
    assert shipped.registers > 0 and f"{shipped.module}_{shipped.variant}" in shipped.ptx
    if shipped.arch == "sm_90a":
        assert (shipped.spill_bytes, shipped.stack_bytes) == (0, 0)


@pytest.mark.pin
def test_registers_and_shared_memory_are_pinned(form, report):
    """The registers and spills that were measured; a stack is there for what is spilled alone."""
    assert (report.registers, report.spill_bytes, report.shared_bytes) == PINNED[form]
    assert (report.stack_bytes > 0) == (report.spill_bytes > 0)


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    """A module with a split variant for each ring and number of resident CTAs."""
    spec = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    variants = spec["modules"]["attn2"]["variants"]
    split = variants.pop("split")
    for ring, ctas, _ in RINGS:
        variant = variants[f"{ring}_{ctas}"] = copy.deepcopy(split)
        variant["launch"]["resident_ctas"] = ctas
        variant["stages"]["ring"]["stage"] = ring
    folder = tmp_path_factory.mktemp("rings")
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    generate(folder / "spec.yaml", folder)
    return load_module(folder / "attn2.py")


@pytest.mark.pin
@pytest.mark.parametrize(("ring", "ctas", "arch"), RINGS)
def test_each_ring_compiles_without_spills(ring, ctas, arch, rings):
    """Its 65536 registers suffice for the CTAs, of 128 threads, that a multiprocessor is to have at once."""
    name = f"{ring}_{ctas}"
    shared = next(v for v in rings.VARIANTS if v.name == name).kernel.shared_bytes
    report = compile_variant(rings, "attn2", name, shared, arch)
    assert (report.spill_bytes, report.stack_bytes) == (0, 0)
    assert (report.registers, report.shared_bytes) == RINGS[ring, ctas, arch]
    assert report.registers * 128 * ctas <= 65536


def test_shared_memory_is_aligned_as_regions_are_laid_out(shipped):
    """A kernel asks for dynamic shared memory that is aligned as well as any region of it."""
    (align,) = re.findall(r"\.extern \.shared \.align (\d+) ", shipped.ptx)
    assert int(align) == SHARED_ALIGN


def test_all_fp32_arithmetic_is_spelled_out(shipped):
    """`mul.f32` without rounding and flushing leaves bits to the compiler; so does a contracted fma."""
    kinds = r"(add|sub|mul|fma|mad|div|ex2|rcp|rsqrt|sqrt)\."
    arithmetic = [o for o in opcodes(shipped.ptx) if re.match(kinds, o)]
    floating = [o for o in arithmetic if o.endswith(".f32")]
    assert len(floating) > 100
    assert {o for o in floating if ".ftz." not in o} == set()
    assert {o.split(".")[0] for o in floating if ".rn." not in o} <= {"ex2", "rcp", "rsqrt"}


def test_the_entry_takes_pointers_and_scalars(report):
    """The PTX signature is readable: pointers, strides, integers, two numbers, in the order of the call."""
    parameters = re.search(r"\.entry \w+\((.*?)\)", report.ptx, re.DOTALL).group(1)
    kinds = re.findall(r"\.param (\.\w+)", parameters)
    assert kinds == PARAMETERS[report.variant]
    assert f"attn2_{report.variant}" in report.ptx


@pytest.mark.pin
def test_each_page_is_loaded_with_16_bytes_a_lane(report):
    """K and V of two pages: 2 * 4 KiB / 32 lanes / 16 B = 16 loads, kept out of L1; none is narrower.

    The split kernel loads one page before its loop and one in it. Its ring, as that of the batch kernel,
    which has no pages of a warp's own, copies 4 KiB / 128 threads / 16 B = 2 chunks a thread, the four pages
    of a step before its loop and four in it.
    """
    loads = [o for o in opcodes(report.ptx) if o.startswith("ld.global.L1::no_allocate")]
    assert loads == ["ld.global.L1::no_allocate.v4.b32"] * (0 if report.variant == "batch" else 16)
    copies = [o for o in opcodes(report.ptx) if o.startswith("cp.async.cg")]
    assert len(copies) == (0 if report.variant == "cluster" else 16)
    assert set(copies) <= {"cp.async.cg.shared.global"}


def test_pdl_changes_the_kernel(module):
    """With PDL the kernel waits for its producers before it reads anything."""
    plain = compiled(module, "attn2", "cluster", "sm_90a")
    pdl = compile_variant(module, "attn2", "cluster", 0, "sm_90a", pdl=True)
    assert "griddepcontrol" not in plain.ptx
    order = [o for o in opcodes(pdl.ptx) if o.startswith(("griddepcontrol", "ld.global"))]
    assert order[:2] == ["griddepcontrol.launch_dependents", "griddepcontrol.wait"]


def test_compiling_twice_gives_the_same_ptx(module):
    """The kernel's text depends on its source alone."""
    first = compiled(module, "attn2", "cluster", "sm_90a")
    assert compile_variant(module, "attn2", "cluster", 0, "sm_90a").ptx == first.ptx


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
