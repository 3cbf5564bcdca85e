"""The page-read limit: a Triton kernel that only reads the live pages of a load, through its block table.

It has no arithmetic but a checksum, no masks but at the end of the list, and no order to keep, so its time is
a practical lower bound for a kernel that reads each live page once. Importing this module needs Triton.
"""

import torch
import triton
import triton.language as tl

from benchmarks.loads import HEAD_PAGE_BYTES

#: (pages of a head that a CTA reads at a time, CTAs a multiprocessor at most, warps) that are tried. With 64
#: CTAs most loads have as many as there are steps, and the device deals them out; with fewer a CTA loops.
CONFIGS = (
    (1, 16, 4),
    (1, 8, 8),
    (2, 8, 8),
    (2, 64, 4),
    (4, 4, 8),
    (4, 8, 8),
    (4, 64, 8),
    (8, 4, 8),
    (8, 2, 16),
)

#: 4-byte words of a page of one KV head.
WORDS = HEAD_PAGE_BYTES // 4

#: The most CTAs that any configuration has on a multiprocessor.
MOST_CTAS = max(ctas for _, ctas, _ in CONFIGS)


# Triton compiles the function from its source, and takes annotations for types of its own.
@triton.jit  # type: ignore[untyped-decorator]
def _page_read_kernel(  # type: ignore[no-untyped-def]
    cache_ptr,
    table_ptr,
    out_ptr,
    count,
    HEADS: tl.constexpr,
    WORDS: tl.constexpr,
    UNITS: tl.constexpr,
):
    """Sum the words of `count` units; unit u is head u % HEADS of the page that entry u // HEADS names."""
    step = tl.num_programs(0) * UNITS
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    word = tl.arange(0, WORDS)
    total = tl.zeros((UNITS, WORDS), dtype=tl.int32)
    page = tl.load(table_ptr + unit // HEADS, mask=unit < count, other=0)
    for _ in range(tl.program_id(0) * UNITS, count, step):
        following = unit + step
        # The next entries are on their way while this step's pages are.
        next_page = tl.load(table_ptr + following // HEADS, mask=following < count, other=0)
        start = (page.to(tl.int64) * HEADS + unit % HEADS) * WORDS
        live = (unit < count)[:, None]
        total += tl.load(cache_ptr + start[:, None] + word[None, :], mask=live, other=0)
        unit = following
        page = next_page
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.sum(total, axis=1), axis=0))


def page_read(
    cache: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    multiprocessors: int,
    config: tuple[int, int, int] = CONFIGS[2],
) -> None:
    """Read the pages that `table` names and write a checksum for each CTA to the first elements of `out`.

    cache: [pages, H, 16, 128], BF16, contiguous. table: int32, one entry a page. out: int32, at least
    MOST_CTAS * multiprocessors elements. config: pages of a head at a time, CTAs a multiprocessor, warps.
    """
    if not cache.is_contiguous():
        raise ValueError("the cache must be contiguous")
    units, ctas, warps = config
    heads = cache.shape[1]
    count = table.numel() * heads
    grid = min(-(-count // units), ctas * multiprocessors)
    words = cache.view(torch.int32)
    _page_read_kernel[(grid,)](
        words, table, out, count, HEADS=heads, WORDS=WORDS, UNITS=units, num_warps=warps
    )


def checksum(cache: torch.Tensor, table: torch.Tensor) -> int:
    """Return the sum of all words of the pages that `table` names, modulo 2^32."""
    total = 0
    for start in range(0, table.numel(), 4096):
        pages = cache[table[start : start + 4096].long()]
        total += int(pages.view(torch.int32).sum(dtype=torch.int64))
    return total % (1 << 32)
