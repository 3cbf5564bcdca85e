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

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.fragments import ROWS, RowState
from stages.mask import CausalMask
from stages.pages.walk import PageWalk
from stages.ptx import griddep_launch_dependents, griddep_wait, load_global_i32
from variants.kernel import SHARED_ALIGN, AttentionKernel


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
        scale_log2: Float32,
        eps: Float32,
        requests: Int32,
        kv_heads: Int32,
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
        length = load_global_i32(lengths + Int64(request) * 4)
        walk = PageWalk(
            table=table + Int64(request) * table_stride,
            columns=columns,
            cache=cache + Int64(kv_head) * head_stride,
            page_stride=Int32(page_stride),
            first=rank * self.warps + warp,
            stride=self.cluster * self.warps,
        )
        incoming = self.pages.begin(walk)
        query = self.load_query(q, q_stride, request, kv_head, row_group, scale_log2)
        owned_rows = self.owned_rows(rank, warp, ROWS)
        gates = [
            self.epilogue.load_gate(self.row(gate, gate_stride, request, kv_head, first_row + row))
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
                out_row = self.row(out, out_stride, request, kv_head, first_row + row)
                self.epilogue.store(out_row, l, o, gates[i], eps)
