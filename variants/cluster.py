"""The cluster kernel: one launch, one cluster for each row group of a request and KV head.

Contract
    Grid (cluster * row_groups * R, H), one row of CTAs a KV head, clusters of `cluster` CTAs of `warps`
    warps. Cluster b * row_groups + rg of KV head blockIdx.y computes the 16 rows of row group rg of
    request b, row = token * heads_per_kv + query head. It attends all of the request's keys: its warps deal
    the pages out among them, merge in each CTA, send every row to the CTA that owns it, and the owners
    merge the ranks and finish the rows.

    The skeleton only wires: which thread calls which stage, in which order, between which barriers. What is
    computed, the stages say. It is compiled once a (variant, PDL, architecture); shapes, strides and
    addresses are read at the call.

    A request of length 0 gets rows of zeros, and so do rows without a key.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.fragments import ROWS, PageFragments, RowState
from stages.mask import CausalMask
from stages.pages.walk import PageWalk
from stages.ptx import griddep_launch_dependents, griddep_wait, load_global_i32, select


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
