"""The parser: what CuTe DSL writes, scopes, line information, and errors with their line."""

import pytest

from emulator.errors import PtxError, Unsupported
from emulator.ptx.instruction import Address, Immediate, Pair, Register, Sink, Special, Symbol, Vector
from emulator.ptx.kernel import Parameter, Variable
from emulator.ptx.parse import parse
from tests.emulator.written import HEAD, kernel


def instructions(body: str, **more):
    (found,) = parse(kernel(body, **more)).kernels.values()
    return found.instructions


def operands(line: str):
    return instructions(line)[0].operands


def test_the_head_of_a_kernel():
    text = f"""{HEAD}
    .extern .shared .align 128 .b8 dynamic[];
    .global .align 1 .b8 text[3] = {{72, 105, 0}};
    .visible .entry first(.param .u64 .ptr .global .align 16 a, .param .f32 b, .param .align 8 .b8 c[24])
    .reqntid 128, 1, 1
    .maxnreg 64
    .explicitcluster
    .reqnctapercluster 4
    {{ .shared .align 8 .b64 barrier; .local .align 16 .b8 depot[32]; ret; }}
    .entry second() {{ ret; }}
    """
    module = parse(text)
    assert module.target == "sm_90a"
    first = module.kernels["first"]
    assert first.parameters == [Parameter("a", "u64"), Parameter("b", "f32"), Parameter("c", "b8", 24)]
    assert first.required == {
        "reqntid": (128, 1, 1),
        "maxnreg": (64,),
        "explicitcluster": (),
        "reqnctapercluster": (4,),
    }
    assert module.variables == [Variable("dynamic", "shared", 128, 0), Variable("text", "global", 1, 3)]
    assert first.variables == [Variable("barrier", "shared", 8, 8), Variable("depot", "local", 16, 32)]
    assert module.kernels["second"].parameters == []


def test_kinds_of_operands():
    r = [Register(f"%r{i}", "b32") for i in range(5)]
    assert operands("mov.u32 %r0, %tid.x;") == (r[0], Special("%tid.x"))
    assert operands("shfl.sync.bfly.b32 %r0|%p1, %r1, 16, 31, -1;") == (
        Pair(r[0], Register("%p1", "pred")),
        r[1],
        Immediate(16),
        Immediate(31),
        Immediate(-1),
    )
    assert operands("mov.b64 {%r0, %r1}, %rd2;")[0] == Vector((r[0], r[1]))
    assert operands("ld.global.b32 %r0, [%rd1+-16];")[1] == Address(Register("%rd1", "b64"), -16)
    assert operands("ld.shared.b32 %r0, [name+8];")[1] == Address(Symbol("name"), 8)
    assert operands("mbarrier.arrive.shared::cta.b64 _, [%r0];") == (Sink(), Address(r[0]))
    assert operands("mov.b32 %r0, 0fBF800000;")[1] == Immediate(0xBF800000, 32)
    assert operands("mov.b64 %rd0, 0d3FF0000000000000;")[1] == Immediate(0x3FF0000000000000, 64)
    assert operands("mov.b32 %r0, 0x1FU;")[1] == Immediate(31)
    assert operands("mov.b32 %r0, 017;")[1] == Immediate(15)
    assert operands("mov.b32 %r0, -0x10;")[1] == Immediate(-16)


def test_parts_of_an_opcode():
    one, _ = instructions("ld.global.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1]; ret;")
    assert one.parts == ("ld", "global", "L1::no_allocate", "v4", "b32")
    assert one.has("L1::no_allocate") and not one.has("shared")
    assert one.type == "b32"


def test_an_instruction_may_span_lines():
    one, _ = instructions("mma.sync {%r0,\n %r1}, // remark\n {%r2, %r3} /* and\n more */ , %r4;\nret;")
    assert len(one.operands) == 3
    assert one.text.startswith("mma.sync {%r0, %r1}")


