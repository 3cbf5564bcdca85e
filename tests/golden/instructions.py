"""Instructions whose results the golden recordings hold: those of the stages, and their neighbours.

The texts are inline PTX with 32-bit operands $1, $2, $3 and result $0; 16-bit registers are in the low half.
"""

import numpy as np

from tests.device import out
from tests.golden import inputs
from tests.golden.kernels import Instructions
from tests.numerics import from_bits

COUNT = 1024
"""Operands of each instruction."""

COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]

ROUNDINGS = ("rn", "rz", "rm", "rp")


def _with_half(text: str) -> str:
    """An instruction on `h`, the low half of $1, with a 32-bit result."""
    return "{ .reg .b16 h, g; mov.b32 {h, g}, $1; " + text + " }"


def _to_half(text: str) -> str:
    """An instruction that writes `h`, 16 bits, which becomes the result's low half."""
    return "{ .reg .b16 h, z; mov.b16 z, 0; " + text + " mov.b32 $0, {h, z}; }"


def _compare(kind: str) -> str:
    return "{ .reg .pred p; setp." + kind + " p, $1, $2; selp.b32 $0, 1, 0, p; }"


FAMILIES: dict[str, tuple[int, tuple[str, ...]]] = {
    "arithmetic": (
        3,
        (
            *(f"{op}.{r}.ftz.f32 $0, $1, $2;" for op in ("add", "sub", "mul") for r in ROUNDINGS),
            *(f"fma.{r}.ftz.f32 $0, $1, $2, $3;" for r in ROUNDINGS),
            *(f"{op}.rn.ftz.sat.f32 $0, $1, $2;" for op in ("add", "sub", "mul")),
            "fma.rn.ftz.sat.f32 $0, $1, $2, $3;",
            *(f"{op}{nan}.ftz.f32 $0, $1, $2;" for op in ("max", "min") for nan in ("", ".NaN")),
            *(f"{op}.NaN.f32 $0, $1, $2;" for op in ("max", "min")),
            *(f"{op}{ftz}.f32 $0, $1;" for op in ("neg", "abs") for ftz in ("", ".ftz")),
        ),
    ),
    "comparison": (
        2,
        tuple(_compare(f"{c}{ftz}.f32") for ftz in ("", ".ftz") for c in COMPARISONS),
    ),
    "conversion": (
        2,
        (
            "cvt.rn.bf16x2.f32 $0, $1, $2;",
            "cvt.rz.bf16x2.f32 $0, $1, $2;",
            "cvt.rn.relu.bf16x2.f32 $0, $1, $2;",
            "cvt.rn.f16x2.f32 $0, $1, $2;",
            "cvt.rz.f16x2.f32 $0, $1, $2;",
            *(_to_half(f"cvt.{r}.{kind}.f32 h, $1;") for r in ("rn", "rz") for kind in ("bf16", "f16")),
            *(_with_half(f"cvt.f32.{kind} $0, h;") for kind in ("bf16", "f16")),
            *(f"cvt.{r}i{ftz}.s32.f32 $0, $1;" for ftz in ("", ".ftz") for r in ROUNDINGS),
            *(f"cvt.{r}i{ftz}.u32.f32 $0, $1;" for ftz in ("", ".ftz") for r in ROUNDINGS),
            *(f"cvt.{r}i{ftz}.f32.f32 $0, $1;" for ftz in ("", ".ftz") for r in ROUNDINGS),
            *(f"cvt.{r}.f32.{kind} $0, $1;" for kind in ("s32", "u32") for r in ROUNDINGS),
            "cvt.ftz.sat.f32.f32 $0, $1;",
            "cvt.rna.tf32.f32 $0, $1;",
        ),
    ),
    "bf16_pairs": (
        3,
        (
            *(f"{op}.bf16x2 $0, $1, $2;" for op in ("add.rn", "sub.rn", "mul.rn")),
            "fma.rn.bf16x2 $0, $1, $2, $3;",
            "fma.rn.relu.bf16x2 $0, $1, $2, $3;",
            *(f"{op}{nan}.bf16x2 $0, $1, $2;" for op in ("max", "min") for nan in ("", ".NaN")),
            *(f"{op}.bf16x2 $0, $1;" for op in ("neg", "abs")),
            *(f"{op}.bf16x2 $0, $1;" for op in ("ex2.approx.ftz", "tanh.approx")),
        ),
    ),
    "functions": (
        2,
        (
            *(
                f"{op}.approx{ftz}.f32 $0, $1;"
                for ftz in (".ftz", "")
                for op in ("ex2", "rcp", "rsqrt", "lg2")
            ),
            *(f"{op}.approx{ftz}.f32 $0, $1;" for ftz in (".ftz", "") for op in ("sqrt", "sin", "cos")),
            "tanh.approx.f32 $0, $1;",
            "div.approx.ftz.f32 $0, $1, $2;",
        ),
    ),
}
"""Families of instructions: (operands, texts)."""

