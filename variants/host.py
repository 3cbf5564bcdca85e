"""The host side of a generated module: pick a variant, check the arguments, compile once, launch.

Contract
    `attn2` is what an engine calls. Everything that can be checked without a synchronisation is checked
    before anything is launched, and a refusal names the argument, what it got and what it needs. A call
    whose kernel has been prepared neither compiles, nor synchronises, nor allocates anything but the output
    that it was not given.

    The launch shape depends on the number of requests and the deployment alone, so a captured CUDA graph
    serves every step: lengths, block table and cache contents are read by the kernel.
"""

import threading
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_stream, make_ptr

from variants.call import MAX_KV_HEADS, bind, require, scratch_bytes
from variants.variant import Variant, most_window_pages

VARIANTS: tuple[Variant, ...] = ()
"""A generated module has its own table here."""

POINTERS = (
    *((cutlass.BFloat16, 16) for _ in ("q", "gate", "kv_cache")),
    *((Int32, 4) for _ in ("block_table", "seq_lens")),
    (cutlass.BFloat16, 16),
    *((cutlass.Uint8, 16), (Int32, 4)),
)
"""Element type and alignment in bytes of a call's tensors: out is the sixth, scratch memory follows."""

MAX_SPLITS = 128
"""z slices of a launch that the kernels were shown to work with."""

