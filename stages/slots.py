"""The slots of the skeletons, and the functions that every stage of a slot has.

Stages of one slot are exchanged in `spec.yaml` by name, so they have the same methods with the same
parameters. A protocol below says which; what a method must do, barrier obligations included, the stages'
own contracts say.

Some slots decide what a kernel computes (scores, softmax, values, epilogue): their protocols define it, and
each of their stages declares a `Contract.reference`. The stages of the others move and merge data, and any
two of them give the same result up to FP32 rounding.

Nothing here is copied into a generated module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from stages.fragments import PageFragments, RowState
from stages.mask import KeyRange
from stages.pages.walk import PageWalk
from stages.partial import RowUnits

if TYPE_CHECKING:
    from torch import Tensor


class Pages(Protocol):
    """Brings the pages of a warp's walk into its registers, step by step.

    For skeletons in which each warp attends pages of its own: `cluster`, and `split` for its short requests.
    A page is read by one warp, so it needs no shared memory and no CTA barrier, and `take` gives register
    fragments. Where all warps of a CTA attend the same pages, the slot is `ring`. These are two slots because
    their methods differ: registers belong to one warp, while a ring is a region of the CTA's shared memory,
    which all warps read in step. A skeleton may have both.
    """

    def empty(self) -> list[PageFragments]:
        """Registers for the pages of one step."""

    def begin(self, walk: PageWalk) -> Any:
        """What may be read before the length is known."""

    def start(self, walk: PageWalk, live: Int32, last: bool, incoming: Any) -> None:
        """Begin to load the walk's first pages."""

    def take(
        self,
        walk: PageWalk,
        live: Int32,
        step: Int32,
        last: bool,
        incoming: Any,
        pages: list[PageFragments],
    ) -> None:
        """Hand over a step's fragments, and go on loading."""


class Page(Protocol):
    """Where the fragments of one page come from, when they are asked for."""

    def keys(self) -> cute.Tensor:
        """K's: see `stages.fragments.PageFragments`."""

    def values(self) -> cute.Tensor:
        """V's, in rows like K's or in columns: see the values stages."""


class Ring(Protocol):
    """Brings a CTA's pages through shared memory, for all of its warps to read.

    For skeletons in which all warps of a CTA attend the same pages, each for row groups of its own: `batch`,
    and `split` for its long requests. A page is read from global memory once per CTA. `start`, `take` and
    `close` are called by all threads of the CTA, since they synchronize it; `page` gives a warp the fragments
    of a page of the current step. Where each warp attends pages of its own, the slot is `pages`.
    """

    @property
    def v_columns(self) -> bool:
        """Whether its pages give V in columns."""

    def start(self, walk: PageWalk, live: Int32, region: Int32) -> Any:
        """Begin to copy the walk's first pages."""

    def take(self, walk: PageWalk, live: Int32, step: Int32, region: Int32, entries: Any) -> None:
        """Wait for a step's pages, and go on copying."""

    def page(self, step: Int32, page: Int32 | int, region: Int32) -> Page:
        """One of the pages of the step that was taken last."""

    def close(self) -> None:
        """After the last step: nothing is in flight any more."""


class Scores(Protocol):
    """Query rows times keys.

    score[row, key] = sum over d of q[row, d] * k[key, d], with BF16 operands and FP32 accumulation. Neither
    scaled nor masked nor rounded.
    """

    def load_query(self, row: Int64, row_plus_8: Int64) -> cute.Tensor:
        """The query rows of a warp's row group, in registers."""

    def scores(self, query: cute.Tensor, k: cute.Tensor) -> list[Float32]:
        """The raw scores of a page."""


class Softmax(Protocol):
    """Scores become weights.

    With logit = score * scale * log2(e), and m[row] the largest logit of the keys that the row sees in this
    step and in the steps before it,

        weight[row, key] = 2**(logit[row, key] - m[row]),  0 for a key that the row does not see.

    The sum of weights l is accumulated in FP32, from weights that are not rounded; the weights that go on to
    the values stage are rounded to BF16. Where m grows, l and o are multiplied by 2**(old m - new m).
    """

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
        """The weights of one step; the row state moves on."""

    def finish(self, state: RowState) -> None:
        """Complete the row state after the last step."""


class Values(Protocol):
    """Weights times values.

    o[row, d] += sum over the keys that the row sees of weight[row, key] * v[key, d], with BF16 operands and
    FP32 accumulation. Not rounded; the epilogue divides by l.
    """

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
        """Add a page's weighted values to the output."""

    def finish(self, o: cute.Tensor, v_columns: bool) -> None:
        """Complete the output after the last step."""


class WarpMerge(Protocol):
    """The partials of a CTA's warps become one partial a row."""

    def merge(self, region: Int32, state: RowState) -> RowUnits:
        """Merge; returns the calling thread's share."""


