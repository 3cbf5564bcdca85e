"""PTX primitives that the stages share: one function, one instruction.

Contract
    Called by any thread; the warp-wide ones (`mma_bf16`, `movmatrix`, the shuffles) by all 32 lanes of
    a warp together.

    FP32 arithmetic is spelled out instruction by instruction, in the flushing and approximate forms,
    because the DSL's own `*` and `+` leave contraction and the handling of subnormals to the compiler:
    the bits of a result would then depend on its version. Arithmetic has no side effects, so the
    compiler may schedule it. What all lanes of a warp execute together stays where it is written, so that the
    compiler cannot move it under a branch that some lanes take. Memory operations also keep their order,
    which is what makes it safe to read after `griddep_wait` or after a barrier.

    Addresses are plain integers: `Int64` for global memory, `Int32` for shared memory. Nothing here
    checks a bound or an alignment.

Formulas and operand layouts: PTX ISA 8.8, the section of each instruction.
"""

from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import arith, llvm
from cutlass.cutlass_dsl import T, dsl_user_op


def _asm(result, operands, text, constraints, *, ordered=False, collective=False, loc, ip):
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


def _fields(kind, struct, types, loc, ip):
    """The results of an instruction with several destinations, as DSL values."""
    return tuple(kind(llvm.extractvalue(t, struct, [i], loc=loc, ip=ip)) for i, t in enumerate(types))


# ---- FP32 arithmetic ----------------------------------------------------------------------------


def _f32(text, constraints, operands, loc, ip):
    values = [Float32(x) for x in operands]
    return Float32(_asm(T.f32(), values, text, constraints, loc=loc, ip=ip))


