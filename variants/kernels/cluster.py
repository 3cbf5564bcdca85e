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

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from stages.fragments import ROWS, RowState
from stages.mask import CausalMask
from stages.pages.walk import PageWalk
from stages.ptx.barrier import griddep_launch_dependents, griddep_wait
from stages.ptx.global_memory import load_global_i32
from variants.kernels.arguments import Addresses, Floats, Integers
from variants.kernels.base import SHARED_ALIGN, AttentionKernel


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
