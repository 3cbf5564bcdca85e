"""Small problems on the CPU, and attention over a paged cache that a stand-in for a library runs."""

import torch

from benchmarks.loads import Load
from benchmarks.problem import SCALE, Problem

CPU = torch.device("cpu")


def problem_of(text: str) -> Problem:
    """Return a small problem on the CPU, deployed for longer contexts than its own."""
    load = Load.parse(text)
    return Problem(load, calls=3, copies=3, max_seq_len=load.longest + 40, device=CPU)


def attend(q, k, v, out, table, lengths):
    """Compute attention over a paged cache, in float64, K and V apart as FlashAttention takes them."""
    heads = k.shape[2]
    for request, length in enumerate(lengths.tolist()):
        pages = table[request, : -(-length // 16)].long()
        keys, values = (x[pages].flatten(0, 1)[:length].double() for x in (k, v))
        for token in range(8):
            row = request * 8 + token
            seen = length - 8 + token + 1
            for head in range(q.shape[1]):
                kv_head = head // (q.shape[1] // heads)
                weights = torch.softmax(keys[:seen, kv_head] @ q[row, head].double() * SCALE, dim=0)
                out[row, head] = weights @ values[:seen, kv_head]
