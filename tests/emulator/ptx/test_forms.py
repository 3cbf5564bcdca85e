"""Every registered instruction is understood as a whole or refused by name: modifiers, their order, types."""

import re

import pytest

import emulator.instruction_set
from emulator.errors import Unsupported
from emulator.ptx import operation
from emulator.ptx.blocks import compiled
from emulator.ptx.forms import Forms
from tests.emulator.subjects import cluster_ptx
from tests.emulator.written import kernel

assert emulator.instruction_set

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
REGISTER = {"16": "%rs", "32": "%r", "64": "%rd"}


def typed(name: str, count: int, kinds: tuple[str, ...] = INTEGERS) -> list[str]:
    """An instruction whose operands are `count` registers of its type."""
    return [
        f"{name}.{kind} {', '.join(f'{REGISTER[kind[1:]]}{i}' for i in range(1, count + 1))};"
        for kind in kinds
    ]


TEXTS = [
    *(text for name in ("add", "sub", "mul.lo", "mul.hi", "div", "rem") for text in typed(name, 3)),
    *(text for name in ("min", "max") for text in typed(name, 3)),
    *(text for name in ("neg", "abs") for text in typed(name, 2, ("s16", "s32", "s64"))),
    *(text for name in ("mad.lo", "mad.hi", "sad") for text in typed(name, 4)),
    *(f"{name}.b32 %r1, %r2, %r3;" for name in ("and", "or", "xor", "shl", "shr")),
    *(f"{name}.b32 %r1, %r2;" for name in ("not", "cnot", "popc", "clz", "brev")),
    *(f"{name}.approx.ftz.f32 %r1, %r2;" for name in ("ex2", "rcp", "rsqrt", "sqrt", "lg2", "sin", "cos")),
    *(f"{name}.rn.ftz.f32 %r1, %r2, %r3;" for name in ("add", "sub", "mul", "div")),
    *(f"{name}.NaN.ftz.f32 %r1, %r2, %r3;" for name in ("max", "min")),
    *(f"{name}.bf16x2 %r1, %r2;" for name in ("neg", "abs", "tanh.approx", "ex2.approx.ftz")),
    *(f"{name}.sat.s32 %r1, %r2, %r3;" for name in ("add", "sub")),
    *(f"{name}.relu.s32 %r1, %r2, %r3;" for name in ("min", "max")),
    "mul.wide.s32 %rd1, %r2, %r3;",
    "mad.wide.u32 %rd1, %r2, %r3, %rd4;",
    "fma.rn.ftz.f32 %r1, %r2, %r3, %r4;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
    *("wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"),
    *(
        f"cp.async.bulk.tensor.{len(at)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[%r1], [%rd1, {{{', '.join(at)}}}], [%r7];"
        for at in (["%r2", "%r3", "%r4", "%r5", "%r6"][:rank] for rank in range(1, 6))
    ),
    "prefetch.tensormap [%rd1];",
    "fma.rn.relu.bf16x2 %r1, %r2, %r3, %r4;",
    "shf.l.wrap.b32 %r1, %r2, %r3, 1;",
    "shf.r.clamp.b32 %r1, %r2, %r3, 1;",
    "lop3.b32 %r1, %r2, %r3, %r4, 5;",
    "prmt.b32 %r1, %r2, %r3, 5;",
    "bfe.u32 %r1, %r2, 1, 2;",
    "bfi.b32 %r1, %r2, %r3, 1, 2;",
    "bfind.shiftamt.u32 %r1, %r2;",
    "cvt.rn.relu.bf16x2.f32 %r1, %r2, %r3;",
    "cvt.u16.u32 %rs1, %r2;",
    "cvt.sat.s8.s32 %rs1, %r2;",
    "cvt.rzi.ftz.s32.f32 %r1, %r2;",
    "setp.eq.b32 %p1, %r1, %r2;",
    "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
    "setp.neu.or.ftz.f32 %p1, %r1, %r2, %p2;",
    "selp.b32 %r1, %r2, %r3, %p1;",
    "slct.b32.s32 %r1, %r2, %r3, %r4;",
    "mov.b32 %r1, %r2;",
    "cvta.to.global.u64 %rd1, %rd2;",
    "cvta.shared.u64 %rd1, %rd2;",
    "isspacep.shared %p1, %rd1;",
    "mapa.shared::cluster.u32 %r1, %r2, %r3;",
    "getctarank.shared::cluster.u32 %r1, %r2;",
    "ld.global.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];",
    "ld.global.nc.b32 %r1, [%rd1];",
    "ld.relaxed.gpu.global.v2.b32 {%r1, %r2}, [%rd1];",
    "ld.acquire.sys.global.b32 %r1, [%rd1];",
    "ld.volatile.shared.b32 %r1, [%r2];",
    "st.shared::cta.v2.b32 [%r1], {%r2, %r3};",
    "st.release.gpu.global.b32 [%rd1], %r1;",
    "atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], %r2;",
    "atom.global.gpu.acq_rel.cas.b32 %r1, [%rd1], %r2, %r3;",
    "red.relaxed.gpu.global.add.f32 [%rd1], %r2;",
    "fence.acq_rel.gpu;",
    "fence.sc.cta;",
    "fence.mbarrier_init.release.cluster;",
    "fence.proxy.async.shared::cta;",
    "membar.gl;",
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
    "nanosleep.u32 20;",
    "setmaxnreg.inc.sync.aligned.u32 40;",
    "pmevent 1;",
    "trap;",
    "brkpt;",
    "bar.sync 0;",
    "bar.cta.sync 0;",
    "barrier.sync.aligned 0;",
    "barrier.cta.sync.aligned 0;",
    "bar.arrive 1, 64;",
    "bar.cta.arrive 1, 64;",
    "barrier.arrive.aligned 1, 64;",
    "barrier.cta.arrive.aligned 1, 64;",
    "barrier.cluster.arrive.relaxed.aligned;",
    "barrier.cluster.arrive;",
    "barrier.cluster.wait.acquire.aligned;",
    "bar.warp.sync -1;",
    "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;",
    "vote.sync.ballot.b32 %r1, %p1, -1;",
    "vote.sync.all.pred %p2, %p1, -1;",
    "activemask.b32 %r1;",
    "elect.sync %r1|%p1, -1;",
    "redux.sync.add.u32 %r1, %r2, -1;",
    "match.any.sync.b32 %r1, %r2, -1;",
    "match.all.sync.b64 %r1|%p1, %rd2, -1;",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
    "{%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r3}, {%r1, %r2, %r3, %r4};",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;",
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r1, %r2}, [%r3];",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r1], {%r2, %r3}, [%r4];",
    "cp.async.ca.shared.global [%r1], [%rd1], 8;",
    "cp.async.cg.shared::cta.global.L2::128B [%r1], [%rd1], 16;",
    "cp.async.commit_group;",
    "cp.async.wait_group 0;",
    "cp.async.wait_all;",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r3], 16, [%r2];",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;",
    "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group.read 0;",
    "mbarrier.init.shared::cta.b64 [%r1], 1;",
    "mbarrier.inval.shared::cta.b64 [%r1];",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 16;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16;",
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;",
    "mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %rd1;",
    "bra.uni END;",
    "ret.uni;",
    "exit;",
]
"""Legal instructions: at least one of each beginning that is registered, and the jumps."""


