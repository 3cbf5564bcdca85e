"""The batch kernel: each request's pages spread over several clusters, read once for all of its rows.

Contract
    Grid (cluster * slice_clusters * R, H, ceil(num_splits / slice_clusters)), clusters of `cluster` CTAs of
    `warps` warps, one warp for each row group. The launch shape depends on R and the deployment only. Here a
    z slice has one cluster of each request; a kernel that does more than this may have more.

    `num_splits` clusters share the request's pages. The pages are dealt out in steps of
    `ring_pages_per_step`, to each CTA a run of its own, as even as whole steps go. It streams them through a
    ring that all of its warps read, warp w for row group w. The CTAs of a cluster exchange all rows, the
    owner of a row merges the ranks, and the clusters merge through the workspace: the last to arrive finishes
    the row. A request without keys (padding) goes the same way, and gets zeros.

    With a window of W keys, row t sees keys [L - tokens + t - W + 1, L - tokens + t].

    The workspace holds num_splits records for each row (request, KV head, row), the counters one uint32 for
    each; see the grid merge stage for what is asked of them.

    Registers decide how many CTAs a multiprocessor holds, and those hide each other's latencies: the compiler
    is told to leave room for `resident_ctas`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.fragments import ROWS, RowState
from stages.mask import CausalMask, KeyRange
from stages.pages.walk import PageWalk
from stages.partial import PartialRecord, lane_units
from stages.ptx.arithmetic import select
from stages.ptx.barrier import griddep_launch_dependents, griddep_wait
from stages.ptx.global_memory import load_global_i32
from stages.ptx.index import block_index_again, thread_index_again
from stages.ptx.warp import shuffle_index
from variants.kernels.arguments import Floats, ScratchAddresses, SplitIntegers
from variants.kernels.base import SHARED_ALIGN, AttentionKernel
from variants.kernels.request import Pages, Rows, Scratch, Shares


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
