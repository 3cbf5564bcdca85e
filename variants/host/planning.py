"""What an engine asks before it serves: which kernel, how many splits, how much scratch memory.

Contract
    Answers are the ones that calls with the same arguments act on. Nothing here needs a GPU; where the device
    decides, the one that is named or else the current one is asked, and where there is none, those that the
    kernels were made for. Everything raises ValueError for a deployment that no kernel here serves.
"""

from typing import Any

import torch

from variants.host.checks import as_device, check_kv_heads, is_whole
from variants.host.deployment import MULTIPROCESSORS, Deployment, check_context, deploy
from variants.identity import VARIANTS
from variants.refusal import require
from variants.variant import most_window_pages


def split_kernel(max_seq_len: int, window: int | None = None) -> bool:
    """Whether a deployment launches a kernel that can spread a request over several clusters.

    max_seq_len, window: as in `attn2`. Raises ValueError.
    """
    return bool(deploy(max_seq_len, window).variant.kernel.splits)


def split_forms(max_seq_len: int, window: int | None = None) -> tuple[str, bool]:
    """How a deployment's kernel merges, and whether it loops over the steps of a short request.

    ("cluster", ...) if no request is ever spread over clusters, else ("workspace", ...). max_seq_len, window:
    as in `attn2`. Raises ValueError.
    """
    deployment = deploy(max_seq_len, window)
    return "workspace" if deployment.splits else "cluster", bool(deployment.variant.kernel.splits)


def window_pages(window: int) -> int:
    """The most pages from row 0's first visible key to a request's last, for a window of this many keys.

    The T tokens of a request see window + T - 1 keys together, which may begin in the last slot of a page.
    window: in cache entries, at least 1. Raises ValueError.
    """
    require(window is not None, "window must be an integer >= 1, got None")
    check_context(1, window)
    kernel = VARIANTS[0].kernel
    return most_window_pages(window, kernel.tokens, kernel.page_size)


def default_splits(
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    variant: str | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    requests: int = 1,
) -> int:
    """How many clusters should share a long request; 1 where no request is ever split.

    kv_heads: the rank's KV heads H. max_seq_len, window, variant: as in `attn2`. multiprocessors: of the
    device or MIG slice. requests: that an engine mostly serves at a time.

    With `requests` 1 it is what a deployment has that does not say, whatever number of requests its calls
    have, so bits do not depend on that. An engine that mostly serves more asks for them, and gives the answer
    as `num_splits` from then on. Chosen by a model of a launch's time. Raises ValueError.
    """
    deployment = deploy(max_seq_len, window, None, variant)
    _check_load(kv_heads, multiprocessors, requests)
    return deployment.default_splits(requests, kv_heads, multiprocessors)


def default_variant(
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    requests: int = 1,
) -> str:
    """Returns the variant that suits an engine which mostly serves so many long requests at a time.

    kv_heads: the rank's KV heads H. max_seq_len, window: as in `attn2`; long is what they allow.
    multiprocessors: of the device or MIG slice. requests: that an engine mostly serves at a time.

    A deployment that names no variant has the first that serves it, whatever this says; an engine that wants
    another gives its name as `variant` from then on, with the `num_splits` that `default_splits` has for it.
    Chosen by a model of a launch's time. Raises ValueError.
    """
    deploy(max_seq_len, window)
    _check_load(kv_heads, multiprocessors, requests)
    serving = [variant.name for variant in VARIANTS if variant.serves(max_seq_len, window)]
    return min(
        serving,
        key=lambda name: deploy(max_seq_len, window, None, name).launch_time(
            requests, kv_heads, multiprocessors
        ),
    )


def workspace_bytes(
    requests: int,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
    device: torch.device | int | str | None = None,
) -> int:
    """Bytes of the workspace for up to `requests` requests on a device; 0 if the deployment needs none.

    A partial record (m, l, o: FP32, padded) for each row of a request and KV head and each of the num_splits
    clusters that work on it. requests: the most that a call has. kv_heads: the rank's KV heads H.
    max_seq_len, window, num_splits, variant: as in `attn2`. device: whose multiprocessors decide where
    num_splits does not say; the current one if not given. Raises ValueError.
    """
    return _scratch_bytes(requests, kv_heads, deploy(max_seq_len, window, num_splits, variant), device)[0]


def counters_bytes(
    requests: int,
    kv_heads: int,
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
    device: torch.device | int | str | None = None,
) -> int:
    """Bytes of the counters for up to `requests` requests: a uint32 a row, padded to 16. 0 if not needed.

    requests, kv_heads, max_seq_len, window, num_splits, variant, device: as in `workspace_bytes`. Raises
    ValueError.
    """
    return _scratch_bytes(requests, kv_heads, deploy(max_seq_len, window, num_splits, variant), device)[1]


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
    """A workspace (uint8) and zeroed counters (int32) for calls of up to `requests` requests on a device.

    requests: the most that a call has. kv_heads: the rank's KV heads H. max_seq_len, window, num_splits,
    variant: as in `attn2`. device: the current CUDA device if not given.

    Calls that may run at the same time need scratch memory of their own; others may share it. Counters have
    to be zero before a call, and a call leaves them so. Raises ValueError.
    """
    require(
        device is not None or torch.cuda.is_available(),
        "device must be given on a machine with no CUDA device, got None",
    )
    place = as_device(device)
    deployment = deploy(max_seq_len, window, num_splits, variant)
    workspace, counters = _scratch_bytes(requests, kv_heads, deployment, place)
    return (
        torch.empty(workspace, dtype=torch.uint8, device=place),
        torch.zeros(counters // 4, dtype=torch.int32, device=place),
    )


def _check_load(kv_heads: Any, multiprocessors: Any, requests: Any) -> None:
    check_kv_heads(kv_heads)
    require(is_whole(requests, 1), f"requests must be an integer >= 1, got {requests!r}")
    require(is_whole(multiprocessors, 1), f"multiprocessors must be an integer >= 1, got {multiprocessors!r}")


def _scratch_bytes(
    requests: Any, kv_heads: Any, deployment: Deployment, device: torch.device | int | str | None
) -> tuple[int, int]:
    require(is_whole(requests, 0), f"requests must be an integer >= 0, got {requests!r}")
    check_kv_heads(kv_heads)
    if device is None and not torch.cuda.is_available():
        device = "cpu"
    return deployment.scratch_bytes(requests, kv_heads, as_device(device))