SPECIAL = np.array(
    [
        # zero, the ends of the subnormals and of the normals, one and its neighbours, infinity, NaN
        *(0x00000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F7FFFFF, 0x3F800000),
        *(0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7FC12345, 0x01000000),
        # halves, 2**23 + 1, 2**24 - 1, the ends of int32 and uint32, of FP16 and of BF16
        *(0x3F000000, 0x3FC00000, 0x40200000, 0x4B000001, 0x4B7FFFFF, 0x4EFFFFFF, 0x4F000000, 0x4F7FFFFF),
        *(0x4F800000, 0x477FE000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001, 0x7F7F7FFF, 0x7F7F8000),
        # BF16 ties, and pairs of BF16: subnormal, NaN and infinity in either half
        *(0x3F808000, 0x3F818000, 0x3F80FFFF, 0x00010001, 0x7FC13F80, 0x3F807FC1, 0x7F803F80, 0x3F807F80),
    ],
    np.uint32,
)


UNDERFLOWS = np.array(
    [
        # a * b, then a * b + c just below the smallest normal number: rounded up to it, or flushed?
        (0x00800001, 0x3F7FFFFE, 0x00000000),
        (0x80800001, 0x3F7FFFFE, 0x00000000),
        (0x00800000, 0x3F7FFFFF, 0x00000000),
        (0x00800002, 0x3F7FFFFC, 0x00000000),
        (0x01000001, 0x3EFFFFFE, 0x80000000),
        (0x17800000, 0x97800000, 0x00800000),
        (0x17800000, 0x17800000, 0x80800000),
        (0x17800000, 0x97800000, 0x00800001),
        (0x2A800000, 0x94800000, 0x00800000),
        (0x2A800000, 0x94000000, 0x00800000),
        (0x2A800000, 0x95000000, 0x00800000),
        (0x00800000, 0x3F000000, 0x00800000),
        (0x00800000, 0xBF000000, 0x00800001),
        (0x00FFFFFF, 0xBF800000, 0x01000000),
        (0x20000000, 0x20000000, 0x80000001),
        (0x20000000, 0x9F800000, 0x00400000),
    ],
    np.uint32,
)
"""Products and sums at the edge of the normal numbers."""


def operands(seed: int, count: int) -> np.ndarray:
    """[count, COUNT] words: special ones, numbers near 1, of any size up to 2**34, and any bits at all."""
    columns = []
    for n in range(count):
        kind = inputs.whole(seed + 10 * n, 0, 8, COUNT)
        special = SPECIAL[inputs.whole(seed + 10 * n + 1, 0, len(SPECIAL), COUNT)]
        special = special ^ (inputs.words(seed + 10 * n + 2, COUNT) & np.uint32(0x80000000))
        choices = [
            *[special] * 4,
            *[inputs.magnitudes(seed + 10 * n + 3, -2, 3, COUNT).view(np.uint32)] * 2,
            inputs.magnitudes(seed + 10 * n + 5, -30, 35, COUNT).view(np.uint32),
            inputs.words(seed + 10 * n + 7, COUNT),
        ]
        columns.append(np.choose(kind, choices))
    x = np.stack(columns)
    if count == 2:
        x[:, -len(UNDERFLOWS) :] = UNDERFLOWS.T[:2]
    if count == 3:
        # Sums that cancel: c is -a * b rounded, or a neighbour of it, for an eighth of the elements.
        with np.errstate(all="ignore"):
            near = -(from_bits(x[0, ::8]).astype(np.float64) * from_bits(x[1, ::8])).astype(np.float32)
        near = np.where(np.isnan(near), np.uint32(0x7FC00000), near.view(np.uint32))
        x[2, ::8] = near + inputs.whole(seed + 99, -1, 2, COUNT // 8).astype(np.uint32)
        x[:, -len(UNDERFLOWS) :] = UNDERFLOWS.T
    return x


def kernel(family: str) -> tuple[Instructions, list]:
    """The micro-kernel of a family of instructions, and its arguments."""
    count, texts = FAMILIES[family]
    x = operands(1000 + 100 * list(FAMILIES).index(family), count)
    return Instructions(family, texts, count, COUNT), [x, out(np.uint32, len(texts), COUNT)]
