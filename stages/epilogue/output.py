"""What every epilogue does first: divide the merged output by its sum of weights.

Contract
    A row that saw no key has l = 0 and comes out as zeros. The quotient is rounded to BF16, as attention
    kernels of this field store it, whatever an epilogue does afterwards. Any thread may call it.
"""

from cutlass import Float32, Int32

from stages.ptx.arithmetic import mul, reciprocal, select
from stages.ptx.bf16 import pack_bf16


def normalised(l: Float32, o: list[Float32]) -> Int32:
    """o / l of two dims, rounded to a BF16 pair; zeros where l is 0."""
    inverse = select(l == 0.0, Float32(0.0), reciprocal(l))
    return pack_bf16(mul(o[0], inverse), mul(o[1], inverse))
