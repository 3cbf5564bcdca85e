"""The host side of a generated module: pick a variant, check the arguments, compile once, launch.

Contract
    `attn2` is what an engine calls. Everything that can be checked without a synchronisation is checked
    before anything is launched, and a refusal names the argument, what it got and what it needs. A call
    whose kernel has been prepared neither compiles, nor synchronises, nor allocates anything but the output
    that it was not given.

    The launch shape depends on the number of requests and the deployment alone, so a captured CUDA graph
    serves every step: lengths, block table and cache contents are read by the kernel.
"""

import math
import threading
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_stream, make_ptr

from variants.variant import Variant

VARIANTS: tuple[Variant, ...] = ()
"""A generated module has its own table here."""

_prepared: dict[tuple[str, bool, int], Any] = {}
_prepare_lock = threading.Lock()


def attn2(
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int,
    scale: float,
    eps: float = 1e-5,
    window: int | None = None,
    num_splits: int | None = None,
    workspace: torch.Tensor | None = None,
    counters: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    pdl: bool = False,
    variant: str | None = None,
) -> torch.Tensor:
    """Paged decode attention of a verify step, finished by the variant's epilogue.

    Let R be the number of requests, H the KV heads of this rank, T the verified tokens, G the query heads
    of a KV head, D the head dim (for these modules' constants see the kernel's fields). Row t of a request
    of length L sees keys [0, L - T + t]; L = 0 (padding) gives rows of zeros.

    q, gate: [T R, G H D] or [T R, G H, D], BF16, heads packed, any token stride that is a multiple of 8
        elements: slices of one fused row are fine.
    kv_cache: [pages, H, page_size, 2 D], BF16, K in columns 0:D and V in D:2D; page and head strides are
        honoured, a page of one head is contiguous.
    block_table: [R, at least ceil(max_seq_len / page_size)], int32. Entries past a request's live pages
        may hold anything.
    seq_lens: [R], int32, verified tokens included, none above max_seq_len.
    max_seq_len, window: the deployment, not the step: they pick the variant.
    scale: softmax scale. eps: added to the mean square inside the root of the norm; below 2**-126 it is 0.
    num_splits, workspace, counters: for variants that split a request over several clusters; others
        ignore them.
    out: where to write, shaped as q may be; allocated like q if not given.
    pdl: launch with programmatic dependent launch.
    variant: a variant's name, instead of the first that serves the deployment.

    Returns out. Raises TypeError or ValueError for an argument that cannot be served, and RuntimeError for
    a first call inside a graph capture (call `prepare` before).
    """
    chosen = _choose(max_seq_len, window, variant)
    kernel = chosen.kernel
    for name, tensor in (
        ("q", q),
        ("gate", gate),
        ("kv_cache", kv_cache),
        ("block_table", block_table),
        ("seq_lens", seq_lens),
    ):
        _check_tensor(name, tensor, q.device if isinstance(q, torch.Tensor) else None)
    kv_heads, page_stride, head_stride = _check_cache(kv_cache, kernel)
    requests = seq_lens.shape[0] if seq_lens.dim() == 1 else -1
    _require(
        requests >= 0 and seq_lens.dtype == torch.int32 and (requests <= 1 or seq_lens.stride(0) == 1),
        f"seq_lens must be contiguous int32 [R], got {_describe(seq_lens)}",
    )
    q_stride = _check_rows("q", q, kernel, requests, kv_heads)
    gate_stride = _check_rows("gate", gate, kernel, requests, kv_heads)
    columns, table_stride = _check_table(block_table, kernel, requests, max_seq_len)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _check_tensor("out", out, q.device)
    out_stride = _check_rows("out", out, kernel, requests, kv_heads)
    width = kv_heads * kernel.heads_per_kv * kernel.head_dim
    _require(
        requests == 0 or out_stride >= width,
        f"out must not overlap itself: its token stride must be >= {width}, got {out_stride}",
    )
    scale_log2 = _check_number("scale", scale) * math.log2(math.e)
    eps = _check_number("eps", eps, least=0)
    _require(q.is_cuda, f"q must be a CUDA tensor, got one on {q.device}")
    if requests == 0:
        return out

    executor = _executor(chosen, pdl, q.device)
    bf16, gmem = cutlass.BFloat16, cute.AddressSpace.gmem
    with torch.cuda.device(q.device):
        executor(
            make_ptr(bf16, q.data_ptr(), gmem, assumed_align=16),
            make_ptr(bf16, gate.data_ptr(), gmem, assumed_align=16),
            make_ptr(bf16, kv_cache.data_ptr(), gmem, assumed_align=16),
            make_ptr(Int32, block_table.data_ptr(), gmem, assumed_align=4),
            make_ptr(Int32, seq_lens.data_ptr(), gmem, assumed_align=4),
            make_ptr(bf16, out.data_ptr(), gmem, assumed_align=16),
            Int64(2 * q_stride),
            Int64(2 * gate_stride),
            Int64(2 * out_stride),
            Int64(2 * page_stride),
            Int64(2 * head_stride),
            Int64(4 * table_stride),
            Int32(columns),
            Int32(requests),
            Int32(kv_heads),
            Float32(scale_log2),
            Float32(eps),
            cuda.CUstream(torch.cuda.current_stream().cuda_stream),
        )
    return out


