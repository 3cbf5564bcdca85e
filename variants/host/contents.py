"""Checks of what tensors hold: for debugging, because they wait for the device.

Contract
    `check_contents` looks at what a kernel would read, and at nothing else: entries of the block table that
    are not live may hold anything. It waits until the tensors are written, so it cannot run in a capture.
"""

from typing import Any

import torch

from variants.refusal import require


def check_contents(
    kernel: Any,
    max_seq_len: int,
    window: int | None,
    pages: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    counters: torch.Tensor,
) -> None:
    """Lengths are in 0..max_seq_len, live entries of the table are pages of the cache, counters are zero.

    pages: of the cache. counters: those that the call uses. Raises ValueError with the first that is wrong.
    """
    table = block_table.cpu()
    for request, length in enumerate(seq_lens.tolist()):
        require(
            0 <= length <= max_seq_len,
            f"seq_lens[{request}] must be in 0..{max_seq_len} (max_seq_len), got {length}",
        )
        first_key = 0 if window is None else max(0, length - kernel.tokens - window + 1)
        first, end = first_key // kernel.page_size, -(-length // kernel.page_size)
        live = table[request, first:end]
        wrong = ((live < 0) | (live >= pages)).nonzero()
        if len(wrong):
            column = first + int(wrong[0])
            raise ValueError(
                f"block_table[{request}, {column}] must be a page of kv_cache, in 0..{pages - 1}, got "
                f"{int(table[request, column])}; it is live: seq_lens[{request}] is {length}"
            )
    dirty = counters.nonzero()
    if len(dirty):
        row = int(dirty[0])
        raise ValueError(
            f"counters must be zero before a call, got counters[{row}] = {int(counters[row])}: another call "
            "is using them, or one was aborted"
        )
