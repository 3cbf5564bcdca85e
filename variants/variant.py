"""A variant: one kernel of a module, and the deployments that it serves.

Contract
    Plain data for the host. A module lists its variants in the order of the spec, and a deployment launches
    the first that serves it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple


class Form(NamedTuple):
    """One compiled form of a variant's kernel: all of a deployment that its code depends on.

    variant: a name. pdl: launched with programmatic dependent launch. windowed: with a sliding window.
    """

    variant: str
    pdl: bool
    windowed: bool

    def __str__(self) -> str:
        """The form as a part of a file's name: `split-pdl-windowed`."""
        return self.variant + "-pdl" * self.pdl + "-windowed" * self.windowed


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

    @property
    def forms(self) -> tuple[Form, ...]:
        """Every form that some deployment launches."""
        windowed = (False, True) if self.windows else (False,)
        return tuple(Form(self.name, pdl, window) for pdl in (False, True) for window in windowed)

    def never_splits(self, max_seq_len: int, window: int | None) -> bool:
        """Whether no request of a deployment is ever spread over several clusters."""
        return not self.kernel.splits or bool(self.most_pages(max_seq_len, window) <= self.kernel.short_pages)

    def most_pages(self, max_seq_len: int, window: int | None) -> int:
        """The most pages, from the first that row 0 sees, of a deployment's requests."""
        pages: int = -(-max_seq_len // self.kernel.page_size)
        if window is None:
            return pages
        return min(pages, most_window_pages(window, self.kernel.tokens, self.kernel.page_size))

    def serves(self, max_seq_len: int, window: int | None) -> bool:
        """Whether a deployment may use this variant."""
        return max_seq_len <= self.max_seq_len and (window is None or self.windows)


def most_window_pages(window: int, tokens: int, page_size: int) -> int:
    """The most pages from row 0's first visible key to a request's last.

    The rows of a request see window + tokens - 1 keys together, and those may begin in the last slot of a
    page.
    """
    keys = window + tokens - 1
    return (keys - 2) // page_size + 2 if keys > 1 else 1
