"""The split kernel: long contexts and sliding windows, the pages of long requests spread over clusters.

Contract
    The batch kernel and its grid, with a way of its own for short requests: a z slice has a cluster of each
    request for each row group. Which way a request goes is decided in the kernel, alike in all of its CTAs,
    from its length:

    Short, at most `short_rounds` pages a warp of one cluster, counted from the first key that row 0 sees: the
    clusters of z slice 0 do what the cluster kernel does, one row group each; the other slices leave at once.

    Long: as the batch kernel does, and clusters in excess of `num_splits` leave at once.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from stages.fragments import ROWS, RowState
from stages.mask import CausalMask
from variants.kernels.batch import BatchKernel
from variants.kernels.request import Pages, Rows, Scratch, Shares


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
