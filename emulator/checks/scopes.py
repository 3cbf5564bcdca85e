"""Scopes of the PTX memory model."""

from __future__ import annotations

from emulator.ptx.instruction import Instruction

CTA, CLUSTER, GPU = 1, 2, 3


def scope(instruction: Instruction, default: int) -> int:
    """The scope that an instruction names: CTA, CLUSTER or GPU, which .sys is taken for."""
    if instruction.has("gpu", "sys", "gl"):
        return GPU
    if instruction.has("cluster"):
        return CLUSTER
    return CTA if instruction.has("cta") else default
