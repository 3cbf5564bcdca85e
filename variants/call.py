"""A checked call: from the arguments of an engine to the parameters of a kernel.

Contract
    Everything about the arguments that can be checked without a synchronisation is checked here, on whatever
    device the tensors are, and a refusal names the argument, what it got and what it needs. Nothing is
    launched and nothing is allocated but an output that was not given.
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stages.partial import PartialRecord

MAX_KV_HEADS = 65535
"""KV heads of a launch: the y extent of a grid (CUDA C++ Programming Guide, technical specifications)."""

MAX_WINDOW = 1 << 30
"""A window that holds every key of a request; differences of key numbers stay within 32 bits."""


@dataclass(frozen=True)
class Call:
    """What one launch is given, in the order of the kernel's parameters.

    tensors: q, gate, kv_cache, block_table, seq_lens, out, and workspace and counters of a kernel that
    splits. strides: in bytes; of a token in q, gate and out, of a page and a KV head in the cache, of a
    request in the table. integers: columns of the table, and the window of a kernel that splits. numbers:
    scale * log2(e), eps.
    extent: what the launch shape depends on: requests, KV heads, and z slices of a kernel that splits.
    """

    tensors: tuple[torch.Tensor, ...]
    strides: tuple[int, ...]
    integers: tuple[int, ...]
    numbers: tuple[float, ...]
    extent: tuple[int, ...]

    @property
    def out(self) -> torch.Tensor:
        """Where the result goes."""
        return self.tensors[5]

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return self.extent[0]


def bind(
    kernel: Any,
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None,
    *,
    max_seq_len: int,
    scale: float,
    eps: float,
    window: int | None,
    splits: Callable[[int], int] | None,
    scratch: tuple[torch.Tensor | None, torch.Tensor | None],
) -> Call:
    """Check the arguments of a call (shapes and types as the entry point documents them).

    splits: given the KV heads, the z slices of a launch; None where no request is ever split. scratch:
    workspace and counters.

    Raises TypeError for what is no tensor, and ValueError for what cannot be served.
    """
    device = q.device if isinstance(q, torch.Tensor) else None
    names = ("q", "gate", "kv_cache", "block_table", "seq_lens")
    for name, tensor in zip(names, (q, gate, kv_cache, block_table, seq_lens), strict=True):
        _check_tensor(name, tensor, device)
    kv_heads, page_stride, head_stride = _check_cache(kv_cache, kernel)
    requests = seq_lens.shape[0] if seq_lens.dim() == 1 else -1
    require(
        requests >= 0 and seq_lens.dtype == torch.int32 and (requests <= 1 or seq_lens.stride(0) == 1),
        f"seq_lens must be contiguous int32 [R], got {_describe(seq_lens)}",
    )
    q_stride = _check_rows("q", q, kernel, requests, kv_heads)
    gate_stride = _check_rows("gate", gate, kernel, requests, kv_heads)
    columns, table_stride = _check_table(block_table, kernel, requests, max_seq_len)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _check_tensor("out", out, device)
    out_stride = _check_rows("out", out, kernel, requests, kv_heads)
    width = kv_heads * kernel.heads_per_kv * kernel.head_dim
    require(
        requests == 0 or out_stride >= width,
        f"out must not overlap itself: its token stride must be >= {width}, got {out_stride}",
    )
    rows = tuple(2 * stride for stride in (q_stride, gate_stride, out_stride))
    tensors, integers, extent = (
        (q, gate, kv_cache, block_table, seq_lens, out),
        (columns,),
        (requests, kv_heads),
    )
    if kernel.splits:
        slices = 1 if splits is None else splits(kv_heads)
        # Where no request is ever split the scratch memory is not touched: any address will do.
        held = (out, seq_lens)
        if splits is not None:
            held = _check_scratch(kernel, *scratch, *extent, slices, device)
        tensors = (*tensors, *held)
        integers = (*integers, min(window or MAX_WINDOW, MAX_WINDOW))
        extent = (*extent, slices)
    return Call(
        tensors=tensors,
        strides=(*rows, 2 * page_stride, 2 * head_stride, 4 * table_stride),
        integers=integers,
        numbers=(_check_number("scale", scale) * math.log2(math.e), _check_number("eps", eps, least=0)),
        extent=extent,
    )


def scratch_bytes(kernel: Any, requests: int, kv_heads: int, num_splits: int) -> tuple[int, int]:
    """Bytes of the workspace and of the counters: a record a row and cluster, a uint32 a row.

    The counters are padded to 16 bytes.
    """
    rows = requests * kv_heads * kernel.rows
    return rows * num_splits * PartialRecord(kernel.head_dim).bytes, -(-4 * rows // 16) * 16


def _check_scratch(kernel, workspace, counters, requests, kv_heads, num_splits, device):
    sizes = scratch_bytes(kernel, requests, kv_heads, num_splits)
    for name, tensor, size in zip(("workspace", "counters"), (workspace, counters), sizes, strict=True):
        if tensor is None:
            raise ValueError(
                f"{name} is needed, {size} bytes (R={requests}, H={kv_heads}, num_splits={num_splits}): this "
                "deployment splits long requests over clusters; allocate_scratch() makes both"
            )
        _check_tensor(name, tensor, device)
        held = tensor.numel() * tensor.element_size()
        require(tensor.is_contiguous(), f"{name} must be contiguous, got {_describe(tensor)}")
        require(
            held >= size,
            f"{name} must have >= {size} bytes (R={requests}, H={kv_heads}, num_splits={num_splits}), "
            f"got {held}",
        )
        _check_alignment(name, tensor)
    require(workspace.dtype == torch.uint8, f"workspace must be uint8, got {workspace.dtype}")
    require(counters.dtype == torch.int32, f"counters must be int32, got {counters.dtype}")
    return workspace, counters


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _describe(tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"


def _check_tensor(name, tensor, device):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    require(
        tensor.device == device,
        f"{name} must be on q's device {device}, got one on {tensor.device}",
    )


def _check_number(name, value, least=-math.inf) -> float:
    """A number that is finite in FP32, and so is 1.44 times it (the folded scale)."""
    fits = isinstance(value, numbers.Real) and not isinstance(value, bool)
    fits = fits and abs(value) <= torch.finfo(torch.float32).max / 2 and value >= least
    bound = f" >= {least}" if math.isfinite(least) else ""
    require(fits, f"{name} must be a finite FP32 number{bound}, got {value!r}")
    return float(value)


def _check_rows(name, tensor, kernel, requests, kv_heads) -> int:
    """The token stride of q, gate or out, in elements."""
    tokens, heads, dim = requests * kernel.tokens, kv_heads * kernel.heads_per_kv, kernel.head_dim
    require(tensor.dtype == torch.bfloat16, f"{name} must be bfloat16, got {tensor.dtype}")
    shapes = [(tokens, heads * dim), (tokens, heads, dim)]
    require(
        tuple(tensor.shape) in shapes,
        f"{name} must be [{tokens}, {heads * dim}] or [{tokens}, {heads}, {dim}] "
        f"(R={requests} from seq_lens, H={kv_heads} from kv_cache), got {list(tensor.shape)}",
    )
    packed = tensor.stride(-1) == 1 and (tensor.dim() == 2 or tensor.stride(1) == dim)
    require(packed, f"{name} must have its heads packed, got strides {list(tensor.stride())}")
    stride = tensor.stride(0)
    require(stride % 8 == 0, f"{name} must have a token stride that is a multiple of 8, got {stride}")
    _check_alignment(name, tensor)
    return stride


def _check_cache(cache, kernel) -> tuple[int, int, int]:
    """H, and the page and head strides in elements."""
    page, width = kernel.page_size, 2 * kernel.head_dim
    require(cache.dtype == torch.bfloat16, f"kv_cache must be bfloat16, got {cache.dtype}")
    require(
        cache.dim() == 4 and tuple(cache.shape[2:]) == (page, width) and 1 <= cache.shape[1] <= MAX_KV_HEADS,
        f"kv_cache must be [pages, H, {page}, {width}], got {list(cache.shape)}",
    )
    require(
        cache.stride(3) == 1 and cache.stride(2) == width,
        f"kv_cache must have contiguous pages (strides {width}, 1 within one), got strides "
        f"{list(cache.stride())}",
    )
    strides = [cache.stride(dim) if cache.shape[dim] > 1 else 0 for dim in (0, 1)]
    require(
        all(stride % 8 == 0 for stride in strides),
        f"kv_cache must have page and head strides that are multiples of 8 elements, got strides "
        f"{list(cache.stride())}",
    )
    _check_alignment("kv_cache", cache)
    return cache.shape[1], strides[0], strides[1]


def _check_table(table, kernel, requests, max_seq_len) -> tuple[int, int]:
    """The table's columns, and its request stride in elements."""
    needed = -(-max_seq_len // kernel.page_size)
    require(
        table.dtype == torch.int32 and table.dim() == 2 and table.shape[0] == requests,
        f"block_table must be int32 [{requests}, >= {needed}], got {_describe(table)}",
    )
    require(
        table.shape[1] >= needed,
        f"block_table must have >= {needed} columns for max_seq_len={max_seq_len}, got {table.shape[1]}",
    )
    require(
        table.shape[1] == 1 or table.stride(1) == 1,
        f"block_table must have contiguous rows, got strides {list(table.stride())}",
    )
    return table.shape[1], table.stride(0)


def _check_alignment(name, tensor):
    address = tensor.data_ptr()
    require(address % 16 == 0, f"{name} must start at a multiple of 16 bytes, got address {address:#x}")
