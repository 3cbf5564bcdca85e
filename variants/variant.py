"""A variant: one kernel of a module, and the deployments that it serves.

Contract
    Plain data for the host. A module lists its variants in the order of the spec, and a deployment launches
    the first that serves it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One kernel of this module and the deployments that it serves.

    kernel: the kernel object that `cute.compile` takes. max_seq_len: the longest context, in cache entries,
    verified tokens included. windows: whether it serves a sliding window.
    """

    name: str
    kernel: Any
    max_seq_len: int
    windows: bool

    def serves(self, max_seq_len: int, window: int | None) -> bool:
        """Whether a deployment may use this variant."""
        return max_seq_len <= self.max_seq_len and (window is None or self.windows)