class Push(Protocol):
    """The CTAs' rows travel to the ranks that own them."""

    def rows_per_rank(self, rows: int) -> int:
        """How many consecutive rows of an exchange each rank owns."""

    def open(self, arrived: Int32, rows: int) -> None:
        """Get ready to receive an exchange of so many rows."""

    def meet(self) -> None:
        """Wait until all ranks are ready to receive."""

    def send(self, region: Int32, arrived: Int32, rank: Int32, mine: RowUnits, rows: int) -> None:
        """Send the calling thread's share of one row."""

    def wait(self, arrived: Int32) -> None:
        """Wait for what all ranks sent."""


class ClusterMerge(Protocol):
    """The ranks' partials of an owned row become one."""

    def merge(self, region: Int32, row: Int32) -> tuple[Float32, Float32, list[Float32]]:
        """(m, l, the lane's dims of o) over the cluster's keys."""


class GridMerge(Protocol):
    """The clusters' partials of a row become one."""

    def leave(self, row: Int64, cluster: Int32, m: Float32, l: Float32, o: list[Float32]) -> None:
        """Leave a cluster's partial of a row."""

    def arrive(self, counters: Int64, rows: int, clusters: Int32) -> Int32:
        """Count the warp's arrival at all of its rows."""

    def last(self, before: Int32, row: Int32, clusters: Int32) -> Boolean:
        """Whether it was the last at one of them, by what `arrive` said."""

    def collect(self, row: Int64, clusters: Int32) -> tuple[Float32, list[Float32]]:
        """(l, the lane's dims of o) over all keys."""


class Epilogue(Protocol):
    """A merged row becomes a row of the output.

    A row is one query head of one token: head_dim BF16 numbers, contiguous in the gate and in the output.
    Both methods are called by whole warps, one row per warp; a lane has the head dims 2 * lane and
    2 * lane + 1.

        out = bf16(f(y, gate, eps)),  y = bf16(o / l)

    `stages.epilogue.output.normalised` computes y. f is evaluated in FP32; the stage declares it in float64
    as its `Contract.reference`, see `EpilogueReference`. A row that sees no key has l = 0 and must be stored
    as zeros, whatever its gate holds, NaN included.
    """

    def load_gate(self, row: Int64) -> Int32:
        """The lane's two values of the gate's row, as a BF16 pair; 0 if the stage has no use for the gate.

        row: global byte address of the gate's row. Called once a row, as early as the skeleton can.
        """

    def store(self, row: Int64, l: Float32, o: list[Float32], gate: Int32, eps: Float32) -> None:
        """Finish and store the row.

        row: global byte address of the output's row. l: the row's sum of weights. o: the lane's two dims of
        the weighted sum of values, not divided by l. gate: what `load_gate` returned. eps: the call's.
        """


class EpilogueReference(Protocol):
    """What an epilogue stage computes, in float64: the form of its `Contract.reference`."""

    def __call__(self, attended: Tensor, gate: Tensor, eps: float) -> Tensor:
        """f(y, gate, eps) for all rows at once.

        attended: y, float64 [rows, heads, head_dim], rows being the verified tokens of all requests. It is
            attention's quotient o / l, already rounded to BF16; zeros where no key is seen.
        gate: float64, of the same shape, the values of the BF16 gate; may be NaN where no key is seen.
        eps: the call's.

        Returns float64 of the same shape, rounds nothing and leaves its arguments as they are. Verification
        rounds the result to BF16 once, sets the rows that see no key to zeros, and compares the kernel's
        output with that, in ulps (`verification.comparison`).

        Write it with the tensors' methods alone (`gate.sigmoid()`, `attended.square().mean(-1, True)`): the
        module of a stage does not import torch.
        """


@dataclass(frozen=True)
class Slot:
    """A place in a skeleton, and the methods that fill it.

    decides_result: whether the slot's stages decide what a kernel computes, and so declare a
    `Contract.reference`; False if they only move and merge data. reference: the protocol of the function that
    such a reference is; None if it is `SLOT_REFERENCE`.
    """

    name: str
    protocol: type[Any]
    decides_result: bool
    reference: type[Any] | None = None

    @property
    def summary(self) -> str:
        """One line for tables."""
        return (self.protocol.__doc__ or "").splitlines()[0]

    @property
    def package(self) -> str:
        """The package whose modules are this slot's stages."""
        return f"stages.{self.name}"


SLOTS: dict[str, Slot] = {
    slot.name: slot
    for slot in (
        Slot("pages", Pages, decides_result=False),
        Slot("ring", Ring, decides_result=False),
        Slot("scores", Scores, decides_result=True),
        Slot("softmax", Softmax, decides_result=True),
        Slot("values", Values, decides_result=True),
        Slot("warp_merge", WarpMerge, decides_result=False),
        Slot("push", Push, decides_result=False),
        Slot("cluster_merge", ClusterMerge, decides_result=False),
        Slot("grid_merge", GridMerge, decides_result=False),
        Slot("epilogue", Epilogue, decides_result=True, reference=EpilogueReference),
    )
}
