"""Micro-kernels that only the golden recordings need: many instructions at once, many mma at once."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.fragments import registers
from stages.ptx.global_memory import load_global_i32, store_global_i32
from stages.ptx.matrix import mma_bf16
from tests.device import Launch, MicroKernel
from tests.micro import load_registers, store_registers


@dsl_user_op
def instruction(text: str, operands, *, loc=None, ip=None) -> Int32:
    """One 32-bit result of an instruction with 32-bit operands $1, $2, ..."""
    values = [Int32(x).ir_value(loc=loc, ip=ip) for x in operands]
    constraints = ",".join(["=r"] + ["r"] * len(values))
    dialect = llvm.AsmDialect.AD_ATT
    return Int32(
        llvm.inline_asm(
            T.i32(), values, text, constraints, has_side_effects=False, asm_dialect=dialect, loc=loc, ip=ip
        )
    )


@dataclass(frozen=True)
class Instructions(MicroKernel):
    """result[n, i] = instruction n of the words x[0, i], x[1, i], ..."""

    name: str
    texts: tuple[str, ...]
    operands: int
    count: int

    def __str__(self):
        return f"Instructions_{self.name}"

    @property
    def where(self) -> Launch:
        """One thread an element."""
        return Launch(grid=(self.count // 128, 1, 1), block=(128, 1, 1))

    @cute.jit
    def __call__(self, x: cute.Pointer, result: cute.Pointer, stream: cuda.CUstream):
        self.kernel(x.toint(), result.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, x: Int64, result: Int64):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        at = Int64(4 * (128 * block + thread))
        words = [load_global_i32(x + at + 4 * self.count * n) for n in range(self.operands)]
        for n in cutlass.range_constexpr(len(self.texts)):
            store_global_i32(result + at + 4 * self.count * n, instruction(self.texts[n], words))


@dsl_user_op
def mma_bf16_k8(a, b, c, *, loc=None, ip=None):
    """`mma.sync.m16n8k8`: as `stages.ptx.mma_bf16`, with two registers of a and one of b."""
    types = [T.f32()] * 4
    text = (
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
        "{$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};"
    )
    operands = [*(Int32(x) for x in (*a, b)), *(Float32(x) for x in c)]
    struct = llvm.inline_asm(
        llvm.StructType.get_literal(types),
        [operand.ir_value(loc=loc, ip=ip) for operand in operands],
        text,
        "=f,=f,=f,=f,r,r,r,f,f,f,f",
        has_side_effects=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    return tuple(Float32(llvm.extractvalue(types[i], struct, [i], loc=loc, ip=ip)) for i in range(4))


@dataclass(frozen=True)
class MmaTiles(MicroKernel):
    """d[tile] = c[tile] + a[tile] @ b[tile] as register files [tile, register, lane]; depth 16 or 8."""

    tiles: int
    depth: int

    def __str__(self):
        return f"MmaTiles_{self.tiles}_k{self.depth}"

    @property
    def where(self) -> Launch:
        """A warp a tile."""
        return Launch(grid=(self.tiles, 1, 1))

    @cute.jit
    def __call__(
        self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, d: cute.Pointer, stream: cuda.CUstream
    ):
        self.kernel(a.toint(), b.toint(), c.toint(), d.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, a: Int64, b: Int64, c: Int64, d: Int64):
        tile, _, _ = cute.arch.block_idx()
        counts = (self.depth // 4, self.depth // 8)
        left = load_registers(Int32, a + Int64(tile * counts[0] * 128), counts[0])
        right = load_registers(Int32, b + Int64(tile * counts[1] * 128), counts[1])
        start, result = load_registers(Float32, c + Int64(tile * 512), 4), registers(Float32, 4)
        held = [left[i] for i in range(counts[0])]
        begun = [start[i] for i in range(4)]
        if cutlass.const_expr(self.depth == 16):
            product = mma_bf16(held, [right[i] for i in range(2)], begun)
        else:
            product = mma_bf16_k8(held, right[0], begun)
        for i in cutlass.range_constexpr(4):
            result[i] = product[i]
        store_registers(d + Int64(tile * 512), result, Float32)
