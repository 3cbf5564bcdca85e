"""A checked call: from the arguments of an engine to the parameters of a kernel.

Contract
    Everything about the arguments that can be checked without a synchronisation is checked here, on whatever
    device the tensors are. Nothing is launched and nothing is allocated.

    Serving repeats itself: all layers of a step, and most steps, differ in the addresses of their tensors
    alone. So what depends on types, devices, shapes and strides is worked out once for each combination of
    them (`lay_out`), and a call is left with its addresses and numbers. An engine pays for `bind` in every
    call, so it is written for speed: no loop over the tensors, nothing made that is not needed.
"""

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeGuard

import torch

from variants.host.checks import (
    TensorFacts,
    check_address,
    check_cache,
    check_lengths,
    check_rows,
    check_scratch,
    check_table,
    fp32,
)
from variants.host.deployment import Deployment
from variants.kernels.arguments import parameters
from variants.refusal import require

ALIGNMENTS = {
    **{"q": 16, "gate": 16, "kv_cache": 16, "block_table": 4, "seq_lens": 4, "out": 16},
    **{"workspace": 16, "counters": 16},
}
"""Of a call's tensors, by their names as arguments, in the order of the kernel's parameters: bytes."""

OUT = 5
"""The output's place among the tensors."""

SCRATCH = {"workspace": torch.uint8, "counters": torch.int32}
"""Types of the scratch memory."""

MAX_WINDOW = 1 << 30
"""A window that holds every key of a request; differences of key numbers stay within 32 bits."""

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Layout:
    """What calls have in common whose tensors differ in their addresses only.

    requests: R. grid: in CTAs. integers: the kernel's, in its order: strides in bytes, columns of the table,
    window. scratch_bytes: that the call uses of the workspace and of the counters. launch: in words, for
    messages.
    """

    requests: int
    grid: tuple[int, int, int]
    integers: tuple[int, ...]
    scratch_bytes: tuple[int, int]
    launch: str


class Call(NamedTuple):
    """What one launch is given.

    tensors: in the order of the kernel's parameters, workspace and counters only where the kernel has them.
    values: of all parameters, in order (`variants.kernels.arguments`): addresses, integers, scale * log2(e)
    and eps.
    """

    tensors: tuple[torch.Tensor, ...]
    values: tuple[int | float, ...]
    layout: Layout

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """The parameters that are no addresses."""
        return self.values[len(self.tensors) :]


def bind(
    deployment: Deployment,
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
    counters: torch.Tensor | None,
    scale: float,
    eps: float,
) -> Call:
    """Check the arguments of a call, as the entry point documents them.

    Raises TypeError for what is no tensor, and ValueError for what cannot be served.
    """
    try:
        # Flat, for speed: the fields of `TensorFacts` of each.
        # fmt: off
        key = (
            deployment,
            q.dtype, q.device, q.shape, q.stride(),
            gate.dtype, gate.device, gate.shape, gate.stride(),
            kv_cache.dtype, kv_cache.device, kv_cache.shape, kv_cache.stride(),
            block_table.dtype, block_table.device, block_table.shape, block_table.stride(),
            seq_lens.dtype, seq_lens.device, seq_lens.shape, seq_lens.stride(),
            out.dtype, out.device, out.shape, out.stride(),
        )
        # fmt: on
        layout = LAYOUTS.get(key)
    except AttributeError:
        refuse(q, gate, kv_cache, block_table, seq_lens, out)
        raise
    if layout is None:
        layout = remember(key)
    tensors: tuple[torch.Tensor, ...] = (q, gate, kv_cache, block_table, seq_lens, out)
    addresses: tuple[int, ...] = (
        q.data_ptr(),
        gate.data_ptr(),
        kv_cache.data_ptr(),
        block_table.data_ptr(),
        seq_lens.data_ptr(),
        out.data_ptr(),
    )
    if deployment.splits:
        if not (
            is_scratch(workspace, torch.uint8, layout.scratch_bytes[0], q.device)
            and is_scratch(counters, torch.int32, layout.scratch_bytes[1], q.device)
        ):
            refuse_scratch(layout, q.device, workspace=workspace, counters=counters)
        tensors = (*tensors, workspace, counters)
        addresses = (*addresses, workspace.data_ptr(), counters.data_ptr())
    elif deployment.variant.kernel.splits:
        # The scratch memory is not touched: any address will do.
        tensors = (*tensors, out, out)
        addresses = (*addresses, addresses[OUT], addresses[OUT])
    if 0 in addresses:
        refuse_null(tensors, addresses)
    if functools.reduce(operator.or_, addresses) % 16:
        for (name, alignment), address in zip(ALIGNMENTS.items(), addresses, strict=False):
            check_address(name, address, alignment)
    values = (*addresses, *layout.integers, fp32("scale", scale) * LOG2_E, fp32("eps", eps, least=0.0))
    return Call(tensors, values, layout)


