"""Arithmetic and packing primitives: against NumPy, edge values included, and the instructions they emit."""

import itertools
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int32, Int64

from stages.ptx import arithmetic
from stages.ptx.arithmetic import select
from stages.ptx.bf16 import pack_bf16, unpack_bf16
from stages.ptx.global_memory import load_global_i32, store_global_i32
from tests import numerics
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import load_f32, store_f32

EXACT = {
    "add": (2, "add.rn.ftz.f32", numerics.add),
    "sub": (2, "sub.rn.ftz.f32", numerics.sub),
    "mul": (2, "mul.rn.ftz.f32", numerics.mul),
    "fma": (3, "fma.rn.ftz.f32", numerics.fma),
    "maximum": (2, "max.ftz.f32", numerics.maximum),
}
APPROXIMATE = {
    # The errors that the PTX ISA documents; rsqrt's 2**-22.9 relative is at most 2.2 ulp.
    "exp2": (1, "ex2.approx.ftz.f32", np.exp2, 2.0),
    "reciprocal": (1, "rcp.approx.ftz.f32", np.reciprocal, 1.0),
    "rsqrt": (1, "rsqrt.approx.ftz.f32", lambda x: 1 / np.sqrt(x), 2.2),
}
INSTRUCTIONS = {name: facts[:2] for name, facts in (EXACT | APPROXIMATE).items()}

SPECIAL = np.array(
    [0.0, 1.0, 1.0 + 2.0**-23, 1.5, 3.0, 2.0**24, 2.0**-126, 2.0**-127, 1e-45, 3.4e38, 1e19, np.inf],
    dtype=np.float32,
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL, numerics.from_bits([0x7FC00000, 0xFFC12345])])
"""Zeros, ties, subnormals, the ends of the range, infinities, and NaN with two payloads; both signs."""


