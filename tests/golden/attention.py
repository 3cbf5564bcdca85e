"""The cluster variant on two batches: unlike requests as a model has them, and what decides at the edges."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from generated import attn2
from tests.golden import inputs
from verification.attention import HEAD_DIM, HEADS_PER_KV, TOKENS
from verification.problems import Content, Problem, padded, place

VARIANT = "cluster"
"""The variant of `attn2` that is recorded, wherever it stands in the spec."""

ROWS = TOKENS * HEADS_PER_KV


@dataclass(frozen=True)
class Batch:
    """One call of `attn2`: lengths of the requests, KV heads, seed of the contents; edges: see `content`."""

    name: str
    lengths: tuple[int, ...]
    kv_heads: int
    seed: int
    edges: bool = False

    @functools.cached_property
    def content(self) -> Content:
        """q, k of deviation 1, some keys drawn towards a query row, so that rows have keys of great weight.

        With edges: gates of +-inf, +-88, +-100 and NaN in the first dims, a NaN in one value and one key of
        the last request, tiny values in the one before it, and equal scores in the one before that.
        """
        requests, heads, keys = len(self.lengths), self.kv_heads, padded(max(self.lengths))
        q = inputs.normal(self.seed, requests, TOKENS, heads * HEADS_PER_KV, HEAD_DIM)
        k = inputs.normal(self.seed + 1, requests, keys, heads, HEAD_DIM)
        v = inputs.normal(self.seed + 2, requests, keys, heads, HEAD_DIM)
        gate = inputs.normal(self.seed + 3, *q.shape) * np.float32(2)
        drawn = inputs.whole(self.seed + 4, 0, 16, requests, keys, heads) == 0
        token = inputs.whole(self.seed + 5, 0, TOKENS, requests, keys, heads)
        head = inputs.whole(self.seed + 6, 0, HEADS_PER_KV, requests, keys, heads)
        request, _, kv_head = np.ogrid[:requests, :keys, :heads]
        towards = q[request, token, HEADS_PER_KV * kv_head + head]
        k = np.where(drawn[..., None], np.float32(0.25) * k + np.float32(0.75) * towards, k)
        if self.edges:
            gate[..., :8] = np.float32([0, 88, -88, 100, -100, np.inf, -np.inf, np.nan])
            q[-3] = 0
            v[-2] *= np.float32(2.0**-80)
            v[-1, 3, 0, 9], k[-1, self.lengths[-1] - 3, 0, 5] = np.nan, np.nan
        return Content(*(torch.from_numpy(x).to(torch.bfloat16) for x in (q, gate, k, v)))

    def problem(self, device: str) -> Problem:
        """The batch laid out on a device. Where pages lie, and what surrounds them, changes no output."""
        content = Content(*(x.to(device) for x in vars(self.content).values()))
        longest = next(v.max_seq_len for v in attn2.VARIANTS if v.name == VARIANT)
        return place(content, self.lengths, max_seq_len=longest)

    def inputs_digest(self) -> str:
        """sha256 of the contents and lengths."""
        digest = hashlib.sha256(repr(self.lengths).encode())
        for tensor in vars(self.content).values():
            bits = tensor.contiguous().view(torch.int16).numpy()
            digest.update(np.where(tensor.isnan().numpy(), np.int16(0x7FFF), bits).tobytes())
        return digest.hexdigest()


BATCHES = (
    Batch("ordinary", (517, 2048, 64, 1290), 2, 100),
    Batch("edges", (0, 3, 8, 9, 1025, 17, 1040, 130), 1, 200, edges=True),
)


def source_digest() -> str:
    """sha256 of the generated module."""
    return hashlib.sha256(Path(attn2.__file__).read_bytes()).hexdigest()


def bits(output: torch.Tensor) -> np.ndarray:
    """[8R, 512H] BF16 bits as uint16."""
    return output.cpu().contiguous().view(torch.int16).numpy().view(np.uint16)


def run_on_gpu(batch: Batch) -> np.ndarray:
    """The module's own call on the current CUDA device: BF16 bits of its output."""
    problem = batch.problem("cuda")
    given = {**problem.arguments(), "variant": VARIANT}
    first, second = (attn2.attn2(**given, out=problem.poisoned_out()) for _ in range(2))
    assert np.array_equal(bits(first), bits(second)), f"{batch.name} differs from run to run"
    return bits(first)
