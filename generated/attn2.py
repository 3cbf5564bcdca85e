"""Module `attn2`: attention of 8 verified tokens, head_dim 64, 8 query heads a KV head, BF16 pages of 16.

Variant `cluster` (cluster skeleton) serves contexts up to 2048 entries, no window: pages
register_prefetch, scores mma_qk, softmax online, values mma_pv, warp_merge shared, push dsmem,
cluster_merge rank_order, epilogue norm_gate.

Variant `split` (split skeleton) serves contexts up to 1048576 entries, any window: pages
register_prefetch, ring cp_async_ring, scores mma_qk, softmax online, values mma_pv, warp_merge shared,
push dsmem, cluster_merge rank_order, grid_merge workspace, epilogue norm_gate.

Variant `batch` (batch skeleton) serves contexts up to 1048576 entries, any window: ring cp_async_ring,
scores mma_qk, softmax online, values mma_pv, push dsmem, cluster_merge rank_order, grid_merge
workspace, epilogue norm_gate.

Generated from spec.yaml; do not edit. Change the spec, or the file named above a section, then run
`python -m generator generate`.

sha256 of the plan, sources, template and formatter: 08608fbb33607d1b3f4b8eccc2b39b1424451df7e05f92e76695a4a953390c26
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import functools
import hashlib
import inspect
import json
import math
import numbers
import operator
import os
import re
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeGuard, TypeVar

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Boolean, Float32, Int32, Int64
from cutlass._mlir.dialects import arith, llvm
from cutlass.cute.runtime import make_fake_stream
from cutlass.cutlass_dsl import T, dsl_user_op

__all__ = [
    "VARIANTS",
    "allocate_scratch",
    "attn2",
    "compile_attn2",
    "counters_bytes",
    "default_splits",
    "default_variant",
    "export_kernels",
    "prepare",
    "split_forms",
    "split_kernel",
    "window_pages",
    "workspace_bytes",
]

NAME = "attn2"
"""In the spec; the name of the entry point."""

DIGEST = "08608fbb33607d1b3f4b8eccc2b39b1424451df7e05f92e76695a4a953390c26"
"""Of what this module was made from: what is compiled from it is known by this."""


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
    """K and V of one page, BF16 pairs in the registers of a warp, in rows.

    Pair j of tile n is at n * pairs(head_dim) + j in both: two dims of slot 8 n + g, as lanes read them.
    """

    k: cute.Tensor
    v: cute.Tensor

    @staticmethod
    def empty(page_size: int, head_dim: int) -> "PageFragments":
        """Registers for a page, not yet set."""
        count = page_size // TILE * pairs(head_dim)
        return PageFragments(registers(Int32, count), registers(Int32, count))

    def keys(self) -> cute.Tensor:
        """K's fragments."""
        return self.k

    def values(self) -> cute.Tensor:
        """V's fragments, in rows."""
        return self.v


@dataclass(frozen=True)
class RowState:
    """What a lane has of the partials of its two rows (g, then g + 8) while a warp attends.

    m: [2] running maxima of the base-2 logits, the same in the four lanes of a row. l: [2] sums of this
    lane's weights alone. o: [head_dim / 8 tiles of 4] unnormalised outputs, an mma accumulator: tile j holds
    two dims for row g and then for row g + 8, those of pair j. (While V comes in columns they are dims
    8 j + 2t and 8 j + 2t + 1, until the values stage's `finish` gives each lane the dims of its pairs.)
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
# stages/ptx/inline.py
#
# What the primitives are made of: one instruction as inline PTX, and its results as DSL values.
#
# Contract
#     For the modules of this package alone. Arithmetic has no side effects, so the compiler may schedule it;
#     `collective` instructions stay in the control flow where they are written, and `ordered` ones also keep
#     their order among the memory operations of the thread.
# ============================================================================================================


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


# ============================================================================================================
# stages/ptx/arithmetic.py
#
# Arithmetic of one thread: FP32, selection, and the unsigned integers that CuTe DSL has no operator for.
#
# Contract
#     Called by any thread; no side effects. FP32 arithmetic names its instruction, in the flushing and
#     approximate forms, because the DSL's own `*` and `+` leave contraction and subnormals to the compiler: the
#     bits of a result would then depend on the compiler's version.
#
# Source: PTX ISA 8.8, floating-point instructions, integer arithmetic instructions.
# ============================================================================================================


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


# ============================================================================================================
# stages/ptx/global_memory.py
#
# Loads and stores of global memory, and the arrival counters of the device.
#
# Contract
#     Called by any thread. Addresses are plain `Int64`; nothing here checks a bound or an alignment. All keep
#     their order among the thread's memory operations, so what is read after `griddep_wait` or after a barrier
#     is read after it.
#
# Source: PTX ISA 8.8, ld, st, atom.
# ============================================================================================================


@dsl_user_op
def load_global_i32(address: Int64, *, loc=None, ip=None) -> Int32:
    """One 32-bit integer from global memory. Alignment: 4 bytes."""
    text = "ld.global.b32 $0, [$1];"
    return Int32(inline_ptx(T.i32(), (i64(address),), text, "=r,l", ordered=True, loc=loc, ip=ip))


@dsl_user_op
def load_global_x4(address: Int64, *, loc=None, ip=None):
    """Four 32-bit words from global memory. Alignment: 16 bytes."""
    return load_x4("global", Int32, i64(address), loc, ip)


@dsl_user_op
def stream_global_x4(address: Int64, *, loc=None, ip=None):
    """`load_global_x4` for data that this SM reads once: it is not kept in the L1 cache."""
    return load_x4("global.L1::no_allocate", Int32, i64(address), loc, ip)


@dsl_user_op
def store_global_i32(address: Int64, value: Int32, *, loc=None, ip=None) -> None:
    """One 32-bit word to global memory. Alignment: 4 bytes."""
    operands = (i64(address), i32(value))
    inline_ptx(None, operands, "st.global.b32 [$0], $1;", "l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_global_f32x2(address: Int64, values, *, loc=None, ip=None) -> None:
    """Two FP32 values to global memory. Alignment: 8 bytes."""
    operands = [i64(address), *(f32(v) for v in values)]
    inline_ptx(None, operands, "st.global.v2.b32 [$0], {$1, $2};", "l,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def load_device_f32x2(address: Int64, *, loc=None, ip=None):
    """Two FP32 values that other CTAs of the device have written. Alignment: 8 bytes.

    Relaxed at device scope: it reads behind the L1 cache; an acquire before it gives the order.
    """
    types = [T.f32()] * 2
    struct = llvm.StructType.get_literal(types)
    text = "ld.relaxed.gpu.global.v2.b32 {$0, $1}, [$2];"
    result = inline_ptx(struct, (i64(address),), text, "=f,=f,l", ordered=True, loc=loc, ip=ip)
    return struct_fields(Float32, result, types, loc, ip)


@dsl_user_op
def count_arrival(address: Int64, *, loc=None, ip=None) -> Int32:
    """Add 1 to a device-wide counter and return what it was; releases and acquires at device scope."""
    text = "atom.acq_rel.gpu.global.add.u32 $0, [$1], 1;"
    return Int32(inline_ptx(T.i32(), (i64(address),), text, "=r,l", ordered=True, loc=loc, ip=ip))


# ============================================================================================================
# stages/ptx/index.py
#
# Addresses of elements, and the indices of the block and the thread.
#
# Contract
#     Called by any thread.
#
# Source: PTX ISA 8.8, mad, special registers.
# ============================================================================================================


@dsl_user_op
def element_address(base: Int64, index: Int32, stride: Int32, *, loc=None, ip=None) -> Int64:
    """base + index * stride, in one instruction: index and stride are unsigned, the product has 64 bits."""
    operands = (i32(index), i32(stride), i64(base))
    return Int64(inline_ptx(T.i64(), operands, "mad.wide.u32 $0, $1, $2, $3;", "=l,r,r,l", loc=loc, ip=ip))


@dsl_user_op
def block_index_again(*, loc=None, ip=None) -> tuple[Int32, Int32, Int32]:
    """(x, y, z) of the block, read where this stands: the compiler keeps no earlier value in registers."""
    return tuple(special_register(f"ctaid.{axis}", loc, ip) for axis in "xyz")


@dsl_user_op
def thread_index_again(*, loc=None, ip=None) -> Int32:
    """x of the thread, read where this stands, as `block_index_again` does."""
    return special_register("tid.x", loc, ip)


def special_register(name, loc, ip):
    """A 32-bit special register, read at this place in the order of memory operations."""
    return Int32(inline_ptx(T.i32(), (), f"mov.u32 $0, %{name};", "=r", ordered=True, loc=loc, ip=ip))


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
    cache: address of the KV head in page 0. page_stride: bytes from page to page, an unsigned number.
    first, stride: which pages are the warp's, as page numbers within the request.
    """

    table: Int64
    columns: Int32
    cache: Int64
    page_stride: Int32
    first: Int32
    stride: int

    def page(self, index):
        """The page number within the request of the walk's page `index`."""
        return self.first + index * self.stride

    def step(self, step, pages_per_step: int) -> list:
        """The page numbers of one step of the walk."""
        return [self.page(step * pages_per_step + p) for p in range(pages_per_step)]

    def entry(self, index) -> Int32:
        """The block-table entry of the walk's page `index`; the last column's if it has none."""
        page = self.page(index)
        last = self.columns - 1
        column = select(page < last, page, last)
        return load_global_i32(self.table + Int64(column) * 4)

    def address(self, entry: Int32) -> Int64:
        """Where the page lies that the block table gives as `entry`."""
        return element_address(self.cache, entry, self.page_stride)

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
    pages: list[PageFragments]


