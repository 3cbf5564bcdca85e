"""Checks of single arguments: a refusal names the argument, what it got and what it needs.

Contract
    Works on numbers and on what a tensor says of itself; nothing here reads a tensor's contents, waits for a
    device or allocates. Raises ValueError.
"""

import math
import numbers
from typing import Any, NamedTuple

import torch

from variants.refusal import require

MAX_KV_HEADS = 65535
"""KV heads of a launch: the y extent of a grid (CUDA C++ Programming Guide, technical specifications)."""

MAX_PAGE_STRIDE = 1 << 32
"""Bytes from page to page that kernels can no longer multiply with (`stages.pages.walk`)."""

MAX_NUMBER = torch.finfo(torch.float32).max / 2
"""The largest number whose product with log2(e) is finite in FP32."""


class TensorFacts(NamedTuple):
    """All that is checked about a tensor but its address. strides: in elements."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    strides: tuple[int, ...]

    def __str__(self) -> str:
        """In words, for messages."""
        return f"{self.dtype} {list(self.shape)} with strides {list(self.strides)}"


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Whether a value is an integer, and no boolean, from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_kv_heads(kv_heads: Any) -> None:
    """The KV heads H of a rank."""
    require(
        is_whole(kv_heads, 1, MAX_KV_HEADS),
        f"kv_heads must be an integer in 1..{MAX_KV_HEADS}, got {kv_heads!r}",
    )


def as_device(device: torch.device | int | str | None) -> torch.device:
    """The device that an argument names: an integer is a CUDA device's index, None the current one."""
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device("cuda" if device is None else device)


def fp32(name: str, value: Any, least: float = -MAX_NUMBER) -> float:
    """A number that is finite in FP32, and so is 1.44 times it (the folded scale)."""
    if type(value) is float and least <= value <= MAX_NUMBER:
        return value
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    fits = real and least <= value <= MAX_NUMBER
    bound = f" >= {least:g}" if least > -MAX_NUMBER else ""
    require(fits, f"{name} must be a finite FP32 number{bound}, got {value!r}")
    return float(value)


def check_rows(name: str, given: TensorFacts, kernel: Any, requests: int, kv_heads: int) -> int:
    """The token stride of q, gate or out, in elements."""
    tokens, heads, dim = requests * kernel.tokens, kv_heads * kernel.heads_per_kv, kernel.head_dim
    require(given.dtype == torch.bfloat16, f"{name} must be bfloat16, got {given.dtype}")
    shapes = [(tokens, heads * dim), (tokens, heads, dim)]
    require(
        tuple(given.shape) in shapes,
        f"{name} must be [{tokens}, {heads * dim}] or [{tokens}, {heads}, {dim}] "
        f"(R={requests} from seq_lens, H={kv_heads} from kv_cache), got {list(given.shape)}",
    )
    packed = given.strides[-1] == 1 and (len(given.shape) == 2 or given.strides[1] == dim)
    require(packed, f"{name} must have its heads packed, got strides {list(given.strides)}")
    stride = given.strides[0]
    require(stride % 8 == 0, f"{name} must have a token stride that is a multiple of 8, got {stride}")
    return stride


def check_cache(given: TensorFacts, kernel: Any) -> tuple[int, int, int]:
    """H, and the page and head strides in elements."""
    page, width = kernel.page_size, 2 * kernel.head_dim
    require(given.dtype == torch.bfloat16, f"kv_cache must be bfloat16, got {given.dtype}")
    require(
        len(given.shape) == 4 and tuple(given.shape[2:]) == (page, width) and given.shape[1] >= 1,
        f"kv_cache must be [pages, H, {page}, {width}], got {list(given.shape)}",
    )
    require(
        given.shape[1] <= MAX_KV_HEADS,
        f"kv_cache must have at most {MAX_KV_HEADS} KV heads, got {list(given.shape)}",
    )
    require(
        given.strides[3] == 1 and given.strides[2] == width,
        f"kv_cache must have contiguous pages (strides {width}, 1 within one), got strides "
        f"{list(given.strides)}",
    )
    strides = [given.strides[dim] if given.shape[dim] > 1 else 0 for dim in (0, 1)]
    require(
        all(stride % 8 == 0 for stride in strides),
        f"kv_cache must have page and head strides that are multiples of 8 elements, got strides "
        f"{list(given.strides)}",
    )
    require(
        2 * strides[0] < MAX_PAGE_STRIDE,
        f"kv_cache must have a page stride below {MAX_PAGE_STRIDE // 2} elements, got strides "
        f"{list(given.strides)}",
    )
    return given.shape[1], strides[0], strides[1]


def check_table(given: TensorFacts, kernel: Any, requests: int, max_seq_len: int) -> tuple[int, int]:
    """The table's columns, and its request stride in elements."""
    needed = -(-max_seq_len // kernel.page_size)
    require(
        given.dtype == torch.int32 and len(given.shape) == 2 and given.shape[0] == requests,
        f"block_table must be int32 [{requests}, >= {needed}] (R={requests} from seq_lens), got {given}",
    )
    require(
        given.shape[1] >= needed,
        f"block_table must have >= {needed} columns for max_seq_len={max_seq_len}, got {given.shape[1]}",
    )
    require(
        given.shape[1] == 1 or given.strides[1] == 1,
        f"block_table must have contiguous rows, got strides {list(given.strides)}",
    )
    return given.shape[1], given.strides[0]


def check_lengths(given: TensorFacts) -> int:
    """R."""
    require(
        given.dtype == torch.int32
        and len(given.shape) == 1
        and (given.shape[0] <= 1 or given.strides[0] == 1),
        f"seq_lens must be contiguous int32 [R], got {given}",
    )
    return given.shape[0]


def check_scratch(
    name: str,
    given: TensorFacts | None,
    dtype: torch.dtype,
    size: int,
    device: torch.device,
    launch: str,
) -> None:
    """A workspace or counters on a device, of at least `size` bytes, which is what `launch` needs."""
    if given is None:
        raise ValueError(
            f"{name} is needed, {size} bytes ({launch}): this deployment splits long requests over clusters; "
            "allocate_scratch() makes both"
        )
    require(given.device == device, f"{name} must be on q's device {device}, got one on {given.device}")
    held = math.prod(given.shape) * given.dtype.itemsize
    dense = all(
        given.strides[i] == math.prod(given.shape[i + 1 :]) for i, n in enumerate(given.shape) if n > 1
    )
    require(dense, f"{name} must be contiguous, got {given}")
    require(held >= size, f"{name} must have >= {size} bytes ({launch}), got {held}")
    require(given.dtype == dtype, f"{name} must be {str(dtype).removeprefix('torch.')}, got {given.dtype}")


def check_address(name: str, address: int, alignment: int) -> None:
    """What kernels load in one piece has to be aligned."""
    require(
        address % alignment == 0,
        f"{name} must start at a multiple of {alignment} bytes, got address {address:#x}",
    )