_prepared: dict[tuple[str, bool, bool, int], Any] = {}
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
    of a KV head, D the head dim (the module's docstring has the numbers). Token t of a request of length L
    sees keys [0, L - T + t]; L = 0 (padding) gives rows of zeros.

    q, gate: [T R, G H D] or [T R, G H, D], BF16, heads packed, any token stride that is a multiple of 8
        elements: slices of one fused row are fine.
    kv_cache: [pages, H, page_size, 2 D], BF16, K in columns 0:D and V in D:2D; page and head strides are
        honoured, a page of one head is contiguous.
    block_table: [R, at least ceil(max_seq_len / page_size)], int32. Entries past a request's live pages
        may hold anything.
    seq_lens: [R], int32, verified tokens included. Of a length above max_seq_len not all keys are attended.
    max_seq_len, window: the deployment, not the step: they pick the variant.
    scale: softmax scale. eps: added to the mean square inside the root of the norm; below 2**-126 it is 0.
    num_splits, workspace, counters: for variants that split a request over several clusters; others
        ignore them.
    out: where to write, shaped as q may be; allocated like q if not given.
    pdl: launch with programmatic dependent launch: the kernel waits before it reads anything, and lets the
        next one start at once, which must wait before it reads out or overwrites what this one reads.
    variant: a variant's name, instead of the first that serves the deployment.

    Returns out. Raises TypeError or ValueError for an argument that cannot be served, and RuntimeError for
    a first call inside a graph capture (call `prepare` before).
    """
    chosen = _choose(max_seq_len, window, variant)
    never_splits = chosen.never_splits(max_seq_len, window)
    call = bind(
        *(chosen.kernel, q, gate, kv_cache, block_table, seq_lens, out),
        max_seq_len=max_seq_len,
        scale=scale,
        eps=eps,
        window=window,
        splits=None if never_splits else lambda heads: _splits(num_splits, chosen, heads, q.device),
        scratch=(workspace, counters),
    )
    require(q.is_cuda, f"q must be a CUDA tensor, got one on {q.device}")
    if call.requests == 0:
        return call.out

    executor = _executor(chosen, pdl, window is not None, q.device)
    with torch.cuda.device(q.device):
        executor(
            *_pointers([tensor.data_ptr() for tensor in call.tensors]),
            *(Int64(stride) for stride in call.strides),
            *(Int32(number) for number in call.integers),
            *(Float32(number) for number in call.numbers),
            *(Int32(size) for size in call.extent),
            cuda.CUstream(torch.cuda.current_stream().cuda_stream),
        )
    return call.out


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
    require(
        isinstance(kv_heads, int) and not isinstance(kv_heads, bool) and 1 <= kv_heads <= MAX_KV_HEADS,
        f"kv_heads must be an integer in 1..{MAX_KV_HEADS}, got {kv_heads!r}",
    )
    chosen = _choose(max_seq_len, window, variant)
    _check_splits(num_splits)
    require(torch.cuda.is_available(), "prepare needs a CUDA device, and this machine has none")
    place = torch.device("cuda" if device is None else device)
    require(place.type == "cuda", f"device must be a CUDA device, got {place}")
    _executor(chosen, pdl, window is not None, place)


def compile_attn2(
    variant: str | None = None,
    *,
    pdl: bool = False,
    windowed: bool = False,
    arch: str | None = None,
    options: str = "",
) -> Any:
    """Compile one variant for an architecture; needs no GPU where `arch` is named.

    variant: a variant's name; the module's first if not given. windowed: the form for deployments with a
    window. arch: for example "sm_90a"; the current
    CUDA device's if not given. options: more options for `cute.compile`, such as "--keep-ptx".
    Returns what `cute.compile` returns.
    """
    chosen = _named(variant) if variant is not None else VARIANTS[0]
    if arch is None:
        require(
            torch.cuda.is_available(),
            'arch must be named on a machine with no CUDA device, for example arch="sm_90a"',
        )
        arch = _device_arch(torch.device("cuda", torch.cuda.current_device()))
    require(chosen.windows or not windowed, f"variant {chosen.name!r} serves no window")
    kernel = chosen.kernel.form(pdl=pdl, windowed=windowed)
    integers, sizes, pointers = (2, 3, 8) if kernel.splits else (1, 2, 6)
    return cute.compile(
        kernel,
        *_pointers([16] * pointers),
        *(Int64(16) for _ in range(6)),
        *(Int32(1) for _ in range(integers)),
        *(Float32(1.0) for _ in range(2)),
        *(Int32(1) for _ in range(sizes)),
        make_fake_stream(),
        options=f"--gpu-arch {arch} {options}".strip(),
    )


def split_kernel(max_seq_len: int, window: int | None = None) -> bool:
    """Whether a deployment launches a kernel that can spread a request over several clusters."""
    return bool(_choose(max_seq_len, window, None).kernel.splits)


def split_forms(max_seq_len: int, window: int | None = None) -> tuple[str, bool]:
    """How a deployment's kernel merges, and whether it loops over the steps of a short request.

    ("cluster", ...) if no request is ever spread over clusters, else ("workspace", ...).
    """
    chosen = _choose(max_seq_len, window, None)
    merges = "cluster" if chosen.never_splits(max_seq_len, window) else "workspace"
    return merges, bool(chosen.kernel.splits)


def window_pages(window: int) -> int:
    """The most pages from row 0's first visible key to a request's last, for a window of this many keys."""
    _check_deployment(1, window)
    kernel = VARIANTS[0].kernel
    return most_window_pages(window, kernel.tokens, kernel.page_size)


def default_splits(
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    variant: str | None = None,
    multiprocessors: int = 132,
) -> int:
    """z slices of a deployment's launch where it does not say.

    Enough for one request to put two CTAs on each multiprocessor; one where no request is ever split. It does
    not depend on the number of requests, so neither do the bits.
    """
    chosen = _choose(max_seq_len, window, variant)
    if chosen.never_splits(max_seq_len, window):
        return 1
    return _enough_splits(chosen.kernel, kv_heads, multiprocessors)


def workspace_bytes(
    requests: int,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
) -> int:
    """Bytes of the workspace for up to `requests` requests: a record a row and cluster. 0 if not needed."""
    return _scratch_bytes(requests, kv_heads, max_seq_len, window, num_splits, variant)[0]


def counters_bytes(
    requests: int,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
) -> int:
    """Bytes of the counters for up to `requests` requests: a uint32 a row, padded to 16. 0 if not needed."""
    return _scratch_bytes(requests, kv_heads, max_seq_len, window, num_splits, variant)[1]


def allocate_scratch(
    requests: int,
    *,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    device: torch.device | int | str | None = None,
    variant: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A workspace (uint8) and zeroed counters (int32) for calls of up to `requests` requests.

    Calls that may run at the same time need scratch memory of their own; others may share it. Counters have
    to be zero before a call, and a call leaves them so.
    """
    sizes = _scratch_bytes(requests, kv_heads, max_seq_len, window, num_splits, variant)
    place = torch.device("cuda" if device is None else device)
    workspace = torch.empty(sizes[0], dtype=torch.uint8, device=place)
    return workspace, torch.zeros(sizes[1] // 4, dtype=torch.int32, device=place)


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
    raise ValueError(f"no kernel here serves max_seq_len={max_seq_len}, window={window} ({served})")


def _check_deployment(max_seq_len, window):
    require(
        isinstance(max_seq_len, int) and not isinstance(max_seq_len, bool) and max_seq_len >= 1,
        f"max_seq_len must be an integer >= 1, got {max_seq_len!r}",
    )
    require(
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
    require(
        (major, minor) >= (9, 0),
        f"the device must have compute capability 9.0 or later, {device} has {major}.{minor}",
    )
    return f"sm_{major}{minor}a"


def _check_splits(num_splits):
    whole = isinstance(num_splits, int) and not isinstance(num_splits, bool) and 1 <= num_splits <= MAX_SPLITS
    require(
        num_splits is None or whole,
        f"num_splits must be None or an integer in 1..{MAX_SPLITS}, got {num_splits!r}",
    )


def _enough_splits(kernel, kv_heads, multiprocessors) -> int:
    return max(1, 2 * multiprocessors // (kernel.cluster * kernel.row_groups * kv_heads))


def _splits(num_splits, variant, kv_heads, device) -> int:
    """z slices of a launch on a device whose requests may be split."""
    _check_splits(num_splits)
    if num_splits is not None:
        return num_splits
    multiprocessors = 132
    if device is not None and device.type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return _enough_splits(variant.kernel, kv_heads, multiprocessors)


def _scratch_bytes(requests, kv_heads, max_seq_len, window, num_splits, variant) -> tuple[int, int]:
    chosen = _choose(max_seq_len, window, variant)
    if chosen.never_splits(max_seq_len, window):
        return 0, 0
    device = torch.device("cuda") if torch.cuda.is_available() else None
    splits = _splits(num_splits, chosen, kv_heads, device)
    return scratch_bytes(chosen.kernel, requests, kv_heads, splits)


def _pointers(addresses):
    """A kernel's pointer arguments."""
    return [
        make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)
        for address, (dtype, align) in zip(addresses, POINTERS, strict=False)
    ]


def _executor(variant, pdl, windowed, device):
    """The loaded kernel for a device, compiled at the first request for it."""
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (variant.name, bool(pdl), windowed, index)
    executor = _prepared.get(key)
    if executor is not None:
        return executor
    with torch.cuda.device(index):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the kernel {variant.name!r} (pdl={bool(pdl)}) is not compiled for cuda:{index}, and a "
                "graph capture is no time to do it: call prepare() first, before the capture begins"
            )
        with _prepare_lock:
            if key not in _prepared:
                arch = _device_arch(torch.device("cuda", index))
                compiled = compile_attn2(variant.name, pdl=pdl, windowed=windowed, arch=arch)
                _prepared[key] = compiled.to(index)
            return _prepared[key]
