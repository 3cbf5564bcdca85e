"""Arithmetic of one thread: FP32, selection, and the unsigned integers that CuTe DSL has no operator for.

Contract
    Called by any thread; no side effects. FP32 arithmetic names its instruction, in the flushing and
    approximate forms, because the DSL's own `*` and `+` leave contraction and subnormals to the compiler: the
    bits of a result would then depend on the compiler's version.

Source: PTX ISA 8.8, floating-point instructions, integer arithmetic instructions.
"""

from cutlass import Boolean, Float32, Int32
from cutlass._mlir.dialects import arith
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, inline_ptx, operand


def f32_instruction(text, constraints, operands, loc, ip):
    """An instruction whose operands and result are FP32."""
    values = [f32(x) for x in operands]
    return Float32(inline_ptx(T.f32(), values, text, constraints, loc=loc, ip=ip))


@dsl_user_op
def add(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a + b, rounded to nearest even, subnormals flushed."""
    return f32_instruction("add.rn.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def sub(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a - b, rounded to nearest even, subnormals flushed."""
    return f32_instruction("sub.rn.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def mul(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a * b, rounded to nearest even, subnormals flushed."""
    return f32_instruction("mul.rn.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def fma(a: Float32, b: Float32, c: Float32, *, loc=None, ip=None) -> Float32:
    """a * b + c with one rounding to nearest even, subnormals flushed."""
    return f32_instruction("fma.rn.ftz.f32 $0, $1, $2, $3;", "=f,f,f,f", (a, b, c), loc, ip)


@dsl_user_op
def maximum(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """The larger of a and b; if one is NaN, the other."""
    return f32_instruction("max.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def exp2(a: Float32, *, loc=None, ip=None) -> Float32:
    """2**a, approximate (2 ulp over the full range); exp2(-inf) = +0."""
    return f32_instruction("ex2.approx.ftz.f32 $0, $1;", "=f,f", (a,), loc, ip)


@dsl_user_op
def reciprocal(a: Float32, *, loc=None, ip=None) -> Float32:
    """1 / a, approximate (1 ulp); reciprocal(+-0) = +-inf."""
    return f32_instruction("rcp.approx.ftz.f32 $0, $1;", "=f,f", (a,), loc, ip)


@dsl_user_op
def rsqrt(a: Float32, *, loc=None, ip=None) -> Float32:
    """1 / sqrt(a), approximate (relative error below 2**-22.9)."""
    return f32_instruction("rsqrt.approx.ftz.f32 $0, $1;", "=f,f", (a,), loc, ip)


@dsl_user_op
def select(condition, a, b, *, loc=None, ip=None):
    """a where the condition holds, else b: both have been computed, nothing is added or multiplied.

    a and b have one type, `Float32` or `Int32`, which is the result's; one of them may be a Python number.
    """
    kind = Int32 if isinstance(a, Int32) or isinstance(b, Int32) else Float32
    chosen = arith.select(
        operand(Boolean, condition).ir_value(loc=loc, ip=ip),
        operand(kind, a).ir_value(loc=loc, ip=ip),
        operand(kind, b).ir_value(loc=loc, ip=ip),
        loc=loc,
        ip=ip,
    )
    return kind(chosen)


@dsl_user_op
def divide_u32(a: Int32, b: Int32, *, loc=None, ip=None) -> Int32:
    """a // b, both unsigned. It takes long, and stays where it is written: put it where others wait."""
    operands = (i32(a), i32(b))
    return Int32(
        inline_ptx(T.i32(), operands, "div.u32 $0, $1, $2;", "=r,r,r", collective=True, loc=loc, ip=ip)
    )


@dsl_user_op
def multiply_high_u32(a: Int32, b: Int32, *, loc=None, ip=None) -> Int32:
    """a * b // 2**32, both unsigned."""
    operands = (i32(a), i32(b))
    return Int32(inline_ptx(T.i32(), operands, "mul.hi.u32 $0, $1, $2;", "=r,r,r", loc=loc, ip=ip))
