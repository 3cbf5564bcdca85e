"""A micro-kernel around the online softmax, cases for it, and what must come of them."""

import dataclasses
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int32, Int64

from stages.fragments import TILE, RowState
from stages.mask import KeyRange
from stages.ptx.global_memory import load_global_i32
from stages.softmax.online import OnlineSoftmax
from tests import layouts, numerics
from tests.device import Launch, MicroKernel, out
from tests.micro import fill_registers, load_f32, load_registers, store_registers
from tests.numerics import from_bf16, to_bf16

PAGE_SIZE, ROWS = layouts.PAGE_SIZE, layouts.ROWS
HIDDEN = (0, -1)
"""A range of keys that holds none."""

EVERY = (0, 2**30)

CASES = 8
"""Cases of a launch, one a CTA."""


@dataclass(frozen=True)
class Weighing(MicroKernel):
    """Runs `steps` steps on stored scores; o is set from memory after the first step.

    files: [case, (step, score register), then o [32], lane]. facts of a case: the two rows' (first, last),
    whether to mask, the scale's bits, then the first key of each page of each step. result: [case, step,
    weight register, lane], and [case, m [2], l [2] as `finish` leaves them, and o, lane]. knows_first: the
    first step is told that it is.
    """

    pages: int
    steps: int
    knows_first: bool = True

    def __str__(self):
        return f"Weighing_{self.pages}_pages_{self.steps}_steps" + "_unaware" * (not self.knows_first)

    @property
    def where(self) -> Launch:
        """A warp a case."""
        return Launch(grid=(CASES, 1, 1))

    @property
    def weight_registers(self) -> int:
        """Registers of a step's weights; its scores have twice as many."""
        return 2 * self.pages * PAGE_SIZE // TILE

    @property
    def file_registers(self) -> int:
        """Registers of a case's file."""
        return 2 * self.weight_registers * self.steps + layouts.HEAD_DIM // 2

    @cute.jit
    def __call__(
        self,
        files: cute.Pointer,
        facts: cute.Pointer,
        weights: cute.Pointer,
        state: cute.Pointer,
        stream: cuda.CUstream,
    ):
        self.kernel(files.toint(), facts.toint(), weights.toint(), state.toint()).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, files: Int64, facts: Int64, weights: Int64, state: Int64):
        case, _, _ = cute.arch.block_idx()
        told = facts + Int64(case) * 4 * (6 + self.steps * self.pages)
        file = files + Int64(case) * 128 * self.file_registers
        ends = [load_global_i32(told + Int64(4 * i)) for i in range(4)]
        masked, scale_log2 = load_global_i32(told + 16), load_f32(told + 20)
        visible = (KeyRange(ends[0], ends[1]), KeyRange(ends[2], ends[3]))
        row = RowState.empty(layouts.HEAD_DIM)
        for step in cutlass.range_constexpr(self.steps):
            first_keys = [
                load_global_i32(told + Int64(24 + 4 * (step * self.pages + p))) for p in range(self.pages)
            ]
            held = load_registers(
                Float32, file + step * 256 * self.weight_registers, 2 * self.weight_registers
            )
            scores = [held[i] for i in range(2 * self.weight_registers)]
            target = weights + Int64(case * self.steps + step) * 128 * self.weight_registers
            place = scores, first_keys, visible, scale_log2, row, self.knows_first and step == 0
            if masked != 0:
                store_registers(target, OnlineSoftmax(PAGE_SIZE).weigh(*place, masked=True), Int32)
            else:
                store_registers(target, OnlineSoftmax(PAGE_SIZE).weigh(*place, masked=False), Int32)
            if cutlass.const_expr(step == 0):
                fill_registers(row.o, Float32, file + self.steps * 256 * self.weight_registers)
        OnlineSoftmax(PAGE_SIZE).finish(row)
        result = state + Int64(case) * 128 * (4 + layouts.HEAD_DIM // 2)
        store_registers(result, row.m, Float32)
        store_registers(result + 256, row.l, Float32)
        store_registers(result + 512, row.o, Float32)


@dataclass(frozen=True)
class Case:
    """Raw scores [steps, 16, keys of a step], the keys' numbers [steps, keys], what rows see, and o."""

    scores: np.ndarray
    keys: np.ndarray
    visible: tuple[tuple[int, int], tuple[int, int]]
    scale: float
    o: np.ndarray
    masked: bool = True

    def but(self, **changes) -> "Case":
        """This case with other values."""
        return dataclasses.replace(self, **changes)

    @property
    def seen(self) -> np.ndarray:
        """[steps, 16, keys] which keys each row sees."""
        ends = np.repeat(np.array(self.visible), ROWS // 2, axis=0)
        keys = self.keys[:, None, :]
        return (keys >= ends[:, :1]) & (keys <= ends[:, 1:])

    def tops(self, step: int, m: np.ndarray) -> np.ndarray:
        """[16] the running maximum after a step: one product of FP32, and what is no number has no say."""
        shown = np.where(self.seen[step], self.scores[step], np.float32(-np.inf))
        top = np.fmax.reduce(shown, axis=1)
        return numerics.maximum(m, numerics.mul(top, np.float32(self.scale)))

    def exponents(self, step: int, m: np.ndarray) -> np.ndarray:
        """[16, keys] what a step's weights are powers of: one fma; -inf where a row does not see the key."""
        below = np.where(np.isneginf(m), np.float32(0), -m)[:, None]
        exponent = numerics.fma(self.scores[step], np.float32(self.scale), below)
        return np.where(self.seen[step], exponent, np.float32(-np.inf))


def make_case(rng, pages: int, steps: int, visible, scores=None, scale=1.0, apart: int = 64) -> Case:
    """A case over pages `apart` pages from each other, as the pages of a walk are."""
    first = PAGE_SIZE * apart * np.arange(steps * pages).reshape(steps, pages)
    keys = (first[..., None] + np.arange(PAGE_SIZE)).reshape(steps, -1)
    if scores is None:
        scores = rng.integers(-12, 5, (steps, ROWS, pages * PAGE_SIZE))
    o = rng.standard_normal((ROWS, layouts.HEAD_DIM)).astype(np.float32)
    return Case(np.float32(scores), keys, visible, scale, o)


def arguments(kernel: Weighing, cases: list[Case]) -> list:
    """Those of the kernel. A CTA that is left over has the first case."""
    cases = cases + cases[:1] * (CASES - len(cases))
    files = [[*map(layouts.fold_scores, case.scores), layouts.fold_output(case.o)] for case in cases]
    told = [
        [
            *np.ravel(case.visible),
            case.masked,
            np.float32(case.scale).view(np.int32),
            *case.keys[:, ::PAGE_SIZE].flat,
        ]
        for case in cases
    ]
    return [
        np.stack([np.concatenate(file) for file in files]),
        np.array(told, np.int32),
        out(np.uint32, CASES, kernel.steps, kernel.weight_registers, 32),
        out(np.float32, CASES, 4 + layouts.HEAD_DIM // 2, 32),
    ]


def weigh(launch, *cases: Case, knows_first: bool = True) -> list[tuple]:
    """(weights [steps, 16, keys] BF16 bits, m [16], l [16], o [16, 64]) of each case from the device."""
    steps, keys = cases[0].keys.shape
    kernel, found = Weighing(keys // PAGE_SIZE, steps, knows_first), []
    for at in range(0, len(cases), CASES):
        some = list(cases[at : at + CASES])
        for weights, state in zip(*launch(kernel, *arguments(kernel, some)), strict=True):
            m, l = (unfold_rows(state[i : i + 2]) for i in (0, 2))
            unfolded = np.stack([layouts.unfold_weights(step) for step in weights])
            found.append((unfolded, m, l, layouts.unfold_output(state[4:])))
        del found[at + len(some) :]
    return found


def unfold_rows(registers: np.ndarray) -> np.ndarray:
    """[2, lane] -> [16]: the four lanes of a row hold the same bits."""
    lanes = numerics.f32_bits(registers).reshape(ROWS, 4)
    assert np.all(lanes == lanes[:, :1])
    return numerics.from_bits(lanes[:, 0])


def exact_reference(case: Case):
    """The documented steps with exact powers of two, in the documented order: bits, not tolerances."""
    m, l, o = np.full(ROWS, -np.inf, np.float32), np.zeros((ROWS, 4), np.float32), case.o
    weights = []
    for step in range(len(case.scores)):
        top = case.tops(step, m)
        base = np.where(np.isneginf(top), np.float32(0), top)
        weight = numerics.power_of_two(case.exponents(step, top))
        # Lane t of a row has keys 2t and 2t + 1 of each tile of 8, and adds them up in ascending order.
        lanes = weight.reshape(ROWS, -1, 4, 2).transpose(1, 3, 0, 2).reshape(-1, ROWS, 4)
        total = lanes[0]
        for part in lanes[1:]:
            total = numerics.add(total, part)
        if step > 0:
            factor = numerics.power_of_two(numerics.sub(m, base))[:, None]
            total = numerics.add(numerics.mul(l, factor), total)
            o = numerics.mul(o, factor)
        m, l = top, total
        weights.append(to_bf16(weight))
    pairs = numerics.add(l[:, 0::2], l[:, 1::2])
    return np.stack(weights), m, numerics.add(pairs[:, 0], pairs[:, 1]), o


def check_exactly(launch, *cases: Case, **more) -> None:
    """The device's bits are the reference's."""
    for case, found in zip(cases, weigh(launch, *cases, **more), strict=True):
        for got, expected in zip(found, exact_reference(case), strict=True):
            if got.dtype == np.uint16:
                got, expected = from_bf16(got), from_bf16(expected)
            numerics.assert_same_bits(got, expected)


def same_bits(a: tuple, b: tuple) -> bool:
    """Whether two cases came out alike."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))