def test_predicates():
    one, two, _ = instructions("@%p1 bra L;\n L: @!%p2 add.s32 %r0, %r1, %r2; ret;")
    assert (one.predicate, one.negated) == (Register("%p1", "pred"), False)
    assert (two.predicate, two.negated) == (Register("%p2", "pred"), True)


def test_names_in_braces_belong_to_them():
    wait = "{ .reg .pred done; WAIT: mbarrier.try_wait.b64 done, [%r1], 0; @!done bra WAIT; }\n"
    (found,) = parse(kernel(f"{wait}{wait}ret;")).kernels.values()
    first, branch, second, other, _ = found.instructions
    assert first.operands[0] != second.operands[0]
    assert branch.predicate == first.operands[0] and other.predicate == second.operands[0]
    assert [found.labels[i.operands[0].name] for i in (branch, other)] == [0, 2]


def test_a_branch_out_of_braces():
    (found,) = parse(kernel("{ .reg .b32 x; @%p1 bra DONE; mov.b32 x, 1; }\n DONE: ret;")).kernels.values()
    assert found.labels[found.instructions[0].operands[0].name] == 2


def test_line_information():
    body = ".loc 1 42 7\n mov.b32 %r0, 1;\n{ .loc 2 5 0\n mov.b32 %r1, 1;\n}\n ret;"
    text = kernel(body) + '\t.file 1 "/stages/push.py"\n\t.file\t2 "/stages/ptx.py"\n'
    (found,) = parse(text).kernels.values()
    assert [i.source for i in found.instructions] == ["/stages/push.py:42"] + ["/stages/ptx.py:5"] * 2
    assert found.instructions[0].line == text.split("mov.b32")[0].count("\n") + 1


def test_debug_sections_and_functions_are_skipped():
    text = HEAD + ".func (.param .b32 r) helper(.param .b64 x) { .reg .b32 %r<2>; ret; }\n"
    text += ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
    text += ".visible .entry k() { ret; }\n.section .debug_abbrev { .b8 1 }\n"
    assert list(parse(text).kernels) == ["k"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("mov.b32 %r99, 1; ret;", "register %r99 is not declared"),
        ("bra NOWHERE;", "no label NOWHERE"),
        ("L: ret; L: ret;", "label L is there twice"),
        ("mov.b32 %r0, %r1 ret;", "',' or ';' expected"),
        ("mov.b32 %r0, ;", "an operand expected"),
        ("@%r1 bra L; L: ret;", "not a declared predicate"),
        ("ld.global.b32 %r0, [%rd0+8;", "']' expected"),
        ("mov.b32 %r0, #;", "'#' does not belong to PTX"),
        ("5 mov;", "an instruction expected"),
        ("ADD.s32 %r0, %r1, %r2;", "is not an opcode"),
        ("mov.b32 %r0, {%r1, ;", "an operand expected"),
        ("mov.b32 %r0, 08;", "08 is not a number"),
    ],
)
def test_what_is_not_ptx(body, said):
    with pytest.raises(PtxError) as raised:
        parse(kernel("\n\n" + body))
    assert said in str(raised.value)
    assert "PTX line" in str(raised.value)


@pytest.mark.parametrize("cut", range(20, 400, 17))
def test_text_that_ends_early(cut):
    text = kernel("mov.b32 %r0, 1; @%p1 bra L; L: { ld.global.v2.b32 {%r0, %r1}, [%rd1]; }\n ret;")
    with pytest.raises(PtxError):
        parse(text[: text.rindex("}") - 1][:cut])


def test_no_kernel():
    with pytest.raises(PtxError, match=r"no \.entry"):
        parse(HEAD)


@pytest.mark.parametrize(
    "body", ["call.uni (retval0), vprintf, (param0, param1);", "call.uni (%r0), %r1, (%r2), prototype;"]
)
def test_what_is_not_covered(body):
    with pytest.raises(Unsupported) as raised:
        parse(kernel(body))
    assert "not covered" in str(raised.value)
    assert raised.value.line
