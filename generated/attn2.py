"""Module `attn2`: attention of 8 verified tokens, head_dim 64, 8 query heads a KV head, BF16 pages of 16.

Variant `cluster` (cluster skeleton) serves contexts up to 2048 entries, no window: pages
register_prefetch, scores mma_qk, softmax online, values mma_pv, warp_merge shared, push dsmem,
cluster_merge rank_order, epilogue norm_gate.

Generated from spec.yaml; do not edit. Change the spec, or the file named above a section, then run
`python -m generator generate`.

sha256 of the plan, sources, template and formatter: e26312bf1054180272f64b33d5589c8d821eaacdc5a4a3624bfbca966d84e9eb
"""

import dataclasses
import math
import numbers
import threading
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import arith, llvm
from cutlass.cute.runtime import make_fake_stream, make_ptr
from cutlass.cutlass_dsl import T, dsl_user_op

__all__ = ["VARIANTS", "attn2", "compile_attn2", "prepare", "split_kernel"]


# ============================================================================================================
# stages/fragments.py
#
# Where a warp keeps a row group, a page and an output: the layout that all stages agree on.
#
# Contract
#     A warp attends for one row group, the 16 rows (token, query head) that are the M of one
#     `mma.sync.m16n8k16`. Lane 4 g + t works on rows g and g + 8 of the group, on slots 8 n + g of a page
#     (n counts the page's tiles of 8 slots), and on quarter t of the head dims.
#
#     The head dims are permuted so that what a lane reads with 16-byte loads are its mma fragments as they
#     stand: chunk c of quarter t is the 8 dims from 32 c + 8 t. A dot product does not mind the order of
#     its dims as long as q and K agree, and the output comes out in the order of V. In one warp-wide load
#     the four lanes of a row read 64 contiguous bytes, two whole sectors.
#
#     For the host and for any thread; nothing here touches memory.
# ============================================================================================================


ROWS = 16
"""Rows of a row group."""


TILE = 8
"""Keys (slots) of one mma tile."""


def chunks(head_dim: int) -> int:
    """How many 16-byte chunks (8 BF16 dims) of a row one lane holds."""
    return head_dim // 32


def chunk_dim(chunk, quarter):
    """The first of the 8 head dims in chunk `chunk` of a lane of quarter `quarter` (lane % 4)."""
    return 32 * chunk + 8 * quarter


def pairs(head_dim: int) -> int:
    """How many BF16 pairs of a row one lane holds: its registers for that row."""
    return head_dim // 8


def registers(kind, count: int) -> cute.Tensor:
    """`count` registers of a lane, to be indexed by compile-time integers only."""
    return cute.make_rmem_tensor(count, kind)


