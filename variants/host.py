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

from variants.call import MAX_KV_HEADS, bind, require
from variants.variant import Variant

VARIANTS: tuple[Variant, ...] = ()
"""A generated module has its own table here."""

POINTERS = (
    *((cutlass.BFloat16, 16) for _ in ("q", "gate", "kv_cache")),
    *((Int32, 4) for _ in ("block_table", "seq_lens")),
    (cutlass.BFloat16, 16),
)
"""Element type and alignment in bytes of a call's tensors."""

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
    call = bind(
        *(chosen.kernel, q, gate, kv_cache, block_table, seq_lens, out),
        max_seq_len=max_seq_len,
        scale=scale,
        eps=eps,
    )
    require(q.is_cuda, f"q must be a CUDA tensor, got one on {q.device}")
    if call.requests == 0:
        return call.out

    executor = _executor(chosen, pdl, q.device)
    with torch.cuda.device(q.device):
        executor(
            *(
                make_ptr(dtype, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=align)
                for tensor, (dtype, align) in zip(call.tensors, POINTERS, strict=True)
            ),
            *(Int64(stride) for stride in call.strides),
            *(Int32(number) for number in (call.columns, call.requests, call.kv_heads)),
            *(Float32(number) for number in (call.scale_log2, call.eps)),
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
    require(torch.cuda.is_available(), "prepare needs a CUDA device, and this machine has none")
    place = torch.device("cuda" if device is None else device)
    require(place.type == "cuda", f"device must be a CUDA device, got {place}")
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
        require(
            torch.cuda.is_available(),
            'arch must be named on a machine with no CUDA device, for example arch="sm_90a"',
        )
        arch = _device_arch(torch.device("cuda", torch.cuda.current_device()))
    kernel = chosen.kernel
    if pdl:
        kernel = kernel.with_pdl()
    return cute.compile(
        kernel,
        *(make_ptr(dtype, 16, cute.AddressSpace.gmem, assumed_align=align) for dtype, align in POINTERS),
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


def _executor(variant, pdl, device):
    """The loaded kernel for a device, compiled at the first request for it."""
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (variant.name, bool(pdl), index)
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
                _prepared[key] = compile_attn2(variant.name, pdl=pdl, arch=arch).to(index)
            return _prepared[key]