@dsl_user_op
def add(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a + b, rounded to nearest even, subnormals flushed."""
    return _f32("add.rn.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def sub(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a - b, rounded to nearest even, subnormals flushed."""
    return _f32("sub.rn.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def mul(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a * b, rounded to nearest even, subnormals flushed."""
    return _f32("mul.rn.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def fma(a: Float32, b: Float32, c: Float32, *, loc=None, ip=None) -> Float32:
    """a * b + c with one rounding to nearest even, subnormals flushed."""
    return _f32("fma.rn.ftz.f32 $0, $1, $2, $3;", "=f,f,f,f", (a, b, c), loc, ip)


@dsl_user_op
def maximum(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """The larger of a and b; if one is NaN, the other."""
    return _f32("max.ftz.f32 $0, $1, $2;", "=f,f,f", (a, b), loc, ip)


@dsl_user_op
def exp2(a: Float32, *, loc=None, ip=None) -> Float32:
    """2**a, approximate (2 ulp over the full range); exp2(-inf) = +0."""
    return _f32("ex2.approx.ftz.f32 $0, $1;", "=f,f", (a,), loc, ip)


@dsl_user_op
def reciprocal(a: Float32, *, loc=None, ip=None) -> Float32:
    """1 / a, approximate (1 ulp); reciprocal(+-0) = +-inf."""
    return _f32("rcp.approx.ftz.f32 $0, $1;", "=f,f", (a,), loc, ip)


@dsl_user_op
def rsqrt(a: Float32, *, loc=None, ip=None) -> Float32:
    """1 / sqrt(a), approximate (relative error below 2**-22.9)."""
    return _f32("rsqrt.approx.ftz.f32 $0, $1;", "=f,f", (a,), loc, ip)


@dsl_user_op
def select(condition, a, b, *, loc=None, ip=None):
    """a where the condition holds, else b: both have been computed, nothing is added or multiplied.

    a and b have one type, `Float32` or `Int32`, which is the result's.
    """
    kind = Int32 if isinstance(a, Int32) else Float32
    chosen = arith.select(
        condition.ir_value(loc=loc, ip=ip),
        kind(a).ir_value(loc=loc, ip=ip),
        kind(b).ir_value(loc=loc, ip=ip),
        loc=loc,
        ip=ip,
    )
    return kind(chosen)


# ---- 32-bit integers -----------------------------------------------------------------------------


@dsl_user_op
def divide_u32(a: Int32, b: Int32, *, loc=None, ip=None) -> Int32:
    """a // b, both unsigned. It takes long, and stays where it is written: put it where others wait."""
    operands = (Int32(a), Int32(b))
    return Int32(_asm(T.i32(), operands, "div.u32 $0, $1, $2;", "=r,r,r", collective=True, loc=loc, ip=ip))


@dsl_user_op
def multiply_high_u32(a: Int32, b: Int32, *, loc=None, ip=None) -> Int32:
    """a * b // 2**32, both unsigned."""
    operands = (Int32(a), Int32(b))
    return Int32(_asm(T.i32(), operands, "mul.hi.u32 $0, $1, $2;", "=r,r,r", loc=loc, ip=ip))


# ---- BF16 pairs: two values in 32 bits, the first in the low half ---------------------------------


@dsl_user_op
def pack_bf16(low: Float32, high: Float32, *, loc=None, ip=None) -> Int32:
    """Round two FP32 values to BF16 (nearest even) and pack them, `low` in bits 0:16."""
    operands = (Float32(high), Float32(low))
    text = "cvt.rn.bf16x2.f32 $0, $1, $2;"
    return Int32(_asm(T.i32(), operands, text, "=r,f,f", loc=loc, ip=ip))


@dsl_user_op
def unpack_bf16(pair: Int32, *, loc=None, ip=None) -> tuple[Float32, Float32]:
    """The two BF16 values of a pair, widened exactly to FP32: (bits 0:16, bits 16:32)."""
    low = (pair << Int32(16)).bitcast(Float32, loc=loc, ip=ip)
    high = (pair & Int32(-65536)).bitcast(Float32, loc=loc, ip=ip)
    return low, high


# ---- warp-wide -----------------------------------------------------------------------------------


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
    operands = [*(Int32(x) for x in (*a, *b)), *(Float32(x) for x in c)]
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
    struct = llvm.StructType.get_literal(types)
    result = _asm(struct, operands, text, constraints, collective=True, loc=loc, ip=ip)
    return _fields(Float32, result, types, loc, ip)


@dsl_user_op
def movmatrix(pair: Int32, *, loc=None, ip=None) -> Int32:
    """Transpose an 8 x 8 BF16 matrix held one pair a lane.

    Lane 4 g + t gives row g, columns 2t and 2t+1; it receives rows 2t and 2t+1 of column g.
    """
    text = "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;"
    return Int32(_asm(T.i32(), (Int32(pair),), text, "=r,r", collective=True, loc=loc, ip=ip))


@dsl_user_op
def shuffle_xor(value: Float32, lanes: int, *, loc=None, ip=None) -> Float32:
    """The value of the lane whose index differs by the bits of `lanes` (a compile-time integer)."""
    text = f"shfl.sync.bfly.b32 $0, $1, {lanes}, 31, -1;"
    return Float32(_asm(T.f32(), (Float32(value),), text, "=f,f", collective=True, loc=loc, ip=ip))


@dsl_user_op
def shuffle_index(value: Int32, lane: Int32, *, loc=None, ip=None) -> Int32:
    """The value of lane `lane` % 32 of the warp."""
    operands = (Int32(value), Int32(lane))
    text = "shfl.sync.idx.b32 $0, $1, $2, 31, -1;"
    return Int32(_asm(T.i32(), operands, text, "=r,r,r", collective=True, loc=loc, ip=ip))


@dsl_user_op
def load_matrices_transposed(row: Int32, *, loc=None, ip=None):
    """`ldmatrix.x4.trans`: four 8 x 8 BF16 matrices from shared memory, transposed.

    row: lane i gives the address of row i % 8 of matrix i // 8, 16 bytes, 16-byte aligned. Lane 4 g + t
    receives, of each matrix, rows 2t and 2t+1 of column g, a BF16 pair.
    """
    types = [T.i32()] * 4
    struct = llvm.StructType.get_literal(types)
    text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {$0, $1, $2, $3}, [$4];"
    result = _asm(struct, (Int32(row),), text, "=r,=r,=r,=r,r", ordered=True, loc=loc, ip=ip)
    return _fields(Int32, result, types, loc, ip)


@dsl_user_op
def warp_sync(*, loc=None, ip=None) -> None:
    """Barrier of the 32 lanes of a warp; orders their memory accesses."""
    _asm(None, (), "bar.warp.sync -1;", "", ordered=True, loc=loc, ip=ip)


# ---- global memory -------------------------------------------------------------------------------


def _load_x4(space, kind, address, loc, ip):
    register, element = ("=f", T.f32()) if kind is Float32 else ("=r", T.i32())
    types = [element] * 4
    constraints = ",".join([register] * 4 + ["l" if isinstance(address, Int64) else "r"])
    text = f"ld.{space}.v4.b32 {{$0, $1, $2, $3}}, [$4];"
    struct = llvm.StructType.get_literal(types)
    result = _asm(struct, (address,), text, constraints, ordered=True, loc=loc, ip=ip)
    return _fields(kind, result, types, loc, ip)


@dsl_user_op
def load_global_i32(address: Int64, *, loc=None, ip=None) -> Int32:
    """One 32-bit integer from global memory. Alignment: 4 bytes."""
    text = "ld.global.b32 $0, [$1];"
    return Int32(_asm(T.i32(), (Int64(address),), text, "=r,l", ordered=True, loc=loc, ip=ip))


@dsl_user_op
def load_global_x4(address: Int64, *, loc=None, ip=None):
    """Four 32-bit words from global memory. Alignment: 16 bytes."""
    return _load_x4("global", Int32, Int64(address), loc, ip)


@dsl_user_op
def stream_global_x4(address: Int64, *, loc=None, ip=None):
    """`load_global_x4` for data that this SM reads once: it is not kept in the L1 cache."""
    return _load_x4("global.L1::no_allocate", Int32, Int64(address), loc, ip)


@dsl_user_op
def store_global_i32(address: Int64, value: Int32, *, loc=None, ip=None) -> None:
    """One 32-bit word to global memory. Alignment: 4 bytes."""
    operands = (Int64(address), Int32(value))
    _asm(None, operands, "st.global.b32 [$0], $1;", "l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_global_f32x2(address: Int64, values, *, loc=None, ip=None) -> None:
    """Two FP32 values to global memory. Alignment: 8 bytes."""
    operands = [Int64(address), *(Float32(v) for v in values)]
    _asm(None, operands, "st.global.v2.b32 [$0], {$1, $2};", "l,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def load_device_f32x2(address: Int64, *, loc=None, ip=None):
    """Two FP32 values that other CTAs of the device have written. Alignment: 8 bytes.

    Relaxed at device scope: it reads behind the L1 cache; an acquire before it gives the order.
    """
    types = [T.f32()] * 2
    struct = llvm.StructType.get_literal(types)
    text = "ld.relaxed.gpu.global.v2.b32 {$0, $1}, [$2];"
    result = _asm(struct, (Int64(address),), text, "=f,=f,l", ordered=True, loc=loc, ip=ip)
    return _fields(Float32, result, types, loc, ip)


@dsl_user_op
def count_arrival(address: Int64, *, loc=None, ip=None) -> Int32:
    """Add 1 to a device-wide counter and return what it was; releases and acquires at device scope."""
    text = "atom.acq_rel.gpu.global.add.u32 $0, [$1], 1;"
    return Int32(_asm(T.i32(), (Int64(address),), text, "=r,l", ordered=True, loc=loc, ip=ip))


# ---- shared memory -------------------------------------------------------------------------------


@dsl_user_op
def load_shared_f32x4(address: Int32, *, loc=None, ip=None):
    """Four FP32 values from this CTA's shared memory. Alignment: 16 bytes."""
    return _load_x4("shared::cta", Float32, Int32(address), loc, ip)


@dsl_user_op
def load_shared_f32x2(address: Int32, *, loc=None, ip=None):
    """Two FP32 values from this CTA's shared memory. Alignment: 8 bytes."""
    types = [T.f32()] * 2
    struct = llvm.StructType.get_literal(types)
    text = "ld.shared::cta.v2.b32 {$0, $1}, [$2];"
    result = _asm(struct, (Int32(address),), text, "=f,=f,r", ordered=True, loc=loc, ip=ip)
    return _fields(Float32, result, types, loc, ip)


@dsl_user_op
def store_shared_f32x4(address: Int32, values, *, loc=None, ip=None) -> None:
    """Four FP32 values to this CTA's shared memory. Alignment: 16 bytes."""
    operands = [Int32(address), *(Float32(v) for v in values)]
    text = "st.shared::cta.v4.b32 [$0], {$1, $2, $3, $4};"
    _asm(None, operands, text, "r,f,f,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_shared_f32x2(address: Int32, values, *, loc=None, ip=None) -> None:
    """Two FP32 values to this CTA's shared memory. Alignment: 8 bytes."""
    operands = [Int32(address), *(Float32(v) for v in values)]
    text = "st.shared::cta.v2.b32 [$0], {$1, $2};"
    _asm(None, operands, text, "r,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def load_shared_x4(address: Int32, *, loc=None, ip=None):
    """Four 32-bit words from this CTA's shared memory. Alignment: 16 bytes."""
    return _load_x4("shared::cta", Int32, Int32(address), loc, ip)


@dsl_user_op
def copy_async_16(shared: Int32, source: Int64, size: Int32, further: int = 0, *, loc=None, ip=None) -> None:
    """Begin to copy 16 bytes from global to shared memory, past the L1 cache. Alignment: 16 bytes.

    Of the source only the first `size` bytes are read, 0 for none; the rest is filled with zeros. further:
    bytes to add to the source's address.
    """
    operands = (Int32(shared), Int64(source), Int32(size))
    text = f"cp.async.cg.shared.global [$0], [$1+{further}], 16, $2;"
    _asm(None, operands, text, "r,l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_async_commit(*, loc=None, ip=None) -> None:
    """Close this thread's group of copies."""
    _asm(None, (), "cp.async.commit_group;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_async_wait(pending: int, *, loc=None, ip=None) -> None:
    """Wait until at most `pending` of this thread's latest groups are unfinished. A barrier for others."""
    _asm(None, (), f"cp.async.wait_group {pending};", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_bulk(shared: Int32, source: Int64, size: int, barrier: Int32, *, loc=None, ip=None) -> None:
    """Begin to copy `size` bytes from global to shared memory; they complete on the barrier. One thread.

    Alignment and size: 16 bytes.
    """
    operands = (Int32(shared), Int64(source), Int32(barrier))
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes " f"[$0], [$1], {size}, [$2];"
    _asm(None, operands, text, "r,l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_wait(barrier: Int32, parity: Int32, *, loc=None, ip=None) -> None:
    """Wait for the phase of this parity of a barrier of this CTA; acquires."""
    text = (
        "{ .reg .pred done; "
        "WAIT_${:uid}: "
        "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
        "@!done bra WAIT_${:uid}; }"
    )
    _asm(None, (Int32(barrier), Int32(parity)), text, "r,r", ordered=True, loc=loc, ip=ip)


# ---- the cluster's shared memory, and its barriers -------------------------------------------------


@dsl_user_op
def map_to_rank(address: Int32, rank: Int32, *, loc=None, ip=None) -> Int32:
    """The `shared::cluster` address at which CTA `rank` of this cluster holds `address`."""
    operands = (Int32(address), Int32(rank))
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    return Int32(_asm(T.i32(), operands, text, "=r,r,r", loc=loc, ip=ip))


@dsl_user_op
def store_async_f32x4(remote: Int32, values, barrier: Int32, *, loc=None, ip=None) -> None:
    """Send four FP32 values to a CTA of the cluster; 16 transaction bytes complete on its barrier.

    remote, barrier: `shared::cluster` addresses (`map_to_rank`) in the same CTA. Alignment: 16 bytes.
    """
    operands = [Int32(remote), Int32(barrier), *(Float32(v) for v in values)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$2, $3, $4, $5}, [$1];"
    _asm(None, operands, text, "r,r,f,f,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_async_f32x2(remote: Int32, values, barrier: Int32, *, loc=None, ip=None) -> None:
    """Send two FP32 values; 8 transaction bytes. Otherwise as `store_async_f32x4`."""
    operands = [Int32(remote), Int32(barrier), *(Float32(v) for v in values)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [$0], {$2, $3}, [$1];"
    _asm(None, operands, text, "r,r,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_init(barrier: Int32, arrivals: int, *, loc=None, ip=None) -> None:
    """Start an mbarrier that expects `arrivals` arrivals a phase. One thread; then a fence."""
    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
    _asm(None, (Int32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_init_fence(*, loc=None, ip=None) -> None:
    """Make this thread's `mbarrier_init` visible to the cluster at its next cluster barrier."""
    _asm(None, (), "fence.mbarrier_init.release.cluster;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_arrive_expect(barrier: Int32, transaction_bytes: Int32 | int, *, loc=None, ip=None) -> None:
    """Arrive once and expect `transaction_bytes` more bytes in this phase."""
    opcode = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0]"
    if isinstance(transaction_bytes, int):
        text, operands = f"{opcode}, {transaction_bytes};", (Int32(barrier),)
    else:
        text, operands = f"{opcode}, $1;", (Int32(barrier), Int32(transaction_bytes))
    _asm(None, operands, text, ",".join("r" * len(operands)), ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_wait_cluster(barrier: Int32, parity: int, *, loc=None, ip=None) -> None:
    """Wait for the phase of this parity, acquiring what any CTA of the cluster released into it."""
    text = (
        "{ .reg .pred done; "
        "WAIT_${:uid}: "
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$0], " + str(parity) + "; "
        "@!done bra WAIT_${:uid}; }"
    )
    _asm(None, (Int32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cluster_arrive(*, loc=None, ip=None) -> None:
    """Arrive at the cluster barrier without ordering memory. Every thread of the cluster, once."""
    _asm(None, (), "barrier.cluster.arrive.relaxed.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cluster_wait(*, loc=None, ip=None) -> None:
    """Wait until every thread of the cluster has arrived; acquires."""
    _asm(None, (), "barrier.cluster.wait.acquire.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cta_sync(*, loc=None, ip=None) -> None:
    """Barrier of all threads of the CTA; orders their shared-memory accesses."""
    _asm(None, (), "bar.sync 0;", "", ordered=True, loc=loc, ip=ip)


# ---- addresses -----------------------------------------------------------------------------------


@dsl_user_op
def element_address(base: Int64, index: Int32, stride: Int32, *, loc=None, ip=None) -> Int64:
    """base + index * stride, in one instruction: index and stride are unsigned, the product has 64 bits."""
    operands = (Int32(index), Int32(stride), Int64(base))
    return Int64(_asm(T.i64(), operands, "mad.wide.u32 $0, $1, $2, $3;", "=l,r,r,l", loc=loc, ip=ip))


# ---- special registers ---------------------------------------------------------------------------


@dsl_user_op
def block_index_again(*, loc=None, ip=None) -> tuple[Int32, Int32, Int32]:
    """(x, y, z) of the block, read where this stands: the compiler keeps no earlier value in registers."""
    return tuple(_special(f"ctaid.{axis}", loc, ip) for axis in "xyz")


@dsl_user_op
def thread_index_again(*, loc=None, ip=None) -> Int32:
    """x of the thread, read where this stands, as `block_index_again` does."""
    return _special("tid.x", loc, ip)


def _special(name, loc, ip):
    return Int32(_asm(T.i32(), (), f"mov.u32 $0, %{name};", "=r", ordered=True, loc=loc, ip=ip))


# ---- programmatic dependent launch ---------------------------------------------------------------


@dsl_user_op
def griddep_wait(*, loc=None, ip=None) -> None:
    """Wait until the kernels this one depends on have finished and their writes are visible."""
    _asm(None, (), "griddepcontrol.wait;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def griddep_launch_dependents(*, loc=None, ip=None) -> None:
    """Let a dependent kernel start; it still waits for this one's end before it reads."""
    _asm(None, (), "griddepcontrol.launch_dependents;", "", ordered=True, loc=loc, ip=ip)
