"""The operator: one call, from arguments to launch, as PyTorch's dispatcher knows it.

Contract
    `enqueue` checks the arguments, finds the kernel and launches it. OPERATOR is the same as an operator of
    `torch.library` that declares what it writes: out, workspace and counters. torch.compile and other
    tracers record it as one opaque step in its order. It has no derivative.
"""

from typing import Any

import torch

from variants.host.call import bind
from variants.host.contents import check_contents
from variants.host.deployment import Deployment, deploy
from variants.identity import DIGEST, NAME
from variants.loading.cache import loaded_kernel
from variants.refusal import require

PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
"""Types of arguments that no subclass's own dispatch is waiting for."""


def enqueue(
    q: torch.Tensor,
    gate: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
    counters: torch.Tensor | None,
    max_seq_len: int,
    scale: float,
    eps: float,
    window: int | None,
    num_splits: int | None,
    pdl: bool,
    variant: str | None,
    validate: bool,
) -> None:
    """Check a call and launch it on the current stream of q's device; arguments as of the entry point."""
    deployment = deploy(max_seq_len, window, num_splits, variant, pdl)
    tensors = (q, gate, kv_cache, block_table, seq_lens, out, workspace, counters)
    call = bind(deployment, *tensors, scale, eps)
    require(q.is_cuda, f"q must be a CUDA tensor, got one on {q.device}")
    layout = call.layout
    if layout.requests == 0:
        return
    device = q.get_device()
    if validate:
        used = seq_lens[:0]
        if deployment.splits and counters is not None:
            used = counters.flatten()[: layout.scratch_bytes[1] // 4]
        _validate(deployment, device, kv_cache.shape[0], block_table, seq_lens, used)
    kernel = loaded_kernel(deployment.form, device)
    kernel.launch(call.values, layout.grid, torch._C._cuda_getCurrentRawStream(device))


def _validate(
    deployment: Deployment,
    device: int,
    pages: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    counters: torch.Tensor,
) -> None:
    with torch.cuda.device(device):
        require(
            not torch.cuda.is_current_stream_capturing(),
            "validate must be False in a graph capture: it waits for the device",
        )
        kernel = deployment.variant.kernel
        deployed = kernel, deployment.max_seq_len, deployment.window
        check_contents(*deployed, pages, block_table, seq_lens, counters)


def dispatched(tensors: tuple[Any, ...]) -> bool:
    """Whether a call has to be the dispatcher's, because somebody there records or replaces operators.

    That is torch.compile, torch.jit.trace, a transform of torch.func, a dispatch mode such as a tracer's, or
    a tensor with a dispatch of its own. For everyone else the dispatcher would only add its time.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if PLAIN_TYPES.issuperset(map(type, tensors)):
        return bool(torch._C._len_torch_dispatch_stack())
    return all(tensor is None or isinstance(tensor, torch.Tensor) for tensor in tensors)


def register(namespace: str, name: str) -> Any:
    """The operator `namespace::name`, registered unless a module of the same content has done it."""
    found = getattr(getattr(torch.ops, namespace), name, None)
    if found is None:
        written = ("out", "workspace", "counters")
        operator = torch.library.custom_op(f"{namespace}::{name}", enqueue, mutates_args=written)
        # It returns nothing, and what it writes has its shape already.
        operator.register_fake(lambda *arguments, **keywords: None)
        found = getattr(getattr(torch.ops, namespace), name)
    return found.default


OPERATOR = register("stagewright", f"{NAME}_{DIGEST[:16]}")
"""Named by its content: what a compiled graph refers to never becomes another kernel."""