@dataclass(frozen=True)
class RegisterPrefetch:
    """Holds the pages of the next step in registers while one step is attended."""

    head_dim: int
    page_size: int
    pages_per_step: int

    def empty(self) -> list[PageFragments]:
        """Registers for the pages of one step, not yet set."""
        return [PageFragments.empty(self.page_size, self.head_dim) for _ in range(self.pages_per_step)]

    def begin(self, walk: PageWalk) -> Incoming:
        """Look up the pages of step 0 in the block table."""
        incoming = Incoming(registers(Int32, self.pages_per_step), self.empty())
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
        pages: list[PageFragments],
    ) -> None:
        """Hand over the fragments of a step, and begin to load the next unless this is the `last`."""
        for page, ready in zip(pages, incoming.pages, strict=True):
            page.k.store(ready.k.load())
            page.v.store(ready.v.load())
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
            fragments = incoming.pages[p]
            if step * self.pages_per_step + p < live:
                page = walk.address(incoming.entries[p])
                for n in cutlass.range_constexpr(self.page_size // TILE):
                    slot = page + Int64((lane // 4 + TILE * n) * slot_bytes)
                    self._load_row(slot, n, fragments.k)
                for n in cutlass.range_constexpr(self.page_size // TILE):
                    slot = page + Int64((lane // 4 + TILE * n) * slot_bytes + slot_bytes // 2)
                    self._load_row(slot, n, fragments.v)
            else:
                fragments.k.fill(0)
                fragments.v.fill(0)

    def _load_row(self, address, tile, fragments):
        quarter = cute.arch.lane_idx() % 4
        for c in range(chunks(self.head_dim)):
            words = stream_global_x4(address + Int64(2 * chunk_dim(c, quarter)))
            for i, word in enumerate(words):
                fragments[tile * pairs(self.head_dim) + 4 * c + i] = word


# ============================================================================================================
# stages/ptx/matrix.py
#
# Warp-wide matrix instructions: mma.sync, movmatrix, ldmatrix.
#
# Contract
#     Called by all 32 lanes of a warp together. Nothing here checks an address or an alignment.
#
# Source: PTX ISA 8.8, matrix fragments for mma.m16n8k16, movmatrix, ldmatrix.
# ============================================================================================================


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


# ============================================================================================================
# stages/scores/mma_qk.py
#
# Scores by tensor cores: S = Q K^T with `mma.sync.m16n8k16`, BF16 operands, FP32 accumulation.
#
# Contract
#     Computes the raw dot products of a row group's 16 query rows with the keys of a page.
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
    """Q K^T of one row group and a page."""

    head_dim: int
    page_size: int

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

    def scores(self, query: cute.Tensor, k: cute.Tensor) -> list[Float32]:
        """[4 per tile of 8 keys] FP32 scores: keys 2t, 2t+1 of row g, then the same keys of row g + 8."""
        count = pairs(self.head_dim)
        scores: list[Float32] = []
        for n in range(self.page_size // TILE):
            tile = [Float32(0.0)] * 4
            for j in range(0, count, 2):
                a = (query[j], query[count + j], query[j + 1], query[count + j + 1])
                b = (k[n * count + j], k[n * count + j + 1])
                tile = mma_bf16(a, b, tile)
            scores.extend(tile)
        return scores


# ============================================================================================================
# stages/mask.py
#
# Which keys a row sees: the causal rule of a verify step, and a sliding window.
#
# Contract
#     The last `tokens` cache entries of a request are the tokens being verified. Token i of a request of
#     length L sees keys [0, L - tokens + i]; with a window of W keys, the token's own among them,
#     [L - tokens + i - W + 1, L - tokens + i], of which those below 0 are no keys.
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
    """The keys [first, last] that one row sees; none if last < first. first: None for 0, or below 0."""

    first: Int32 | None
    last: Int32

    def sees(self, key):
        """Whether the row sees this key (an Int32 index into the request's cache entries)."""
        if self.first is None:
            return key <= self.last
        return (key >= self.first) & (key <= self.last)

    def sees_any(self, first_key, keys: int):
        """Whether the row sees one or more of `keys` keys from `first_key` on."""
        if self.first is None:
            return first_key <= self.last
        return (first_key <= self.last) & (first_key + (keys - 1) >= self.first)

    def sees_all(self, first_key, keys: int):
        """Whether the row sees each of `keys` keys from `first_key` on."""
        if self.first is None:
            return first_key + (keys - 1) <= self.last
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
            return KeyRange(None, last)
        return KeyRange(last - (self.window - 1), last)


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
class RowUnits:
    """One thread's share of one row's partial: some units of 4 head dims.

    row: within the rows that are exchanged. units: which units, ascending. m, l: the row's, the same in all
    threads that share it. o: four FP32 values a unit.
    """

    row: Int32
    units: list[Int32]
    m: Float32
    l: Float32
    o: list[list[Float32]]


def lane_units(state: RowState, half: int, row: Int32, head_dim: int) -> RowUnits:
    """What a lane holds of one of its two rows (half 0: row g, 1: row g + 8) while a warp attends."""
    quarter = cute.arch.lane_idx() % 4
    units, parts = [], []
    for chunk in range(chunks(head_dim)):
        # The 4 pairs of a chunk are its 8 dims: two accumulator tiles a unit.
        for unit in range(2):
            pairs = range(4 * chunk + 2 * unit, 4 * chunk + 2 * unit + 2)
            units.append(chunk_dim(chunk, quarter) // 4 + unit)
            parts.append([state.o[4 * pair + 2 * half + e] for pair in pairs for e in range(2)])
    return RowUnits(row, units, state.m[half], state.l[half], parts)


# ============================================================================================================
# stages/ptx/bf16.py
#
# Pairs of BF16 values in 32 bits, the first in the low half.
#
# Contract
#     Called by any thread; no side effects.
#
# Source: PTX ISA 8.8, cvt.
# ============================================================================================================


@dsl_user_op
def pack_bf16(low: Float32, high: Float32, *, loc=None, ip=None) -> Int32:
    """Round two FP32 values to BF16 (nearest even) and pack them, `low` in bits 0:16."""
    operands = (f32(high), f32(low))
    text = "cvt.rn.bf16x2.f32 $0, $1, $2;"
    return Int32(inline_ptx(T.i32(), operands, text, "=r,f,f", loc=loc, ip=ip))


@dsl_user_op
def unpack_bf16(pair: Int32, *, loc=None, ip=None) -> tuple[Float32, Float32]:
    """The two BF16 values of a pair, widened exactly to FP32: (bits 0:16, bits 16:32)."""
    pair = i32(pair)
    low = (pair << Int32(16)).bitcast(Float32, loc=loc, ip=ip)
    high = (pair & Int32(-65536)).bitcast(Float32, loc=loc, ip=ip)
    return low, high


# ============================================================================================================
# stages/ptx/warp.py
#
# Exchange between the lanes of a warp, and their barrier.
#
# Contract
#     Called by all 32 lanes of a warp together.
#
# Source: PTX ISA 8.8, shfl.sync, bar.warp.sync.
# ============================================================================================================


@dsl_user_op
def shuffle_xor(value: Float32, lanes: int, *, loc=None, ip=None) -> Float32:
    """The value of the lane whose index differs by the bits of `lanes` (a compile-time integer)."""
    text = f"shfl.sync.bfly.b32 $0, $1, {lanes}, 31, -1;"
    return Float32(inline_ptx(T.f32(), (f32(value),), text, "=f,f", collective=True, loc=loc, ip=ip))


@dsl_user_op
def shuffle_index(value: Int32, lane: Int32, *, loc=None, ip=None) -> Int32:
    """The value of lane `lane` % 32 of the warp."""
    operands = (i32(value), i32(lane))
    text = "shfl.sync.idx.b32 $0, $1, $2, 31, -1;"
    return Int32(inline_ptx(T.i32(), operands, text, "=r,r,r", collective=True, loc=loc, ip=ip))


@dsl_user_op
def warp_sync(*, loc=None, ip=None) -> None:
    """Barrier of the 32 lanes of a warp; orders their memory accesses."""
    inline_ptx(None, (), "bar.warp.sync -1;", "", ordered=True, loc=loc, ip=ip)


# ============================================================================================================
# stages/softmax/online.py
#
# Online softmax: scores become weights, the running maximum and sum of each row move on.
#
# Contract
#     Works in base 2: the caller folds scale * log2(e) into one factor, which is not negative (so that the
#     largest score has the largest logit), and gives raw scores. With M the larger of the running maximum m and
#     the step's largest score * scale,
#
#         weight = 2**(score * scale - M),  l = l * 2**(m - M) + sum(weights),  o = o * 2**(m - M),  m = M.
#
#     (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.) The exponent is one fma. l
#     sums the FP32 weights; the weights that go on to P V are rounded to BF16. A lane sums its own weights, in
#     ascending order of keys; `finish` adds up the four lanes of a row.
#
#     A key that a row does not see gets the weight 0 and no say in the maximum, by selection, whatever its raw
#     score was. A row that sees no key keeps (-inf, 0, 0). A NaN score that a row sees makes its l NaN.
#
#     Called by whole warps (shuffles); no barrier, no shared memory.
# ============================================================================================================


@dataclass(frozen=True)
class OnlineSoftmax:
    """One step of the online softmax, over some pages."""

    page_size: int

    def weigh(
        self,
        scores: list[Float32],
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        first: bool,
        masked: bool,
    ) -> cute.Tensor:
        """Turn a step's raw scores into weights; move m and l on, and rescale o.

        scores: as the scores stage leaves them, page by page. first_keys: the first key of each page of the
        step. visible: the keys of the lane's two rows. first: nothing has been accumulated. masked: False
        where both rows are known to see all keys.

        Returns the weights as mma A fragments, [4 per 16 keys] BF16 pairs.
        """
        tiles = len(first_keys) * self.page_size // TILE
        fragments = registers(Int32, 2 * tiles)
        for half in range(2):
            row = [scores[4 * n + 2 * half + e] for n in range(tiles) for e in range(2)]
            seen = self._seen(first_keys, visible[half]) if masked else []
            least = Float32(NEGATIVE_INFINITY)
            shown = [select(s, x, least) for s, x in zip(seen, row, strict=True)] if masked else row
            # Two chains: one would wait for itself.
            top = maximum(*(functools.reduce(maximum, shown[first::2]) for first in range(2)))
            for lanes in (1, 2):
                top = maximum(top, shuffle_xor(top, lanes))
            # `max` drops the NaN that -inf * 0 is.
            m = maximum(state.m[half], mul(top, scale_log2))
            base = exponent_base(m)
            below = mul(base, Float32(-1.0))
            weights = [exp2(fma(score, scale_log2, below)) for score in row]
            if masked:
                weights = [select(s, w, Float32(0.0)) for s, w in zip(seen, weights, strict=True)]
            total = functools.reduce(add, weights)
            for n in range(tiles):
                fragments[2 * n + half] = pack_bf16(weights[2 * n], weights[2 * n + 1])
            if not first:
                factor = exp2(sub(state.m[half], base))
                total = add(mul(state.l[half], factor), total)
                for j in range(2 * half, cute.size(state.o), 4):
                    for e in range(2):
                        state.o[j + e] = mul(state.o[j + e], factor)
            state.m[half] = m
            state.l[half] = total
        return fragments

    def _seen(self, first_keys, keys: KeyRange) -> list:
        """Which of the lane's keys of a step a row sees, in ascending order."""
        t = cute.arch.lane_idx() % 4
        tiles = range(0, self.page_size, TILE)
        return [
            keys.sees(first + tile + 2 * t + e) for first in first_keys for tile in tiles for e in range(2)
        ]

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
#     Adds to the accumulator of a row group the values of a page, weighted. Pair j of tile n of V is at
#     n * pairs(head_dim) + j. V may come in rows, a slot's dims side by side, as lanes load it: the mma wants
#     a dim's slots side by side, which is the transpose of an 8 x 8 matrix a pair, and so the output's dims
#     come out in the permuted order of V. Or it comes in columns: slots 2t and 2t + 1 of the tile, of dim
#     8 j + g, an mma B fragment as it stands; then nothing is transposed, the dims come out in order, and
#     `finish` after the last step permutes them. Both give the same bits.
#
#     A slot's value must reach the rows that see the slot, and no other row, though the 16 rows of an mma
#     may belong to two tokens: with a weight of 0, a NaN or an Inf in V would still spoil the product. Pages
#     that both tokens see whole, nearly all, take one mma a tile. In the others the caller asks for masking:
#     the slots that a token does not see are zeroed, and each of the two tokens gets an mma of its own, of
#     which only its rows are kept. Both ways add the same numbers in the same order, so they agree bit for bit.
#
#     Called by whole warps; no barrier, no fence, no memory.
# ============================================================================================================


@dataclass(frozen=True)
class MmaValues:
    """P V of one row group and a page."""

    head_dim: int
    page_size: int

    def accumulate(
        self,
        weights: list[Int32],
        v: cute.Tensor,
        v_columns: bool,
        first_key: Int32,
        visible: tuple[KeyRange, KeyRange],
        masked: bool,
        o: cute.Tensor,
    ) -> None:
        """o += weights @ V, of one page.

        weights: the page's A fragments as the softmax stage leaves them. v: as the loader leaves it, in
        columns or in rows. first_key: the first key of the page. visible: the keys of the lane's two rows.
        masked: False where both rows are known to see the whole page.
        """
        if masked:
            self._ragged_page(weights, v, v_columns, first_key, visible, o)
        else:
            self._whole_page(weights, v, v_columns, o)

    def _whole_page(self, a, v, v_columns, o):
        for j in range(pairs(self.head_dim)):
            out = mma_bf16(a, self._columns(v, v_columns, j), [o[4 * j + i] for i in range(4)])
            for i in range(4):
                o[4 * j + i] = out[i]

    def _ragged_page(self, a, v, v_columns, first_key, visible, o):
        t = cute.arch.lane_idx() % 4
        keep = [
            [self._seen_pair(rows, first_key + tile * TILE + 2 * t) for tile in range(2)] for rows in visible
        ]
        for j in range(pairs(self.head_dim)):
            b = self._columns(v, v_columns, j)
            c = [o[4 * j + i] for i in range(4)]
            for half in range(2):
                seen = [b[tile] & keep[half][tile] for tile in range(2)]
                out = mma_bf16(a, seen, c)
                for e in range(2):
                    o[4 * j + 2 * half + e] = out[2 * half + e]

    def finish(self, o: cute.Tensor, v_columns: bool) -> None:
        """Give each lane the dims of its own pairs, if V came in columns.

        Tiles 4 c + i of lane quarter t hold dims of chunk c, quarter i; they change places with those that
        lane quarter i holds of quarter t: a 4 x 4 transpose across the lanes of a row, in two exchanges.
        """
        if not v_columns:
            return
        quarter = cute.arch.lane_idx() % 4
        for first in range(0, pairs(self.head_dim), 4):
            for part in range(4):
                tile = [o[4 * (first + i) + part] for i in range(4)]
                for bit in (1, 2):
                    tile = self._exchange(tile, bit, (quarter & bit) != 0)
                for i in range(4):
                    o[4 * (first + i) + part] = tile[i]

    def _exchange(self, tile, bit, upper):
        """Lanes whose quarters differ in `bit` swap the entries that lie on the other side of it."""
        swapped = list(tile)
        for low in (i for i in range(4) if not i & bit):
            high = low | bit
            given = shuffle_xor(select(upper, tile[low], tile[high]), bit)
            swapped[low] = select(upper, given, tile[low])
            swapped[high] = select(upper, tile[high], given)
        return swapped

    def _columns(self, v, v_columns, j):
        """B fragments of dim tile j: pairs (slots 2t, 2t + 1) of one dim, for the page's two tiles."""
        held = [v[n * pairs(self.head_dim) + j] for n in range(self.page_size // TILE)]
        return held if v_columns else [movmatrix(pair) for pair in held]

    def _seen_pair(self, rows, key):
        """A mask that keeps those of keys `key` and `key` + 1 (low and high half) that the rows see."""
        low = select(rows.sees(key), Int32(0x0000FFFF), Int32(0))
        high = select(rows.sees(key + 1), Int32(-65536), Int32(0))
        return low | high


# ============================================================================================================
# stages/ptx/barrier.py
#
# Barriers of the CTA and of the cluster, and the dependencies of a launch on the one before it.
#
# Contract
#     The barriers are called by every thread of the CTA or of the cluster, the dependencies by any thread. All
#     keep their place among the thread's memory operations.
#
# Source: PTX ISA 8.8, bar, barrier.cluster, griddepcontrol.
# ============================================================================================================


@dsl_user_op
def cta_sync(*, loc=None, ip=None) -> None:
    """Barrier of all threads of the CTA; orders their shared-memory accesses."""
    inline_ptx(None, (), "bar.sync 0;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cluster_arrive(*, loc=None, ip=None) -> None:
    """Arrive at the cluster barrier without ordering memory. Every thread of the cluster, once."""
    inline_ptx(None, (), "barrier.cluster.arrive.relaxed.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cluster_wait(*, loc=None, ip=None) -> None:
    """Wait until every thread of the cluster has arrived; acquires."""
    inline_ptx(None, (), "barrier.cluster.wait.acquire.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def griddep_wait(*, loc=None, ip=None) -> None:
    """Wait until the kernels this one depends on have finished and their writes are visible."""
    inline_ptx(None, (), "griddepcontrol.wait;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def griddep_launch_dependents(*, loc=None, ip=None) -> None:
    """Let a dependent kernel start; it still waits for this one's end before it reads."""
    inline_ptx(None, (), "griddepcontrol.launch_dependents;", "", ordered=True, loc=loc, ip=ip)


# ============================================================================================================
# stages/ptx/shared_memory.py
#
# Loads and stores of the CTA's own shared memory.
#
# Contract
#     Called by any thread. Addresses are plain `Int32`, of the window `shared::cta`; nothing here checks a
#     bound or an alignment. All keep their order among the thread's memory operations; a thread that reads what
#     another one wrote needs a barrier in between.
#
# Source: PTX ISA 8.8, ld, st.
# ============================================================================================================


@dsl_user_op
def load_shared_f32x4(address: Int32, *, loc=None, ip=None):
    """Four FP32 values from this CTA's shared memory. Alignment: 16 bytes."""
    return load_x4("shared::cta", Float32, i32(address), loc, ip)


@dsl_user_op
def load_shared_f32x2(address: Int32, *, loc=None, ip=None):
    """Two FP32 values from this CTA's shared memory. Alignment: 8 bytes."""
    types = [T.f32()] * 2
    struct = llvm.StructType.get_literal(types)
    text = "ld.shared::cta.v2.b32 {$0, $1}, [$2];"
    result = inline_ptx(struct, (i32(address),), text, "=f,=f,r", ordered=True, loc=loc, ip=ip)
    return struct_fields(Float32, result, types, loc, ip)


@dsl_user_op
def load_shared_x4(address: Int32, *, loc=None, ip=None):
    """Four 32-bit words from this CTA's shared memory. Alignment: 16 bytes."""
    return load_x4("shared::cta", Int32, i32(address), loc, ip)


@dsl_user_op
def store_shared_f32x4(address: Int32, values, *, loc=None, ip=None) -> None:
    """Four FP32 values to this CTA's shared memory. Alignment: 16 bytes."""
    operands = [i32(address), *(f32(v) for v in values)]
    text = "st.shared::cta.v4.b32 [$0], {$1, $2, $3, $4};"
    inline_ptx(None, operands, text, "r,f,f,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_shared_f32x2(address: Int32, values, *, loc=None, ip=None) -> None:
    """Two FP32 values to this CTA's shared memory. Alignment: 8 bytes."""
    operands = [i32(address), *(f32(v) for v in values)]
    text = "st.shared::cta.v2.b32 [$0], {$1, $2};"
    inline_ptx(None, operands, text, "r,f,f", ordered=True, loc=loc, ip=ip)


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

    def merge(self, region: Int32, state: RowState) -> RowUnits:
        """Merge the warps' states; returns this thread's share of the CTA's partials.

        region: shared-memory address of `warp_partials`. state: this warp's rows, l already summed.
        """
        self._publish(region, state)
        cta_sync()
        return self._gather(region)

    @cute.jit
    def _publish(self, region: Int32, state: RowState):
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        for half in cutlass.range_constexpr(2):
            mine = lane_units(state, half, warp * ROWS + lane // 4 + 8 * half, self.head_dim)
            record = region + mine.row * self.record.bytes
            for i in cutlass.range_constexpr(len(mine.units)):
                store_shared_f32x4(record + 16 * mine.units[i], mine.o[i])
            if lane % 4 == 0:
                store_shared_f32x2(record + self.record.stats, (mine.m, mine.l))

    def _gather(self, region):
        thread, _, _ = cute.arch.thread_idx()
        threads_a_row = self.warps * 32 // ROWS
        row, first = thread // threads_a_row, thread % threads_a_row
        records = [region + (w * ROWS + row) * self.record.bytes for w in range(self.warps)]
        stats = [load_shared_f32x2(r + self.record.stats) for r in records]
        m, factors = merge_weights([s[0] for s in stats])
        l = weighted_sum(factors, [s[1] for s in stats])
        units = [first + i for i in range(0, self.head_dim // 4, threads_a_row)]
        o = []
        for unit in units:
            parts = [load_shared_f32x4(r + 16 * unit) for r in records]
            o.append([weighted_sum(factors, [part[d] for part in parts]) for d in range(4)])
        return RowUnits(row, units, m, l, o)


# ============================================================================================================
# stages/ptx/cluster.py
#
# Distributed shared memory: addresses in the CTAs of a cluster, and asynchronous stores to them.
#
# Contract
#     Called by any thread. A store completes on an mbarrier of the CTA that receives it, which must have
#     initialised the barrier, and must not have ended, when the bytes arrive. Nothing here checks a bound or an
#     alignment.
#
# Source: PTX ISA 8.8, mapa, st.async.
# ============================================================================================================


@dsl_user_op
def map_to_rank(address: Int32, rank: Int32, *, loc=None, ip=None) -> Int32:
    """The `shared::cluster` address at which CTA `rank` of this cluster holds `address`."""
    operands = (i32(address), i32(rank))
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    return Int32(inline_ptx(T.i32(), operands, text, "=r,r,r", loc=loc, ip=ip))


@dsl_user_op
def store_async_f32x4(remote: Int32, values, barrier: Int32, *, loc=None, ip=None) -> None:
    """Send four FP32 values to a CTA of the cluster; 16 transaction bytes complete on its barrier.

    remote, barrier: `shared::cluster` addresses (`map_to_rank`) in the same CTA. Alignment: 16 bytes.
    """
    operands = [i32(remote), i32(barrier), *(f32(v) for v in values)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$2, $3, $4, $5}, [$1];"
    inline_ptx(None, operands, text, "r,r,f,f,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_async_f32x2(remote: Int32, values, barrier: Int32, *, loc=None, ip=None) -> None:
    """Send two FP32 values; 8 transaction bytes. Otherwise as `store_async_f32x4`."""
    operands = [i32(remote), i32(barrier), *(f32(v) for v in values)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [$0], {$2, $3}, [$1];"
    inline_ptx(None, operands, text, "r,r,f,f", ordered=True, loc=loc, ip=ip)


# ============================================================================================================
# stages/ptx/mbarrier.py
#
# mbarriers in the CTA's shared memory: initialise, arrive, wait.
#
# Contract
#     Called by any thread, of which one initialises a barrier; before others use it, a fence and a barrier of
#     the CTA or the cluster. A phase completes when its arrivals and its transaction bytes are all there; the
#     parity of the first phase is 0.
#
# Source: PTX ISA 8.8, parallel synchronization and communication instructions: mbarrier.
# ============================================================================================================


@dsl_user_op
def mbarrier_init(barrier: Int32, arrivals: int, *, loc=None, ip=None) -> None:
    """Start an mbarrier that expects `arrivals` arrivals a phase. One thread; then a fence."""
    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
    inline_ptx(None, (i32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_init_fence(*, loc=None, ip=None) -> None:
    """Make this thread's `mbarrier_init` visible to the cluster at its next cluster barrier."""
    inline_ptx(None, (), "fence.mbarrier_init.release.cluster;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_arrive_expect(barrier: Int32, transaction_bytes: Int32 | int, *, loc=None, ip=None) -> None:
    """Arrive once and expect `transaction_bytes` more bytes in this phase."""
    opcode = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0]"
    if isinstance(transaction_bytes, int):
        text, operands = f"{opcode}, {transaction_bytes};", (i32(barrier),)
    else:
        text, operands = f"{opcode}, $1;", (i32(barrier), i32(transaction_bytes))
    inline_ptx(None, operands, text, ",".join("r" * len(operands)), ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_wait_cluster(barrier: Int32, parity: int, *, loc=None, ip=None) -> None:
    """Wait for the phase of this parity, acquiring what any CTA of the cluster released into it."""
    text = (
        "{ .reg .pred done; "
        "WAIT_${:uid}: "
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$0], " + str(parity) + "; "
        "@!done bra WAIT_${:uid}; }"
    )
    inline_ptx(None, (i32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


# ============================================================================================================
# stages/push/dsmem.py
#
# Push: each CTA sends its rows' partials to the CTAs that own them, through distributed shared memory.
#
# Contract
#     The rows of an exchange, 16 for a row group or more, are owned in order, rows / cluster a rank: row r by
#     rank r // rows_per_rank. Every CTA sends every row, its own rows too, with `st.async` into the owner's
#     region `rank_partials`: one record (`stages.partial`) a row and sending rank, [rows_per_rank, cluster].
#
#     Each store completes transaction bytes on the owner's mbarrier `arrived`, whose one phase is:
#     1 arrival (the owner's own, which also announces the bytes) and
#     rows_per_rank * cluster * (head_dim + 2) * 4 bytes.
#
#     Obligations, in this order:
#       1. `open` by all threads of every CTA, once: it starts the mbarrier, announces the exchange, and arrives
#          at the cluster barrier;
#       2. `meet` by all threads, before the first `send`: it waits at the cluster barrier, so that no store
#          meets a peer whose barrier has not been started;
#       3. `send` for each row, by the threads that share it;
#       4. `wait` by every thread that reads the region: it acquires, at cluster scope, what all ranks sent.
#     A CTA stays alive until its rows have arrived because the warps that own rows wait for them, and nothing
#     else is ever sent to it; so no barrier is needed at the end. A launch has one exchange; nothing is reused.
#     CTAs that have nothing to exchange need none of it, if their whole cluster has nothing.
# ============================================================================================================


@dataclass(frozen=True)
class DsmemPush:
    """Sends the rows of one CTA of a cluster of `cluster` CTAs to their owners.

    exchange_rows: the most rows of an exchange.
    """

    head_dim: int
    cluster: int
    exchange_rows: int

    @property
    def record(self) -> PartialRecord:
        """How a partial lies in shared memory."""
        return PartialRecord(self.head_dim)

    def rows_per_rank(self, rows: int) -> int:
        """How many of the rows of an exchange one CTA owns."""
        return rows // self.cluster

    def transaction_bytes(self, rows: int) -> int:
        """Bytes that arrive at one CTA."""
        return self.rows_per_rank(rows) * self.cluster * self.record.payload

    @cute.jit
    def open(self, arrived: Int32, rows: cutlass.Constexpr[int]):
        """Start the mbarrier at this shared-memory address for an exchange of so many rows, and arrive."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            mbarrier_init(arrived, 1)
            mbarrier_init_fence()
            mbarrier_arrive_expect(arrived, self.transaction_bytes(rows))
        cluster_arrive()

    def meet(self) -> None:
        """Wait until every CTA of the cluster is ready to receive."""
        cluster_wait()

    @cute.jit
    def send(self, region: Int32, arrived: Int32, rank: Int32, mine: RowUnits, rows: cutlass.Constexpr[int]):
        """Send this thread's units to the CTA that owns their row.

        region, arrived: shared-memory addresses of `rank_partials` and of the mbarrier, the same in every
        CTA. rank: this CTA's. rows: of the exchange.
        """
        owner = mine.row // self.rows_per_rank(rows)
        slot = (mine.row % self.rows_per_rank(rows)) * self.cluster + rank
        record = map_to_rank(region + slot * self.record.bytes, owner)
        barrier = map_to_rank(arrived, owner)
        for i in cutlass.range_constexpr(len(mine.units)):
            store_async_f32x4(record + 16 * mine.units[i], mine.o[i], barrier)
        if mine.units[0] == 0:
            store_async_f32x2(record + self.record.stats, (mine.m, mine.l), barrier)

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

    def merge(self, region: Int32, row: Int32) -> tuple[Float32, Float32, list[Float32]]:
        """(m, l, the lane's two dims of o) of an owned row over the cluster's keys.

        region: shared-memory address of `rank_partials`. row: 0 .. rows_per_rank - 1.
        """
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        first = region + row * (self.cluster * record.bytes)
        records = [first + rank * record.bytes for rank in range(self.cluster)]
        stats = [load_shared_f32x2(r + record.stats) for r in records]
        parts = [load_shared_f32x2(r + 8 * lane) for r in records]
        m, factors = merge_weights([m for m, _ in stats])
        l = weighted_sum(factors, [l for _, l in stats])
        return m, l, [weighted_sum(factors, [part[d] for part in parts]) for d in range(2)]


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
# variants/kernels/arguments.py
#
# The arguments of the kernels: their names, types and order, for every launch.
#
# Contract
#     A kernel takes three groups: addresses, integers, FP32 numbers. The fields of the groups, in order, are
#     the parameters of the compiled kernel. What compiles a kernel, packs a call for the driver or launches on
#     the emulator takes the order and the types from `parameters`.
# ============================================================================================================


@dataclass(frozen=True)
class Addresses:
    """Global addresses of a call's tensors: 16-byte aligned, those of table and lengths 4-byte aligned."""

    q: Int64
    gate: Int64
    cache: Int64
    table: Int64
    lengths: Int64
    out: Int64

    def __str__(self) -> str:
        """Part of the kernel's entry name, which CuTe DSL makes of all arguments."""
        return "addresses"


@dataclass(frozen=True)
class ScratchAddresses(Addresses):
    """Also those of the memory where the clusters that share a request meet; 16-byte aligned."""

    workspace: Int64
    counters: Int64

    __str__ = Addresses.__str__


@dataclass(frozen=True)
class Integers:
    """Strides in bytes, and the extent of the block table.

    q_stride, gate_stride, out_stride: of a token. page_stride, head_stride: of a page and a KV head in the
    cache. table_stride: of a request in the block table, of which `columns` entries a request may be read.
    """

    q_stride: Int64
    gate_stride: Int64
    out_stride: Int64
    page_stride: Int64
    head_stride: Int64
    table_stride: Int64
    columns: Int32

    def __str__(self) -> str:
        """Part of the kernel's entry name."""
        return "integers"


@dataclass(frozen=True)
class SplitIntegers(Integers):
    """Also how requests are split.

    window: in keys, at most 2**30; ignored by forms without a window. num_splits: clusters that share a
    request.
    """

    window: Int32
    num_splits: Int32

    __str__ = Integers.__str__


@dataclass(frozen=True)
class Floats:
    """FP32 numbers. scale_log2: softmax scale times log2(e). eps: of the norm."""

    scale_log2: Float32
    eps: Float32

    def __str__(self) -> str:
        """Part of the kernel's entry name."""
        return "floats"


STRUCT_CODES = {Int64: "q", Int32: "i", Float32: "f"}
"""How Python's struct calls the types of parameters, in the machine's own size, order and alignment."""


def groups(kernel_class: type[Any]) -> tuple[type[Any], ...]:
    """The argument groups of a kernel, as the signature of its device function names them."""
    signature = inspect.signature(inspect.unwrap(kernel_class.kernel))
    found = tuple(p.annotation for p in signature.parameters.values() if p.name != "self")
    expected = (Addresses, Integers, Floats)
    if len(found) != len(expected) or not all(map(issubclass, found, expected)):
        names = ", ".join(group.__name__ for group in found)
        raise TypeError(f"{kernel_class.__name__} takes {names}: needed are addresses, integers, floats")
    return found


@functools.cache
def parameters(kernel_class: type[Any]) -> dict[str, str]:
    """The struct code of each parameter of a kernel, by its name, in order."""
    return {
        field.name: STRUCT_CODES[field.type]
        for group in groups(kernel_class)
        for field in dataclasses.fields(group)
    }


# ============================================================================================================
# variants/kernels/base.py
#
# What the kernels have in common: the facts of the problem, the addresses of rows, and the order of stages.
#
# Contract
#     A kernel attends for rows of one request and KV head, row = token * heads_per_kv + query head; 16 rows in
#     order are a row group. Everything here is called by whole warps of a kernel, and waits for nothing.
# ============================================================================================================


SHARED_ALIGN = 128
"""Alignment of a CTA's dynamic shared memory; no region can be aligned better."""


BF16_SIGNS = -0x7FFF8000
"""The sign bits of a pair of BF16 numbers."""


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """One compiled form of a kernel; every field is known at compile time.

    pdl: launched with programmatic dependent launch. The other fields: the problem, the launch and the
    stages.
    """

    name: str
    head_dim: int
    heads_per_kv: int
    tokens: int
    page_size: int
    cluster: int
    warps: int
    scores: Any
    softmax: Any
    values: Any
    push: Any
    cluster_merge: Any
    epilogue: Any
    pdl: bool = False

    def __str__(self) -> str:
        """The name that CuTe DSL makes part of the kernel's entry name."""
        return self.name

    def form(self, *, pdl: bool, windowed: bool) -> "AttentionKernel":
        """The form of this kernel for a deployment."""
        return dataclasses.replace(self, pdl=pdl)

    @property
    def splits(self) -> bool:
        """Whether clusters share a request: the launch then has z slices, a workspace and counters."""
        return False

    @property
    def rows(self) -> int:
        """Rows of one request and KV head."""
        return self.tokens * self.heads_per_kv

    @property
    def row_groups(self) -> int:
        """Row groups of one request and KV head."""
        return self.rows // ROWS

    @property
    def launch_options(self) -> dict[str, Any]:
        """What the launch needs besides its extent."""
        return {}

    @cute.jit
    def __call__(
        self,
        addresses: Addresses,
        integers: Integers,
        floats: Floats,
        grid_x: Int32,
        grid_y: Int32,
        grid_z: Int32,
        stream: cuda.CUstream,
    ):
        """Launch the kernel over a grid of CTAs, which `grid` gives."""
        self.kernel(addresses, integers, floats).launch(
            grid=[grid_x, grid_y, grid_z],
            block=[32 * self.warps, 1, 1],
            cluster=[self.cluster, 1, 1],
            smem=self.shared_bytes,
            use_pdl=self.pdl,
            stream=stream,
            **self.launch_options,
        )

    def row(self, base, stride, request, kv_head, row) -> Int64:
        """Address of one of a request's rows in q, gate or out."""
        token, head = row // self.heads_per_kv, row % self.heads_per_kv
        column = (kv_head * self.heads_per_kv + head) * self.head_dim * 2
        return base + Int64(request * self.tokens + token) * stride + Int64(column)

    def load_query(self, q, stride, request, kv_head, row_group, scale) -> cute.Tensor:
        """The query rows of a row group, as the scores stage keeps them, negated if the scale is negative.

        So the softmax may have the scale's magnitude instead; a change of sign is exact.
        """
        first = row_group * ROWS + cute.arch.lane_idx() // 4
        rows = (self.row(q, stride, request, kv_head, row) for row in (first, first + ROWS // 2))
        query = self.scores.load_query(*rows)
        signs = select(scale < 0.0, Int32(BF16_SIGNS), Int32(0))
        for i in range(cute.size(query)):
            query[i] = query[i] ^ signs
        return query

    def attend(
        self,
        query: cute.Tensor,
        pages: list,
        page_numbers: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        *,
        first: bool = False,
        masked: bool = True,
        v_columns: bool = False,
    ) -> None:
        """Attend some pages at once, whose numbers within the request are `page_numbers`.

        pages: what gives the fragments of each, by `keys` and `values`. first: nothing has been attended
        before. masked: False where all rows see all keys of these pages. v_columns: how V comes.
        """
        first_keys = [page * self.page_size for page in page_numbers]
        scores = [score for page in pages for score in self.scores.scores(query, page.keys())]
        magnitude = maximum(scale_log2, mul(scale_log2, Float32(-1.0)))
        weights = self.softmax.weigh(scores, first_keys, visible, magnitude, state, first, masked)
        for p, page in enumerate(pages):
            a = [weights[4 * p + i] for i in range(4)]
            self.values.accumulate(a, page.values(), v_columns, first_keys[p], visible, masked, state.o)

    @cute.jit
    def attend_step(
        self,
        query: cute.Tensor,
        pages: list,
        page_numbers: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        first: cutlass.Constexpr[bool],
    ):
        """Attend the pages of a warp's step: without masks if both rows see all of them."""
        if self.sees_all(visible, page_numbers, 1):
            self.attend(query, pages, page_numbers, visible, scale_log2, state, first=first, masked=False)
        else:
            self.attend(query, pages, page_numbers, visible, scale_log2, state, first=first)

    def sees_all(self, visible: tuple[KeyRange, KeyRange], page_numbers: list[Int32], run: int):
        """Whether both rows see all keys of the pages, and of those that follow in a run of `run` pages."""
        # The earlier token sees less at the end, the later one less at a window's beginning.
        both = KeyRange(visible[1].first, visible[0].last)
        keys = [page * self.page_size for page in page_numbers]
        return functools.reduce(operator.and_, [both.sees_all(key, run * self.page_size) for key in keys])

    def owned_rows(self, rank, warp, rows: int) -> list[tuple[Int32, Int32]]:
        """The rows of an exchange that a warp of a rank finishes, in order: (number among the rank's, row).

        Warps in excess get numbers past the rank's last, and its last row, which they may read.
        """
        owned = self.push.rows_per_rank(rows)
        each = -(-owned // self.warps)
        numbers = [warp * each + i for i in range(each)]
        return [(n, rank * owned + select(n < owned, n, Int32(owned - 1))) for n in numbers]


# ============================================================================================================
# variants/kernels/cluster.py
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


@dataclass(frozen=True, kw_only=True)
class ClusterKernel(AttentionKernel):
    """One compiled form of the cluster kernel.

    pages_per_step: pages that a warp attends at once. steps: steps that a warp needs at most. The offsets are
    bytes from the start of a CTA's dynamic shared memory, shared_bytes its size.
    """

    pages_per_step: int
    steps: int
    warp_partials: int
    rank_partials: int
    arrived: int
    shared_bytes: int
    pages: Any
    warp_merge: Any

    def grid(self, requests: int, kv_heads: int, num_splits: int) -> tuple[int, int, int]:
        """The launch's extent in CTAs; it depends on nothing else."""
        return self.cluster * self.row_groups * requests, kv_heads, 1

    @cute.kernel
    def kernel(self, addresses: Addresses, integers: Integers, floats: Floats):
        """One CTA: attend some pages for one row group, then finish the rows that this rank owns."""
        warp = cute.arch.warp_idx()
        block, kv_head, _ = cute.arch.block_idx()
        rank = block % self.cluster
        row_group = block // self.cluster % self.row_groups
        request = block // (self.cluster * self.row_groups)
        first_row = row_group * ROWS
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=SHARED_ALIGN).toint()
        arrived, rank_partials = shared + self.arrived, shared + self.rank_partials

        self.push.open(arrived, ROWS)
        if cutlass.const_expr(self.pdl):
            griddep_launch_dependents()
            griddep_wait()

        # Everything that can be read before the length is known.
        length = load_global_i32(addresses.lengths + Int64(request) * 4)
        walk = PageWalk(
            table=addresses.table + Int64(request) * integers.table_stride,
            columns=integers.columns,
            cache=addresses.cache + Int64(kv_head) * integers.head_stride,
            page_stride=Int32(integers.page_stride),
            first=rank * self.warps + warp,
            stride=self.cluster * self.warps,
        )
        incoming = self.pages.begin(walk)
        scale_log2 = floats.scale_log2
        q, q_stride = addresses.q, integers.q_stride
        query = self.load_query(q, q_stride, request, kv_head, row_group, scale_log2)
        owned_rows = self.owned_rows(rank, warp, ROWS)
        gates = [
            self.epilogue.load_gate(
                self.row(addresses.gate, integers.gate_stride, request, kv_head, first_row + row)
            )
            for _, row in owned_rows
        ]

        state = RowState.empty(self.head_dim)
        pages = self.pages.empty()
        visible = CausalMask(self.tokens, self.heads_per_kv).key_ranges(length, row_group)
        live = walk.pages(length, self.page_size)
        self.pages.start(walk, live, self.steps == 1, incoming)
        for step in cutlass.range_constexpr(self.steps):
            if step * self.pages_per_step < live:
                self.pages.take(walk, live, Int32(step), step + 1 == self.steps, incoming, pages)
                numbers = walk.step(step, self.pages_per_step)
                self.attend_step(query, pages, numbers, visible, scale_log2, state, step == 0)
        self.softmax.finish(state)

        merged = self.warp_merge.merge(shared + self.warp_partials, state)
        self.push.meet()
        self.push.send(rank_partials, arrived, rank, merged, ROWS)

        for i, (owned, row) in enumerate(owned_rows):
            if owned < self.push.rows_per_rank(ROWS):
                self.push.wait(arrived)
                _, l, o = self.cluster_merge.merge(rank_partials, owned)
                out_row = self.row(addresses.out, integers.out_stride, request, kv_head, first_row + row)
                self.epilogue.store(out_row, l, o, gates[i], floats.eps)


# ============================================================================================================
# stages/ptx/async_copy.py
#
# Asynchronous copies from global to shared memory: cp.async by each thread, cp.async.bulk by one.
#
# Contract
#     Called by any thread. The bytes of `copy_async_16` belong to the calling thread's groups: after
#     `copy_async_wait` they are visible to that thread, and to others after a barrier. The bytes of `copy_bulk`
#     complete on an mbarrier (`stages.ptx.mbarrier`), and are visible to who waits for its phase. Nothing here
#     checks a bound or an alignment.
#
# Source: PTX ISA 8.8, cp.async, cp.async.bulk.
# ============================================================================================================


@dsl_user_op
def copy_async_16(shared: Int32, source: Int64, size: Int32, further: int = 0, *, loc=None, ip=None) -> None:
    """Begin to copy 16 bytes from global to shared memory, past the L1 cache. Alignment: 16 bytes.

    Of the source only the first `size` bytes are read, 0 for none; the rest is filled with zeros. further:
    bytes to add to the source's address.
    """
    operands = (i32(shared), i64(source), i32(size))
    text = f"cp.async.cg.shared.global [$0], [$1+{further}], 16, $2;"
    inline_ptx(None, operands, text, "r,l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_async_commit(*, loc=None, ip=None) -> None:
    """Close this thread's group of copies."""
    inline_ptx(None, (), "cp.async.commit_group;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_async_wait(pending: int, *, loc=None, ip=None) -> None:
    """Wait until at most `pending` of this thread's latest groups are unfinished. A barrier for others."""
    inline_ptx(None, (), f"cp.async.wait_group {pending};", "", ordered=True, loc=loc, ip=ip)


# ============================================================================================================
# stages/ring/entries.py
#
# The block-table entries of a long walk: 32 at a time, one a lane, looked up well before they are needed.
#
# Contract
#     Called by whole warps with the same arguments; every warp of a CTA keeps entries of its own. The steps
#     of a walk are asked for in order, none left out: `advance` with the step's first page, then `at` for each
#     of its pages. The pages of a step divide 32. Reads global memory; a lane may look at an entry that the
#     walk does not have, as long as it is in the table.
# ============================================================================================================


BATCH = 32
"""Entries that a warp looks up at once: one a lane."""


@dataclass(frozen=True)
class WalkEntries:
    """The entries of the present 32 pages of the walk, and of the next."""

    held: cute.Tensor

    @staticmethod
    def begin(walk: PageWalk) -> "WalkEntries":
        """Look up the walk's first 64 entries."""
        entries = WalkEntries(registers(Int32, 2))
        for batch in range(2):
            entries.held[batch] = walk.entry(cute.arch.lane_idx() + batch * BATCH)
        return entries

    @cute.jit
    def advance(self, walk: PageWalk, index: Int32):
        """Make room for the walk's page `index` and those of its step."""
        if (index % BATCH == 0) & (index > 0):
            self.held[0] = self.held[1]
            self.held[1] = walk.entry(index + BATCH + cute.arch.lane_idx())

    def at(self, index: Int32) -> Int32:
        """The entry of the walk's page `index`."""
        return shuffle_index(self.held[0], index)


# ============================================================================================================
# stages/ring/layout.py
#
# How a page lies in a ring's shared memory, as the lanes of a warp read it.
#
# Contract
#     A page is `page_size` slots of K and V side by side, 4 * head_dim bytes a slot, slot after slot. Lane
#     4 g + t reads, of slot 8 n + g, the 16-byte chunks that are its fragments (`stages.fragments`). Where the
#     bytes lie within a slot is up to the ring: two slots are a multiple of all 32 banks apart, so that without
#     care neighbouring slots' chunks would meet in the same banks.
#
#     Pure functions; they touch no memory.
# ============================================================================================================


def slot_bytes(head_dim: int) -> int:
    """Bytes of one slot: K and V of one cache entry and KV head."""
    return 4 * head_dim


def page_bytes(head_dim: int, page_size: int) -> int:
    """Bytes of one page of one KV head."""
    return page_size * slot_bytes(head_dim)


def tiles(page_size: int) -> int:
    """Tiles of 8 slots in a page."""
    return page_size // TILE


# ============================================================================================================
# stages/ring/cp_async_ring.py
#
# Page ring: the pages of a CTA stream through shared memory with `cp.async`, and every warp reads each.
#
# Contract
#     Computes nothing: it gives the K and V fragments of the pages of one step, the same to all warps of the
#     CTA, which attend them for different rows. The ring holds `depth` pages; while a step is attended, the
#     pages of the following ones are on their way.
#
#     All threads of the CTA call `start`, then `take` for each step in turn, then `close`, together and with
#     the same arguments. A warp copies pages of a step of its own, or a part of one, and a thread waits for its
#     own copies; the CTA barrier in `take` makes everybody's visible, and says that the step before has been
#     read by all, so that its place can be filled again. One barrier a step. Between one `take` and the next, a
#     warp asks for the live pages of the step, and for the fragments of each, when it has use for them.
#
#     A page that is not live is not read: its place is filled with zeros.
#
#     V comes out in columns, transposed on its way by `ldmatrix`. In shared memory K's two 64-byte halves
#     change places in every odd slot: the lanes of a quarter-warp read from two neighbouring slots, and so from
#     different banks. V's 16-byte chunks are numbered by xor with the slot, so that the 8 slots of a tile lie
#     in different banks. No access has conflicts.
# ============================================================================================================


ROW_BYTES = 512
"""What the lanes of a warp copy at once, 16 bytes each."""


FLIPS = 4
"""Rows after which V's chunks lie as before: 8 slots, of two in a row."""


@dataclass(frozen=True)
class SwizzledPage:
    """A page in shared memory, its chunks moved against bank conflicts.

    It begins `offset` bytes after `step`, the address of its step's first page. Swizzling flips address bits
    below those of the offset, so it is done once for all pages of a step.
    """

    step: Int32
    offset: Int32 | int
    head_dim: int
    page_size: int

    def keys(self) -> cute.Tensor:
        """K's fragments."""
        lane = cute.arch.lane_idx()
        g, t = lane // 4, lane % 4
        chunk = self.step + g * slot_bytes(self.head_dim) + 16 * (t ^ (g % 2 * 4))
        fragments = registers(Int32, tiles(self.page_size) * pairs(self.head_dim))
        for n in range(tiles(self.page_size)):
            tile = self.offset + TILE * n * slot_bytes(self.head_dim)
            for c in range(chunks(self.head_dim)):
                words = load_shared_x4((chunk ^ (64 * c)) + tile)
                for i, word in enumerate(words):
                    fragments[n * pairs(self.head_dim) + 4 * c + i] = word
        return fragments

    def values(self) -> cute.Tensor:
        """V's fragments, in columns."""
        lane = cute.arch.lane_idx()
        # Matrices: (tile 0, dims 8 j), (tile 1, dims 8 j), then the same of dims 8 j + 8.
        slot, further = lane % 16, lane // 16
        row = self.step + slot * slot_bytes(self.head_dim) + slot_bytes(self.head_dim) // 2
        chunk = row + 16 * (further ^ (slot % TILE))
        fragments = registers(Int32, tiles(self.page_size) * pairs(self.head_dim))
        for j in range(0, pairs(self.head_dim), 2):
            words = load_matrices_transposed((chunk ^ (16 * j)) + self.offset)
            for i, word in enumerate(words):
                fragments[i % 2 * pairs(self.head_dim) + j + i // 2] = word
        return fragments


@dataclass(frozen=True)
class CpAsyncRing:
    """A ring of `depth` pages that all threads of the CTA fill."""

    head_dim: int
    page_size: int
    ring_pages_per_step: int
    warps: int
    depth: int

    @property
    def steps_ahead(self) -> int:
        """Steps whose pages are on their way while one is attended."""
        return self.depth // self.ring_pages_per_step - 1

    @property
    def v_columns(self) -> bool:
        """V comes as mma B fragments."""
        return True

    def start(self, walk: PageWalk, live: Int32, region: Int32) -> WalkEntries:
        """Begin to copy the pages of the first steps. live: how many pages the CTA's walk has."""
        entries = WalkEntries.begin(walk)
        for step in range(self.steps_ahead):
            self._copy(Int32(step), region, self._sources(walk, live, Int32(step), entries))
        return entries

    def take(self, walk: PageWalk, live: Int32, step: Int32, region: Int32, entries: WalkEntries) -> None:
        """Wait for a step's pages, and begin to copy into the place of the step before."""
        sources = self._sources(walk, live, step + self.steps_ahead, entries)
        copy_async_wait(self.steps_ahead - 1)
        cta_sync()
        self._copy(step + self.steps_ahead, region, sources)

    def page(self, step: Int32, page: Int32 | int, region: Int32) -> SwizzledPage:
        """One of the pages of the step that was taken last."""
        a_page = page_bytes(self.head_dim, self.page_size)
        return SwizzledPage(region + self._place(step) * a_page, page * a_page, self.head_dim, self.page_size)

    def close(self) -> None:
        """Wait for the copies of steps that the walk did not have."""
        copy_async_wait(0)

    def _place(self, step):
        """Which page of the ring holds the step's first page."""
        return step % (self.depth // self.ring_pages_per_step) * self.ring_pages_per_step

    @property
    def _pages_per_warp(self) -> int:
        """Pages of a step that a warp copies; of a page that warps share, each copies a part."""
        return max(1, self.ring_pages_per_step // self.warps)

    @property
    def _rows_per_page(self) -> int:
        """Rows of a page that a warp copies. A row is 512 bytes, one chunk a lane: two slots."""
        rows = page_bytes(self.head_dim, self.page_size) // ROW_BYTES
        return rows * self.ring_pages_per_step // (self.warps * self._pages_per_warp)

    def _first_row(self):
        """Where the warp begins, in rows from the step's first page."""
        return cute.arch.warp_idx() * (self._pages_per_warp * self._rows_per_page)

    def _sources(self, walk, live, step, entries):
        """Where the thread's part of each of its warp's pages lies, and the bytes of each of its copies."""
        a_page = page_bytes(self.head_dim, self.page_size)
        first = self._first_row() * ROW_BYTES
        # Of all pages, so that each takes one instruction. From the middle, which every copy can name.
        offset = first % a_page + 16 * cute.arch.lane_idx() + self._middle
        mine = dataclasses.replace(walk, cache=walk.cache + Int64(offset))
        entries.advance(walk, step * self.ring_pages_per_step)
        sources = []
        for p in range(self._pages_per_warp):
            index = step * self.ring_pages_per_step + first // a_page + p
            wanted = index < live
            entry = select(wanted, entries.at(index), Int32(0))
            sources.append((mine.address(entry), select(wanted, Int32(16), Int32(0))))
        return sources

    @property
    def _middle(self) -> int:
        """Bytes from the thread's first chunk in a page; an instruction adds up to 2,047 either way."""
        return self._rows_per_page * ROW_BYTES // 2

    def _copy(self, step, region, sources):
        a_page = page_bytes(self.head_dim, self.page_size)
        start, flip = self._first_target(region)
        targets = [start ^ (flip * row) for row in range(FLIPS)]
        for p, (source, size) in enumerate(sources):
            for row in range(self._rows_per_page):
                target = targets[row % FLIPS] + self._place(step) * a_page + p * a_page + row * ROW_BYTES
                copy_async_16(target, source, size, row * ROW_BYTES - self._middle)
        copy_async_commit()

    def _first_target(self, region):
        """Where the thread's first chunk goes in the first step, and what flips its place row by row.

        K's chunks lie alike in all rows, V's alike in every fourth: a row has an even and an odd slot.
        """
        a_slot = slot_bytes(self.head_dim) // 16
        odd, column = cute.arch.lane_idx() // a_slot, cute.arch.lane_idx() % a_slot
        of_v = column >= a_slot // 2
        flip = select(of_v, Int32(32), Int32(0))
        moved = column ^ select(of_v, odd, odd * (a_slot // 4))
        first = self._first_row()
        start = region + first * ROW_BYTES + odd * slot_bytes(self.head_dim) + 16 * moved
        return start ^ (flip * (first % FLIPS)), flip


# ============================================================================================================
# stages/grid_merge/workspace.py
#
# Grid merge: the clusters that share a request merge their partials of a row through global memory.
#
# Contract
#     A row of the workspace is one record (`stages.partial`) a cluster, [clusters]; for each row there is a
#     counter, zero before the launch. The warp that owns rows in its cluster leaves its record of each and then
#     counts its arrival at all of them, a lane a row, in one trip to memory. Where it was the last, it merges
#     the row's records in cluster order, whoever it is, so that the bits do not depend on the order of arrival.
#     The counter is back at zero then.
#
#     The counting atomic releases the warp's records and, for the last, acquires all others (device scope). The
#     lanes of the warp are ordered with those that count by warp barriers on both sides.
#
#     Called by whole warps: `leave` for each of the warp's rows, `arrive` once, then `collect` for the rows of
#     which `last` says that the warp was the last. Two launches that run at the same time need workspaces and
#     counters of their own.
#
#     Records may hold anything before the launch, counters must hold zero.
# ============================================================================================================


FEW = 4
"""Records that a lane reads at once if there are no more."""


MANY = 12
"""Records that a lane reads at once if there are more: one trip to memory for nearly all deployments."""


@dataclass(frozen=True)
class WorkspaceMerge:
    """Merges the partials of all clusters of a row."""

    head_dim: int

    @cute.jit
    def leave(self, row: Int64, cluster: Int32, m: Float32, l: Float32, o: list[Float32]):
        """Leave cluster `cluster`'s partial of a row.

        row: global address of the row's records. o: the lane's two dims.
        """
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        mine = row + Int64(cluster) * record.bytes
        store_global_f32x2(mine + Int64(8 * lane), o)
        if lane == 0:
            store_global_f32x2(mine + record.stats, (m, l))

    @cute.jit
    def arrive(self, counters: Int64, rows: cutlass.Constexpr[int], clusters: Int32):
        """Count the arrival at the warp's rows, `rows` of them, at most a lane each; what `last` asks for.

        counters: global address of the first row's counter; the others follow.
        """
        lane = cute.arch.lane_idx()
        counter = counters + Int64(4 * lane)
        before = registers(Int32, 1)
        before[0] = Int32(0)
        warp_sync()
        if lane < rows:
            before[0] = count_arrival(counter)
            if before[0] == clusters - 1:
                store_global_i32(counter, Int32(0))
        warp_sync()
        return before[0]

    def last(self, before: Int32, row: Int32, clusters: Int32):
        """Whether the warp was the last of `clusters` at its row `row`, by what `arrive` said."""
        return shuffle_index(before, row) == clusters - 1

    @cute.jit
    def collect(self, row: Int64, clusters: Int32):
        """(l, the lane's two dims of o) of the row over all clusters."""
        merged = registers(Float32, 4)
        merged.fill(0.0)
        merged[0] = Float32(NEGATIVE_INFINITY)
        if clusters <= FEW:
            self._add(row, Int32(0), clusters, FEW, merged)
        else:
            for batch in cutlass.range((clusters + (MANY - 1)) // MANY, unroll=1):
                self._add(row, batch * MANY, clusters, MANY, merged)
        return merged[1], [merged[2], merged[3]]

    def _add(self, row, first, clusters, count, merged):
        """Merge `count` records from cluster `first` on, all in flight at once; past the last are none."""
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        m, l, o = [merged[0]], [merged[1]], [[merged[2], merged[3]]]
        for i in range(count):
            there = first + i < clusters
            other = row + Int64(select(there, first + i, clusters - 1)) * record.bytes
            stats = load_device_f32x2(other + record.stats)
            part = load_device_f32x2(other + Int64(8 * lane))
            m.append(select(there, stats[0], Float32(NEGATIVE_INFINITY)))
            l.append(select(there, stats[1], Float32(0.0)))
            o.append([select(there, x, Float32(0.0)) for x in part])
        merged[0], factors = merge_weights(m)
        merged[1] = weighted_sum(factors, l)
        for d in range(2):
            merged[2 + d] = weighted_sum(factors, [part[d] for part in o])


# ============================================================================================================
# variants/kernels/request.py
#
# Where the rows and the pages of one request and KV head are, and where its clusters meet.
#
# Contract
#     Plain numbers, alike in all threads of a CTA; nothing here touches memory.
# ============================================================================================================


@dataclass(frozen=True)
class Rows:
    """Where the rows of one request and KV head are: global addresses and strides in bytes."""

    request: Int32
    kv_head: Int32
    q: Int64
    q_stride: Int64
    gate: Int64
    gate_stride: Int64
    out: Int64
    out_stride: Int64
    scale_log2: Float32
    eps: Float32


@dataclass(frozen=True)
class Pages:
    """Where the pages of one request and KV head are, and which of them are needed.

    first: the page of the first key that row 0 sees. count: pages from there to the last live one.
    """

    table: Int64
    columns: Int32
    cache: Int64
    page_stride: Int32
    length: Int32
    first: Int32
    count: Int32

    def walk(self, first: Int32, stride: int) -> PageWalk:
        """A walk from page `first` of the request."""
        return PageWalk(self.table, self.columns, self.cache, self.page_stride, first, stride)


@dataclass(frozen=True)
class Scratch:
    """Where the clusters of a launch meet: global addresses, and how many share a request."""

    workspace: Int64
    counters: Int64
    clusters: Int32


@dataclass(frozen=True)
class Shares:
    """A number of shares, ready to divide by: the slow part is done before the length is known.

    number: at least 1. fraction: floor((2**32 - 1) / number).
    """

    number: Int32
    fraction: Int32

    @classmethod
    def prepare(cls, number: Int32) -> "Shares":
        """Divide once."""
        return cls(number, divide_u32(Int32(-1), number))

    def divide(self, total: Int32) -> tuple[Int32, Int32]:
        """(total // number, total % number); total is not negative."""
        # total * fraction / 2**32 lies less than 1 below total / number.
        quotient = multiply_high_u32(total, self.fraction)
        rest = total - quotient * self.number
        low = rest >= self.number
        return select(low, quotient + 1, quotient), select(low, rest - self.number, rest)


# ============================================================================================================
# variants/kernels/batch.py
#
# The batch kernel: each request's pages spread over several clusters, read once for all of its rows.
#
# Contract
#     Grid (cluster * slice_clusters * R, H, ceil(num_splits / slice_clusters)), clusters of `cluster` CTAs of
#     `warps` warps, one warp for each row group. The launch shape depends on R and the deployment only. Here a
#     z slice has one cluster of each request; a kernel that does more than this may have more.
#
#     `num_splits` clusters share the request's pages. The pages are dealt out in steps of
#     `ring_pages_per_step`, to each CTA a run of its own, as even as whole steps go. It streams them through a
#     ring that all of its warps read, warp w for row group w. The CTAs of a cluster exchange all rows, the
#     owner of a row merges the ranks, and the clusters merge through the workspace: the last to arrive finishes
#     the row. A request without keys (padding) goes the same way, and gets zeros.
#
#     With a window of W keys, row t sees keys [L - tokens + t - W + 1, L - tokens + t].
#
#     The workspace holds num_splits records for each row (request, KV head, row), the counters one uint32 for
#     each; see the grid merge stage for what is asked of them.
#
#     Registers decide how many CTAs a multiprocessor holds, and those hide each other's latencies: the compiler
#     is told to leave room for `resident_ctas`.
# ============================================================================================================


@dataclass(frozen=True, kw_only=True)
class BatchKernel(AttentionKernel):
    """One compiled form of the batch kernel.

    ring_pages_per_step: pages of a request that are attended at once. resident_ctas: CTAs that fit on a
    multiprocessor, as far as registers go. windowed: the deployment has a window. The offsets are bytes from
    the start of a CTA's dynamic shared memory, shared_bytes its size.
    """

    ring_pages_per_step: int
    resident_ctas: int
    rank_partials: int
    arrived: int
    page_ring: int
    shared_bytes: int
    ring: Any
    grid_merge: Any
    windowed: bool = False

    @property
    def splits(self) -> bool:
        """Requests are spread over clusters."""
        return True

    @property
    def short_pages(self) -> int:
        """The most pages, from the first that row 0 sees, of a request that is not spread over clusters."""
        return 0

    @property
    def slice_clusters(self) -> int:
        """Clusters of a request and KV head in one z slice of the grid."""
        return 1

    def form(self, *, pdl: bool, windowed: bool) -> "BatchKernel":
        """The form of this kernel for a deployment."""
        return dataclasses.replace(self, pdl=pdl, windowed=windowed)

    def grid(self, requests: int, kv_heads: int, num_splits: int) -> tuple[int, int, int]:
        """The launch's extent in CTAs; it depends on nothing else."""
        slices = (num_splits + (self.slice_clusters - 1)) // self.slice_clusters
        return self.cluster * self.slice_clusters * requests, kv_heads, slices

    @property
    def launch_options(self) -> dict[str, Any]:
        """Registers for `resident_ctas` CTAs a multiprocessor."""
        # The carveout is the default, but said: otherwise CuTe DSL asks a GPU how much memory so many CTAs
        # may have.
        return {"min_blocks_per_mp": self.resident_ctas, "preferred_smem_carveout": -1}

    @cute.kernel
    def kernel(self, addresses: ScratchAddresses, integers: SplitIntegers, floats: Floats):
        """One CTA: find its request, and what it needs."""
        block, kv_head, _ = cute.arch.block_idx()
        # By way of a shuffle, so that the compiler keeps them: it would read special registers in each step.
        request = shuffle_index(block // (self.cluster * self.slice_clusters), Int32(0))
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=SHARED_ALIGN).toint()
        shared = shuffle_index(shared, Int32(0))
        shares = Shares.prepare(integers.num_splits * self.cluster)
        if cutlass.const_expr(self.pdl):
            griddep_launch_dependents()
            griddep_wait()

        # Whatever the length says, no key is looked for before the table or past it.
        length = load_global_i32(addresses.lengths + Int64(request) * 4)
        most = integers.columns * self.page_size
        length = select(length < most, length, most)
        length = select(length > 0, length, Int32(0))
        mask = CausalMask(
            self.tokens, self.heads_per_kv, integers.window if cutlass.const_expr(self.windowed) else None
        )
        first, count = self.needed_pages(length, mask)
        rows = Rows(
            request=request,
            kv_head=kv_head,
            q=addresses.q,
            q_stride=integers.q_stride,
            gate=addresses.gate,
            gate_stride=integers.gate_stride,
            out=addresses.out,
            out_stride=integers.out_stride,
            scale_log2=floats.scale_log2,
            eps=floats.eps,
        )
        pages = Pages(
            table=addresses.table + Int64(request) * integers.table_stride,
            columns=integers.columns,
            cache=addresses.cache + Int64(kv_head) * integers.head_stride,
            page_stride=Int32(integers.page_stride),
            length=length,
            first=first,
            count=count,
        )
        scratch = Scratch(addresses.workspace, addresses.counters, integers.num_splits)
        self.serve(rows, pages, mask, shared, shares, scratch)

    @cute.jit
    def serve(
        self, rows: Rows, pages: Pages, mask: CausalMask, shared: Int32, shares: Shares, scratch: Scratch
    ):
        """What a CTA does for its request."""
        self.spread(rows, pages, mask, shared, shares, scratch)

    def needed_pages(self, length, mask):
        """(first page that row 0 sees, pages from there to the last live one)."""
        live = (length + (self.page_size - 1)) // self.page_size
        first_key = mask.key_ranges(length, Int32(0))[0].first
        first = (
            Int32(0) if first_key is None else select(first_key > 0, first_key, Int32(0)) // self.page_size
        )
        return first, live - first

    @cute.jit
    def spread(
        self, rows: Rows, pages: Pages, mask: CausalMask, shared: Int32, shares: Shares, scratch: Scratch
    ):
        """One of several clusters: attend this CTA's share of the pages, then merge."""
        state = self.attend_share(rows, pages, mask, shared, shares)
        # What follows is worked out again, so that no register keeps it meanwhile.
        block, kv_head, z = block_index_again()
        request = block // (self.cluster * self.slice_clusters)
        rows = dataclasses.replace(rows, request=request, kv_head=kv_head)
        self.merge_clusters(rows, state, shared, scratch, self.cluster_index(block, z))

    @cute.jit
    def attend_share(self, rows: Rows, pages: Pages, mask: CausalMask, shared: Int32, shares: Shares):
        """One of several clusters: this CTA's share of the pages, a row group a warp. Returns its state."""
        warp = cute.arch.warp_idx()
        block, _, z = cute.arch.block_idx()
        region = shared + self.page_ring
        self.push.open(shared + self.arrived, self.rows)

        share = self.cluster_index(block, z) * self.cluster + block % self.cluster
        begin, end = self.share_of(pages.count, share, shares)
        a_step = self.ring_pages_per_step
        walk, live = pages.walk(pages.first + begin, 1), end - begin
        entries = self.ring.start(walk, live, region)
        place = rows.q, rows.q_stride, rows.request, rows.kv_head, warp
        query = self.load_query(*place, rows.scale_log2)
        state = RowState.empty(self.head_dim)
        visible = mask.key_ranges(pages.length, warp)
        for step in cutlass.range((live + (a_step - 1)) // a_step, unroll=1):
            self.ring.take(walk, live, step, region, entries)
            self.ring_step(query, walk, step, region, visible, rows.scale_log2, state)
        self.ring.close()
        self.softmax.finish(state)
        self.values.finish(state.o, self.ring.v_columns)
        return state

    def share_of(self, count: Int32, share: Int32, shares: Shares) -> tuple[Int32, Int32]:
        """The first page of a share, and the one behind its last: as even as whole steps go."""
        a_step = self.ring_pages_per_step
        steps = (count + (a_step - 1)) // a_step
        each, rest = shares.divide(steps)
        first = each * share + select(share < rest, share, rest)
        last = first + select(share < rest, each + 1, each)
        return first * a_step, select(last * a_step < count, last * a_step, count)

    @cute.jit
    def merge_clusters(self, rows: Rows, state: RowState, shared: Int32, scratch: Scratch, cluster: Int32):
        """The CTAs of a cluster exchange all rows, then the clusters meet in the workspace."""
        thread = thread_index_again()
        lane, warp = thread % 32, thread // 32
        rank = cute.arch.block_idx_in_cluster()
        _, kv_heads, _ = cute.arch.grid_dim()
        arrived, rank_partials = shared + self.arrived, shared + self.rank_partials
        self.push.meet()
        for half in cutlass.range_constexpr(2):
            mine = lane_units(state, half, warp * ROWS + lane // 4 + 8 * half, self.head_dim)
            self.push.send(rank_partials, arrived, rank, mine, self.rows)
        # Loops, not lists: in clusters of few CTAs a warp has many rows, and code is slow the first time.
        owned_rows = self.owned_rows(rank, warp, self.rows)
        (owned, first), count = owned_rows[0], len(owned_rows)
        gate = self.load_gate(rows, first)
        if owned < self.push.rows_per_rank(self.rows):
            self.push.wait(arrived)
            place = Int64((rows.request * kv_heads + rows.kv_head) * self.rows + first)
            clusters = scratch.clusters
            a_row = Int64(clusters) * PartialRecord(self.head_dim).bytes
            records = scratch.workspace + place * a_row
            for i in cutlass.range(count, unroll=1):
                m, l, o = self.cluster_merge.merge(rank_partials, owned + i)
                self.grid_merge.leave(records + Int64(i) * a_row, cluster, m, l, o)
            before = self.grid_merge.arrive(scratch.counters + place * 4, count, clusters)
            for i in cutlass.range(count, unroll=1):
                if self.grid_merge.last(before, i, clusters):
                    total_l, total_o = self.grid_merge.collect(records + Int64(i) * a_row, clusters)
                    self.finish(rows, first + i, total_l, total_o, gate)
                # On its way while the next row is collected; behind the last row, that row's again.
                further = select(i + 1 < count, i + 1, i)
                gate = self.load_gate(rows, first + further)

    def cluster_index(self, block: Int32, z: Int32) -> Int32:
        """Which of the clusters that may share a long request a block belongs to."""
        return z * self.slice_clusters + block // self.cluster % self.slice_clusters

    @cute.jit
    def ring_step(
        self,
        query: cute.Tensor,
        walk: PageWalk,
        step: Int32,
        region: Int32,
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
    ):
        """Attend the pages of a step of the ring: at once if all rows see all of them, else one by one.

        The pages that no row of the warp sees are not touched, those that are not live among them.
        """
        a_step, v_columns = self.ring_pages_per_step, self.ring.v_columns
        numbers = walk.step(step, a_step)
        if self.sees_all(visible, numbers[:1], a_step):
            pages = [self.ring.page(step, p, region) for p in range(a_step)]
            self.attend(query, pages, numbers, visible, scale_log2, state, masked=False, v_columns=v_columns)
        else:
            for p in cutlass.range(a_step, unroll=1):
                number = walk.page(step * a_step + p)
                key = number * self.page_size
                some = [rows.sees_any(key, self.page_size) for rows in visible]
                if some[0] | some[1]:
                    page = self.ring.page(step, p, region)
                    self.attend(query, [page], [number], visible, scale_log2, state, v_columns=v_columns)

    def load_gate(self, rows: Rows, row) -> Int32:
        """What the epilogue needs of the gate, long before it does."""
        return self.epilogue.load_gate(self.row(rows.gate, rows.gate_stride, rows.request, rows.kv_head, row))

    def finish(self, rows: Rows, row, l: Float32, o: list[Float32], gate: Int32) -> None:
        """Store one merged row."""
        out = self.row(rows.out, rows.out_stride, rows.request, rows.kv_head, row)
        self.epilogue.store(out, l, o, gate, rows.eps)


# ============================================================================================================
# variants/kernels/split.py
#
# The split kernel: long contexts and sliding windows, the pages of long requests spread over clusters.
#
# Contract
#     The batch kernel and its grid, with a way of its own for short requests: a z slice has a cluster of each
#     request for each row group. Which way a request goes is decided in the kernel, alike in all of its CTAs,
#     from its length:
#
#     Short, at most `short_rounds` pages a warp of one cluster, counted from the first key that row 0 sees: the
#     clusters of z slice 0 do what the cluster kernel does, one row group each; the other slices leave at once.
#
#     Long: as the batch kernel does, and clusters in excess of `num_splits` leave at once.
# ============================================================================================================


@dataclass(frozen=True, kw_only=True)
class SplitKernel(BatchKernel):
    """One compiled form of the split kernel.

    pages_per_step: pages of a short request that a warp attends at once. short_rounds: pages a warp of one
    cluster that still are a short request. The rest: see `BatchKernel`.
    """

    pages_per_step: int
    short_rounds: int
    warp_partials: int
    pages: Any
    warp_merge: Any

    @property
    def short_pages(self) -> int:
        """The most pages, from the first that row 0 sees, of a request that one cluster attends alone."""
        return self.short_rounds * self.cluster * self.warps

    @property
    def slice_clusters(self) -> int:
        """Clusters of a request and KV head in one z slice of the grid."""
        return self.row_groups

    @cute.jit
    def serve(
        self, rows: Rows, pages: Pages, mask: CausalMask, shared: Int32, shares: Shares, scratch: Scratch
    ):
        """What a CTA does for its request: find out which way it goes, and go it."""
        block, _, z = cute.arch.block_idx()
        if pages.count <= self.short_pages:
            if z == 0:
                self.short(rows, pages, mask, shared)
        elif self.cluster_index(block, z) < scratch.clusters:
            self.spread(rows, pages, mask, shared, shares, scratch)

    @cute.jit
    def short(self, rows: Rows, pages: Pages, mask: CausalMask, shared: Int32):
        """One cluster, one row group: as the cluster kernel does, with a loop over the steps."""
        warp = cute.arch.warp_idx()
        block, _, _ = cute.arch.block_idx()
        rank, row_group = block % self.cluster, block // self.cluster % self.row_groups
        arrived, rank_partials = shared + self.arrived, shared + self.rank_partials
        self.push.open(arrived, ROWS)

        walk = pages.walk(pages.first + rank * self.warps + warp, self.cluster * self.warps)
        incoming = self.pages.begin(walk)
        query = self.load_query(rows.q, rows.q_stride, rows.request, rows.kv_head, row_group, rows.scale_log2)
        first_row = row_group * ROWS
        state = RowState.empty(self.head_dim)
        taken = self.pages.empty()
        visible = mask.key_ranges(pages.length, row_group)
        live = walk.pages(pages.length, self.page_size)
        self.pages.start(walk, live, False, incoming)
        steps = (live + (self.pages_per_step - 1)) // self.pages_per_step
        for step in cutlass.range(steps, unroll=1):
            self.pages.take(walk, live, step, False, incoming, taken)
            numbers = walk.step(step, self.pages_per_step)
            self.attend_step(query, taken, numbers, visible, rows.scale_log2, state, False)
        self.softmax.finish(state)

        merged = self.warp_merge.merge(shared + self.warp_partials, state)
        self.push.meet()
        self.push.send(rank_partials, arrived, rank, merged, ROWS)
        owned_rows = self.owned_rows(rank, warp, ROWS)
        gates = [self.load_gate(rows, first_row + row) for _, row in owned_rows]
        for i, (owned, row) in enumerate(owned_rows):
            if owned < self.push.rows_per_rank(ROWS):
                self.push.wait(arrived)
                _, l, o = self.cluster_merge.merge(rank_partials, owned)
                self.finish(rows, first_row + row, l, o, gates[i])


# ============================================================================================================
# variants/variant.py
#
# A variant: one kernel of a module, and the deployments that it serves.
#
# Contract
#     Plain data for the host. A module lists its variants in the order of the spec, and a deployment launches
#     the first that serves it.
# ============================================================================================================


class Form(NamedTuple):
    """One compiled form of a variant's kernel: all of a deployment that its code depends on.

    variant: a name. pdl: launched with programmatic dependent launch. windowed: with a sliding window.
    """

    variant: str
    pdl: bool
    windowed: bool

    def __str__(self) -> str:
        """The form as a part of a file's name: `split-pdl-windowed`."""
        return self.variant + "-pdl" * self.pdl + "-windowed" * self.windowed


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

    @property
    def forms(self) -> tuple[Form, ...]:
        """Every form that some deployment launches."""
        windowed = (False, True) if self.windows else (False,)
        return tuple(Form(self.name, pdl, window) for pdl in (False, True) for window in windowed)

    def never_splits(self, max_seq_len: int, window: int | None) -> bool:
        """Whether no request of a deployment is ever spread over several clusters."""
        return not self.kernel.splits or bool(self.most_pages(max_seq_len, window) <= self.kernel.short_pages)

    def most_pages(self, max_seq_len: int, window: int | None) -> int:
        """The most pages, from the first that row 0 sees, of a deployment's requests."""
        pages: int = -(-max_seq_len // self.kernel.page_size)
        if window is None:
            return pages
        return min(pages, most_window_pages(window, self.kernel.tokens, self.kernel.page_size))

    def serves(self, max_seq_len: int, window: int | None) -> bool:
        """Whether a deployment may use this variant."""
        return max_seq_len <= self.max_seq_len and (window is None or self.windows)


def most_window_pages(window: int, tokens: int, page_size: int) -> int:
    """The most pages from row 0's first visible key to a request's last.

    The rows of a request see window + tokens - 1 keys together, and those may begin in the last slot of a
    page.
    """
    keys = window + tokens - 1
    return (keys - 2) // page_size + 2 if keys > 1 else 1


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
            scores=MmaScores(head_dim=64, page_size=16),
            softmax=OnlineSoftmax(page_size=16),
            values=MmaValues(head_dim=64, page_size=16),
            warp_merge=SharedWarpMerge(head_dim=64, warps=4),
            push=DsmemPush(head_dim=64, cluster=16, exchange_rows=16),
            cluster_merge=RankOrderMerge(head_dim=64, cluster=16),
            epilogue=NormGateEpilogue(head_dim=64),
        ),
        max_seq_len=2048,
        windows=False,
    ),
    Variant(
        name="split",
        kernel=SplitKernel(
            name="attn2_split",
            head_dim=64,
            heads_per_kv=8,
            tokens=8,
            page_size=16,
            cluster=16,
            warps=4,
            ring_pages_per_step=4,
            resident_ctas=3,
            rank_partials=32768,  # 17,408 B of push
            arrived=50176,  # 8 B of push
            page_ring=0,  # 32,768 B of ring
            shared_bytes=50184,
            pages_per_step=1,
            short_rounds=4,
            warp_partials=0,  # 17,408 B of warp_merge
            pages=RegisterPrefetch(head_dim=64, page_size=16, pages_per_step=1),
            ring=CpAsyncRing(head_dim=64, page_size=16, ring_pages_per_step=4, warps=4, depth=8),
            scores=MmaScores(head_dim=64, page_size=16),
            softmax=OnlineSoftmax(page_size=16),
            values=MmaValues(head_dim=64, page_size=16),
            warp_merge=SharedWarpMerge(head_dim=64, warps=4),
            push=DsmemPush(head_dim=64, cluster=16, exchange_rows=64),
            cluster_merge=RankOrderMerge(head_dim=64, cluster=16),
            grid_merge=WorkspaceMerge(head_dim=64),
            epilogue=NormGateEpilogue(head_dim=64),
        ),
        max_seq_len=1048576,
        windows=True,
    ),
    Variant(
        name="batch",
        kernel=BatchKernel(
            name="attn2_batch",
            head_dim=64,
            heads_per_kv=8,
            tokens=8,
            page_size=16,
            cluster=2,
            warps=4,
            ring_pages_per_step=4,
            resident_ctas=3,
            rank_partials=32768,  # 17,408 B of push
            arrived=50176,  # 8 B of push
            page_ring=0,  # 32,768 B of ring
            shared_bytes=50184,
            ring=CpAsyncRing(head_dim=64, page_size=16, ring_pages_per_step=4, warps=4, depth=8),
            scores=MmaScores(head_dim=64, page_size=16),
            softmax=OnlineSoftmax(page_size=16),
            values=MmaValues(head_dim=64, page_size=16),
            push=DsmemPush(head_dim=64, cluster=2, exchange_rows=64),
            cluster_merge=RankOrderMerge(head_dim=64, cluster=2),
            grid_merge=WorkspaceMerge(head_dim=64),
            epilogue=NormGateEpilogue(head_dim=64),
        ),
        max_seq_len=1048576,
        windows=True,
    ),
)


# ============================================================================================================
# variants/refusal.py
#
# How an argument that cannot be served is refused.
#
# Contract
#     The message names the argument, what it got and what it needs.
# ============================================================================================================


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


# ============================================================================================================
# variants/host/checks.py
#
# Checks of single arguments: a refusal names the argument, what it got and what it needs.
#
# Contract
#     Works on numbers and on what a tensor says of itself; nothing here reads a tensor's contents, waits for a
#     device or allocates. Raises ValueError.
# ============================================================================================================


MAX_KV_HEADS = 65535
"""KV heads of a launch: the y extent of a grid (CUDA C++ Programming Guide, technical specifications)."""


MAX_PAGE_STRIDE = 1 << 32
"""Bytes from page to page that kernels can no longer multiply with (`stages.pages.walk`)."""


MAX_NUMBER = torch.finfo(torch.float32).max / 2
"""The largest number whose product with log2(e) is finite in FP32."""


class TensorFacts(NamedTuple):
    """All that is checked about a tensor but its address. strides: in elements."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    strides: tuple[int, ...]

    def __str__(self) -> str:
        """In words, for messages."""
        return f"{self.dtype} {list(self.shape)} with strides {list(self.strides)}"


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Whether a value is an integer, and no boolean, from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_kv_heads(kv_heads: Any) -> None:
    """The KV heads H of a rank."""
    require(
        is_whole(kv_heads, 1, MAX_KV_HEADS),
        f"kv_heads must be an integer in 1..{MAX_KV_HEADS}, got {kv_heads!r}",
    )


def as_device(device: torch.device | int | str | None) -> torch.device:
    """The device that an argument names: an integer is a CUDA device's index, None the current one."""
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device("cuda" if device is None else device)


def fp32(name: str, value: Any, least: float = -MAX_NUMBER) -> float:
    """A number that is finite in FP32, and so is 1.44 times it (the folded scale)."""
    if type(value) is float and least <= value <= MAX_NUMBER:
        return value
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    fits = real and least <= value <= MAX_NUMBER
    bound = f" >= {least:g}" if least > -MAX_NUMBER else ""
    require(fits, f"{name} must be a finite FP32 number{bound}, got {value!r}")
    return float(value)


def check_rows(name: str, given: TensorFacts, kernel: Any, requests: int, kv_heads: int) -> int:
    """The token stride of q, gate or out, in elements."""
    tokens, heads, dim = requests * kernel.tokens, kv_heads * kernel.heads_per_kv, kernel.head_dim
    require(given.dtype == torch.bfloat16, f"{name} must be bfloat16, got {given.dtype}")
    shapes = [(tokens, heads * dim), (tokens, heads, dim)]
    require(
        tuple(given.shape) in shapes,
        f"{name} must be [{tokens}, {heads * dim}] or [{tokens}, {heads}, {dim}] "
        f"(R={requests} from seq_lens, H={kv_heads} from kv_cache), got {list(given.shape)}",
    )
    packed = given.strides[-1] == 1 and (len(given.shape) == 2 or given.strides[1] == dim)
    require(packed, f"{name} must have its heads packed, got strides {list(given.strides)}")
    stride = given.strides[0]
    require(stride % 8 == 0, f"{name} must have a token stride that is a multiple of 8, got {stride}")
    return stride


def check_cache(given: TensorFacts, kernel: Any) -> tuple[int, int, int]:
    """H, and the page and head strides in elements."""
    page, width = kernel.page_size, 2 * kernel.head_dim
    require(given.dtype == torch.bfloat16, f"kv_cache must be bfloat16, got {given.dtype}")
    require(
        len(given.shape) == 4 and tuple(given.shape[2:]) == (page, width) and given.shape[1] >= 1,
        f"kv_cache must be [pages, H, {page}, {width}], got {list(given.shape)}",
    )
    require(
        given.shape[1] <= MAX_KV_HEADS,
        f"kv_cache must have at most {MAX_KV_HEADS} KV heads, got {list(given.shape)}",
    )
    require(
        given.strides[3] == 1 and given.strides[2] == width,
        f"kv_cache must have contiguous pages (strides {width}, 1 within one), got strides "
        f"{list(given.strides)}",
    )
    strides = [given.strides[dim] if given.shape[dim] > 1 else 0 for dim in (0, 1)]
    require(
        all(stride % 8 == 0 for stride in strides),
        f"kv_cache must have page and head strides that are multiples of 8 elements, got strides "
        f"{list(given.strides)}",
    )
    require(
        2 * strides[0] < MAX_PAGE_STRIDE,
        f"kv_cache must have a page stride below {MAX_PAGE_STRIDE // 2} elements, got strides "
        f"{list(given.strides)}",
    )
    return given.shape[1], strides[0], strides[1]


def check_table(given: TensorFacts, kernel: Any, requests: int, max_seq_len: int) -> tuple[int, int]:
    """The table's columns, and its request stride in elements."""
    needed = -(-max_seq_len // kernel.page_size)
    require(
        given.dtype == torch.int32 and len(given.shape) == 2 and given.shape[0] == requests,
        f"block_table must be int32 [{requests}, >= {needed}] (R={requests} from seq_lens), got {given}",
    )
    require(
        given.shape[1] >= needed,
        f"block_table must have >= {needed} columns for max_seq_len={max_seq_len}, got {given.shape[1]}",
    )
    require(
        given.shape[1] == 1 or given.strides[1] == 1,
        f"block_table must have contiguous rows, got strides {list(given.strides)}",
    )
    return given.shape[1], given.strides[0]


def check_lengths(given: TensorFacts) -> int:
    """R."""
    require(
        given.dtype == torch.int32
        and len(given.shape) == 1
        and (given.shape[0] <= 1 or given.strides[0] == 1),
        f"seq_lens must be contiguous int32 [R], got {given}",
    )
    return given.shape[0]


def check_scratch(
    name: str,
    given: TensorFacts | None,
    dtype: torch.dtype,
    size: int,
    device: torch.device,
    launch: str,
) -> None:
    """A workspace or counters on a device, of at least `size` bytes, which is what `launch` needs."""
    if given is None:
        raise ValueError(
            f"{name} is needed, {size} bytes ({launch}): this deployment splits long requests over clusters; "
            "allocate_scratch() makes both"
        )
    require(given.device == device, f"{name} must be on q's device {device}, got one on {given.device}")
    held = math.prod(given.shape) * given.dtype.itemsize
    dense = all(
        given.strides[i] == math.prod(given.shape[i + 1 :]) for i, n in enumerate(given.shape) if n > 1
    )
    require(dense, f"{name} must be contiguous, got {given}")
    require(held >= size, f"{name} must have >= {size} bytes ({launch}), got {held}")
    require(given.dtype == dtype, f"{name} must be {str(dtype).removeprefix('torch.')}, got {given.dtype}")


def check_address(name: str, address: int, alignment: int) -> None:
    """What kernels load in one piece has to be aligned."""
    require(
        address % alignment == 0,
        f"{name} must start at a multiple of {alignment} bytes, got address {address:#x}",
    )


# ============================================================================================================
# variants/host/time_model.py
#
# Which kernel and how many clusters suit a deployment that does not say: a model of a launch's time.
#
# Contract
#     A multiprocessor holds a few CTAs at a time. `layer` clusters put one CTA on each multiprocessor that
#     clusters of this size can use, and some layers fit on top of each other; what does not fit waits for a
#     wave of its own. Clusters run within a GPC, so large ones leave some multiprocessors out. One layer more
#     slows everything down, but by less than it adds.
#
#     A CTA that shares a request takes the time of its pages, and some to begin and to merge. Of a request that
#     a cluster attends alone, each row group reads all pages, but in few rounds: there it is the number of
#     clusters that counts.
#
#     The unit of time is what a page takes with one CTA a multiprocessor, 0.195 us on an H200. The numbers were
#     fitted to measurements there (docs/measurements.md shows rules and sweeps); they decide speed only.
#
#     The rules know how many requests a deployment mostly serves, never how many a call has: a number of splits
#     that changed with the batch would change bits.
# ============================================================================================================


MAX_SPLITS = 128
"""Clusters of a long request that the kernels were shown to work with."""


GPC_MULTIPROCESSORS = 18
"""Multiprocessors of a GPC of the devices that the kernels are for (Hopper: up to 18)."""


TPC_MULTIPROCESSORS = 2
"""Multiprocessors that are always together, so that clusters up to this size leave none out."""


BEGIN_AND_END = 27
"""What a CTA that shares a request takes besides its pages and its rows."""


A_ROW = 2.7
"""What each row that a warp merges adds to that."""


A_RECORD = 0.3
"""What each cluster's record of such a row adds."""


PAGE_SLOWDOWN = 0.55
"""By how much a CTA more on every multiprocessor stretches the time of a page."""


OTHER_SLOWDOWN = 0.2
"""By how much it stretches everything else."""


ALONE_LAYERS = 4
"""Layers of a kernel that does not say how many CTAs a multiprocessor holds."""


ALONE_LAUNCH = 20
"""What a launch takes in which clusters attend requests alone, besides its waves."""


ALONE_WAVE = 17
"""What each of these waves takes, besides its rounds."""


ALONE_ROUND = 2
"""What a round takes, in which every warp of a cluster attends a page."""


def cheapest_splits(kernel: Any, requests: int, kv_heads: int, pages: int, multiprocessors: int) -> int:
    """The number of clusters for which the model takes least time; the fewest of equals.

    requests, kv_heads: of a launch. pages: of a long request.
    """
    return min(
        range(1, MAX_SPLITS + 1),
        key=lambda splits: shared_time(kernel, requests, kv_heads, splits, pages, multiprocessors),
    )


def shared_time(
    kernel: Any, requests: int, kv_heads: int, splits: int, pages: int, multiprocessors: int
) -> float:
    """The model's time of a launch in which `splits` clusters share each request's pages."""
    layer = layer_clusters(kernel.cluster, multiprocessors)
    each: int = -(-pages // (kernel.cluster * splits))
    rows = max(1, kernel.rows // (kernel.cluster * kernel.warps))
    besides: float = BEGIN_AND_END + rows * (A_ROW + A_RECORD * splits)
    slowdown: float = PAGE_SLOWDOWN * layer * kernel.cluster / multiprocessors

    resident: int = kernel.resident_ctas

    def layers_time(layers: int) -> float:
        further = layers - 1
        return (each * (1 + slowdown * further) + besides * (1 + OTHER_SLOWDOWN * further)) if layers else 0.0

    waves, rest = divmod(requests * kv_heads * splits, layer * resident)
    # A second layer that is just full was measured to be as slow as a third.
    layers = -(-rest // layer) + (rest > layer and rest % layer == 0)
    return waves * layers_time(resident) + layers_time(layers)


def alone_time(kernel: Any, requests: int, kv_heads: int, pages: int, multiprocessors: int) -> float:
    """The model's time of a launch in which a cluster attends each request's row group alone."""
    layers = kernel.resident_ctas if kernel.splits else ALONE_LAYERS
    waves: float = (
        requests * kv_heads * kernel.row_groups / (layers * layer_clusters(kernel.cluster, multiprocessors))
    )
    rounds: float = pages / (kernel.cluster * kernel.warps)
    return ALONE_LAUNCH + waves * (ALONE_WAVE + ALONE_ROUND * rounds)


def layer_clusters(cluster: int, multiprocessors: int) -> int:
    """Clusters of `cluster` CTAs that a device runs at once with one CTA on a multiprocessor; at least 1."""
    if cluster <= TPC_MULTIPROCESSORS:
        return max(1, multiprocessors // cluster)
    return max(1, multiprocessors // GPC_MULTIPROCESSORS * (GPC_MULTIPROCESSORS // cluster))


# ============================================================================================================
# variants/identity.py
#
# What a generated module says of itself; its own values take the place of these.
# ============================================================================================================


def variant_named(name: Any) -> Variant:
    """The variant of this name. Raises ValueError."""
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    known = ", ".join(v.name for v in VARIANTS)
    raise ValueError(f"variant must be one of {known}, got {name!r}")


# ============================================================================================================
# variants/host/deployment.py
#
# A deployment: what is known before serving. It picks the kernel, and with R and H its launch.
#
# Contract
#     Everything here is decided by a few numbers and the device, once for each combination; a `Deployment` that
#     exists is right. Equal arguments give the same object, so it is its own key in the caches of calls.
# ============================================================================================================


MULTIPROCESSORS = 132
"""Of an H100 or H200, for plans that are made where there is no such device."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A deployment that a variant of this module serves.

    max_seq_len: longest context in cache entries, verified tokens included. window: keys a row sees, None for
    all. num_splits: clusters that share a long request, None for the default. pdl: with programmatic
    dependent launch.
    """

    max_seq_len: int
    window: int | None
    num_splits: int | None
    pdl: bool
    variant: Variant

    @functools.cached_property
    def form(self) -> Form:
        """The form of the kernel that it launches."""
        return Form(self.variant.name, self.pdl, self.window is not None)

    @functools.cached_property
    def splits(self) -> bool:
        """Whether a request can be spread over several clusters."""
        return not self.variant.never_splits(self.max_seq_len, self.window)

    def clusters(self, kv_heads: int, device: torch.device) -> int:
        """Clusters that share a long request. They do not depend on the requests, so neither do the bits."""
        if self.splits and self.num_splits is not None:
            return self.num_splits
        return self.default_splits(1, kv_heads, multiprocessors(device))

    def default_splits(self, requests: int, kv_heads: int, multiprocessors: int) -> int:
        """What suits launches of so many requests; 1 where none is ever split."""
        if not self.splits:
            return 1
        pages = self.variant.most_pages(self.max_seq_len, self.window)
        return cheapest_splits(self.variant.kernel, requests, kv_heads, pages, multiprocessors)

    def launch_time(self, requests: int, kv_heads: int, multiprocessors: int) -> float:
        """How long launches of so many requests take, in the unit of `variants.host.time_model`."""
        kernel, pages = self.variant.kernel, self.variant.most_pages(self.max_seq_len, self.window)
        if not self.splits:
            return alone_time(kernel, requests, kv_heads, pages, multiprocessors)
        splits = self.default_splits(requests, kv_heads, multiprocessors)
        return shared_time(kernel, requests, kv_heads, splits, pages, multiprocessors)

    def scratch_bytes(self, requests: int, kv_heads: int, device: torch.device) -> tuple[int, int]:
        """Bytes of the workspace and of the counters for up to `requests` requests; 0 where not needed.

        A partial record for each row and cluster, a uint32 for each row; counters are padded to 16 bytes.
        """
        if not self.splits:
            return 0, 0
        kernel = self.variant.kernel
        rows = requests * kv_heads * kernel.rows
        clusters = self.clusters(kv_heads, device)
        return rows * clusters * PartialRecord(kernel.head_dim).bytes, -(-4 * rows // 16) * 16


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device or MIG slice; elsewhere those of the devices this is planned for."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def deploy(
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
    pdl: bool = False,
) -> Deployment:
    """The deployment, by the named variant or the first that serves it. Raises ValueError if none does."""
    try:
        return _deploy(max_seq_len, window, num_splits, variant, pdl)
    except TypeError:
        # What cannot be a key is no number and no name either; the checks say which argument it is.
        return _deploy.__wrapped__(max_seq_len, window, num_splits, variant, pdl)


@functools.lru_cache(maxsize=1024, typed=True)
def _deploy(max_seq_len: Any, window: Any, num_splits: Any, variant: Any, pdl: Any) -> Deployment:
    """Typed, because 64.0 and True are equal to numbers that are fine and are not fine themselves."""
    check_context(max_seq_len, window)
    require(
        num_splits is None or is_whole(num_splits, 1, MAX_SPLITS),
        f"num_splits must be None or an integer in 1..{MAX_SPLITS}, got {num_splits!r}",
    )
    require(isinstance(pdl, bool), f"pdl must be True or False, got {pdl!r}")
    candidates = VARIANTS if variant is None else (variant_named(variant),)
    for candidate in candidates:
        if candidate.serves(max_seq_len, window):
            return Deployment(max_seq_len, window, num_splits, pdl, candidate)
    served = "; ".join(
        f"{v.name}: max_seq_len <= {v.max_seq_len}, {'any window' if v.windows else 'no window'}"
        for v in candidates
    )
    raise ValueError(f"no kernel here serves max_seq_len={max_seq_len}, window={window} ({served})")


def check_context(max_seq_len: Any, window: Any) -> None:
    """A longest context and a window, whoever serves them."""
    require(is_whole(max_seq_len, 1), f"max_seq_len must be an integer >= 1, got {max_seq_len!r}")
    require(window is None or is_whole(window, 1), f"window must be None or an integer >= 1, got {window!r}")


# ============================================================================================================
# variants/host/planning.py
#
# What an engine asks before it serves: which kernel, how many splits, how much scratch memory.
#
# Contract
#     Answers are the ones that calls with the same arguments act on. Nothing here needs a GPU; where the device
#     decides, the one that is named or else the current one is asked, and where there is none, those that the
#     kernels were made for. Everything raises ValueError for a deployment that no kernel here serves.
# ============================================================================================================


def split_kernel(max_seq_len: int, window: int | None = None) -> bool:
    """Whether a deployment launches a kernel that can spread a request over several clusters.

    max_seq_len, window: as in `attn2`. Raises ValueError.
    """
    return bool(deploy(max_seq_len, window).variant.kernel.splits)


def split_forms(max_seq_len: int, window: int | None = None) -> tuple[str, bool]:
    """How a deployment's kernel merges, and whether it loops over the steps of a short request.

    ("cluster", ...) if no request is ever spread over clusters, else ("workspace", ...). max_seq_len, window:
    as in `attn2`. Raises ValueError.
    """
    deployment = deploy(max_seq_len, window)
    return "workspace" if deployment.splits else "cluster", bool(deployment.variant.kernel.splits)


def window_pages(window: int) -> int:
    """The most pages from row 0's first visible key to a request's last, for a window of this many keys.

    The T tokens of a request see window + T - 1 keys together, which may begin in the last slot of a page.
    window: in cache entries, at least 1. Raises ValueError.
    """
    require(window is not None, "window must be an integer >= 1, got None")
    check_context(1, window)
    kernel = VARIANTS[0].kernel
    return most_window_pages(window, kernel.tokens, kernel.page_size)


def default_splits(
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    variant: str | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    requests: int = 1,
) -> int:
    """How many clusters should share a long request; 1 where no request is ever split.

    kv_heads: the rank's KV heads H. max_seq_len, window, variant: as in `attn2`. multiprocessors: of the
    device or MIG slice. requests: that an engine mostly serves at a time.

    With `requests` 1 it is what a deployment has that does not say, whatever number of requests its calls
    have, so bits do not depend on that. An engine that mostly serves more asks for them, and gives the answer
    as `num_splits` from then on. Chosen by a model of a launch's time. Raises ValueError.
    """
    deployment = deploy(max_seq_len, window, None, variant)
    _check_load(kv_heads, multiprocessors, requests)
    return deployment.default_splits(requests, kv_heads, multiprocessors)


def default_variant(
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    requests: int = 1,
) -> str:
    """Returns the variant that suits an engine which mostly serves so many long requests at a time.

    kv_heads: the rank's KV heads H. max_seq_len, window: as in `attn2`; long is what they allow.
    multiprocessors: of the device or MIG slice. requests: that an engine mostly serves at a time.

    A deployment that names no variant has the first that serves it, whatever this says; an engine that wants
    another gives its name as `variant` from then on, with the `num_splits` that `default_splits` has for it.
    Chosen by a model of a launch's time. Raises ValueError.
    """
    deploy(max_seq_len, window)
    _check_load(kv_heads, multiprocessors, requests)
    serving = [variant.name for variant in VARIANTS if variant.serves(max_seq_len, window)]
    return min(
        serving,
        key=lambda name: deploy(max_seq_len, window, None, name).launch_time(
            requests, kv_heads, multiprocessors
        ),
    )


def workspace_bytes(
    requests: int,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
    device: torch.device | int | str | None = None,
) -> int:
    """Bytes of the workspace for up to `requests` requests on a device; 0 if the deployment needs none.

    A partial record (m, l, o: FP32, padded) for each row of a request and KV head and each of the num_splits
    clusters that work on it. requests: the most that a call has. kv_heads: the rank's KV heads H.
    max_seq_len, window, num_splits, variant: as in `attn2`. device: whose multiprocessors decide where
    num_splits does not say; the current one if not given. Raises ValueError.
    """
    return _scratch_bytes(requests, kv_heads, deploy(max_seq_len, window, num_splits, variant), device)[0]


def counters_bytes(
    requests: int,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
    device: torch.device | int | str | None = None,
) -> int:
    """Bytes of the counters for up to `requests` requests: a uint32 a row, padded to 16. 0 if not needed.

    requests, kv_heads, max_seq_len, window, num_splits, variant, device: as in `workspace_bytes`. Raises
    ValueError.
    """
    return _scratch_bytes(requests, kv_heads, deploy(max_seq_len, window, num_splits, variant), device)[1]


def allocate_scratch(
    requests: int,
    *,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    device: torch.device | int | str | None = None,
    variant: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A workspace (uint8) and zeroed counters (int32) for calls of up to `requests` requests on a device.

    requests: the most that a call has. kv_heads: the rank's KV heads H. max_seq_len, window, num_splits,
    variant: as in `attn2`. device: the current CUDA device if not given.

    Calls that may run at the same time need scratch memory of their own; others may share it. Counters have
    to be zero before a call, and a call leaves them so. Raises ValueError.
    """
    require(
        device is not None or torch.cuda.is_available(),
        "device must be given on a machine with no CUDA device, got None",
    )
    place = as_device(device)
    deployment = deploy(max_seq_len, window, num_splits, variant)
    workspace, counters = _scratch_bytes(requests, kv_heads, deployment, place)
    return (
        torch.empty(workspace, dtype=torch.uint8, device=place),
        torch.zeros(counters // 4, dtype=torch.int32, device=place),
    )


def _check_load(kv_heads: Any, multiprocessors: Any, requests: Any) -> None:
    check_kv_heads(kv_heads)
    require(is_whole(requests, 1), f"requests must be an integer >= 1, got {requests!r}")
    require(is_whole(multiprocessors, 1), f"multiprocessors must be an integer >= 1, got {multiprocessors!r}")


def _scratch_bytes(
    requests: Any, kv_heads: Any, deployment: Deployment, device: torch.device | int | str | None
) -> tuple[int, int]:
    require(is_whole(requests, 0), f"requests must be an integer >= 0, got {requests!r}")
    check_kv_heads(kv_heads)
    if device is None and not torch.cuda.is_available():
        device = "cpu"
    return deployment.scratch_bytes(requests, kv_heads, as_device(device))


# ============================================================================================================
# variants/loading/environment.py
#
# Environment variables of CuTe DSL that change what it compiles.
#
# Contract
#     A manifest of exported kernels says what they were made from; a variable that changes the machine code, or
#     leaves it out, is refused by name, since the manifest could not tell. Variables that were seen to leave
#     the machine code as it is are listed. What CuTe DSL takes for off counts as not set.
# ============================================================================================================


PREFIX = "CUTE_DSL_"
"""Of CuTe DSL's variables."""


HARMLESS = frozenset(
    {
        *(
            "ARCH",
            "CACHE_DIR",
            "DISABLE_FILE_CACHING",
            "DUMP_DIR",
            "FILTER_STACKTRACE",
            "JIT_CACHE_MAX_ELEMS",
        ),
        *("JIT_TIME_PROFILING", "LIBS", "LOG_LEVEL", "LOG_TO_CONSOLE", "LOG_TO_FILE", "NO_CACHE"),
        *("PRINT_AFTER_PREPROCESSOR", "PRINT_IR", "SHOW_STACKTRACE", "WARNINGS_AS_ERRORS", "WARNINGS_IGNORE"),
    }
)
"""What may be set, without the prefix: caches, logs, folders, and the architecture, which is always named."""


OFF = frozenset({"", "0", "false", "off", "no"})


def changing_variables() -> list[str]:
    """The variables that are set and may change the machine code, as NAME=value."""
    return [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX)
        and name.removeprefix(PREFIX) not in HARMLESS
        and value.strip().lower() not in OFF
    ]


def check_environment() -> None:
    """No variable changes what is exported. Raises RuntimeError."""
    found = changing_variables()
    if found:
        raise RuntimeError(
            f"{', '.join(found)}: changes what CuTe DSL compiles, and the manifest of exported kernels could "
            "not tell; unset it to export"
        )


def check_code_is_made() -> None:
    """CuTe DSL compiles to machine code at all. Raises RuntimeError."""
    dry = [variable for variable in changing_variables() if variable.startswith(f"{PREFIX}DRYRUN=")]
    if dry:
        raise RuntimeError(f"{dry[0]}: CuTe DSL makes no machine code; unset it")


# ============================================================================================================
# variants/loading/compile.py
#
# Compiles kernels: from a form of a variant to machine code, with no GPU.
#
# Contract
#     What comes out depends on the module, the form, the architecture and the version of CuTe DSL alone; the
#     same input gives the same bytes. CuTe DSL reads the kernels' source when it compiles them, not when they
#     are imported: what has been replaced in the meantime is refused.
# ============================================================================================================


# One at a time: CuTe DSL keeps what it is tracing in one place for all threads. All generated modules of a
# process share the lock, so it lies with the package that needs it.
COMPILING = vars(cutlass).setdefault("_stagewright_compiling", threading.Lock())


@dataclass(frozen=True)
class Image:
    """A compiled kernel: a cubin for one architecture, and the name of the kernel in it."""

    cubin: bytes
    entry: str


def compile_form(form: Form, arch: str, options: str = "") -> Any:
    """What `cute.compile` returns for a form, whatever the machine. options: more of its options."""
    variant = variant_named(form.variant)
    require(variant.windows or not form.windowed, f"variant {variant.name!r} serves no window")
    kernel = variant.kernel.form(pdl=form.pdl, windowed=form.windowed)
    # Compilation reads the types of the arguments, not their values.
    values = {Int64: Int64(16), Int32: Int32(1), Float32: Float32(1.0)}
    arguments = [
        group(*(values[field.type] for field in dataclasses.fields(group))) for group in groups(type(kernel))
    ]
    grid = (Int32(1), Int32(1), Int32(1))
    check_code_is_made()
    with COMPILING:
        check_source()
        return cute.compile(
            kernel, *arguments, *grid, make_fake_stream(), options=f"--gpu-arch {arch} {options}".strip()
        )


def check_source() -> None:
    """The file of this module is still the one that was imported. Raises RuntimeError."""
    try:
        text = Path(__file__).read_bytes()
    except OSError as error:
        raise RuntimeError(
            f"{__file__} cannot be read ({error.strerror}), and CuTe DSL compiles kernels from their source: "
            "install the package as files, not as an archive, and leave them in place"
        ) from error
    if DIGEST.encode() not in text:
        raise RuntimeError(
            f"{__file__} was replaced after it was imported, and CuTe DSL would compile what lies there now: "
            "start the process again"
        )


@contextlib.contextmanager
def dump_folder() -> Iterator[str]:
    """A temporary folder for what CuTe DSL keeps, removed in the end, by a path that its options can hold.

    The options are one string that is split twice, and a temporary folder may be called anything.
    """
    with tempfile.TemporaryDirectory() as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)


def compile_image(form: Form, arch: str) -> Image:
    """The machine code of a form."""
    with dump_folder() as folder:
        compiled = compile_form(form, arch, f"--keep-cubin --dump-dir {folder}")
        (entry,) = compiled.kernel_info
        return Image(compiled.artifacts.CUBIN, entry)


# ============================================================================================================
# variants/loading/artefact.py
#
# Kernels that were compiled ahead of time: how they lie in a folder, and which of them may be run.
#
# Contract
#     For each module and architecture a folder holds one manifest, JSON, and a cubin for each form of each
#     variant. The manifest says what the kernels were made from and by what, and what each of them is. `read`
#     gives machine code only if all of that is so for this module here and now, and the bytes are those that
#     were written. The digests tell stale, foreign and damaged files apart from good ones; they are no
#     protection against someone who wants to run other code.
# ============================================================================================================


FORMAT = 1
"""Of manifests; a number larger than that of any other layout."""


def manifest_name(arch: str) -> str:
    """The manifest's file of this module for an architecture."""
    return f"{NAME}.{arch}.json"


def cubin_name(form: Form, arch: str, sha256: str) -> str:
    """The file of a form's machine code; other code has another name, so a manifest never points to it."""
    return f"{NAME}.{form}.{arch}.{sha256[:16]}.cubin"


def origin(arch: str) -> dict[str, Any]:
    """What a manifest says of where its kernels come from."""
    return {
        **{"format": FORMAT, "module": NAME, "digest": DIGEST},
        **{"arch": arch, "cute_dsl": cutlass.__version__},
    }


def description(form: Form) -> dict[str, Any]:
    """What a manifest says of a kernel besides its bytes: the launch, and the types of its parameters."""
    kernel = variant_named(form.variant).kernel
    return {
        **form._asdict(),
        "cluster": kernel.cluster,
        "threads": 32 * kernel.warps,
        "shared_bytes": kernel.shared_bytes,
        "parameters": parameters(type(kernel)),
    }


def record(form: Form, image: Image) -> dict[str, Any]:
    """A manifest's entry for a kernel."""
    identity = {"entry": image.entry, "bytes": len(image.cubin)}
    return {**description(form), **identity, "sha256": hashlib.sha256(image.cubin).hexdigest()}


def read(folder: Any, form: Form, arch: str) -> Image:
    """The machine code of a form for an architecture. Raises ValueError where there is none to be run."""
    path = Path(folder) / manifest_name(arch)
    again = f"export the kernels for {arch} again"
    manifest = _manifest(path, again)
    for name, needed in origin(arch).items():
        got = manifest.get(name)
        require(got == needed, f"from_dir: {path} has {name} {got!r}, this module needs {needed!r}; {again}")
    kernels = {
        (k.get("variant"), k.get("pdl"), k.get("windowed")): k
        for k in manifest.get("kernels", ())
        if isinstance(k, dict)
    }
    require(form in kernels, f"from_dir: {path} has no kernel {form}; {again}")
    found = kernels[form]
    for name, needed in description(form).items():
        got = found.get(name)
        require(got == needed, f"from_dir: {path}: kernel {form} has {name} {got!r}, not {needed!r}; {again}")
    sha256, entry = str(found.get("sha256")), str(found.get("entry"))
    # It becomes a part of a path.
    require(
        re.fullmatch("[0-9a-f]{64}", sha256) is not None,
        f"from_dir: {path} is damaged: kernel {form} has sha256 {sha256!r}; {again}",
    )
    file = path.with_name(cubin_name(form, arch, sha256))
    try:
        cubin = file.read_bytes()
    except OSError as error:
        raise ValueError(f"from_dir: {file} cannot be read: {error.strerror}; {again}") from error
    held = hashlib.sha256(cubin).hexdigest()
    require(held == sha256, f"from_dir: {file} is damaged: SHA-256 {held}, written was {sha256}; {again}")
    require(entry.encode() in cubin, f"from_dir: {file} has no kernel {entry!r}; {again}")
    return Image(cubin, entry)


def _manifest(path: Path, again: str) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"from_dir: {path} cannot be read: {error.strerror}; {again}") from error
    except ValueError as error:
        raise ValueError(f"from_dir: {path} is damaged: {error}; {again}") from error
    require(isinstance(manifest, dict), f"from_dir: {path} is damaged: no JSON object; {again}")
    return manifest


# ============================================================================================================
# variants/loading/atomic.py
#
# Writes files in one step, and folders by one writer at a time.
#
# Contract
#     Whoever reads a file sees the old content or the new. Of those that `locked` a folder, in whatever thread
#     or process, one at a time goes on; readers do not wait.
# ============================================================================================================


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that others see the old content or the new, and no part of it.

    Of a symbolic link the target is written, and a file that is replaced keeps its mode. Raises OSError, with
    `path` as its file name; for what exists and is no regular file, too.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:32]}.{os.getpid()}.{threading.get_ident()}")
    try:
        mode = _mode(path)
        temporary.write_bytes(content)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a folder alone; gives False where the file system has no locks, and then it is not held."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)


def _mode(path: Path) -> int | None:
    """The permissions of a regular file; None if there is no file yet."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return stat.S_IMODE(mode)


# ============================================================================================================
# variants/loading/export.py
#
# Compiles all kernels of a module ahead of time, into a folder that `prepare` loads them from.
#
# Contract
#     Needs no GPU. A folder is right at every moment, whoever else exports into it: cubins are named by their
#     content, and the manifest, in which the kernels are found, is written in one step when all of them are
#     there. Cubins are removed only by who holds the folder alone, and has just written the manifest that does
#     not list them.
# ============================================================================================================


def export_kernels(
    folder: Any, *, arch: str, progress: Callable[[Path], None] = lambda path: None
) -> list[Path]:
    """Compile every form of every variant, then write the manifest; returns the files.

    folder: made if it does not exist; it may hold other modules' kernels and those for other architectures.
    Cubins of this module and architecture that are out of date are removed. arch: such as "sm_90a".
    progress: called with each file once it is written.

    Raises ValueError for what is no architecture, OSError, and RuntimeError where the module's file was
    replaced after it was imported, or an environment variable changes what CuTe DSL compiles.
    """
    require(
        isinstance(arch, str) and re.fullmatch(r"sm_\d+[af]?", arch) is not None,
        f'arch must name an architecture such as "sm_90a", got {arch!r}',
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_environment()
    records: list[dict[str, Any]] = []
    cubins: dict[Path, bytes] = {}
    for form in (form for variant in VARIANTS for form in variant.forms):
        image = compile_image(form, arch)
        records.append(record(form, image))
        file = folder / cubin_name(form, arch, records[-1]["sha256"])
        cubins[file] = image.cubin
        write_whole(file, image.cubin)
        progress(file)
    manifest = folder / manifest_name(arch)
    text = json.dumps({**origin(arch), "kernels": records}, indent=1)
    with locked(folder) as alone:
        # Another version's export may have removed what it does not list.
        for file in (file for file in cubins if not file.exists()):
            write_whole(file, cubins[file])
        write_whole(manifest, f"{text}\n".encode())
        if alone:
            for old in set(folder.glob(f"{NAME}.*.{arch}.*.cubin")) - set(cubins):
                old.unlink(missing_ok=True)
    progress(manifest)
    return [*cubins, manifest]


# ============================================================================================================
# variants/host/call.py
#
# A checked call: from the arguments of an engine to the parameters of a kernel.
#
# Contract
#     Everything about the arguments that can be checked without a synchronisation is checked here, on whatever
#     device the tensors are. Nothing is launched and nothing is allocated.
#
#     Serving repeats itself: all layers of a step, and most steps, differ in the addresses of their tensors
#     alone. So what depends on types, devices, shapes and strides is worked out once for each combination of
#     them (`lay_out`), and a call is left with its addresses and numbers. An engine pays for `bind` in every
#     call, so it is written for speed: no loop over the tensors, nothing made that is not needed.
# ============================================================================================================


ALIGNMENTS = {
    **{"q": 16, "gate": 16, "kv_cache": 16, "block_table": 4, "seq_lens": 4, "out": 16},
    **{"workspace": 16, "counters": 16},
}
"""Of a call's tensors, by their names as arguments, in the order of the kernel's parameters: bytes."""


OUT = 5
"""The output's place among the tensors."""


SCRATCH = {"workspace": torch.uint8, "counters": torch.int32}
"""Types of the scratch memory."""


MAX_WINDOW = 1 << 30
"""A window that holds every key of a request; differences of key numbers stay within 32 bits."""


LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Layout:
    """What calls have in common whose tensors differ in their addresses only.

    requests: R. grid: in CTAs. integers: the kernel's, in its order: strides in bytes, columns of the table,
    window. scratch_bytes: that the call uses of the workspace and of the counters. launch: in words, for
    messages.
    """

    requests: int
    grid: tuple[int, int, int]
    integers: tuple[int, ...]
    scratch_bytes: tuple[int, int]
    launch: str


class Call(NamedTuple):
    """What one launch is given.

    tensors: in the order of the kernel's parameters, workspace and counters only where the kernel has them.
    values: of all parameters, in order (`variants.kernels.arguments`): addresses, integers, scale * log2(e)
    and eps.
    """

    tensors: tuple[torch.Tensor, ...]
    values: tuple[int | float, ...]
    layout: Layout

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """The parameters that are no addresses."""
        return self.values[len(self.tensors) :]


def bind(
    deployment: Deployment,
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
    counters: torch.Tensor | None,
    scale: float,
    eps: float,
) -> Call:
    """Check the arguments of a call, as the entry point documents them.

    Raises TypeError for what is no tensor, and ValueError for what cannot be served.
    """
    try:
        # Flat, for speed: the fields of `TensorFacts` of each.
        # fmt: off
        key = (
            deployment,
            q.dtype, q.device, q.shape, q.stride(),
            gate.dtype, gate.device, gate.shape, gate.stride(),
            kv_cache.dtype, kv_cache.device, kv_cache.shape, kv_cache.stride(),
            block_table.dtype, block_table.device, block_table.shape, block_table.stride(),
            seq_lens.dtype, seq_lens.device, seq_lens.shape, seq_lens.stride(),
            out.dtype, out.device, out.shape, out.stride(),
        )
        # fmt: on
        layout = LAYOUTS.get(key)
    except AttributeError:
        refuse(q, gate, kv_cache, block_table, seq_lens, out)
        raise
    if layout is None:
        layout = remember(key)
    tensors: tuple[torch.Tensor, ...] = (q, gate, kv_cache, block_table, seq_lens, out)
    addresses: tuple[int, ...] = (
        q.data_ptr(),
        gate.data_ptr(),
        kv_cache.data_ptr(),
        block_table.data_ptr(),
        seq_lens.data_ptr(),
        out.data_ptr(),
    )
    if deployment.splits:
        if not (
            is_scratch(workspace, torch.uint8, layout.scratch_bytes[0], q.device)
            and is_scratch(counters, torch.int32, layout.scratch_bytes[1], q.device)
        ):
            refuse_scratch(layout, q.device, workspace=workspace, counters=counters)
        tensors = (*tensors, workspace, counters)
        addresses = (*addresses, workspace.data_ptr(), counters.data_ptr())
    elif deployment.variant.kernel.splits:
        # The scratch memory is not touched: any address will do.
        tensors = (*tensors, out, out)
        addresses = (*addresses, addresses[OUT], addresses[OUT])
    if 0 in addresses:
        refuse_null(tensors, addresses)
    if functools.reduce(operator.or_, addresses) % 16:
        for (name, alignment), address in zip(ALIGNMENTS.items(), addresses, strict=False):
            check_address(name, address, alignment)
    values = (*addresses, *layout.integers, fp32("scale", scale) * LOG2_E, fp32("eps", eps, least=0.0))
    return Call(tensors, values, layout)


def is_scratch(given: Any, dtype: torch.dtype, size: int, device: torch.device) -> TypeGuard[torch.Tensor]:
    """Whether a tensor will do as scratch memory of this many bytes."""
    return (
        isinstance(given, torch.Tensor)
        and given.dtype == dtype
        and given.nbytes >= size
        and given.is_contiguous()
        and given.device == device
    )


def refuse(*tensors: Any) -> None:
    """Say which of the first arguments is no tensor."""
    for name, value in zip(ALIGNMENTS, tensors, strict=False):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def refuse_null(tensors: tuple[torch.Tensor, ...], addresses: tuple[int, ...]) -> None:
    """Refuse elements at address 0: the tensor wraps another one, whose memory is elsewhere.

    A meta tensor has no memory either; `enqueue` refuses it for its device.
    """
    for name, tensor, address in zip(ALIGNMENTS, tensors, addresses, strict=False):
        require(
            address != 0 or tensor.numel() == 0 or tensor.is_meta,
            f"{name} must be a tensor in memory, got {list(tensor.shape)} at address 0 "
            f"({type(tensor).__name__} on {tensor.device})",
        )


def refuse_scratch(layout: Layout, device: torch.device, **given: Any) -> NoReturn:
    """Say what is wrong with scratch memory that will not do."""
    for (name, value), size in zip(given.items(), layout.scratch_bytes, strict=True):
        if value is not None and not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        facts = None if value is None else TensorFacts(value.dtype, value.device, value.shape, value.stride())
        check_scratch(name, facts, SCRATCH[name], size, device, layout.launch)
    raise ValueError(f"{' and '.join(given)} cannot be used as scratch memory ({layout.launch})")


LAYOUTS: dict[tuple[Any, ...], Layout] = {}
"""What calls were laid out before, by the deployment and the facts of their tensors."""


MOST_LAYOUTS = 4096
"""An engine has a few for each number of requests; who never repeats himself must not fill memory."""


def remember(key: tuple[Any, ...]) -> Layout:
    """Lay out a call whose key is new. Raises ValueError, and then nothing is kept."""
    deployment, *facts = key
    layout = lay_out(deployment, *[tuple(facts[first : first + 4]) for first in range(0, len(facts), 4)])
    if len(LAYOUTS) >= MOST_LAYOUTS:
        LAYOUTS.clear()
    LAYOUTS[key] = layout
    return layout


def lay_out(deployment: Deployment, *given: tuple[Any, ...]) -> Layout:
    """Check all that does not depend on addresses or scratch memory, and work out the launch.

    given: the fields of `TensorFacts` of the tensors that every call has, in the order of the parameters.
    """
    known = {name: TensorFacts(*one) for name, one in zip(ALIGNMENTS, given, strict=False)}
    device = known["q"].device
    for name, one in known.items():
        require(one.device == device, f"{name} must be on q's device {device}, got one on {one.device}")
    kernel = deployment.variant.kernel
    kv_heads, page_stride, head_stride = check_cache(known["kv_cache"], kernel)
    requests = check_lengths(known["seq_lens"])
    strides = {
        name: 2 * check_rows(name, known[name], kernel, requests, kv_heads) for name in ("q", "gate", "out")
    }
    columns, table_stride = check_table(known["block_table"], kernel, requests, deployment.max_seq_len)
    width = kv_heads * kernel.heads_per_kv * kernel.head_dim
    require(
        requests == 0 or strides["out"] >= 2 * width,
        f"out must not overlap itself: its token stride must be >= {width}, got {strides['out'] // 2}",
    )
    clusters = deployment.clusters(kv_heads, device)
    sizes = deployment.scratch_bytes(requests, kv_heads, device)
    integers = {
        **{f"{name}_stride": stride for name, stride in strides.items()},
        "page_stride": 2 * page_stride,
        "head_stride": 2 * head_stride,
        "table_stride": 4 * table_stride,
        "columns": columns,
        "num_splits": clusters,
        "window": min(deployment.window or MAX_WINDOW, MAX_WINDOW),
    }
    return Layout(
        requests=requests,
        grid=kernel.grid(requests, kv_heads, clusters),
        integers=tuple(integers[name] for name in parameters(type(kernel)) if name in integers),
        scratch_bytes=sizes,
        launch=f"R={requests}, H={kv_heads}, num_splits={clusters}",
    )


# ============================================================================================================
# variants/host/contents.py
#
# Checks of what tensors hold: for debugging, because they wait for the device.
#
# Contract
#     `check_contents` looks at what a kernel would read, and at nothing else: entries of the block table that
#     are not live may hold anything. It waits until the tensors are written, so it cannot run in a capture.
# ============================================================================================================


def check_contents(
    kernel: Any,
    max_seq_len: int,
    window: int | None,
    pages: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    counters: torch.Tensor,
) -> None:
    """Lengths are in 0..max_seq_len, live entries of the table are pages of the cache, counters are zero.

    pages: of the cache. counters: those that the call uses. Raises ValueError with the first that is wrong.
    """
    table = block_table.cpu()
    for request, length in enumerate(seq_lens.tolist()):
        require(
            0 <= length <= max_seq_len,
            f"seq_lens[{request}] must be in 0..{max_seq_len} (max_seq_len), got {length}",
        )
        first_key = 0 if window is None else max(0, length - kernel.tokens - window + 1)
        first, end = first_key // kernel.page_size, -(-length // kernel.page_size)
        live = table[request, first:end]
        wrong = ((live < 0) | (live >= pages)).nonzero()
        if len(wrong):
            column = first + int(wrong[0])
            raise ValueError(
                f"block_table[{request}, {column}] must be a page of kv_cache, in 0..{pages - 1}, got "
                f"{int(table[request, column])}; it is live: seq_lens[{request}] is {length}"
            )
    dirty = counters.nonzero()
    if len(dirty):
        row = int(dirty[0])
        raise ValueError(
            f"counters must be zero before a call, got counters[{row}] = {int(counters[row])}: another call "
            "is using them, or one was aborted"
        )


# ============================================================================================================
# variants/loading/launch.py
#
# Loads compiled kernels and launches them through the CUDA driver.
#
# Contract
#     A `LoadedKernel` is bound to one device. Making one checks all that could make a launch fail later: that
#     the machine code is what the skeleton says, and that the device can hold a cluster. A launch is one call
#     of the driver: it neither allocates, nor synchronises, nor changes the current device, and may be called
#     from any thread and inside a graph capture, where it becomes one kernel node.
# ============================================================================================================


PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device allows (CUDA C++ Programming Guide, thread block clusters)."""


class LoadedKernel:
    """A kernel on a device, ready to be launched.

    kernel: the form that was compiled. image: its machine code. device: a CUDA device's index. Raises
    RuntimeError for what the driver refuses, and ValueError where the device cannot hold a cluster.
    """

    def __init__(self, kernel: Any, image: Image, device: int) -> None:
        codes = parameters(type(kernel))
        self._packing = struct.Struct("".join(codes.values()))
        self._context = int(_checked(cuda.cuDevicePrimaryCtxRetain(_checked(cuda.cuDeviceGet(device)))))
        self._own = ThreadMemory(self._packing, kernel)
        with self._current():
            # Never unloaded: graphs may hold the kernel as long as the process lives.
            module = _checked(cuda.cuModuleLoadData(image.cubin))
            self._function = _checked(cuda.cuModuleGetFunction(module, image.entry.encode()))
            attributes = cuda.CUfunction_attribute
            for attribute, value in (
                (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes),
                (
                    attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    int(kernel.cluster > PORTABLE_CLUSTER),
                ),
            ):
                _checked(cuda.cuFuncSetAttribute(self._function, attribute, value))
            self._check_parameters(codes)
            self._check_residency(kernel, device)

    def launch(self, values: Sequence[int | float], grid: tuple[int, int, int], stream: int) -> None:
        """Launch with the kernel's parameters, in order, over a grid of CTAs, on a stream of the device."""
        own = self._own
        self._packing.pack_into(own.memory, 0, *values)
        config = own.config
        if own.place != (grid, stream):
            own.place = None
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.hStream = stream
            own.place = grid, stream
        _, current = cuda.cuCtxGetCurrent()
        if int(current) == self._context:
            result = cuda.cuLaunchKernelEx(config, self._function, own.pointers, 0)
        else:
            with self._current():
                result = cuda.cuLaunchKernelEx(config, self._function, own.pointers, 0)
        if result[0]:
            _checked(result)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's context the thread's current one for a while: it may have another, or none."""
        _checked(cuda.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            _checked(cuda.cuCtxPopCurrent())

    def _check_parameters(self, codes: dict[str, str]) -> None:
        """The machine code takes what `launch` packs, at the same offsets."""
        packed = [(offset, struct.calcsize(code)) for offset, code in offsets(codes)]
        found: list[tuple[int, int]] = []
        while len(found) <= len(packed):
            error, offset, size = cuda.cuFuncGetParamInfo(self._function, len(found))
            if error:
                break
            found.append((offset, size))
        if found != packed:
            raise RuntimeError(f"the kernel's parameters lie at {found} (offset, size), not at {packed}")

    def _check_residency(self, kernel: Any, device: int) -> None:
        """The device, or the MIG slice, can hold a cluster at all."""
        config = launch_config(kernel)
        config.gridDimX, config.gridDimY, config.gridDimZ = kernel.cluster, 1, 1
        error, clusters = cuda.cuOccupancyMaxActiveClusters(self._function, config)
        if error != cuda.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE:
            _checked((error,))
        smaller = ", ".join(v.name for v in VARIANTS if v.kernel.cluster < kernel.cluster)
        way_out = f"variant {smaller}" if smaller else "a variant with smaller clusters, made in the spec"
        name = _checked(cuda.cuDeviceGetName(128, _checked(cuda.cuDeviceGet(device))))
        require(
            not error and clusters > 0,
            f"device cuda:{device} ({name.rstrip(bytes(1)).decode()}) cannot hold a cluster of "
            f"{kernel.cluster} CTAs with {kernel.shared_bytes} bytes of shared memory each, which kernel "
            f"{kernel.name} launches: it needs {way_out}, or another device",
        )


class ThreadMemory(threading.local):
    """What a thread writes its launches of one kernel to, and the driver reads before a launch returns.

    memory: the parameters. pointers: the address of an array with the address of each. config: the launch's.
    place: grid and stream that config has; None where it may have others.
    """

    def __init__(self, packing: struct.Struct, kernel: Any) -> None:
        self.memory = ctypes.create_string_buffer(packing.size)
        start = ctypes.addressof(self.memory)
        addresses = [start + offset for offset, _ in offsets(parameters(type(kernel)))]
        self._pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.pointers = ctypes.addressof(self._pointers)
        self.config = launch_config(kernel)
        self.place: tuple[tuple[int, int, int], int] | None = None


def launch_config(kernel: Any) -> Any:
    """The launch of a kernel form, but for its grid and stream."""
    cluster = cuda.CUlaunchAttribute()
    cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dimensions = cluster.value.clusterDim
    dimensions.x, dimensions.y, dimensions.z = kernel.cluster, 1, 1
    attributes = [cluster]
    if kernel.pdl:
        dependent = cuda.CUlaunchAttribute()
        dependent.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        dependent.value.programmaticStreamSerializationAllowed = 1
        attributes.append(dependent)
    config = cuda.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = 32 * kernel.warps, 1, 1
    config.sharedMemBytes = kernel.shared_bytes
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def offsets(codes: dict[str, str]) -> list[tuple[int, str]]:
    """The offset of each packed parameter in bytes, with its struct code."""
    found, before = [], ""
    for code in codes.values():
        # No items of a type take no room but its alignment.
        found.append((struct.calcsize(f"{before}0{code}"), code))
        before += code
    return found


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call of the driver returned. Raises RuntimeError if it failed."""
    error, *values = result
    if error:
        _, name = cuda.cuGetErrorName(error)
        _, text = cuda.cuGetErrorString(error)
        raise RuntimeError(f"the CUDA driver refused: {name.decode()}: {text.decode()}")
    return values[0] if values else None


# ============================================================================================================
# variants/loading/cache.py
#
# The kernels of this process: each is compiled once and loaded once a device.
#
# Contract
#     The cache of images has a key of everything that machine code depends on and that can differ within a
#     process: form and architecture. Loaded kernels are the device's besides. Any thread may ask for any
#     kernel: those who ask for the same one wait for the first, the others do not.
# ============================================================================================================


Value = TypeVar("Value")


class Once(Generic[Value]):
    """Values that are made once for each key, whoever asks first."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """The key's value. What `make` raises is raised, and the next who asks tries again."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self.values:
                self.values[key] = make()
            return self.values[key]


IMAGES: Once[Image] = Once()
"""Compiled here, by form and architecture."""


# The operator of a module is registered once in a process, by the copy that is imported first; copies share
# what they load, so it launches the kernel that any of them prepared.
LOADED: Once[LoadedKernel] = vars(cutlass).setdefault(f"_stagewright_kernels_{DIGEST}", Once())
"""Kernels by form and device index."""


def loaded_kernel(form: Form, device: int, folder: Any = None) -> LoadedKernel:
    """The kernel on a device: the one that is loaded already, or it is loaded now.

    folder: of kernels compiled ahead of time, instead of compiling one. Raises RuntimeError in a capture.
    """
    found = LOADED.values.get((form, device))
    if found is not None:
        return found
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"kernel {form} is not loaded on cuda:{device}, and a graph capture is no time to do it: "
                "call prepare() first, before the capture begins"
            )

    def load() -> LoadedKernel:
        kernel = variant_named(form.variant).kernel.form(pdl=form.pdl, windowed=form.windowed)
        return LoadedKernel(kernel, image(form, device_arch(device), folder), device)

    return LOADED.get((form, device), load)


def image(form: Form, arch: str, folder: Any = None) -> Image:
    """A form's machine code: from a folder of compiled kernels, or compiled here."""
    if folder is not None:
        return read(folder, form, arch)
    return IMAGES.get((form, arch), lambda: compile_image(form, arch))


def device_arch(device: int) -> str:
    """The architecture that a device's kernels are compiled for."""
    major, minor = torch.cuda.get_device_capability(device)
    require(
        (major, minor) >= (9, 0),
        f"the device must have compute capability 9.0 or later, cuda:{device} has {major}.{minor}",
    )
    return f"sm_{major}{minor}a"


# ============================================================================================================
# variants/host/operator.py
#
# The operator: one call, from arguments to launch, as PyTorch's dispatcher knows it.
#
# Contract
#     `enqueue` checks the arguments, finds the kernel and launches it. OPERATOR is the same as an operator of
#     `torch.library` that declares what it writes: out, workspace and counters. torch.compile and other
#     tracers record it as one opaque step in its order. It has no derivative.
# ============================================================================================================


PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
"""Types of arguments that no subclass's own dispatch is waiting for."""


def enqueue(
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
    counters: torch.Tensor | None,
    max_seq_len: int,
    scale: float,
    eps: float,
    window: int | None,
    num_splits: int | None,
    pdl: bool,
    variant: str | None,
    validate: bool,
) -> None:
    """Check a call and launch it on the current stream of q's device; arguments as of the entry point."""
    deployment = deploy(max_seq_len, window, num_splits, variant, pdl)
    tensors = (q, gate, kv_cache, block_table, seq_lens, out, workspace, counters)
    call = bind(deployment, *tensors, scale, eps)
    require(q.is_cuda, f"q must be a CUDA tensor, got one on {q.device}")
    layout = call.layout
    if layout.requests == 0:
        return
    device = q.get_device()
    if validate:
        used = seq_lens[:0]
        if deployment.splits and counters is not None:
            used = counters.flatten()[: layout.scratch_bytes[1] // 4]
        _validate(deployment, device, kv_cache.shape[0], block_table, seq_lens, used)
    kernel = loaded_kernel(deployment.form, device)
    kernel.launch(call.values, layout.grid, torch._C._cuda_getCurrentRawStream(device))


def _validate(
    deployment: Deployment,
    device: int,
    pages: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    counters: torch.Tensor,
) -> None:
    with torch.cuda.device(device):
        require(
            not torch.cuda.is_current_stream_capturing(),
            "validate must be False in a graph capture: it waits for the device",
        )
        kernel = deployment.variant.kernel
        deployed = kernel, deployment.max_seq_len, deployment.window
        check_contents(*deployed, pages, block_table, seq_lens, counters)


def dispatched(tensors: tuple[Any, ...]) -> bool:
    """Whether a call has to be the dispatcher's, because somebody there records or replaces operators.

    That is torch.compile, torch.jit.trace, a transform of torch.func, a dispatch mode such as a tracer's, or
    a tensor with a dispatch of its own. For everyone else the dispatcher would only add its time.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if PLAIN_TYPES.issuperset(map(type, tensors)):
        return bool(torch._C._len_torch_dispatch_stack())
    return all(tensor is None or isinstance(tensor, torch.Tensor) for tensor in tensors)


def register(namespace: str, name: str) -> Any:
    """The operator `namespace::name`, registered unless a module of the same content has done it."""
    found = getattr(getattr(torch.ops, namespace), name, None)
    if found is None:
        written = ("out", "workspace", "counters")
        operator = torch.library.custom_op(f"{namespace}::{name}", enqueue, mutates_args=written)
        # It returns nothing, and what it writes has its shape already.
        operator.register_fake(lambda *arguments, **keywords: None)
        found = getattr(getattr(torch.ops, namespace), name)
    return found.default


OPERATOR = register("stagewright", f"{NAME}_{DIGEST[:16]}")
"""Named by its content: what a compiled graph refers to never becomes another kernel."""


# ============================================================================================================
# variants/host/api.py
#
# The entry points of a generated module: the call, and what is done before the first one.
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
    validate: bool = False,
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
    max_seq_len, window: the deployment, not the step, in cache entries: they pick the variant.
    scale: softmax scale. eps: added to the mean square inside the root of the norm; below 2**-126 it is 0.
    num_splits: how many clusters share a long request, one of more pages to attend than the kernel's
        `short_pages`; what `default_splits` says for one request if not given. workspace, counters: where
        they meet, as `allocate_scratch` makes them. Deployments without long requests ignore all three.
    out: where to write, shaped as q may be; allocated like q if not given.
    pdl: launch with programmatic dependent launch: the kernel waits before it reads anything, and lets the
        next one start at once, which must wait before it reads out or overwrites what this one reads.
    variant: a variant's name, instead of the first that serves the deployment.
    validate: for debugging, wait for the device and check what the tensors hold: lengths, live entries of
        the table, counters.

    Runs on the current stream of q's device, whichever device is current. Returns out; there is no gradient.
    Raises TypeError or ValueError for an argument that cannot be served, and RuntimeError for a first call
    inside a graph capture (call `prepare` before) or after the module's file was replaced.
    """
    if out is None and isinstance(q, torch.Tensor):
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    tensors = (q, gate, kv_cache, block_table, seq_lens, out, workspace, counters)
    call = OPERATOR if dispatched(tensors) else enqueue
    call(*tensors, max_seq_len, scale, eps, window, num_splits, pdl, variant, validate)
    return out


def prepare(
    *,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    pdl: bool = False,
    device: torch.device | int | str | None = None,
    variant: str | None = None,
    from_dir: Any = None,
) -> None:
    """Compile and load the kernel that a deployment launches, so that a first call can be captured.

    kv_heads: the rank's KV heads H. max_seq_len, window, num_splits, pdl, variant: as in `attn2`.
    device: a CUDA device; the current one if not given. from_dir: a folder that `export_kernels` wrote:
    the kernel is read from there and nothing is compiled.

    Quick if the kernel is loaded already, which it then stays. May be called from several threads at once,
    and in no graph capture. Raises ValueError for what no call could serve, for a device that cannot hold a
    cluster of the kernel's, and for kernels in from_dir that are missing, damaged or not this module's, this
    device's and this compiler's; RuntimeError in a capture, and where the module's file was replaced after it
    was imported.
    """
    check_kv_heads(kv_heads)
    deployment = deploy(max_seq_len, window, num_splits, variant, pdl)
    require(torch.cuda.is_available(), "prepare needs a CUDA device, and this machine has none")
    place = as_device(device)
    require(place.type == "cuda", f"device must be a CUDA device, got {place}")
    index = torch.cuda.current_device() if place.index is None else place.index
    loaded_kernel(deployment.form, index, from_dir)


def compile_attn2(
    variant: str | None = None,
    *,
    pdl: bool = False,
    windowed: bool = False,
    arch: str | None = None,
    options: str = "",
) -> Any:
    """Compile one variant for an architecture; needs no GPU where `arch` is named.

    variant: a variant's name; the module's first if not given. pdl: the form with programmatic dependent
    launch. windowed: the form for deployments with a window. arch: for example "sm_90a"; the current CUDA
    device's if not given. options: more options for `cute.compile`, such as "--keep-ptx".

    Returns what `cute.compile` returns. Raises ValueError, and RuntimeError where the module's file was
    replaced after it was imported.
    """
    if arch is None:
        require(
            torch.cuda.is_available(),
            'arch must be named on a machine with no CUDA device, for example arch="sm_90a"',
        )
        arch = device_arch(torch.cuda.current_device())
    name = VARIANTS[0].name if variant is None else variant
    return compile_form(Form(name, bool(pdl), bool(windowed)), arch, options)
