"""A deployment: what is known before serving. It picks the kernel, and with R and H its launch.

Contract
    Everything here is decided by a few numbers and the device, once for each combination; a `Deployment` that
    exists is right. Equal arguments give the same object, so it is its own key in the caches of calls.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch

from stages.partial import PartialRecord
from variants.host.checks import is_whole
from variants.host.time_model import MAX_SPLITS, alone_time, cheapest_splits, shared_time
from variants.identity import VARIANTS, variant_named
from variants.refusal import require
from variants.variant import Form, Variant

MULTIPROCESSORS = 132
"""Of an H100 or H200, for plans that are made where there is no such device."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A deployment that a variant of this module serves.

    max_seq_len: longest context in cache entries, verified tokens included. window: keys a row sees, None for
    all. num_splits: clusters that share a long request, None for the default. pdl: with programmatic
    dependent launch.
    """

    max_seq_len: int
    window: int | None
    num_splits: int | None
    pdl: bool
    variant: Variant

    @functools.cached_property
    def form(self) -> Form:
        """The form of the kernel that it launches."""
        return Form(self.variant.name, self.pdl, self.window is not None)

    @functools.cached_property
    def splits(self) -> bool:
        """Whether a request can be spread over several clusters."""
        return not self.variant.never_splits(self.max_seq_len, self.window)

    def clusters(self, kv_heads: int, device: torch.device) -> int:
        """Clusters that share a long request. They do not depend on the requests, so neither do the bits."""
        if self.splits and self.num_splits is not None:
            return self.num_splits
        return self.default_splits(1, kv_heads, multiprocessors(device))

    def default_splits(self, requests: int, kv_heads: int, multiprocessors: int) -> int:
        """What suits launches of so many requests; 1 where none is ever split."""
        if not self.splits:
            return 1
        pages = self.variant.most_pages(self.max_seq_len, self.window)
        return cheapest_splits(self.variant.kernel, requests, kv_heads, pages, multiprocessors)

    def launch_time(self, requests: int, kv_heads: int, multiprocessors: int) -> float:
        """How long launches of so many requests take, in the unit of `variants.host.time_model`."""
        kernel, pages = self.variant.kernel, self.variant.most_pages(self.max_seq_len, self.window)
        if not self.splits:
            return alone_time(kernel, requests, kv_heads, pages, multiprocessors)
        splits = self.default_splits(requests, kv_heads, multiprocessors)
        return shared_time(kernel, requests, kv_heads, splits, pages, multiprocessors)

    def scratch_bytes(self, requests: int, kv_heads: int, device: torch.device) -> tuple[int, int]:
        """Bytes of the workspace and of the counters for up to `requests` requests; 0 where not needed.

        A partial record for each row and cluster, a uint32 for each row; counters are padded to 16 bytes.
        """
        if not self.splits:
            return 0, 0
        kernel = self.variant.kernel
        rows = requests * kv_heads * kernel.rows
        clusters = self.clusters(kv_heads, device)
        return rows * clusters * PartialRecord(kernel.head_dim).bytes, -(-4 * rows // 16) * 16


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device or MIG slice; elsewhere those of the devices this is planned for."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def deploy(
    max_seq_len: int,
    window: int | None = None,
    num_splits: int | None = None,
    variant: str | None = None,
    pdl: bool = False,
) -> Deployment:
    """The deployment, by the named variant or the first that serves it. Raises ValueError if none does."""
    try:
        return _deploy(max_seq_len, window, num_splits, variant, pdl)
    except TypeError:
        # What cannot be a key is no number and no name either; the checks say which argument it is.
        return _deploy.__wrapped__(max_seq_len, window, num_splits, variant, pdl)


@functools.lru_cache(maxsize=1024, typed=True)
def _deploy(max_seq_len: Any, window: Any, num_splits: Any, variant: Any, pdl: Any) -> Deployment:
    """Typed, because 64.0 and True are equal to numbers that are fine and are not fine themselves."""
    check_context(max_seq_len, window)
    require(
        num_splits is None or is_whole(num_splits, 1, MAX_SPLITS),
        f"num_splits must be None or an integer in 1..{MAX_SPLITS}, got {num_splits!r}",
    )
    require(isinstance(pdl, bool), f"pdl must be True or False, got {pdl!r}")
    candidates = VARIANTS if variant is None else (variant_named(variant),)
    for candidate in candidates:
        if candidate.serves(max_seq_len, window):
            return Deployment(max_seq_len, window, num_splits, pdl, candidate)
    served = "; ".join(
        f"{v.name}: max_seq_len <= {v.max_seq_len}, {'any window' if v.windows else 'no window'}"
        for v in candidates
    )
    raise ValueError(f"no kernel here serves max_seq_len={max_seq_len}, window={window} ({served})")


def check_context(max_seq_len: Any, window: Any) -> None:
    """A longest context and a window, whoever serves them."""
    require(is_whole(max_seq_len, 1), f"max_seq_len must be an integer >= 1, got {max_seq_len!r}")
    require(window is None or is_whole(window, 1), f"window must be None or an integer >= 1, got {window!r}")