def prepare(
    *,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    pdl: bool = False,
    device: torch.device | int | str | None = None,
    variant: str | None = None,
) -> None:
    """Compile and load the kernel that a deployment launches, so that a first call can be captured.

    kv_heads: the rank's KV heads H. max_seq_len, window, num_splits, pdl, variant: as in `attn2`.
    device: a CUDA device; the current one if not given. Quick if it has been done before.
    """
    _require(
        isinstance(kv_heads, int) and not isinstance(kv_heads, bool) and 1 <= kv_heads <= 65535,
        f"kv_heads must be an integer in 1..65535, got {kv_heads!r}",
    )
    chosen = _choose(max_seq_len, window, variant)
    _require(torch.cuda.is_available(), "prepare needs a CUDA device, and this machine has none")
    place = torch.device("cuda" if device is None else device)
    _require(place.type == "cuda", f"device must be a CUDA device, got {place}")
    _executor(chosen, pdl, place)


def compile_attn2(
    variant: str | None = None, *, pdl: bool = False, arch: str | None = None, options: str = ""
) -> Any:
    """Compile one variant for an architecture; needs no GPU where `arch` is named.

    variant: a variant's name; the module's first if not given. arch: for example "sm_90a"; the current
    CUDA device's if not given. options: more options for `cute.compile`, such as "--keep-ptx".
    Returns what `cute.compile` returns.
    """
    chosen = _named(variant) if variant is not None else VARIANTS[0]
    if arch is None:
        _require(
            torch.cuda.is_available(),
            'arch must be named on a machine with no CUDA device, for example arch="sm_90a"',
        )
        arch = _device_arch(torch.device("cuda", torch.cuda.current_device()))
    kernel = chosen.kernel
    if pdl:
        kernel = kernel.with_pdl()
    bf16, gmem = cutlass.BFloat16, cute.AddressSpace.gmem
    pointer = make_ptr(bf16, 16, gmem, assumed_align=16)
    indices = make_ptr(Int32, 16, gmem, assumed_align=4)
    return cute.compile(
        kernel,
        *(pointer, pointer, pointer, indices, indices, pointer),
        *(Int64(16) for _ in range(6)),
        *(Int32(1) for _ in range(3)),
        *(Float32(1.0) for _ in range(2)),
        make_fake_stream(),
        options=f"--gpu-arch {arch} {options}".strip(),
    )


def split_kernel(max_seq_len: int, window: int | None = None) -> bool:
    """Whether a deployment needs a kernel that splits a request over several clusters.

    True where no single-cluster variant of this module serves max_seq_len and window.
    """
    _check_deployment(max_seq_len, window)
    return not any(v.serves(max_seq_len, window) for v in VARIANTS)


# ---- choosing and compiling -----------------------------------------------------------------------


def _choose(max_seq_len, window, name) -> Variant:
    """The variant that a deployment launches."""
    _check_deployment(max_seq_len, window)
    candidates = VARIANTS if name is None else (_named(name),)
    for candidate in candidates:
        if candidate.serves(max_seq_len, window):
            return candidate
    served = "; ".join(
        f"{v.name}: max_seq_len <= {v.max_seq_len}, {'any window' if v.windows else 'no window'}"
        for v in candidates
    )
    raise ValueError(
        f"no kernel here serves max_seq_len={max_seq_len}, window={window}: longer contexts and windows "
        f"need a split variant, which this module does not have ({served})"
    )


def _check_deployment(max_seq_len, window):
    _require(
        isinstance(max_seq_len, int) and not isinstance(max_seq_len, bool) and max_seq_len >= 1,
        f"max_seq_len must be an integer >= 1, got {max_seq_len!r}",
    )
    _require(
        window is None or (isinstance(window, int) and not isinstance(window, bool) and window >= 1),
        f"window must be None or an integer >= 1, got {window!r}",
    )


def _named(name) -> Variant:
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    known = ", ".join(v.name for v in VARIANTS)
    raise ValueError(f"variant must be one of {known}, got {name!r}")