def opcode_of(text: str) -> str:
    return re.match(r"[\w.:]+", text)[0]


def compile_line(text: str) -> None:
    """Compile a kernel of one instruction."""
    compiled(kernel(f"{text}\nEND: ret;", ""))


def refuses(opcode: str, text: str) -> None:
    """Assert that an instruction is refused by its name."""
    with pytest.raises(Unsupported) as error:
        compile_line(text)
    assert error.value.message.startswith(f"{opcode} is not covered"), error.value.message


def with_part(opcode: str, place: int, part: str) -> str:
    """An opcode with one more part behind its first `place` parts."""
    parts = opcode.split(".")
    return ".".join((*parts[:place], part, *parts[place:]))


def test_every_registered_instruction_is_in_the_list():
    opcodes = [opcode_of(text) + "." for text in TEXTS]
    missing = [name for name in operation.registered() if not any(o.startswith(f"{name}.") for o in opcodes)]
    assert not missing


@pytest.mark.parametrize("text", TEXTS, ids=opcode_of)
def test_a_modifier_that_is_not_known_is_refused(text):
    """At every place of the opcode; so is each of its own parts when it is there twice."""
    compile_line(text)
    opcode = opcode_of(text)
    parts = opcode.split(".")
    wrong = [with_part(opcode, place, "clustr") for place in range(1, len(parts) + 1)]
    wrong += [with_part(opcode, place, parts[place]) for place in range(1, len(parts))]
    for each in wrong:
        refuses(each, text.replace(opcode, each, 1))


def test_a_modifier_that_is_not_known_is_refused_in_a_kernel():
    """Every opcode of a generated kernel, with a part too many at the end and behind the name."""
    ptx = cluster_ptx()
    opcodes = set(re.findall(r"^\s*(?:@!?%\w+ )?([a-z]\w*(?:\.[\w:]+)*) [^;]*;", ptx, re.M)) - {"mov.b64"}
    assert len(opcodes) > 50
    for opcode in opcodes:
        wrong = [with_part(opcode, place, "clustr") for place in (1, len(opcode.split(".")))]
        for each in wrong:
            text, count = re.subn(
                rf"^(\s*(?:@!?%\w+ )?){re.escape(opcode)} ", rf"\1{each} ", ptx, count=1, flags=re.M
            )
            assert count
            with pytest.raises(Unsupported, match=re.escape(each) + " is not covered"):
                compiled(text)


