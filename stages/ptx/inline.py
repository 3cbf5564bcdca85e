"""What the primitives are made of: one instruction as inline PTX, and its results as DSL values.

Contract
    For the modules of this package alone. Arithmetic has no side effects, so the compiler may schedule it;
    `collective` instructions stay in the control flow where they are written, and `ordered` ones also keep
    their order among the memory operations of the thread.
"""

from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T


def operand(kind, value):
    """A value as an operand of this type; a Python number is one too. Raises TypeError while tracing.

    CuTe DSL's own constructors convert instead: an address given for a number would become
    `cvt.rn.f32.s64`, and a kernel that computes with it would compile.
    """
    if isinstance(value, kind):
        return value
    numbers = (int, float) if kind is Float32 else (int,)
    if isinstance(value, numbers) and not isinstance(value, bool):
        return kind(value)
    raise TypeError(f"an operand must be {kind.__name__} or a Python number, got {type(value).__name__}")


def f32(value) -> Float32:
    """A value as an FP32 operand: see `operand`."""
    return operand(Float32, value)


def i32(value) -> Int32:
    """A value as a 32-bit operand: see `operand`."""
    return operand(Int32, value)


def i64(value) -> Int64:
    """A value as a 64-bit operand: see `operand`."""
    return operand(Int64, value)


def inline_ptx(result, operands, text, constraints, *, ordered=False, collective=False, loc, ip):
    """One inline PTX instruction.

    ordered: keeps its place among memory operations. collective: is not moved into or out of branches.
    """
    values = [operand.ir_value(loc=loc, ip=ip) for operand in operands]
    return llvm.inline_asm(
        result,
        values,
        text,
        ",".join(filter(None, (constraints, "~{memory}" if ordered else ""))),
        has_side_effects=ordered or collective,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


def struct_fields(kind, struct, types, loc, ip):
    """The results of an instruction with several destinations, as DSL values."""
    return tuple(kind(llvm.extractvalue(t, struct, [i], loc=loc, ip=ip)) for i, t in enumerate(types))


def load_x4(space, kind, address, loc, ip):
    """Four words of 32 bits, as `kind` (Float32 or Int32), from a state space. Alignment: 16 bytes."""
    register, element = ("=f", T.f32()) if kind is Float32 else ("=r", T.i32())
    types = [element] * 4
    constraints = ",".join([register] * 4 + ["l" if isinstance(address, Int64) else "r"])
    text = f"ld.{space}.v4.b32 {{$0, $1, $2, $3}}, [$4];"
    struct = llvm.StructType.get_literal(types)
    result = inline_ptx(struct, (address,), text, constraints, ordered=True, loc=loc, ip=ip)
    return struct_fields(kind, result, types, loc, ip)
