"""What is known of a subject of `tests.kernels.tiny_subject`: facts that its kernel object tells."""

from __future__ import annotations

from typing import Any

from tests.modules import kernel_named


def kernel_of(subject: Any) -> Any:
    """The kernel object of a subject, which knows its own numbers."""
    return kernel_named(subject.module, subject.name)


def long_length(subject: Any) -> int:
    """A length that takes all that the kernel has: spread over clusters, or with a page for every warp.

    Its last page is partly filled.
    """
    kernel = kernel_of(subject)
    pages = kernel.short_pages if kernel.splits else kernel.cluster * kernel.warps
    return int(pages * kernel.page_size + 13)


def windows(subject: Any) -> tuple[int | None, ...]:
    """No window; and where the variant serves any, one that begins within a page of a long request."""
    return (None, 21) if kernel_of(subject).splits else (None,)