@pytest.mark.parametrize(
    "text",
    [
        "setp.lt.b32 %p1, %r1, %r2;",
        "setp.lo.s32 %p1, %r1, %r2;",
        "setp.lt.bf16 %p1, %rs1, %rs2;",
        "setp.eq.f16 %p1, %rs1, %rs2;",
        "setp.lt.bf16x2 %p1|%p2, %r1, %r2;",
        "setp.ltu.f16x2 %p1|%p2, %r1, %r2;",
        "setp.num.s32 %p1, %r1, %r2;",
        "setp.lt.ftz.f64 %p1, %rd1, %rd2;",
        "setp.ftz.lt.f32 %p1, %r1, %r2;",
        "fence.acq_rel;",
        "fence.acq_rel.clustr;",
        "fence.acquire.sync_restrict::shared::cluster.cluster;",
        "fence.release.sync_restrict::shared::cta.cluster;",
        "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
        "fence.relaxed.gpu;",
        "membar.gpu;",
        "barrier.cluster.wait.release.aligned;",
        "barrier.cluster.arrive.acquire;",
        "bar.sync.aligned 0;",
        "bar.warp.sync.aligned -1;",
        "griddepcontrol.launch;",
        "cvta.global.to.u64 %rd1, %rd2;",
        "cvta.to.global.u32 %r1, %r2;",
        "nanosleep.u64 %rd1;",
        "vote.sync.any.b32 %r1, %p1, -1;",
        "elect.sync.b32 %r1|%p1, -1;",
        "activemask.u32 %r1;",
        "redux.sync.add.b32 %r1, %r2, -1;",
        "redux.sync.min.abs.f32 %r1, %r2, -1;",
        "match.any.sync.u32 %r1, %r2, -1;",
        "ld.release.gpu.global.b32 %r1, [%rd1];",
        "ld.relaxed.global.b32 %r1, [%rd1];",
        "ld.weak.gpu.global.b32 %r1, [%rd1];",
        "ld.shared.nc.b32 %r1, [%r2];",
        "ld.global.L1::unknown.b32 %r1, [%rd1];",
        "ld.global.shared.b32 %r1, [%rd1];",
        "st.acquire.gpu.global.b32 [%rd1], %r1;",
        "st.global.nc.b32 [%rd1], %r1;",
        "red.acquire.gpu.global.add.u32 [%rd1], %r1;",
        "red.global.exch.b32 [%rd1], %r1;",
        "atom.local.add.u32 %r1, [%rd1], %r2;",
        "add.rn.rz.f32 %r1, %r2, %r3;",
        "max.rn.bf16x2 %r1, %r2, %r3;",
        "div.f32 %r1, %r2, %r3;",
        "mul.s32 %r1, %r2, %r3;",
        "mov.bf16 %rs1, %rs2;",
        "bra.bogus END;",
        "exit.uni;",
    ],
    ids=opcode_of,
)
def test_modifiers_and_types_that_do_not_go_together(text):
    refuses(opcode_of(text), text)


def test_a_refusal_says_what_does_not_fit():
    for text, said in (
        ("membar.gpu;", "modifier .gpu; the forms are fence|membar.proxy"),
        ("activemask.u32 %r1;", "modifier .u32; the forms are activemask.b32"),
        ("ld.release.gpu.global.b32 %r1, [%rd1];", "modifier .release: `ld"),
        ("ld.weak.gpu.global.b32 %r1, [%rd1];", "modifiers and types that do not go together: `ld"),
        ("bra.bogus END;", "modifier .bogus; the forms are bra{.uni}"),
    ):
        with pytest.raises(Unsupported) as error:
            compile_line(text)
        assert f"is not covered: {said}" in error.value.message


def test_forms():
    one = Forms(["ld|st{.relaxed|acquire.cta|gpu}.b32"])
    assert all(one.match(text.split(".")) for text in ("ld.b32", "st.relaxed.gpu.b32", "ld.acquire.cta.b32"))
    assert not any(
        one.match(text.split(".")) for text in ("ld", "ld.relaxed.b32", "ld.gpu.relaxed.b32", "s.b32")
    )
    free = Forms(["atom{.relaxed|acquire}{.cta|gpu}.add.u32"], any_order=True)
    assert free.match(["atom", "add", "gpu", "acquire", "u32"])
    assert not any(
        free.match(text.split("."))
        for text in ("atom.add.gpu.cta.u32", "atom.u32.add", "atom.add.add.u32", "add.atom.u32")
    )
