"""The entry points of a generated module: the call, and what is done before the first one.

Contract
    `attn2` is what an engine calls. Everything that can be checked without a synchronisation is checked
    before anything is launched, and a refusal names the argument, what it got and what it needs. A call
    whose kernel has been prepared neither compiles, nor synchronises, nor allocates anything but the output
    that it was not given.

    The launch shape depends on the number of requests and the deployment alone, so a captured CUDA graph
    serves every step: lengths, block table and cache contents are read by the kernel.
"""

from typing import Any

import torch

from variants.host.checks import as_device, check_kv_heads
from variants.host.deployment import deploy
from variants.host.operator import OPERATOR, dispatched, enqueue
from variants.identity import VARIANTS
from variants.loading.cache import device_arch, loaded_kernel
from variants.loading.compile import compile_form
from variants.refusal import require
from variants.variant import Form


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
    validate: bool = False,
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
    max_seq_len, window: the deployment, not the step, in cache entries: they pick the variant.
    scale: softmax scale. eps: added to the mean square inside the root of the norm; below 2**-126 it is 0.
    num_splits: how many clusters share a long request, one of more pages to attend than the kernel's
        `short_pages`; what `default_splits` says for one request if not given. workspace, counters: where
        they meet, as `allocate_scratch` makes them. Deployments without long requests ignore all three.
    out: where to write, shaped as q may be; allocated like q if not given.
    pdl: launch with programmatic dependent launch: the kernel waits before it reads anything, and lets the
        next one start at once, which must wait before it reads out or overwrites what this one reads.
    variant: a variant's name, instead of the first that serves the deployment.
    validate: for debugging, wait for the device and check what the tensors hold: lengths, live entries of
        the table, counters.

    Runs on the current stream of q's device, whichever device is current. Returns out; there is no gradient.
    Raises TypeError or ValueError for an argument that cannot be served, and RuntimeError for a first call
    inside a graph capture (call `prepare` before) or after the module's file was replaced.
    """
    if out is None and isinstance(q, torch.Tensor):
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    tensors = (q, gate, kv_cache, block_table, seq_lens, out, workspace, counters)
    call = OPERATOR if dispatched(tensors) else enqueue
    call(*tensors, max_seq_len, scale, eps, window, num_splits, pdl, variant, validate)
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
    from_dir: Any = None,
) -> None:
    """Compile and load the kernel that a deployment launches, so that a first call can be captured.

    kv_heads: the rank's KV heads H. max_seq_len, window, num_splits, pdl, variant: as in `attn2`.
    device: a CUDA device; the current one if not given. from_dir: a folder that `export_kernels` wrote:
    the kernel is read from there and nothing is compiled.

    Quick if the kernel is loaded already, which it then stays. May be called from several threads at once,
    and in no graph capture. Raises ValueError for what no call could serve, for a device that cannot hold a
    cluster of the kernel's, and for kernels in from_dir that are missing, damaged or not this module's, this
    device's and this compiler's; RuntimeError in a capture, and where the module's file was replaced after it
    was imported.
    """
    check_kv_heads(kv_heads)
    deployment = deploy(max_seq_len, window, num_splits, variant, pdl)
    require(torch.cuda.is_available(), "prepare needs a CUDA device, and this machine has none")
    place = as_device(device)
    require(place.type == "cuda", f"device must be a CUDA device, got {place}")
    index = torch.cuda.current_device() if place.index is None else place.index
    loaded_kernel(deployment.form, index, from_dir)


def compile_attn2(
    variant: str | None = None,
    *,
    pdl: bool = False,
    windowed: bool = False,
    arch: str | None = None,
    options: str = "",
) -> Any:
    """Compile one variant for an architecture; needs no GPU where `arch` is named.

    variant: a variant's name; the module's first if not given. pdl: the form with programmatic dependent
    launch. windowed: the form for deployments with a window. arch: for example "sm_90a"; the current CUDA
    device's if not given. options: more options for `cute.compile`, such as "--keep-ptx".

    Returns what `cute.compile` returns. Raises ValueError, and RuntimeError where the module's file was
    replaced after it was imported.
    """
    if arch is None:
        require(
            torch.cuda.is_available(),
            'arch must be named on a machine with no CUDA device, for example arch="sm_90a"',
        )
        arch = device_arch(torch.cuda.current_device())
    name = VARIANTS[0].name if variant is None else variant
    return compile_form(Form(name, bool(pdl), bool(windowed)), arch, options)
