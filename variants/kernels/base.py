"""What the kernels have in common: the facts of the problem, the addresses of rows, and the order of stages.

Contract
    A kernel attends for rows of one request and KV head, row = token * heads_per_kv + query head; 16 rows in
    order are a row group. Everything here is called by whole warps of a kernel, and waits for nothing.
"""

import dataclasses
import functools
import operator
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.fragments import ROWS, RowState
from stages.mask import KeyRange
from stages.ptx.arithmetic import maximum, mul, select
from variants.kernels.arguments import Addresses, Floats, Integers

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