@dataclass(frozen=True)
class PageFragments:
    """K and V of the pages of one step, BF16 pairs in the registers of a warp.

    Pair j of tile n of the step's pages is at n * pairs(head_dim) + j in both.
    """

    k: cute.Tensor
    v: cute.Tensor

    @staticmethod
    def empty(pages: int, page_size: int, head_dim: int) -> "PageFragments":
        """Registers for this many pages, not yet set."""
        count = pages * (page_size // TILE) * pairs(head_dim)
        return PageFragments(registers(Int32, count), registers(Int32, count))


@dataclass(frozen=True)
class RowState:
    """What a lane has of the partials of its two rows (g, then g + 8) while a warp attends.

    m: [2] running maxima, the same in the four lanes of a row. l: [2] sums of this lane's weights alone.
    o: [head_dim / 8 tiles of 4] unnormalised outputs, an mma accumulator: tile j holds the two dims of
    pair j, for row g and then for row g + 8.
    """

    m: cute.Tensor
    l: cute.Tensor
    o: cute.Tensor

    @staticmethod
    def empty(head_dim: int) -> "RowState":
        """The partial over no key at all: (-inf, 0, 0)."""
        state = RowState(registers(Float32, 2), registers(Float32, 2), registers(Float32, head_dim // 2))
        state.m.fill(float("-inf"))
        state.l.fill(0.0)
        state.o.fill(0.0)
        return state


# ============================================================================================================
# stages/ptx.py
#
# PTX primitives that the stages share: one function, one instruction.
#
# Contract
#     Called by any thread; the warp-wide ones (`mma_bf16`, `movmatrix`, the shuffles) by all 32 lanes of
#     a warp together.
#
#     FP32 arithmetic is spelled out instruction by instruction, in the flushing and approximate forms,
#     because the DSL's own `*` and `+` leave contraction and the handling of subnormals to the compiler:
#     the bits of a result would then depend on its version. Arithmetic has no side effects, so the
#     compiler may schedule it. What all lanes of a warp execute together stays where it is written, so that the
#     compiler cannot move it under a branch that some lanes take. Memory operations also keep their order,
#     which is what makes it safe to read after `griddep_wait` or after a barrier.
#
#     Addresses are plain integers: `Int64` for global memory, `Int32` for shared memory. Nothing here
#     checks a bound or an alignment.
#
# Formulas and operand layouts: PTX ISA 8.8, the section of each instruction.
# ============================================================================================================


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
def mbarrier_arrive_expect(barrier: Int32, transaction_bytes: int, *, loc=None, ip=None) -> None:
    """Arrive once and expect `transaction_bytes` more bytes in this phase."""
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {transaction_bytes};"
    _asm(None, (Int32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


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


@dsl_user_op
def griddep_wait(*, loc=None, ip=None) -> None:
    """Wait until the kernels this one depends on have finished and their writes are visible."""
    _asm(None, (), "griddepcontrol.wait;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def griddep_launch_dependents(*, loc=None, ip=None) -> None:
    """Let a dependent kernel start; it still waits for this one's end before it reads."""
    _asm(None, (), "griddepcontrol.launch_dependents;", "", ordered=True, loc=loc, ip=ip)


# ============================================================================================================
# stages/pages/walk.py
#
# The pages that one warp attends, in order, and where they are.
#
# Contract
#     The warps of a cluster deal a request's pages out among them: warp number `first` (rank * warps +
#     warp) takes pages first, first + stride, first + 2 * stride, ... of the live ones, where stride is
#     the number of warps in the cluster. A page of the walk is its place in that list.
#
#     An entry of the block table may be read before the length is known, as long as it lies in the table;
#     what it says is used only if the page is live. All addresses are 64-bit byte addresses.
# ============================================================================================================


@dataclass(frozen=True)
class PageWalk:
    """One warp's walk through one request's block table, for one KV head.

    table: address of the request's first entry. columns: entries that may be read, at least 1.
    cache: address of the KV head in page 0. page_stride: bytes from page to page.
    first, stride: which pages are the warp's, as page numbers within the request.
    """

    table: Int64
    columns: Int32
    cache: Int64
    page_stride: Int64
    first: Int32
    stride: int

    def page(self, index):
        """The page number within the request of the walk's page `index`."""
        return self.first + index * self.stride

    def entry(self, index) -> Int32:
        """The block-table entry of the walk's page `index`; the last column's if it has none."""
        page = self.page(index)
        last = self.columns - 1
        column = select(page < last, page, last)
        return load_global_i32(self.table + Int64(column) * 4)

    def address(self, entry: Int32) -> Int64:
        """Where the page lies that the block table gives as `entry`."""
        return self.cache + Int64(entry) * self.page_stride

    def pages(self, length: Int32, page_size: int) -> Int32:
        """How many pages of a request of this length are the walk's."""
        live = (length + (page_size - 1)) // page_size
        live = select(live < self.columns, live, self.columns)
        mine = (live - self.first + (self.stride - 1)) // self.stride
        return select(mine > 0, mine, Int32(0))


# ============================================================================================================
# stages/pages/register_prefetch.py
#
# Page loader: pages go from global memory straight to the registers of the warp that attends them.
#
# Contract
#     Computes nothing: it fills the K and V fragments of the pages of one step, `pages_per_step` pages of
#     a warp's walk. While a step is attended, the registers of the next are loading; nothing passes
#     through shared memory, so there is no barrier and no fence.
#
#     A page that is not live is never touched: its fragments are zeros and its table entry is not used.
#     Slots that no row sees are read with their page, whatever they hold, and masked later.
#
#     Called by whole warps, in this order: `begin`, which may run before the request's length is known;
#     `start`, which begins to load step 0; then `take` for each step in turn, which hands the step's
#     fragments over and begins to load the next step.
#
#     Does not mask or convert, and shares nothing between warps: each page's bytes are read once by each
#     warp that attends it.
# ============================================================================================================


@dataclass(frozen=True)
class Incoming:
    """Registers on their way: the table entries and the fragments of a warp's next step."""

    entries: cute.Tensor
    pages: PageFragments


@dataclass(frozen=True)
class RegisterPrefetch:
    """Holds the pages of the next step in registers while one step is attended."""

    head_dim: int
    page_size: int
    pages_per_step: int

    def begin(self, walk: PageWalk) -> Incoming:
        """Look up the pages of step 0 in the block table."""
        incoming = Incoming(
            registers(Int32, self.pages_per_step),
            PageFragments.empty(self.pages_per_step, self.page_size, self.head_dim),
        )
        self._look_up(walk, Int32(0), incoming)
        return incoming

    def start(self, walk: PageWalk, live: Int32, last: bool, incoming: Incoming) -> None:
        """Begin to load step 0. live: how many pages the walk has; last: they all fit into step 0."""
        self._load(walk, live, Int32(0), incoming)
        if not last:
            self._look_up(walk, Int32(1), incoming)

    def take(
        self,
        walk: PageWalk,
        live: Int32,
        step: Int32,
        last: cutlass.Constexpr[bool],
        incoming: Incoming,
        pages: PageFragments,
    ) -> None:
        """Hand over the fragments of a step, and begin to load the next unless this is the `last`."""
        pages.k.store(incoming.pages.k.load())
        pages.v.store(incoming.pages.v.load())
        if not last:
            self._load(walk, live, step + 1, incoming)
            self._look_up(walk, step + 2, incoming)

    def _look_up(self, walk, step, incoming):
        for p in range(self.pages_per_step):
            incoming.entries[p] = walk.entry(step * self.pages_per_step + p)

    @cute.jit
    def _load(self, walk: PageWalk, live: Int32, step: Int32, incoming: Incoming):
        lane = cute.arch.lane_idx()
        slot_bytes = 4 * self.head_dim
        for p in cutlass.range_constexpr(self.pages_per_step):
            tiles = range(p * self.page_size // TILE, (p + 1) * self.page_size // TILE)
            if step * self.pages_per_step + p < live:
                page = walk.address(incoming.entries[p])
                for n in cutlass.range_constexpr(len(tiles)):
                    slot = page + Int64((lane // 4 + TILE * n) * slot_bytes)
                    self._load_row(slot, tiles[n], incoming.pages.k)
                for n in cutlass.range_constexpr(len(tiles)):
                    slot = page + Int64((lane // 4 + TILE * n) * slot_bytes + slot_bytes // 2)
                    self._load_row(slot, tiles[n], incoming.pages.v)
            else:
                for i in cutlass.range_constexpr(len(tiles) * pairs(self.head_dim)):
                    at = tiles[0] * pairs(self.head_dim) + i
                    incoming.pages.k[at] = Int32(0)
                    incoming.pages.v[at] = Int32(0)

    def _load_row(self, address, tile, fragments):
        quarter = cute.arch.lane_idx() % 4
        for c in range(chunks(self.head_dim)):
            words = stream_global_x4(address + Int64(2 * chunk_dim(c, quarter)))
            for i, word in enumerate(words):
                fragments[tile * pairs(self.head_dim) + 4 * c + i] = word


# ============================================================================================================
# stages/scores/mma_qk.py
#
# Scores by tensor cores: S = Q K^T with `mma.sync.m16n8k16`, BF16 operands, FP32 accumulation.
#
# Contract
#     Computes the raw dot products of a row group's 16 query rows with the keys of the pages of one step.
#     Neither scale nor mask is applied: a slot that no row sees gets whatever its bytes give, NaN included,
#     and it is the softmax that must select it away.
#
#     Q and K come as lanes load them (`stages.fragments`), the head dims in permuted order: mma k-step j
#     takes pairs 2 j and 2 j + 1 of both. The four k-steps of a tile accumulate in ascending order; tiles
#     are independent.
#
#     Called by whole warps; no barrier, no fence, no shared memory. `load_query` reads global memory.
# ============================================================================================================


@dataclass(frozen=True)
class MmaScores:
    """Q K^T of one row group and the pages of one step."""

    head_dim: int
    page_size: int
    pages_per_step: int

    def load_query(self, row: Int64, row_plus_8: Int64) -> cute.Tensor:
        """A lane's A fragments: [2 * pairs(head_dim)] BF16 pairs, row g's and then row g + 8's.

        row, row_plus_8: global byte addresses of the lane's two query rows, 16-byte aligned.
        """
        count = pairs(self.head_dim)
        query = registers(Int32, 2 * count)
        quarter = cute.arch.lane_idx() % 4
        for half, address in enumerate((row, row_plus_8)):
            for c in range(chunks(self.head_dim)):
                words = load_global_x4(address + Int64(2 * chunk_dim(c, quarter)))
                for i, word in enumerate(words):
                    query[half * count + 4 * c + i] = word
        return query

    def scores(self, query: cute.Tensor, k: cute.Tensor) -> cute.Tensor:
        """[4 per tile of 8 keys] FP32 scores: keys 2t, 2t+1 of row g, then the same keys of row g + 8."""
        count = pairs(self.head_dim)
        tiles = self.pages_per_step * self.page_size // TILE
        scores = registers(Float32, 4 * tiles)
        for n in range(tiles):
            tile = [Float32(0.0)] * 4
            for j in range(0, count, 2):
                a = (query[j], query[count + j], query[j + 1], query[count + j + 1])
                b = (k[n * count + j], k[n * count + j + 1])
                tile = mma_bf16(a, b, tile)
            for i in range(4):
                scores[4 * n + i] = tile[i]
        return scores


# ============================================================================================================
# stages/mask.py
#
# Which keys a row sees: the causal rule of a verify step, and a sliding window.
#
# Contract
#     The last `tokens` cache entries of a request are the tokens being verified. Token i of a request of
#     length L sees keys [0, L - tokens + i]; with a window of W keys, the token's own among them,
#     [max(0, L - tokens + i - W + 1), L - tokens + i].
#
#     A lane's two rows belong to the tokens of rows g and g + 8 of its row group; `heads_per_kv` is a
#     multiple of 8, so that all lanes agree on the two tokens.
#
#     Masking selects. A masked key's score or value may be NaN or Inf, and an addition or a product with
#     zero would let it through.
#
#     Any thread may call these; none of them touches memory.
# ============================================================================================================


@dataclass(frozen=True)
class KeyRange:
    """The keys [first, last] that one row sees; none if last < first."""

    first: Int32
    last: Int32

    def sees(self, key):
        """Whether the row sees this key (an Int32 index into the request's cache entries)."""
        return (key >= self.first) & (key <= self.last)

    def sees_any(self, first_key, keys: int):
        """Whether the row sees one or more of `keys` keys from `first_key` on."""
        return (first_key <= self.last) & (first_key + (keys - 1) >= self.first)

    def sees_all(self, first_key, keys: int):
        """Whether the row sees each of `keys` keys from `first_key` on."""
        return (first_key >= self.first) & (first_key + (keys - 1) <= self.last)


@dataclass(frozen=True)
class CausalMask:
    """The verify step's mask: `key_ranges` gives a lane the keys of its two rows."""

    tokens: int
    heads_per_kv: int
    window: int | None = None

    def key_ranges(self, length: Int32, row_group: Int32) -> tuple[KeyRange, KeyRange]:
        """The keys of rows g and g + 8 of a row group of a request with `length` cache entries."""
        return self._token(length, row_group, 0), self._token(length, row_group, ROWS // 2)

    def _token(self, length, row_group, row_in_group: int) -> KeyRange:
        token = (row_group * ROWS + row_in_group) // self.heads_per_kv
        last = length - self.tokens + token
        if self.window is None:
            return KeyRange(Int32(0), last)
        low = last - (self.window - 1)
        return KeyRange(select(low > 0, low, Int32(0)), last)


# ============================================================================================================
# stages/partial.py
#
# The record of a partial: what attention over some of the keys leaves for one row.
#
# Contract
#     A partial is (m, l, o): m the running maximum of the row's scores (base-2 logits), l the sum of its
#     weights 2**(score - m), o the unnormalised output, the sum of weight * value. Over no visible key it
#     is (-inf, 0, 0). Partials are merged by bringing them to the larger maximum:
#
#         M = max(m_i),  L = sum(l_i * 2**(m_i - M)),  O = sum(o_i * 2**(m_i - M))
#
#     (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#
#     Where every m is -inf, M stands in the exponents as 0, so that 2**(-inf - M) is 0 and not NaN. PTX `max`
#     drops a NaN beside a number, so m need not show one; it travels in l and o and so reaches the result.
#
#     In shared memory a record is FP32 [o, head_dim of them | m | l | 8 bytes of padding]. The padding
#     keeps records 16-byte aligned and puts neighbouring records 4 banks apart.
#
#     Any thread may call these; they read and write no memory.
# ============================================================================================================


NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True)
class PartialRecord:
    """Byte offsets within one partial in shared memory."""

    head_dim: int

    @property
    def stats(self) -> int:
        """The pair (m, l)."""
        return 4 * self.head_dim

    @property
    def bytes(self) -> int:
        """From one record to the next."""
        return 4 * self.head_dim + 16

    @property
    def payload(self) -> int:
        """Bytes that carry something: all but the padding."""
        return 4 * self.head_dim + 8


def merge_weights(maxima) -> tuple[Float32, list[Float32]]:
    """M and the factors 2**(m_i - M) that bring partials with these maxima together."""
    top = maxima[0]
    for other in maxima[1:]:
        top = maximum(top, other)
    base = exponent_base(top)
    return top, [exp2(sub(m, base)) for m in maxima]


def exponent_base(m: Float32) -> Float32:
    """What to subtract in an exponent where the maximum is m: m itself, or 0 for no key at all."""
    return select(m == NEGATIVE_INFINITY, Float32(0.0), m)


def weighted_sum(factors, parts) -> Float32:
    """The sum of factor * part, added up in ascending order."""
    total = mul(factors[0], parts[0])
    for factor, part in zip(factors[1:], parts[1:], strict=True):
        total = fma(factor, part, total)
    return total


@dataclass(frozen=True)
class MergedUnits:
    """One thread's share of a CTA's merged partials: some units of 4 head dims of one row.

    row: 0 .. 15 within the row group. unit, unit_stride: the thread has units unit, unit + unit_stride,
    ... m, l: the row's, the same in all threads of the row. o: four FP32 values a unit.
    """

    row: Int32
    unit: Int32
    unit_stride: int
    m: Float32
    l: Float32
    o: list[list[Float32]]


# ============================================================================================================
# stages/softmax/online.py
#
# Online softmax: scores become weights, the running maximum and sum of each row move on.
#
# Contract
#     Works in base 2: the caller folds scale * log2(e) into one factor, which multiplies each score once.
#     A key that a row does not see gets the score -inf by selection, whatever its raw score was.
#
#     With M the larger of the running maximum and the step's scores,
#
#         weight = 2**(score - M),  l = l * 2**(m - M) + sum(weights),  o = o * 2**(m - M),  m = M.
#
#     (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.) l sums the FP32 weights;
#     the weights that go on to P V are rounded to BF16. A lane sums its own weights, in ascending order of
#     keys; `finish` adds up the four lanes of a row.
#
#     A row that sees no key keeps (-inf, 0, 0). A NaN score that a row sees makes its l NaN.
#
#     Called by whole warps (shuffles); no barrier, no shared memory.
# ============================================================================================================


@dataclass(frozen=True)
class OnlineSoftmax:
    """One step of the online softmax over `pages_per_step` pages."""

    page_size: int
    pages_per_step: int

    def weigh(
        self,
        scores: cute.Tensor,
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        first: bool,
    ) -> cute.Tensor:
        """Turn a step's raw scores into weights; move m and l on, and rescale o.

        scores: as the scores stage leaves them; they are overwritten. first_keys: the first key of each
        page of the step. visible: the keys of the lane's two rows. first: nothing has been accumulated.

        Returns the weights as mma A fragments, [4 per 16 keys] BF16 pairs.
        """
        tiles = self.pages_per_step * self.page_size // TILE
        t = cute.arch.lane_idx() % 4
        for n in range(tiles):
            tiles_a_page = self.page_size // TILE
            key = first_keys[n // tiles_a_page] + (n % tiles_a_page) * TILE + 2 * t
            for i in range(4):
                score = mul(scores[4 * n + i], scale_log2)
                seen = visible[i // 2].sees(key + i % 2)
                scores[4 * n + i] = select(seen, score, Float32(NEGATIVE_INFINITY))

        for half in range(2):
            row = [scores[4 * n + 2 * half + e] for n in range(tiles) for e in range(2)]
            top = row[0] if first else state.m[half]
            for score in row[1:] if first else row:
                top = maximum(top, score)
            for lanes in (1, 2):
                top = maximum(top, shuffle_xor(top, lanes))
            base = exponent_base(top)
            weights = [exp2(sub(score, base)) for score in row]
            total = weights[0]
            for weight in weights[1:]:
                total = add(total, weight)
            if not first:
                factor = exp2(sub(state.m[half], base))
                total = add(mul(state.l[half], factor), total)
                for j in range(2 * half, cute.size(state.o), 4):
                    for e in range(2):
                        state.o[j + e] = mul(state.o[j + e], factor)
            state.m[half] = top
            state.l[half] = total
            for i, weight in enumerate(weights):
                scores[4 * (i // 2) + 2 * half + i % 2] = weight

        fragments = registers(Int32, 2 * tiles)
        for i in range(2 * tiles):
            fragments[i] = pack_bf16(scores[2 * i], scores[2 * i + 1])
        return fragments

    def finish(self, state: RowState) -> None:
        """Make l the sum over all keys of the row, the same in its four lanes."""
        for half in range(2):
            total = state.l[half]
            for lanes in (1, 2):
                total = add(total, shuffle_xor(total, lanes))
            state.l[half] = total


# ============================================================================================================
# stages/values/mma_pv.py
#
# Values by tensor cores: O += P V with `mma.sync.m16n8k16`, V transposed in registers by `movmatrix`.
#
# Contract
#     Adds to the accumulator of a row group the values of the pages of one step, weighted. V comes as lanes
#     load it, a slot's dims side by side; the mma wants a dim's slots side by side, which is the transpose
#     of an 8 x 8 matrix a pair, and so the output's dims come out in the permuted order of V.
#
#     A slot's value must reach the rows that see the slot, and no other row, though the 16 rows of an mma
#     may belong to two tokens: with a weight of 0, a NaN or an Inf in V would still spoil the product. Pages
#     that both tokens see whole, nearly all, take one mma a tile. In the others the slots that a token does
#     not see are zeroed, and each of the two tokens gets an mma of its own, of which only its rows are kept.
#     Both ways add the same numbers in the same order, so they agree bit for bit. A page of which neither
#     token sees anything adds nothing.
#
#     Pages accumulate in ascending order. Called by whole warps; no barrier, no fence, no memory.
# ============================================================================================================


@dataclass(frozen=True)
class MmaValues:
    """P V of one row group and the pages of one step."""

    head_dim: int
    page_size: int
    pages_per_step: int

    @cute.jit
    def accumulate(
        self,
        weights: cute.Tensor,
        v: cute.Tensor,
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        o: cute.Tensor,
    ):
        """o += weights @ v.

        weights: A fragments as the softmax stage leaves them. v: fragments as the page loader leaves
        them. first_keys: the first key of each page. visible: the keys of the lane's two rows.
        """
        for p in cutlass.range_constexpr(self.pages_per_step):
            key = first_keys[p]
            a = [weights[4 * p + i] for i in range(4)]
            whole = visible[0].sees_all(key, self.page_size) & visible[1].sees_all(key, self.page_size)
            some = visible[0].sees_any(key, self.page_size) | visible[1].sees_any(key, self.page_size)
            if whole:
                self._whole_page(a, v, p, o)
            elif some:
                self._ragged_page(a, v, p, key, visible, o)

    def _whole_page(self, a, v, page, o):
        for j in range(pairs(self.head_dim)):
            out = mma_bf16(a, self._transposed(v, page, j), [o[4 * j + i] for i in range(4)])
            for i in range(4):
                o[4 * j + i] = out[i]

    def _ragged_page(self, a, v, page, first_key, visible, o):
        t = cute.arch.lane_idx() % 4
        keep = [
            [self._seen_pair(rows, first_key + tile * TILE + 2 * t) for tile in range(2)] for rows in visible
        ]
        for j in range(pairs(self.head_dim)):
            b = self._transposed(v, page, j)
            c = [o[4 * j + i] for i in range(4)]
            for half in range(2):
                seen = [b[tile] & keep[half][tile] for tile in range(2)]
                out = mma_bf16(a, seen, c)
                for e in range(2):
                    o[4 * j + 2 * half + e] = out[2 * half + e]

    def _transposed(self, v, page, j):
        """B fragments of dim tile j: pairs (slots 2t, 2t + 1) of one dim, for the page's two tiles."""
        tiles = range(page * self.page_size // TILE, (page + 1) * self.page_size // TILE)
        return [movmatrix(v[n * pairs(self.head_dim) + j]) for n in tiles]

    def _seen_pair(self, rows, key):
        """A mask that keeps those of keys `key` and `key` + 1 (low and high half) that the rows see."""
        low = select(rows.sees(key), Int32(0x0000FFFF), Int32(0))
        high = select(rows.sees(key + 1), Int32(-65536), Int32(0))
        return low | high


# ============================================================================================================
# stages/warp_merge/shared.py
#
# Warp merge: the partials of a CTA's warps become one partial a row, through shared memory.
#
# Contract
#     Each warp leaves the partials of its 16 rows in the region `warp_partials` (records of
#     `stages.partial`), then one CTA barrier, then every thread merges some dims of one row, adding the
#     warps in ascending order. Thread i has row i // (threads / 16) and every (threads / 16)-th unit of 4
#     dims of it.
#
#     Called once by all threads of the CTA together. Before it, nothing may be in flight in the region; after
#     it, the region is free once every thread has passed the kernel's next barrier.
#
#     Reads and writes are 16 bytes wide and free of bank conflicts with 4 warps and more.
# ============================================================================================================


@dataclass(frozen=True)
class SharedWarpMerge:
    """Merges the partials of `warps` warps."""

    head_dim: int
    warps: int

    @property
    def record(self) -> PartialRecord:
        """How a partial lies in shared memory."""
        return PartialRecord(self.head_dim)

    @property
    def region_bytes(self) -> int:
        """Bytes of the region `warp_partials`: one record a warp and row."""
        return self.warps * ROWS * self.record.bytes

    def merge(self, region: Int32, state: RowState) -> MergedUnits:
        """Merge the warps' states; returns this thread's share of the CTA's partials.

        region: shared-memory address of `warp_partials`. state: this warp's rows, l already summed.
        """
        self._publish(region, state)
        cta_sync()
        return self._gather(region)

    @cute.jit
    def _publish(self, region: Int32, state: RowState):
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        quarter = lane % 4
        for half in cutlass.range_constexpr(2):
            row = region + (warp * ROWS + lane // 4 + 8 * half) * self.record.bytes
            for c in cutlass.range_constexpr(chunks(self.head_dim)):
                # Pairs 4 c .. 4 c + 3 of the row are the chunk's 8 dims, two accumulator tiles a store.
                for j in cutlass.range_constexpr(4 * c, 4 * c + 4, 2):
                    dims = [state.o[4 * (j + i // 2) + 2 * half + i % 2] for i in range(4)]
                    at = chunk_dim(c, quarter) + 2 * (j - 4 * c)
                    store_shared_f32x4(row + 4 * at, dims)
            if quarter == 0:
                store_shared_f32x2(row + self.record.stats, (state.m[half], state.l[half]))

    def _gather(self, region):
        thread, _, _ = cute.arch.thread_idx()
        threads_a_row = self.warps * 32 // ROWS
        row, first = thread // threads_a_row, thread % threads_a_row
        records = [region + (w * ROWS + row) * self.record.bytes for w in range(self.warps)]
        stats = [load_shared_f32x2(r + self.record.stats) for r in records]
        m, factors = merge_weights([s[0] for s in stats])
        l = weighted_sum(factors, [s[1] for s in stats])
        units = []
        for i in range(self.head_dim // 4 // threads_a_row):
            at = 16 * (first + i * threads_a_row)
            parts = [load_shared_f32x4(r + at) for r in records]
            units.append([weighted_sum(factors, [part[d] for part in parts]) for d in range(4)])
        return MergedUnits(row, first, threads_a_row, m, l, units)


# ============================================================================================================
# stages/push/dsmem.py
#
# Push: each CTA sends its merged rows to the CTAs that own them, through distributed shared memory.
#
# Contract
#     The 16 rows of a row group are owned in order, 16 / cluster rows a rank: row r by rank
#     r // rows_per_rank. Every CTA sends every row, its own rows too, with `st.async` into the owner's
#     region `rank_partials`: one record (`stages.partial`) a row and sending rank, [rows_per_rank, cluster].
#
#     Each store completes transaction bytes on the owner's mbarrier `arrived`, whose one phase is:
#     1 arrival (the owner's own, which also announces the bytes) and
#     rows_per_rank * cluster * (head_dim + 2) * 4 bytes.
#
#     Obligations, in this order:
#       1. `open` by all threads of every CTA, once: it starts the mbarrier and arrives at the cluster barrier;
#       2. `send` by all threads: it waits at the cluster barrier, so that no store meets a peer whose barrier
#          has not been started, then stores;
#       3. `wait` by every thread that reads the region: it acquires, at cluster scope, what all ranks sent.
#     A CTA stays alive until its rows have arrived because the warps that own rows wait for them, and nothing
#     else is ever sent to it; so no barrier is needed at the end. The launch has one phase; nothing is reused.
# ============================================================================================================


@dataclass(frozen=True)
class DsmemPush:
    """Sends the rows of one CTA of a cluster of `cluster` CTAs to their owners."""

    head_dim: int
    cluster: int

    @property
    def record(self) -> PartialRecord:
        """How a partial lies in shared memory."""
        return PartialRecord(self.head_dim)

    @property
    def rows_per_rank(self) -> int:
        """Rows that one CTA owns."""
        return ROWS // self.cluster

    @property
    def region_bytes(self) -> int:
        """Bytes of the region `rank_partials`: one record an owned row and rank."""
        return self.rows_per_rank * self.cluster * self.record.bytes

    @property
    def transaction_bytes(self) -> int:
        """Bytes that arrive at one CTA."""
        return self.rows_per_rank * self.cluster * self.record.payload

    @cute.jit
    def open(self, arrived: Int32):
        """Start the mbarrier at this shared-memory address, and arrive at the cluster barrier."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            mbarrier_init(arrived, 1)
            mbarrier_init_fence()
            mbarrier_arrive_expect(arrived, self.transaction_bytes)
        cluster_arrive()

    @cute.jit
    def send(self, region: Int32, arrived: Int32, rank: Int32, merged: MergedUnits):
        """Send this thread's units to the CTA that owns their row.

        region, arrived: shared-memory addresses of `rank_partials` and of the mbarrier, the same in every
        CTA. rank: this CTA's.
        """
        cluster_wait()
        owner = merged.row // self.rows_per_rank
        slot = (merged.row % self.rows_per_rank) * self.cluster + rank
        record = map_to_rank(region + slot * self.record.bytes, owner)
        barrier = map_to_rank(arrived, owner)
        for i in cutlass.range_constexpr(len(merged.o)):
            unit = merged.unit + i * merged.unit_stride
            store_async_f32x4(record + 16 * unit, merged.o[i], barrier)
        if merged.unit == 0:
            store_async_f32x2(record + self.record.stats, (merged.m, merged.l), barrier)

    def wait(self, arrived: Int32) -> None:
        """Wait until all ranks' partials of this CTA's rows are here."""
        mbarrier_wait_cluster(arrived, 0)


# ============================================================================================================
# stages/cluster_merge/rank_order.py
#
# Cluster merge: the owner of a row adds up the partials of all ranks, in rank order.
#
# Contract
#     Reads one owned row's `cluster` records from the region `rank_partials` and merges them; the sum runs
#     over the ranks in ascending order whatever the order in which they arrived, so the bits are the same in
#     every run.
#
#     Called by whole warps, one owned row a warp at a time, after the push stage's `wait`. A lane merges the
#     head dims 2 * lane and 2 * lane + 1. No barrier, no fence; writes nothing.
# ============================================================================================================


@dataclass(frozen=True)
class RankOrderMerge:
    """Merges the partials that `cluster` ranks sent for one row."""

    head_dim: int
    cluster: int

    def merge(self, region: Int32, row: Int32) -> tuple[Float32, list[Float32]]:
        """(l, the lane's two dims of o) of an owned row over all keys.

        region: shared-memory address of `rank_partials`. row: 0 .. rows_per_rank - 1.
        """
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        first = region + row * (self.cluster * record.bytes)
        records = [first + rank * record.bytes for rank in range(self.cluster)]
        stats = [load_shared_f32x2(r + record.stats) for r in records]
        parts = [load_shared_f32x2(r + 8 * lane) for r in records]
        _, factors = merge_weights([m for m, _ in stats])
        l = weighted_sum(factors, [l for _, l in stats])
        return l, [weighted_sum(factors, [part[d] for part in parts]) for d in range(2)]


# ============================================================================================================
# stages/epilogue/output.py
#
# What every epilogue does first: divide the merged output by its sum of weights.
#
# Contract
#     A row that saw no key has l = 0 and comes out as zeros. The quotient is rounded to BF16, as attention
#     kernels of this field store it, whatever an epilogue does afterwards. Any thread may call it.
# ============================================================================================================


def normalised(l: Float32, o: list[Float32]) -> Int32:
    """o / l of two dims, rounded to a BF16 pair; zeros where l is 0."""
    inverse = select(l == 0.0, Float32(0.0), reciprocal(l))
    return pack_bf16(mul(o[0], inverse), mul(o[1], inverse))


# ============================================================================================================
# stages/epilogue/norm_gate.py
#
# Norm-gate epilogue: the per-head RMS norm without a weight, and the sigmoid gate.
#
# Contract
#     With y = bf16(o / l), in FP32 and rounded once to BF16 at the end:
#
#         out = y * rsqrt(mean(y**2) + eps) * sigmoid(gate),  sigmoid(x) = 1 / (1 + 2**(-x log2(e)))
#
#     (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.) The mean is summed from y / 8, whose
#     squares are already divided by 64: exact, and values up to 1e19 do not overflow. The sum runs over a
#     fixed butterfly of the lanes. A row that saw no key (l = 0) is zeros, whatever its gate holds.
#
#     Called by whole warps, a row a warp (shuffles); a lane has the head dims 2 * lane and 2 * lane + 1. Reads
#     the row of the gate (`load_gate`, as early as the caller likes) and writes the row of the output, 128
#     contiguous bytes a warp each. No barrier, no fence, no shared memory.
# ============================================================================================================


@dataclass(frozen=True)
class NormGateEpilogue:
    """Stores the normalised and gated output."""

    head_dim: int

    def load_gate(self, row: Int64) -> Int32:
        """The lane's two values of the gate's row at global byte address `row`, as a BF16 pair."""
        return load_global_i32(row + Int64(4 * cute.arch.lane_idx()))

    def store(self, row: Int64, l: Float32, o: list[Float32], gate: Int32, eps: Float32) -> None:
        """Finish one row of the output at global byte address `row`."""
        y = unpack_bf16(normalised(l, o))
        inverse_root = Float32(self.head_dim**-0.5)
        scaled = [mul(x, inverse_root) for x in y]
        mean_square = fma(scaled[1], scaled[1], mul(scaled[0], scaled[0]))
        for lanes in (16, 8, 4, 2, 1):
            mean_square = add(mean_square, shuffle_xor(mean_square, lanes))
        norm = rsqrt(add(mean_square, eps))
        out = [mul(mul(x, norm), self._sigmoid(g)) for x, g in zip(y, unpack_bf16(gate), strict=True)]
        # A padded row's gate may hold NaN.
        finished = select(l == 0.0, Int32(0), pack_bf16(out[0], out[1]))
        store_global_i32(row + Int64(4 * cute.arch.lane_idx()), finished)

    def _sigmoid(self, x):
        return reciprocal(add(Float32(1.0), exp2(mul(x, Float32(-math.log2(math.e))))))


# ============================================================================================================
# variants/cluster.py
#
# The cluster kernel: one launch, one cluster for each row group of a request and KV head.
#
# Contract
#     Grid (cluster * row_groups * R, H), one row of CTAs a KV head, clusters of `cluster` CTAs of `warps`
#     warps. Cluster b * row_groups + rg of KV head blockIdx.y computes the 16 rows of row group rg of
#     request b, row = token * heads_per_kv + query head. It attends all of the request's keys: its warps deal
#     the pages out among them, merge in each CTA, send every row to the CTA that owns it, and the owners
#     merge the ranks and finish the rows.
#
#     The skeleton only wires: which thread calls which stage, in which order, between which barriers. What is
#     computed, the stages say. It is compiled once a (variant, PDL, architecture); shapes, strides and
#     addresses are read at the call.
#
#     A request of length 0 gets rows of zeros, and so do rows without a key.
# ============================================================================================================


@dataclass(frozen=True)
class ClusterKernel:
    """One compiled form of the cluster kernel; every field is known at compile time.

    steps: steps of pages_per_step pages that a warp needs at most. The offsets are bytes from the start of
    a CTA's dynamic shared memory, shared_bytes its size. pdl: launched with programmatic dependent launch.
    """

    name: str
    head_dim: int
    heads_per_kv: int
    tokens: int
    page_size: int
    cluster: int
    warps: int
    pages_per_step: int
    steps: int
    warp_partials: int
    rank_partials: int
    arrived: int
    shared_bytes: int
    pages: Any
    scores: Any
    softmax: Any
    values: Any
    warp_merge: Any
    push: Any
    cluster_merge: Any
    epilogue: Any
    pdl: bool = False

    def __str__(self) -> str:
        """The name that CuTe DSL makes part of the kernel's entry name."""
        return self.name

    def with_pdl(self) -> "ClusterKernel":
        """The same kernel, launched with programmatic dependent launch."""
        return dataclasses.replace(self, pdl=True)

    @property
    def row_groups(self) -> int:
        """Row groups of one request and KV head."""
        return self.tokens * self.heads_per_kv // ROWS

    def grid(self, requests, kv_heads):
        """The launch's extent in CTAs; it depends on nothing else."""
        return [self.cluster * self.row_groups * requests, kv_heads, 1]

    @cute.jit
    def __call__(
        self,
        q: cute.Pointer,
        gate: cute.Pointer,
        cache: cute.Pointer,
        table: cute.Pointer,
        lengths: cute.Pointer,
        out: cute.Pointer,
        q_stride: Int64,
        gate_stride: Int64,
        out_stride: Int64,
        page_stride: Int64,
        head_stride: Int64,
        table_stride: Int64,
        columns: Int32,
        requests: Int32,
        kv_heads: Int32,
        scale_log2: Float32,
        eps: Float32,
        stream: cuda.CUstream,
    ):
        """Launch for `requests` requests and `kv_heads` KV heads.

        All strides are in bytes: of a token in q, gate and out, of a page and a KV head in the cache, of a
        request in the table, of which `columns` entries a request may be read. scale_log2: softmax scale
        times log2(e).
        """
        self.kernel(
            q.toint(),
            gate.toint(),
            cache.toint(),
            table.toint(),
            lengths.toint(),
            out.toint(),
            q_stride,
            gate_stride,
            out_stride,
            page_stride,
            head_stride,
            table_stride,
            columns,
            scale_log2,
            eps,
        ).launch(
            grid=self.grid(requests, kv_heads),
            block=[32 * self.warps, 1, 1],
            cluster=[self.cluster, 1, 1],
            smem=self.shared_bytes,
            use_pdl=self.pdl,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        q: Int64,
        gate: Int64,
        cache: Int64,
        table: Int64,
        lengths: Int64,
        out: Int64,
        q_stride: Int64,
        gate_stride: Int64,
        out_stride: Int64,
        page_stride: Int64,
        head_stride: Int64,
        table_stride: Int64,
        columns: Int32,
        scale_log2: Float32,
        eps: Float32,
    ):
        """One CTA: attend some pages for one row group, then finish the rows that this rank owns."""
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        block, kv_head, _ = cute.arch.block_idx()
        rank = block % self.cluster
        row_group = block // self.cluster % self.row_groups
        request = block // (self.cluster * self.row_groups)
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint()

        self.push.open(shared + self.arrived)
        if cutlass.const_expr(self.pdl):
            griddep_launch_dependents()
            griddep_wait()

        # Everything that can be read before the length is known.
        length = load_global_i32(lengths + Int64(request) * 4)
        walk = PageWalk(
            table=table + Int64(request) * table_stride,
            columns=columns,
            cache=cache + Int64(kv_head) * head_stride,
            page_stride=page_stride,
            first=rank * self.warps + warp,
            stride=self.cluster * self.warps,
        )
        incoming = self.pages.begin(walk)
        first_row = row_group * ROWS
        query = self.scores.load_query(
            self.row(q, q_stride, request, kv_head, first_row + lane // 4),
            self.row(q, q_stride, request, kv_head, first_row + lane // 4 + ROWS // 2),
        )
        gates = [
            self.epilogue.load_gate(self.row(gate, gate_stride, request, kv_head, first_row + row))
            for _, row in self.owned_rows(rank, warp)
        ]

        state = RowState.empty(self.head_dim)
        pages = PageFragments.empty(self.pages_per_step, self.page_size, self.head_dim)
        visible = CausalMask(self.tokens, self.heads_per_kv).key_ranges(length, row_group)
        live = walk.pages(length, self.page_size)
        self.pages.start(walk, live, self.steps == 1, incoming)
        for step in cutlass.range_constexpr(self.steps):
            if step * self.pages_per_step < live:
                self.pages.take(walk, live, Int32(step), step + 1 == self.steps, incoming, pages)
                first_keys = [
                    walk.page(step * self.pages_per_step + p) * self.page_size
                    for p in range(self.pages_per_step)
                ]
                scores = self.scores.scores(query, pages.k)
                weights = self.softmax.weigh(scores, first_keys, visible, scale_log2, state, step == 0)
                self.values.accumulate(weights, pages.v, first_keys, visible, state.o)
        self.softmax.finish(state)

        merged = self.warp_merge.merge(shared + self.warp_partials, state)
        self.push.send(shared + self.rank_partials, shared + self.arrived, rank, merged)

        for i, (owned, row) in enumerate(self.owned_rows(rank, warp)):
            if owned < self.push.rows_per_rank:
                self.push.wait(shared + self.arrived)
                l, o = self.cluster_merge.merge(shared + self.rank_partials, owned)
                out_row = self.row(out, out_stride, request, kv_head, first_row + row)
                self.epilogue.store(out_row, l, o, gates[i], eps)

    def owned_rows(self, rank, warp):
        """The rows that a warp finishes: (number among the rank's rows, row of the row group).

        Warps in excess get numbers past the rank's last, and its last row, which they may read.
        """
        rows = self.push.rows_per_rank
        owned = [warp + first for first in range(0, rows, self.warps)]
        return [(n, rank * rows + select(n < rows, n, Int32(rows - 1))) for n in owned]

    def row(self, base, stride, request, kv_head, row):
        """Address of one of a request's rows (token * heads_per_kv + query head) in q, gate or out."""
        token, head = row // self.heads_per_kv, row % self.heads_per_kv
        column = (kv_head * self.heads_per_kv + head) * self.head_dim * 2
        return base + Int64(request * self.tokens + token) * stride + Int64(column)


# ============================================================================================================
# variants/call.py
#
# A checked call: from the arguments of an engine to the parameters of a kernel.
#
# Contract
#     Everything about the arguments that can be checked without a synchronisation is checked here, on whatever
#     device the tensors are, and a refusal names the argument, what it got and what it needs. Nothing is
#     launched and nothing is allocated but an output that was not given.
# ============================================================================================================


MAX_KV_HEADS = 65535
"""KV heads of a launch: the y extent of a grid (CUDA C++ Programming Guide, technical specifications)."""


@dataclass(frozen=True)
class Call:
    """What one launch is given, in the order of the kernel's parameters.

    tensors: q, gate, kv_cache, block_table, seq_lens, out. strides: in bytes; of a token in q, gate and out,
    of a page and a KV head in the cache, of a request in the table. columns: of the table.
    """

    tensors: tuple[torch.Tensor, ...]
    strides: tuple[int, ...]
    columns: int
    requests: int
    kv_heads: int
    scale_log2: float
    eps: float

    @property
    def out(self) -> torch.Tensor:
        """Where the result goes."""
        return self.tensors[-1]


def bind(
    kernel: Any,
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None,
    *,
    max_seq_len: int,
    scale: float,
    eps: float,
) -> Call:
    """Check the arguments of a call (shapes and types as the entry point documents them).

    Raises TypeError for what is no tensor, and ValueError for what cannot be served.
    """
    device = q.device if isinstance(q, torch.Tensor) else None
    names = ("q", "gate", "kv_cache", "block_table", "seq_lens")
    for name, tensor in zip(names, (q, gate, kv_cache, block_table, seq_lens), strict=True):
        _check_tensor(name, tensor, device)
    kv_heads, page_stride, head_stride = _check_cache(kv_cache, kernel)
    requests = seq_lens.shape[0] if seq_lens.dim() == 1 else -1
    require(
        requests >= 0 and seq_lens.dtype == torch.int32 and (requests <= 1 or seq_lens.stride(0) == 1),
        f"seq_lens must be contiguous int32 [R], got {_describe(seq_lens)}",
    )
    q_stride = _check_rows("q", q, kernel, requests, kv_heads)
    gate_stride = _check_rows("gate", gate, kernel, requests, kv_heads)
    columns, table_stride = _check_table(block_table, kernel, requests, max_seq_len)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _check_tensor("out", out, device)
    out_stride = _check_rows("out", out, kernel, requests, kv_heads)
    width = kv_heads * kernel.heads_per_kv * kernel.head_dim
    require(
        requests == 0 or out_stride >= width,
        f"out must not overlap itself: its token stride must be >= {width}, got {out_stride}",
    )
    rows = tuple(2 * stride for stride in (q_stride, gate_stride, out_stride))
    return Call(
        tensors=(q, gate, kv_cache, block_table, seq_lens, out),
        strides=(*rows, 2 * page_stride, 2 * head_stride, 4 * table_stride),
        columns=columns,
        requests=requests,
        kv_heads=kv_heads,
        scale_log2=_check_number("scale", scale) * math.log2(math.e),
        eps=_check_number("eps", eps, least=0),
    )


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _describe(tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"


def _check_tensor(name, tensor, device):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    require(
        tensor.device == device,
        f"{name} must be on q's device {device}, got one on {tensor.device}",
    )


def _check_number(name, value, least=-math.inf) -> float:
    """A number that is finite in FP32, and so is 1.44 times it (the folded scale)."""
    fits = isinstance(value, numbers.Real) and not isinstance(value, bool)
    fits = fits and abs(value) <= torch.finfo(torch.float32).max / 2 and value >= least
    bound = f" >= {least}" if math.isfinite(least) else ""
    require(fits, f"{name} must be a finite FP32 number{bound}, got {value!r}")
    return float(value)


def _check_rows(name, tensor, kernel, requests, kv_heads) -> int:
    """The token stride of q, gate or out, in elements."""
    tokens, heads, dim = requests * kernel.tokens, kv_heads * kernel.heads_per_kv, kernel.head_dim
    require(tensor.dtype == torch.bfloat16, f"{name} must be bfloat16, got {tensor.dtype}")
    shapes = [(tokens, heads * dim), (tokens, heads, dim)]
    require(
        tuple(tensor.shape) in shapes,
        f"{name} must be [{tokens}, {heads * dim}] or [{tokens}, {heads}, {dim}] "
        f"(R={requests} from seq_lens, H={kv_heads} from kv_cache), got {list(tensor.shape)}",
    )
    packed = tensor.stride(-1) == 1 and (tensor.dim() == 2 or tensor.stride(1) == dim)
    require(packed, f"{name} must have its heads packed, got strides {list(tensor.stride())}")
    stride = tensor.stride(0)
    require(stride % 8 == 0, f"{name} must have a token stride that is a multiple of 8, got {stride}")
    _check_alignment(name, tensor)
    return stride


def _check_cache(cache, kernel) -> tuple[int, int, int]:
    """H, and the page and head strides in elements."""
    page, width = kernel.page_size, 2 * kernel.head_dim
    require(cache.dtype == torch.bfloat16, f"kv_cache must be bfloat16, got {cache.dtype}")
    require(
        cache.dim() == 4 and tuple(cache.shape[2:]) == (page, width) and 1 <= cache.shape[1] <= MAX_KV_HEADS,
        f"kv_cache must be [pages, H, {page}, {width}], got {list(cache.shape)}",
    )
    require(
        cache.stride(3) == 1 and cache.stride(2) == width,
        f"kv_cache must have contiguous pages (strides {width}, 1 within one), got strides "
        f"{list(cache.stride())}",
    )
    strides = [cache.stride(dim) if cache.shape[dim] > 1 else 0 for dim in (0, 1)]
    require(
        all(stride % 8 == 0 for stride in strides),
        f"kv_cache must have page and head strides that are multiples of 8 elements, got strides "
        f"{list(cache.stride())}",
    )
    _check_alignment("kv_cache", cache)
    return cache.shape[1], strides[0], strides[1]


def _check_table(table, kernel, requests, max_seq_len) -> tuple[int, int]:
    """The table's columns, and its request stride in elements."""
    needed = -(-max_seq_len // kernel.page_size)
    require(
        table.dtype == torch.int32 and table.dim() == 2 and table.shape[0] == requests,
        f"block_table must be int32 [{requests}, >= {needed}], got {_describe(table)}",
    )
    require(
        table.shape[1] >= needed,
        f"block_table must have >= {needed} columns for max_seq_len={max_seq_len}, got {table.shape[1]}",
    )
    require(
        table.shape[1] == 1 or table.stride(1) == 1,
        f"block_table must have contiguous rows, got strides {list(table.stride())}",
    )
    return table.shape[1], table.stride(0)


def _check_alignment(name, tensor):
    address = tensor.data_ptr()
    require(address % 16 == 0, f"{name} must start at a multiple of 16 bytes, got address {address:#x}")


# ============================================================================================================
# variants/variant.py
#
# A variant: one kernel of a module, and the deployments that it serves.
#
# Contract
#     Plain data for the host. A module lists its variants in the order of the spec, and a deployment launches
#     the first that serves it.
# ============================================================================================================


@dataclass(frozen=True)
class Variant:
    """One kernel of this module and the deployments that it serves.

    kernel: the kernel object that `cute.compile` takes. max_seq_len: the longest context, in cache entries,
    verified tokens included. windows: whether it serves a sliding window.
    """

    name: str
    kernel: Any
    max_seq_len: int
    windows: bool

    def serves(self, max_seq_len: int, window: int | None) -> bool:
        """Whether a deployment may use this variant."""
        return max_seq_len <= self.max_seq_len and (window is None or self.windows)


# ============================================================================================================
# The variants
#
# In the order of the spec; the first that serves wins.
# ============================================================================================================

VARIANTS = (
    Variant(
        name="cluster",
        kernel=ClusterKernel(
            name="attn2_cluster",
            head_dim=64,
            heads_per_kv=8,
            tokens=8,
            page_size=16,
            cluster=16,
            warps=4,
            pages_per_step=2,
            steps=1,
            warp_partials=0,  # 17,408 B of warp_merge
            rank_partials=17408,  # 4,352 B of push
            arrived=21760,  # 8 B of push
            shared_bytes=21768,
            pages=RegisterPrefetch(head_dim=64, page_size=16, pages_per_step=2),
            scores=MmaScores(head_dim=64, page_size=16, pages_per_step=2),
            softmax=OnlineSoftmax(page_size=16, pages_per_step=2),
            values=MmaValues(head_dim=64, page_size=16, pages_per_step=2),
            warp_merge=SharedWarpMerge(head_dim=64, warps=4),
            push=DsmemPush(head_dim=64, cluster=16),
            cluster_merge=RankOrderMerge(head_dim=64, cluster=16),
            epilogue=NormGateEpilogue(head_dim=64),
        ),
        max_seq_len=2048,
        windows=False,
    ),
)


# ============================================================================================================
# variants/host.py
#
# The host side of a generated module: pick a variant, check the arguments, compile once, launch.
#
# Contract
#     `attn2` is what an engine calls. Everything that can be checked without a synchronisation is checked
#     before anything is launched, and a refusal names the argument, what it got and what it needs. A call
#     whose kernel has been prepared neither compiles, nor synchronises, nor allocates anything but the output
#     that it was not given.
#
#     The launch shape depends on the number of requests and the deployment alone, so a captured CUDA graph
#     serves every step: lengths, block table and cache contents are read by the kernel.
# ============================================================================================================


POINTERS = (
    *((cutlass.BFloat16, 16) for _ in ("q", "gate", "kv_cache")),
    *((Int32, 4) for _ in ("block_table", "seq_lens")),
    (cutlass.BFloat16, 16),
)
"""Element type and alignment in bytes of a call's tensors."""


_prepared: dict[tuple[str, bool, int], Any] = {}


_prepare_lock = threading.Lock()


def attn2(
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int,
    scale: float,
    eps: float = 1e-5,
    window: int | None = None,
    num_splits: int | None = None,
    workspace: torch.Tensor | None = None,
    counters: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    pdl: bool = False,
    variant: str | None = None,
) -> torch.Tensor:
    """Paged decode attention of a verify step, finished by the variant's epilogue.

    Let R be the number of requests, H the KV heads of this rank, T the verified tokens, G the query heads
    of a KV head, D the head dim (the module's docstring has the numbers). Token t of a request of length L
    sees keys [0, L - T + t]; L = 0 (padding) gives rows of zeros.

    q, gate: [T R, G H D] or [T R, G H, D], BF16, heads packed, any token stride that is a multiple of 8
        elements: slices of one fused row are fine.
    kv_cache: [pages, H, page_size, 2 D], BF16, K in columns 0:D and V in D:2D; page and head strides are
        honoured, a page of one head is contiguous.
    block_table: [R, at least ceil(max_seq_len / page_size)], int32. Entries past a request's live pages
        may hold anything.
    seq_lens: [R], int32, verified tokens included. Of a length above max_seq_len not all keys are attended.
    max_seq_len, window: the deployment, not the step: they pick the variant.
    scale: softmax scale. eps: added to the mean square inside the root of the norm; below 2**-126 it is 0.
    num_splits, workspace, counters: for variants that split a request over several clusters; others
        ignore them.
    out: where to write, shaped as q may be; allocated like q if not given.
    pdl: launch with programmatic dependent launch: the kernel waits before it reads anything, and lets the
        next one start at once, which must wait before it reads out or overwrites what this one reads.
    variant: a variant's name, instead of the first that serves the deployment.

    Returns out. Raises TypeError or ValueError for an argument that cannot be served, and RuntimeError for
    a first call inside a graph capture (call `prepare` before).
    """
    chosen = _choose(max_seq_len, window, variant)
    call = bind(
        *(chosen.kernel, q, gate, kv_cache, block_table, seq_lens, out),
        max_seq_len=max_seq_len,
        scale=scale,
        eps=eps,
    )
    require(q.is_cuda, f"q must be a CUDA tensor, got one on {q.device}")
    if call.requests == 0:
        return call.out

    executor = _executor(chosen, pdl, q.device)
    with torch.cuda.device(q.device):
        executor(
            *(
                make_ptr(dtype, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=align)
                for tensor, (dtype, align) in zip(call.tensors, POINTERS, strict=True)
            ),
            *(Int64(stride) for stride in call.strides),
            *(Int32(number) for number in (call.columns, call.requests, call.kv_heads)),
            *(Float32(number) for number in (call.scale_log2, call.eps)),
            cuda.CUstream(torch.cuda.current_stream().cuda_stream),
        )
    return call.out


def prepare(
    *,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    pdl: bool = False,
    device: torch.device | int | str | None = None,
    variant: str | None = None,
) -> None:
    """Compile and load the kernel that a deployment launches, so that a first call can be captured.

    kv_heads: the rank's KV heads H. max_seq_len, window, num_splits, pdl, variant: as in `attn2`.
    device: a CUDA device; the current one if not given. Quick if it has been done before.
    """
    require(
        isinstance(kv_heads, int) and not isinstance(kv_heads, bool) and 1 <= kv_heads <= MAX_KV_HEADS,
        f"kv_heads must be an integer in 1..{MAX_KV_HEADS}, got {kv_heads!r}",
    )
    chosen = _choose(max_seq_len, window, variant)
    require(torch.cuda.is_available(), "prepare needs a CUDA device, and this machine has none")
    place = torch.device("cuda" if device is None else device)
    require(place.type == "cuda", f"device must be a CUDA device, got {place}")
    _executor(chosen, pdl, place)


def compile_attn2(
    variant: str | None = None, *, pdl: bool = False, arch: str | None = None, options: str = ""
) -> Any:
    """Compile one variant for an architecture; needs no GPU where `arch` is named.

    variant: a variant's name; the module's first if not given. arch: for example "sm_90a"; the current
    CUDA device's if not given. options: more options for `cute.compile`, such as "--keep-ptx".
    Returns what `cute.compile` returns.
    """
    chosen = _named(variant) if variant is not None else VARIANTS[0]
    if arch is None:
        require(
            torch.cuda.is_available(),
            'arch must be named on a machine with no CUDA device, for example arch="sm_90a"',
        )
        arch = _device_arch(torch.device("cuda", torch.cuda.current_device()))
    kernel = chosen.kernel
    if pdl:
        kernel = kernel.with_pdl()
    return cute.compile(
        kernel,
        *(make_ptr(dtype, 16, cute.AddressSpace.gmem, assumed_align=align) for dtype, align in POINTERS),
        *(Int64(16) for _ in range(6)),
        *(Int32(1) for _ in range(3)),
        *(Float32(1.0) for _ in range(2)),
        make_fake_stream(),
        options=f"--gpu-arch {arch} {options}".strip(),
    )


def split_kernel(max_seq_len: int, window: int | None = None) -> bool:
    """Whether a deployment needs a kernel that splits a request over several clusters.

    True where no single-cluster variant of this module serves max_seq_len and window.
    """
    _check_deployment(max_seq_len, window)
    return not any(v.serves(max_seq_len, window) for v in VARIANTS)


def _choose(max_seq_len, window, name) -> Variant:
    """The variant that a deployment launches."""
    _check_deployment(max_seq_len, window)
    candidates = VARIANTS if name is None else (_named(name),)
    for candidate in candidates:
        if candidate.serves(max_seq_len, window):
            return candidate
    served = "; ".join(
        f"{v.name}: max_seq_len <= {v.max_seq_len}, {'any window' if v.windows else 'no window'}"
        for v in candidates
    )
    raise ValueError(
        f"no kernel here serves max_seq_len={max_seq_len}, window={window}: longer contexts and windows "
        f"need a split variant, which this module does not have ({served})"
    )


def _check_deployment(max_seq_len, window):
    require(
        isinstance(max_seq_len, int) and not isinstance(max_seq_len, bool) and max_seq_len >= 1,
        f"max_seq_len must be an integer >= 1, got {max_seq_len!r}",
    )
    require(
        window is None or (isinstance(window, int) and not isinstance(window, bool) and window >= 1),
        f"window must be None or an integer >= 1, got {window!r}",
    )


def _named(name) -> Variant:
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    known = ", ".join(v.name for v in VARIANTS)
    raise ValueError(f"variant must be one of {known}, got {name!r}")


def _device_arch(device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    require(
        (major, minor) >= (9, 0),
        f"the device must have compute capability 9.0 or later, {device} has {major}.{minor}",
    )
    return f"sm_{major}{minor}a"


def _executor(variant, pdl, device):
    """The loaded kernel for a device, compiled at the first request for it."""
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (variant.name, bool(pdl), index)
    executor = _prepared.get(key)
    if executor is not None:
        return executor
    with torch.cuda.device(index):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the kernel {variant.name!r} (pdl={bool(pdl)}) is not compiled for cuda:{index}, and a "
                "graph capture is no time to do it: call prepare() first, before the capture begins"
            )
        with _prepare_lock:
            if key not in _prepared:
                arch = _device_arch(torch.device("cuda", index))
                _prepared[key] = compile_attn2(variant.name, pdl=pdl, arch=arch).to(index)
            return _prepared[key]
