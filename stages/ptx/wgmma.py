"""Matrix multiplication by a warpgroup: wgmma.mma_async, its fence and its groups, and matrix descriptors.

Contract
    Called by all 128 threads of a warpgroup (four warps, the first a multiple of 4) together, in uniform
    control flow. sm_90a alone. An mma_async is asynchronous, so its registers are handed from call to call:

        d = wgmma_fence(d)                    registers written before are there for what follows
        d = wgmma_shared(d, a, b, False)      any number of these; d must not be looked at from here
        wgmma_commit()
        d = wgmma_wait(0, d)                  d is there; the shared memory of a and b may be overwritten

    Obligations (PTX ISA 8.8, "Asynchronous warpgroup level matrix instructions"):
    - A `wgmma_fence` before the first mma_async, and again after any other access to a register that an
      mma_async uses, as accumulator or as A. Accumulation by several mma_async of one shape needs none.
    - Registers of an mma_async, of A too, are neither read nor written until a `wgmma_wait` has seen its
      group done. Operands in shared memory stay as they are until then.
    - mma_async reads shared memory through the async proxy. What st.shared or cp.async wrote there needs
      `stages.ptx.proxy.proxy_fence_shared` behind the write and before the mma_async; what a bulk or tensor
      copy wrote needs only the wait for its mbarrier.

    Nothing here checks an address.

Source: PTX ISA 8.8, wgmma.mma_async, wgmma.fence, wgmma.commit_group, wgmma.wait_group, "Shared memory matrix
layout", "Matrix descriptor format", "Register fragments for wgmma.mma_async.m64nNk16".
"""

from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, i64, inline_ptx

SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
"""Bytes of the swizzle pattern's rows, and how a matrix descriptor names them."""


@dsl_user_op
def matrix_descriptor(
    address: Int32, stride: int = 1024, leading: int = 16, swizzle: int = 128, *, loc=None, ip=None
) -> Int64:
    """The descriptor of a matrix in this CTA's shared memory, an operand of mma_async.

    The matrix consists of atoms of 8 rows of `swizzle` bytes (16 without a swizzle), one row behind the
    other, each atom aligned to its own size. Within an atom, bits 7.. of an address are XORed into bits 4..:
    three bits of each with 128 bytes, two with 64, one with 32.

    K-major (K contiguous): a row of an atom is a row of A or a column of B, and holds k. stride: bytes from 8
    rows to the next 8. leading: of no effect with a swizzle; without one, bytes from 8 k to the next 8. The
    next k16 of the same rows is 32 bytes further (`descriptor_at`).

    MN-major (M or N contiguous): a row of an atom is one k, and holds m or n. stride: bytes from 8 k to the
    next 8; leading: from one atom's width of m or n to the next (without a swizzle it is the other way
    round). address: of the first atom, or a place in its first row.
    """
    if swizzle not in SWIZZLES or any(x % 16 or not 0 <= x < 1 << 18 for x in (leading, stride)):
        raise ValueError(f"no descriptor has leading {leading}, stride {stride}, swizzle {swizzle}")
    facts = leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES[swizzle] << 62
    facts -= (facts >> 63) << 64
    text = (
        "{ .reg .b32 low, high; bfe.u32 low, $1, 4, 14; or.b32 low, low, "
        f"{facts & 0xFFFFFFFF}; mov.b32 high, {facts >> 32 & 0xFFFFFFFF}; mov.b64 $0, {{low, high}}; }}"
    )
    return Int64(inline_ptx(T.i64(), (i32(address),), text, "=l,r", loc=loc, ip=ip))


@dsl_user_op
def descriptor_at(descriptor: Int64, further: int, *, loc=None, ip=None) -> Int64:
    """The descriptor of the matrix that begins `further` bytes behind; a multiple of 16, below 0 too."""
    if further % 16:
        raise ValueError(f"a descriptor cannot be moved by {further} bytes")
    return i64(descriptor) + Int64(further >> 4)


def _through(text, values, operands, constraints, loc, ip):
    """An instruction that reads and writes these registers in place: what they hold behind it.

    In the text they are $0, $1 ..., and the operands follow twice as far on.
    """
    values = list(values)
    real = [isinstance(value, Float32) for value in values]
    typed = [f32(v) if is_real else i32(v) for v, is_real in zip(values, real, strict=True)]
    if not values:
        inline_ptx(None, operands, text, ",".join(constraints), ordered=True, loc=loc, ip=ip)
        return ()
    types = [T.f32() if is_real else T.i32() for is_real in real]
    written = ["=f" if is_real else "=r" for is_real in real]
    tied = [str(i) for i in range(len(values))]
    struct = types[0] if len(types) == 1 else llvm.StructType.get_literal(types)
    result = inline_ptx(
        struct,
        [*typed, *operands],
        text,
        ",".join([*written, *tied, *constraints]),
        ordered=True,
        loc=loc,
        ip=ip,
    )
    fields = [result]
    if len(types) > 1:
        fields = [llvm.extractvalue(t, result, [i], loc=loc, ip=ip) for i, t in enumerate(types)]
    return tuple(
        Float32(field) if is_real else Int32(field) for field, is_real in zip(fields, real, strict=True)
    )


