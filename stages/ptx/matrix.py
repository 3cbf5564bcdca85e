"""Warp-wide matrix instructions: mma.sync, movmatrix, ldmatrix.

Contract
    Called by all 32 lanes of a warp together. Nothing here checks an address or an alignment.

Source: PTX ISA 8.8, matrix fragments for mma.m16n8k16, movmatrix, ldmatrix.
"""

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, inline_ptx, struct_fields


@dsl_user_op
def mma_bf16(a, b, c, *, loc=None, ip=None):
    """`mma.sync.m16n8k16`: c + a @ b, BF16 operands, FP32 accumulation.

    a: four BF16 pairs, rows (g, g+8, g, g+8) at columns (2t, 2t, 2t+8, 2t+8) for lane 4 g + t.
    b: two BF16 pairs, rows (2t, 2t+8) of column g.
    c: four FP32 values, rows (g, g, g+8, g+8) at columns (2t, 2t+1, 2t, 2t+1), and so is the result.
    """
    types = [T.f32()] * 4
    text = (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    operands = [*(i32(x) for x in (*a, *b)), *(f32(x) for x in c)]
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
    struct = llvm.StructType.get_literal(types)
    result = inline_ptx(struct, operands, text, constraints, collective=True, loc=loc, ip=ip)
    return struct_fields(Float32, result, types, loc, ip)


@dsl_user_op
def movmatrix(pair: Int32, *, loc=None, ip=None) -> Int32:
    """Transpose an 8 x 8 BF16 matrix held one pair a lane.

    Lane 4 g + t gives row g, columns 2t and 2t+1; it receives rows 2t and 2t+1 of column g.
    """
    text = "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;"
    return Int32(inline_ptx(T.i32(), (i32(pair),), text, "=r,r", collective=True, loc=loc, ip=ip))


@dsl_user_op
def load_matrices_transposed(row: Int32, *, loc=None, ip=None):
    """`ldmatrix.x4.trans`: four 8 x 8 BF16 matrices from shared memory, transposed.

    row: lane i gives the address of row i % 8 of matrix i // 8, 16 bytes, 16-byte aligned. Lane 4 g + t
    receives, of each matrix, rows 2t and 2t+1 of column g, a BF16 pair.
    """
    types = [T.i32()] * 4
    struct = llvm.StructType.get_literal(types)
    text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {$0, $1, $2, $3}, [$4];"
    result = inline_ptx(struct, (i32(row),), text, "=r,=r,=r,=r,r", ordered=True, loc=loc, ip=ip)
    return struct_fields(Int32, result, types, loc, ip)
