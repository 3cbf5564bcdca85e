"""Partitions: which pages one step attends, and which steps share a running maximum.

Contract
    A softmax weight is 2**(logit - m) rounded to BF16, with m the running maximum of the share that the page
    belongs to, as of its step. How a weight rounds therefore depends on how a kernel distributes a request's
    pages, and a reference that rounds the same weights has to know it. `partition_of` gives the partition of
    a kernel of a generated module; `Partition` is that of the cluster skeleton, `SplitPartition` that of the
    split and batch skeletons. Nothing here reads tensors of a problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Partition:
    """Which pages each step of the cluster kernel attends, and which steps share a running maximum.

    Pages are counted from the first that row 0 sees. Warp w of cluster * warps takes pages w, w + cluster *
    warps, ..., pages_per_step of them per step, relative to one maximum, which runs on from step to step.
    """

    cluster: int
    warps: int
    pages_per_step: int

    @property
    def stride(self) -> int:
        """Warps that share a request's pages, and so the distance between the pages of one warp."""
        return self.cluster * self.warps

    def steps(self, count: int, device: torch.device | None = None) -> Tensor:
        """The pages of each step of a request with `count` pages: [shares, steps, pages_per_step].

        A share is a sequence of steps with one running maximum. Shares with fewer steps, and steps with fewer
        pages, are filled up with `count`.
        """
        steps = max(1, math.ceil(count / (self.stride * self.pages_per_step)))
        pages = torch.arange(steps * self.pages_per_step * self.stride, device=device)
        return torch.unflatten(pages.clamp(max=count).view(-1, self.stride).T, 1, (steps, -1))

    def page_by_page(self, count: int) -> bool:
        """Whether the maximum moves on page by page where a row group does not see all keys of a step."""
        return False


@dataclass(frozen=True)
class SplitPartition(Partition):
    """Which pages each step of the split and batch kernels attends, and which share a running maximum.

    A request that needs at most short_rounds pages a warp of one cluster is attended as the cluster kernel
    does it. The pages of a longer one make n steps of ring_pages_per_step, dealt out in order to
    s = cluster * num_splits shares: n // s to each, and one more to each of the first n % s. A step of which
    a row group does not see every key goes page by page.
    """

    short_rounds: int
    ring_pages_per_step: int
    num_splits: int

    @property
    def short_pages(self) -> int:
        """The most pages that a short request needs."""
        return self.short_rounds * self.stride

    @property
    def shares(self) -> int:
        """Shares of a long request, one for each CTA."""
        return self.cluster * self.num_splits

    def steps(self, count: int, device: torch.device | None = None) -> Tensor:
        """See `Partition.steps`."""
        if count <= self.short_pages:
            return super().steps(count, device)
        a_step = self.ring_pages_per_step
        total = math.ceil(count / a_step)
        each, rest = divmod(total, self.shares)
        shares = torch.arange(self.shares + 1, device=device)
        bounds = a_step * (each * shares + shares.clamp(max=rest))
        steps = math.ceil(total / self.shares)
        pages = bounds[:-1, None] + torch.arange(steps * a_step, device=device)
        pages = torch.where(pages < bounds[1:, None], pages, count).clamp(max=count)
        return torch.unflatten(pages, 1, (steps, a_step))

    def page_by_page(self, count: int) -> bool:
        """See `Partition.page_by_page`."""
        return count > self.short_pages


def partition_of(kernel: Any, num_splits: int = 1) -> Partition:
    """The partition of a kernel (`variants`), with this many clusters for a long request."""
    cluster, warps = kernel.cluster, kernel.warps
    if not kernel.splits:
        return Partition(cluster, warps, kernel.pages_per_step)
    # A kernel without short requests has no steps of its own for them.
    pages_per_step = kernel.pages_per_step if kernel.short_pages else 1
    short_rounds = kernel.short_pages // (cluster * warps)
    return SplitPartition(
        cluster, warps, pages_per_step, short_rounds, kernel.ring_pages_per_step, num_splits
    )