def _device_arch(device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    _require(
        (major, minor) >= (9, 0),
        f"the device must have compute capability 9.0 or later, {device} has {major}.{minor}",
    )
    return f"sm_{major}{minor}a"


def _executor(variant, pdl, device):
    """The loaded kernel for a device, compiled at the first request for it."""
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (variant.name, bool(pdl), index)
    executor = _prepared.get(key)
    if executor is not None:
        return executor
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"the kernel {variant.name!r} (pdl={bool(pdl)}) is not compiled for cuda:{index}, and a graph "
            "capture is no time to do it: call prepare() first"
        )
    with _prepare_lock:
        if key not in _prepared:
            with torch.cuda.device(index):
                arch = _device_arch(torch.device("cuda", index))
                _prepared[key] = compile_attn2(variant.name, pdl=pdl, arch=arch).to(index)
        return _prepared[key]


# ---- checking arguments ----------------------------------------------------------------------------


def _require(condition, message):
    if not condition:
        raise ValueError(message)


def _describe(tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"


def _check_tensor(name, tensor, device):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    _require(
        tensor.device == device,
        f"{name} must be on q's device {device}, got one on {tensor.device}",
    )


def _check_number(name, value, least=-math.inf) -> float:
    """A number that is finite in FP32, and so is 1.44 times it (the folded scale)."""
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    fits = fits and abs(value) <= torch.finfo(torch.float32).max / 2 and value >= least
    bound = f" >= {least}" if math.isfinite(least) else ""
    _require(fits, f"{name} must be a finite FP32 number{bound}, got {value!r}")
    return float(value)


def _check_rows(name, tensor, kernel, requests, kv_heads) -> int:
    """The token stride of q, gate or out, in elements."""
    tokens, heads, dim = requests * kernel.tokens, kv_heads * kernel.heads_per_kv, kernel.head_dim
    _require(tensor.dtype == torch.bfloat16, f"{name} must be bfloat16, got {tensor.dtype}")
    shapes = [(tokens, heads * dim), (tokens, heads, dim)]
    _require(
        tuple(tensor.shape) in shapes,
        f"{name} must be [{tokens}, {heads * dim}] or [{tokens}, {heads}, {dim}] "
        f"(R={requests}, H={kv_heads}), got {list(tensor.shape)}",
    )
    packed = tensor.stride(-1) == 1 and (tensor.dim() == 2 or tensor.stride(1) == dim)
    _require(packed, f"{name} must have its heads packed, got strides {list(tensor.stride())}")
    stride = tensor.stride(0)
    _require(stride % 8 == 0, f"{name} must have a token stride that is a multiple of 8, got {stride}")
    _check_alignment(name, tensor)
    return stride


def _check_cache(cache, kernel) -> tuple[int, int, int]:
    """H, and the page and head strides in elements."""
    page, width = kernel.page_size, 2 * kernel.head_dim
    _require(cache.dtype == torch.bfloat16, f"kv_cache must be bfloat16, got {cache.dtype}")
    _require(
        cache.dim() == 4 and tuple(cache.shape[2:]) == (page, width) and cache.shape[1] >= 1,
        f"kv_cache must be [pages, H, {page}, {width}], got {list(cache.shape)}",
    )
    _require(
        cache.stride(3) == 1 and cache.stride(2) == width,
        f"kv_cache must have contiguous pages (strides {width}, 1 within one), got strides "
        f"{list(cache.stride())}",
    )
    strides = [cache.stride(dim) if cache.shape[dim] > 1 else 0 for dim in (0, 1)]
    _require(
        all(stride % 8 == 0 for stride in strides),
        f"kv_cache must have page and head strides that are multiples of 8 elements, got strides "
        f"{list(cache.stride())}",
    )
    _check_alignment("kv_cache", cache)
    return cache.shape[1], strides[0], strides[1]


def _check_table(table, kernel, requests, max_seq_len) -> tuple[int, int]:
    """The table's columns, and its request stride in elements."""
    needed = -(-max_seq_len // kernel.page_size)
    _require(
        table.dtype == torch.int32 and table.dim() == 2 and table.shape[0] == requests,
        f"block_table must be int32 [{requests}, >= {needed}], got {_describe(table)}",
    )
    _require(
        table.shape[1] >= needed,
        f"block_table must have >= {needed} columns for max_seq_len={max_seq_len}, got {table.shape[1]}",
    )
    _require(
        table.shape[1] == 1 or table.stride(1) == 1,
        f"block_table must have contiguous rows, got strides {list(table.stride())}",
    )
    return table.shape[1], table.stride(0)


def _check_alignment(name, tensor):
    address = tensor.data_ptr()
    _require(address % 16 == 0, f"{name} must start at a multiple of 16 bytes, got address {address:#x}")
