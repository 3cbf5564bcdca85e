"""Tensor copies: a box of a tensor in global memory, described by a tensor map, to shared memory.

Contract
    Called by one thread. The tensor map is one that the host has encoded (cuTensorMapEncodeTiled), 128 bytes
    in global memory, aligned to 64; nobody writes to it while the kernel runs. The bytes complete on an
    mbarrier (`stages.ptx.mbarrier`), all of the box, with those outside the tensor, which are zeros. Who
    waits for the phase sees them; wgmma reads them without a proxy fence, as both go through the async proxy.

    The box arrives packed, the innermost dimension first, in rows of its innermost extent. With a swizzle of
    w bytes rows have w bytes, and bits 7.. of a shared address are XORed into bits 4.. as the matrix
    descriptors of `stages.ptx.wgmma` have it; the destination is aligned to 8 rows, else to 128 bytes.

Source: PTX ISA 8.8, "Tensors", cp.async.bulk.tensor, prefetch.tensormap.
"""

from cutlass import Int32, Int64
from cutlass.cutlass_dsl import dsl_user_op

from stages.ptx.inline import i32, i64, inline_ptx


@dsl_user_op
def copy_tensor(
    shared: Int32, tensor_map: Int64, coordinates: list[Int32], barrier: Int32, *, loc=None, ip=None
) -> None:
    """Begin to copy the box at these coordinates, the innermost first, one to five; may be below 0."""
    where = [i32(x) for x in coordinates]
    rank = len(where)
    if not 1 <= rank <= 5:
        raise ValueError(f"a tensor has one to five dimensions, not {rank}")
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{', '.join(f'${3 + i}' for i in range(rank))}}}], [$2];"
    )
    operands = [i32(shared), i64(tensor_map), i32(barrier), *where]
    inline_ptx(None, operands, text, "r,l,r" + ",r" * rank, ordered=True, loc=loc, ip=ip)


@dsl_user_op
def prefetch_tensor_map(tensor_map: Int64, *, loc=None, ip=None) -> None:
    """Bring a tensor map near, before the first copy by it."""
    inline_ptx(None, (i64(tensor_map),), "prefetch.tensormap [$0];", "l", ordered=True, loc=loc, ip=ip)