def is_scratch(given: Any, dtype: torch.dtype, size: int, device: torch.device) -> TypeGuard[torch.Tensor]:
    """Whether a tensor will do as scratch memory of this many bytes."""
    return (
        isinstance(given, torch.Tensor)
        and given.dtype == dtype
        and given.nbytes >= size
        and given.is_contiguous()
        and given.device == device
    )


def refuse(*tensors: Any) -> None:
    """Say which of the first arguments is no tensor."""
    for name, value in zip(ALIGNMENTS, tensors, strict=False):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def refuse_null(tensors: tuple[torch.Tensor, ...], addresses: tuple[int, ...]) -> None:
    """Refuse elements at address 0: the tensor wraps another one, whose memory is elsewhere.

    A meta tensor has no memory either; `enqueue` refuses it for its device.
    """
    for name, tensor, address in zip(ALIGNMENTS, tensors, addresses, strict=False):
        require(
            address != 0 or tensor.numel() == 0 or tensor.is_meta,
            f"{name} must be a tensor in memory, got {list(tensor.shape)} at address 0 "
            f"({type(tensor).__name__} on {tensor.device})",
        )


def refuse_scratch(layout: Layout, device: torch.device, **given: Any) -> NoReturn:
    """Say what is wrong with scratch memory that will not do."""
    for (name, value), size in zip(given.items(), layout.scratch_bytes, strict=True):
        if value is not None and not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        facts = None if value is None else TensorFacts(value.dtype, value.device, value.shape, value.stride())
        check_scratch(name, facts, SCRATCH[name], size, device, layout.launch)
    raise ValueError(f"{' and '.join(given)} cannot be used as scratch memory ({layout.launch})")


LAYOUTS: dict[tuple[Any, ...], Layout] = {}
"""What calls were laid out before, by the deployment and the facts of their tensors."""

MOST_LAYOUTS = 4096
"""An engine has a few for each number of requests; who never repeats himself must not fill memory."""


def remember(key: tuple[Any, ...]) -> Layout:
    """Lay out a call whose key is new. Raises ValueError, and then nothing is kept."""
    deployment, *facts = key
    layout = lay_out(deployment, *[tuple(facts[first : first + 4]) for first in range(0, len(facts), 4)])
    if len(LAYOUTS) >= MOST_LAYOUTS:
        LAYOUTS.clear()
    LAYOUTS[key] = layout
    return layout


def lay_out(deployment: Deployment, *given: tuple[Any, ...]) -> Layout:
    """Check all that does not depend on addresses or scratch memory, and work out the launch.

    given: the fields of `TensorFacts` of the tensors that every call has, in the order of the parameters.
    """
    known = {name: TensorFacts(*one) for name, one in zip(ALIGNMENTS, given, strict=False)}
    device = known["q"].device
    for name, one in known.items():
        require(one.device == device, f"{name} must be on q's device {device}, got one on {one.device}")
    kernel = deployment.variant.kernel
    kv_heads, page_stride, head_stride = check_cache(known["kv_cache"], kernel)
    requests = check_lengths(known["seq_lens"])
    strides = {
        name: 2 * check_rows(name, known[name], kernel, requests, kv_heads) for name in ("q", "gate", "out")
    }
    columns, table_stride = check_table(known["block_table"], kernel, requests, deployment.max_seq_len)
    width = kv_heads * kernel.heads_per_kv * kernel.head_dim
    require(
        requests == 0 or strides["out"] >= 2 * width,
        f"out must not overlap itself: its token stride must be >= {width}, got {strides['out'] // 2}",
    )
    clusters = deployment.clusters(kv_heads, device)
    sizes = deployment.scratch_bytes(requests, kv_heads, device)
    integers = {
        **{f"{name}_stride": stride for name, stride in strides.items()},
        "page_stride": 2 * page_stride,
        "head_stride": 2 * head_stride,
        "table_stride": 4 * table_stride,
        "columns": columns,
        "num_splits": clusters,
        "window": min(deployment.window or MAX_WINDOW, MAX_WINDOW),
    }
    return Layout(
        requests=requests,
        grid=kernel.grid(requests, kv_heads, clusters),
        integers=tuple(integers[name] for name in parameters(type(kernel)) if name in integers),
        scratch_bytes=sizes,
        launch=f"R={requests}, H={kv_heads}, num_splits={clusters}",
    )
