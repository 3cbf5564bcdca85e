"""Arithmetic on floats and conversions that touch a float: by `numerics.opcodes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.numerics.opcodes import UnknownOpcode, find
from emulator.ptx.instruction import Instruction
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group


@operation(
    "add",
    "sub",
    "mul",
    "fma",
    "max",
    "min",
    "neg",
    "abs",
    "ex2",
    "rcp",
    "rsqrt",
    "sqrt",
    "lg2",
    "sin",
    "cos",
    "tanh",
    "div",
    any_order=True,
    forms=[
        "add|sub|mul|fma.rn|rz|rm|rp{.ftz}{.sat}.f32",
        "max|min{.ftz}{.NaN}.f32",
        "neg|abs{.ftz}.f32",
        "ex2|rcp|rsqrt|sqrt|lg2|sin|cos.approx{.ftz}.f32",
        "rcp|sqrt.rn{.ftz}.f32",
        "tanh.approx.f32|bf16x2",
        "div.approx|full|rn{.ftz}.f32",
        "add|sub|mul{.rn}.bf16x2",
        "fma.rn{.relu}.bf16x2",
        "max|min{.NaN}.bf16x2",
        "neg|abs.bf16x2",
        "ex2.approx.ftz.bf16x2",
    ],
)
def arithmetic(instruction: Instruction) -> Operation:
    """An element-by-element function that `numerics` has; others are refused."""
    try:
        found = find(instruction.opcode)
    except UnknownOpcode as error:
        instruction.refuse(str(error).partition(": ")[2])
    target, *sources = instruction.operands
    function = found.run

    def run(machine: Machine, group: Group, *inputs: Array) -> Any:
        return function(*inputs)

    def run_copied(machine: Machine, group: Group, *inputs: Array) -> Any:
        # A conversion that changes nothing may give its input back, which the register file must not share.
        result = function(*inputs)
        return result.copy() if np.may_share_memory(result, inputs[0]) else result

    inputs = tuple(zip(sources, found.inputs, strict=True))
    run = run_copied if instruction.parts[0] == "cvt" else run
    return Operation(run=run, inputs=inputs, outputs=((target, found.output),))