def _through_lists(text, lists, loc, ip):
    """`_through` with several lists of registers: the list itself if it is one, else a tuple of them."""
    lists = [list(given) for given in lists]
    values = _through(text, [value for given in lists for value in given], (), (), loc, ip)
    found, at = [], 0
    for given in lists:
        found.append(values[at : at + len(given)])
        at += len(given)
    return found[0] if len(found) == 1 else tuple(found)


@dsl_user_op
def wgmma_fence(*registers, loc=None, ip=None):
    """Order this thread's accesses to registers before the mma_async that follow.

    registers: lists of `Float32` (accumulators) and `Int32` (A), each register once. They are in registers
    at the fence, and come back as the same lists: one list is returned as it is, several as a tuple.
    """
    return _through_lists("wgmma.fence.sync.aligned;", registers, loc, ip)


@dsl_user_op
def wgmma_commit(*, loc=None, ip=None) -> None:
    """Close the warpgroup's group of mma_async; `wgmma_wait` counts groups."""
    inline_ptx(None, (), "wgmma.commit_group.sync.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def wgmma_wait(pending: int, *registers, loc=None, ip=None):
    """Wait until at most `pending` of the latest groups are unfinished.

    registers: lists of the registers, accumulators and A, of the groups that are waited for. They come back
    as from `wgmma_fence`, and only what comes back may be used.
    """
    return _through_lists(f"wgmma.wait_group.sync.aligned {pending};", registers, loc, ip)


@dsl_user_op
def wgmma_shared(
    d, a: Int64, b: Int64, accumulate=True, a_mn_major=False, b_mn_major=False, *, loc=None, ip=None
):
    """`wgmma.mma_async.m64nNk16`: d + a @ b, both in shared memory; BF16, FP32 accumulation.

    d: N / 2 FP32 values, N a multiple of 8 up to 256. Of lane 4 g + t of the warpgroup's warp w, values
    4 j + (0, 1, 2, 3) are rows 16 w + (g, g, g + 8, g + 8) at columns 8 j + (2t, 2t + 1, 2t, 2t + 1).
    a, b: `matrix_descriptor`s of A (64 x 16) and B (16 x N), the same in all threads; K-major unless said.
    accumulate: whether d is added, else the result is a @ b: a Python bool, or an `Int32` that is not 0.
    """
    majors = f"{int(a_mn_major)}, {int(b_mn_major)}"
    return _mma(d, (i64(a),), b, accumulate, majors, loc, ip)


@dsl_user_op
def wgmma_registers(d, a: list[Int32], b: Int64, accumulate=True, b_mn_major=False, *, loc=None, ip=None):
    """As `wgmma_shared`, with A in registers.

    a: four BF16 pairs; of lane 4 g + t of warp w, rows 16 w + (g, g + 8, g, g + 8) at columns (2t, 2t, 2t +
    8, 2t + 8) and the one behind. So two tiles of 8 columns of an accumulator, rounded and packed, are the A
    of 16 k: (d0, d1), (d2, d3), (d4, d5), (d6, d7).
    """
    registers = tuple(i32(pair) for pair in a)
    if len(registers) != 4:
        raise ValueError(f"A has 4 registers, not {len(registers)}")
    return _mma(d, registers, b, accumulate, f"{int(b_mn_major)}", loc, ip)


def _mma(d, a, b, accumulate, majors, loc, ip):
    values = [f32(x) for x in d]
    count = len(values)
    if count % 4 or not 4 <= count <= 128:
        raise ValueError(f"an accumulator has 4 to 128 registers, in fours: not {count}")
    first = 2 * count
    names = [f"${first + i}" for i in range(len(a))]
    left = names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"
    operands, constraints = [*a, i64(b)], ["l" if len(a) == 1 else "r"] * len(a) + ["l"]
    scale = f"{int(accumulate)}" if isinstance(accumulate, bool) else f"${first + len(a) + 1}"
    if not isinstance(accumulate, bool):
        operands.append(i32(accumulate))
        constraints.append("r")
    sums = ", ".join(f"${i}" for i in range(count))
    text = (
        "{ .reg .pred accumulate; "
        f"setp.ne.b32 accumulate, {scale}, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.bf16.bf16 "
        f"{{{sums}}}, {left}, ${first + len(a)}, accumulate, 1, 1, {majors}; }}"
    )
    return _through(text, values, operands, constraints, loc, ip)
