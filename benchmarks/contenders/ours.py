"""The generated module's kernels: by an unnamed call, as the module recommends, or by variant."""

from typing import Any

import torch

from benchmarks.contenders.base import YES, Availability, Contender, first_line, import_first, no
from benchmarks.problem import EPS, SCALE, Problem

#: Where the generated module is: in a checkout, or installed.
OUR_MODULES = ("generated.attn2", "stagewright.attn2")


class Ours(Contender):
    """A call that names no variant and no number of splits."""

    key, name = "ours", "ours"

    def __init__(self, pdl: bool = False):
        self.pdl = pdl
        self.module, self.reason = import_first(OUR_MODULES)

    def available(self) -> Availability:
        """Whether the module could be imported."""
        return Availability(self.module is not None, self.reason)

    def names(self, problem: Problem) -> dict[str, Any]:
        """Return what the calls name beside the deployment: variant and num_splits."""
        return {}

    def serves(self, problem: Problem) -> Availability:
        """Whether a variant serves the deployment."""
        try:
            self.names(problem)
        except ValueError as error:
            return no(first_line(error))
        return YES

    def prepare(self, problem: Problem) -> None:
        """Compile and load the kernel, allocate its scratch memory."""
        self.start(problem)
        load = problem.load
        deployment = {"max_seq_len": problem.max_seq_len, "window": load.window} | self.names(problem)
        self.module.prepare(kv_heads=load.kv_heads, pdl=self.pdl, device=problem.device, **deployment)
        workspace, counters = self.module.allocate_scratch(
            load.requests, kv_heads=load.kv_heads, device=problem.device, **deployment
        )
        scratch = {"workspace": workspace, "counters": counters} if workspace.numel() else {}
        self.launch = deployment | scratch | {"pdl": self.pdl}
        self.details = {"module": self.module.__name__, "pdl": self.pdl} | self._resolved(deployment)

    def _resolved(self, deployment: dict[str, Any]) -> dict[str, Any]:
        """Return the variant that a call gets, and the clusters that share a long request."""
        resolved = self.module.deploy(**deployment, pdl=self.pdl)
        load = self.problem.load
        return {
            "variant": resolved.variant.name,
            "num_splits": resolved.clusters(load.kv_heads, self.problem.device) if resolved.splits else 1,
        }

    def call(self, index: int) -> None:
        """Launch it."""
        problem = self.problem
        self.module.attn2(
            problem.q,
            problem.gate,
            problem.cache(index),
            problem.block_table,
            problem.seq_lens,
            scale=SCALE,
            eps=EPS,
            out=self.outputs[index],
            **self.launch,
        )


class OursNamed(Ours):
    """As the module recommends to an engine that mostly serves this many requests."""

    key, name = "ours-named", "ours, named"

    def names(self, problem: Problem) -> dict[str, Any]:
        """Return the module's defaults for the number of requests."""
        variant = self.module.default_variant(**_deployment(problem))
        splits = self.module.default_splits(**_deployment(problem), variant=variant)
        return {"variant": variant, "num_splits": splits}


class OursVariant(Ours):
    """One variant of the module."""

    def __init__(self, variant: str, pdl: bool = False, num_splits: int | None = None):
        super().__init__(pdl)
        self.variant, self.num_splits = variant, num_splits
        self.key, self.name = f"ours:{variant}", f"ours, {variant}"

    def names(self, problem: Problem) -> dict[str, Any]:
        """Return the variant with the splits that were asked for, else its defaults for the load."""
        default = self.module.default_splits(**_deployment(problem), variant=self.variant)
        return {"variant": self.variant, "num_splits": self.num_splits or default}


def _deployment(problem: Problem) -> dict[str, Any]:
    """Return what the module's defaults depend on."""
    return {
        "kv_heads": problem.load.kv_heads,
        "max_seq_len": problem.max_seq_len,
        "window": problem.load.window,
        "requests": problem.load.requests,
        "multiprocessors": torch.cuda.get_device_properties(problem.device).multi_processor_count,
    }


def variant_names() -> list[str]:
    """Return the module's variants, none where it cannot be imported."""
    module, _ = import_first(OUR_MODULES)
    return [variant.name for variant in module.VARIANTS] if module else []
