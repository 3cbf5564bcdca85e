"""A checked call: from the arguments of an engine to the parameters of a kernel.

Contract
    Everything about the arguments that can be checked without a synchronisation is checked here, on whatever
    device the tensors are. Nothing is launched and nothing is allocated.

    Serving repeats itself: all layers of a step, and most steps, differ in the addresses of their tensors
    alone. So what depends on types, devices, shapes and strides is worked out once for each combination of
    them (`lay_out`), and a call is left with its addresses and numbers.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from variants.checks import (
    TensorFacts,
    check_address,
    check_cache,
    check_lengths,
    check_rows,
    check_scratch,
    check_table,
    fp32,
    require,
)
from variants.deployment import Deployment
from variants.parameters import parameters

ALIGNMENTS = {
    **{"q": 16, "gate": 16, "kv_cache": 16, "block_table": 4, "seq_lens": 4, "out": 16},
    **{"workspace": 16, "counters": 16},
}
"""Of a call's tensors, by their names as arguments, in the order of the kernel's parameters: bytes."""

SCRATCH = {"workspace": torch.uint8, "counters": torch.int32}
"""Types of the scratch memory."""

MAX_WINDOW = 1 << 30
"""A window that holds every key of a request; differences of key numbers stay within 32 bits."""

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Layout:
    """What calls have in common whose tensors differ in their addresses only.

    requests: R. grid: in CTAs. integers: the kernel's, in its order: strides in bytes, columns of the table,
    window. scratch_bytes: that the call uses of the workspace and of the counters.
    """

    requests: int
    grid: tuple[int, int, int]
    integers: tuple[int, ...]
    scratch_bytes: tuple[int, int]


class Call(NamedTuple):
    """What one launch is given.

    tensors: in the order of the kernel's parameters, workspace and counters only where the kernel has them.
    values: of all parameters, in order (`variants.parameters`): addresses, integers, scale * log2(e) and eps.
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
    tensors = (q, gate, kv_cache, block_table, seq_lens, out)
    if deployment.splits:
        tensors = (*tensors, workspace, counters)
    try:
        layout = lay_out(deployment, *[(t.dtype, t.device, t.shape, t.stride()) for t in tensors])
    except AttributeError:
        refuse(deployment, tensors)
        raise
    if deployment.variant.kernel.splits and not deployment.splits:
        # The scratch memory is not touched: any address will do.
        tensors = (*tensors, out, out)
    addresses = [tensor.data_ptr() for tensor in tensors]
    bits = 0
    for address in addresses:
        bits |= address
    if bits % 16:
        for (name, alignment), address in zip(ALIGNMENTS.items(), addresses, strict=False):
            check_address(name, address, alignment)
    values = (*addresses, *layout.integers, fp32("scale", scale) * LOG2_E, fp32("eps", eps, least=0.0))
    return Call(tensors, values, layout)


def refuse(deployment: Deployment, tensors: tuple[Any, ...]) -> None:
    """Say which argument is no tensor, or which scratch memory is needed."""
    for name, value in zip(ALIGNMENTS, tensors, strict=False):
        if not isinstance(value, torch.Tensor) and not (value is None and name in SCRATCH):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    lay_out(deployment, *[None if t is None else (t.dtype, t.device, t.shape, t.stride()) for t in tensors])


@functools.lru_cache(maxsize=4096)
def lay_out(deployment: Deployment, *given: tuple[Any, ...] | None) -> Layout:
    """Check all that does not depend on addresses, and work out the launch.

    given: the fields of `TensorFacts` of the tensors that every call has, and where requests are split of the
    scratch memory.
    """
    known = {
        name: None if one is None else TensorFacts(*one) for name, one in zip(ALIGNMENTS, given, strict=False)
    }
    device = known["q"].device
    for name, one in known.items():
        require(
            one is None or one.device == device,
            f"{name} must be on q's device {device}, got one on {one and one.device}",
        )
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
    if deployment.splits:
        launch = f"R={requests}, H={kv_heads}, num_splits={clusters}"
        for (name, dtype), size in zip(SCRATCH.items(), sizes, strict=True):
            check_scratch(name, known[name], dtype, size, launch)
    integers = {
        **{f"{name}_stride": stride for name, stride in strides.items()},
        "page_stride": 2 * page_stride,
        "head_stride": 2 * head_stride,
        "table_stride": 4 * table_stride,
        "columns": columns,
        "num_splits": clusters,
        "window": min(deployment.window or MAX_WINDOW, MAX_WINDOW),
    }
    extent = (requests, kv_heads, clusters) if kernel.splits else (requests, kv_heads)
    return Layout(
        requests=requests,
        grid=tuple(kernel.grid(*extent)),
        integers=tuple(integers[name] for name in parameters(type(kernel)) if name in integers),
        scratch_bytes=sizes,
    )