@dataclass(frozen=True)
class Elementwise(MicroKernel):
    """out[i] = op(x[0, i], x[1, i], ...)."""

    op: str
    operands: int
    count: int

    def __str__(self):
        return f"Elementwise_{self.op}"

    @property
    def where(self) -> Launch:
        """One thread an element."""
        return Launch(grid=(self.count // 128, 1, 1), block=(128, 1, 1))

    @cute.jit
    def __call__(self, x: cute.Pointer, result: cute.Pointer, stream: cuda.CUstream):
        self.kernel(x.toint(), result.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, x: Int64, result: Int64):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        at = 4 * (128 * block + thread)
        operands = [load_f32(x + Int64(4 * self.count * n + at)) for n in range(self.operands)]
        store_f32(result + Int64(at), getattr(arithmetic, self.op)(*operands))


@dataclass(frozen=True)
class Packing(MicroKernel):
    """packed[i] = pack_bf16(x[0, i], x[1, i]); unpacked[0, i], unpacked[1, i] = unpack_bf16(pairs[i])."""

    count: int

    @property
    def where(self) -> Launch:
        """One thread an element."""
        return Launch(grid=(self.count // 128, 1, 1), block=(128, 1, 1))

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        pairs: cute.Pointer,
        packed: cute.Pointer,
        unpacked: cute.Pointer,
        stream: cuda.CUstream,
    ):
        self.kernel(x.toint(), pairs.toint(), packed.toint(), unpacked.toint()).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, x: Int64, pairs: Int64, packed: Int64, unpacked: Int64):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        at = Int64(4 * (128 * block + thread))
        second = Int64(4 * self.count)
        store_global_i32(packed + at, pack_bf16(load_f32(x + at), load_f32(x + second + at)))
        low, high = unpack_bf16(load_global_i32(pairs + at))
        store_f32(unpacked + at, low)
        store_f32(unpacked + second + at, high)


@dataclass(frozen=True)
class Selecting(MicroKernel):
    """[FP32, integer] selections between two words by the order of two integers."""

    @cute.jit
    def __call__(self, keys: cute.Pointer, words: cute.Pointer, result: cute.Pointer, stream: cuda.CUstream):
        self.kernel(keys.toint(), words.toint(), result.toint()).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, keys: Int64, words: Int64, result: Int64):
        at = Int64(4 * cute.arch.lane_idx())
        less = load_global_i32(keys + at) < load_global_i32(keys + at + 128)
        a, b = load_global_i32(words + at), load_global_i32(words + at + 128)
        store_f32(result + at, select(less, a.bitcast(Float32), b.bitcast(Float32)))
        store_global_i32(result + at + 128, select(less, a, b))
        store_global_i32(result + at + 256, select(less, Int32(7), b))


def operands(count: int) -> np.ndarray:
    """[count, n] every combination of special values, then random ones; n is a number of whole blocks."""
    special = np.array(list(itertools.product(SPECIAL, repeat=count)), dtype=np.float32).T
    rng = np.random.default_rng(count)
    size = (count, 4096 + -special.shape[1] % 128)
    random = rng.standard_normal(size) * np.exp2(rng.integers(-20, 20, size))
    return np.concatenate([special, random.astype(np.float32)], axis=1)


def elementwise(op: str) -> Elementwise:
    """The micro-kernel of an operation, for its operands."""
    count = INSTRUCTIONS[op][0]
    return Elementwise(op, count, operands(count).shape[1])


PACK_WORDS = 65536


@pytest.mark.pin
@pytest.mark.parametrize("kernel", [Packing(PACK_WORDS), Selecting()], ids=str)
def test_compiles(kernel, arch):
    """Packing and selecting need no GPU to compile, and packing is one conversion of two values."""
    compiled = compile_kernel(kernel, arch)
    if isinstance(kernel, Packing):
        assert compiled.ptx.count("cvt.rn.bf16x2.f32") == 1


@pytest.mark.pin
@pytest.mark.parametrize("op", INSTRUCTIONS)
def test_instruction(op, arch):
    """One function, one instruction: the documented one, once, and no other arithmetic on floats."""
    compiled = compile_kernel(elementwise(op), arch)
    assert compiled.ptx.count(INSTRUCTIONS[op][1]) == 1
    assert compiled.ptx.count(".f32 ") == 1


@pytest.mark.parametrize("op", EXACT)
def test_exact(op, launch):
    """Rounded to nearest even, subnormals of operands and results flushed; max drops one NaN, not two."""
    count, _, reference = EXACT[op]
    x = operands(count)
    (got,) = launch(elementwise(op), x, out(np.float32, x.shape[1]))
    expected = reference(*x)
    # An fma whose exact result is just below 2**-126: whether it is rounded up or flushed first, nobody says.
    settled = np.abs(expected) != numerics.TINY if op == "fma" else slice(None)
    numerics.assert_same_bits(got[settled], expected[settled])


def test_maximum_of_two_nan_is_canonical(launch):
    """max(NaN, NaN) is the canonical NaN, whatever the payloads: the bits do not depend on the order."""
    x = operands(2)
    (got,) = launch(elementwise("maximum"), x, out(np.float32, x.shape[1]))
    both = np.isnan(x).all(axis=0)
    assert both.sum() == 4
    assert set(numerics.f32_bits(got[both])) == {0x7FFFFFFF}


@pytest.mark.parametrize("op", APPROXIMATE)
def test_approximate(op, launch):
    """Within the documented error of the function of the flushed operand, and exact at the special values."""
    x = approximate_operands()
    kernel = Elementwise(op, 1, x.shape[1])
    (got,) = launch(kernel, x, out(np.float32, x.shape[1]))
    with np.errstate(all="ignore"):
        exact = APPROXIMATE[op][2](np.float64(numerics.flush(x[0])))
        rounded = numerics.flush(exact.astype(np.float32))
    finite = np.isfinite(rounded) & (rounded != 0)
    numerics.assert_same_bits(got[~finite], rounded[~finite])
    assert numerics.ulp_error(got[finite], exact[finite]).max() <= APPROXIMATE[op][3]


def approximate_operands() -> np.ndarray:
    """[1, n] special values, the range in which 2**x is a normal number, and magnitudes from end to end."""
    rng = np.random.default_rng(1)
    size = 4096 - len(SPECIAL) - 2
    powers = rng.uniform(-125.9, 127.9, size)
    wide = rng.uniform(1, 2, 4096) * np.exp2(rng.integers(-125, 125, 4096))
    ends = [-200.0, 200.0]
    return np.concatenate([SPECIAL, ends, powers, wide]).astype(np.float32)[None]


def test_whole_powers_of_two_are_exact(launch):
    """2**n has no error for whole n: merges of partials whose maxima are whole numbers have known bits."""
    x = np.arange(-128, 128, dtype=np.float32)[None]
    (got,) = launch(Elementwise("exp2", 1, 256), x, out(np.float32, 256))
    numerics.assert_same_bits(got, numerics.power_of_two(x[0]))


def test_packing(launch):
    """Rounds to nearest even, ties and overflow included; the first value goes to the low half.

    Unpacking widens every BF16 pattern exactly, NaN payloads and subnormals included.
    """
    patterns = np.arange(65536, dtype=np.uint32)
    rng = np.random.default_rng(2)
    # Above each BF16 number: the number itself, just below the tie, the tie, just above it, or anything.
    tails = rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), (2, PACK_WORDS))
    x = numerics.from_bits((np.stack([patterns, rng.permutation(patterns)]) << 16) | tails)
    pairs = patterns | (rng.permutation(patterns) << 16)
    packed, unpacked = launch(
        Packing(PACK_WORDS), x, pairs, out(np.uint32, PACK_WORDS), out(np.uint32, 2, PACK_WORDS)
    )
    assert np.array_equal(packed, numerics.pack(numerics.to_bf16(x[0]), numerics.to_bf16(x[1])))
    assert np.array_equal(unpacked, np.stack([pairs << 16, pairs & 0xFFFF0000]))


def test_select(launch):
    """Moves one of two words, bit for bit, be they NaN, subnormal or an integer."""
    keys = np.stack([np.arange(32), np.full(32, 16)]).astype(np.int32)
    words = np.array([[0x7FC12345, 0x00000001, 0xFF800000, 0x80000000] * 8, range(32)], dtype=np.uint32)
    (got,) = launch(Selecting(), keys, words, out(np.uint32, 3, 32))
    less = keys[0] < keys[1]
    chosen = np.where(less, words[0], words[1])
    assert np.array_equal(got, np.stack([chosen, chosen, np.where(less, 7, words[1])]))
