"""Matrix multiplication by warpgroups: wgmma.mma_async, wgmma.fence, groups and their waits.

Contract
    BF16 products and FP32 sums, m64nNk16, without negation. A warp's rows are computed from its own rows of
    A and all of B, when the warp executes the instruction: what a device may do later is the same unless
    somebody touches the registers or the shared memory meanwhile, and that is for the checks to report
    (`checks.wgmma_registers`, `checks.matrix_reads`). Without checks nothing here waits for anything.

    All four warps of a warpgroup have to exist, and each to be whole.

Source: PTX ISA 8.8, "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.errors import Divergence
from emulator.numerics import warpgroup
from emulator.numerics.summation import Operand
from emulator.operations.matrix_descriptors import CHUNK, chunks, decode
from emulator.ptx.instruction import Immediate, Instruction, Vector
from emulator.ptx.operation import Operation, operation
from emulator.wave.observing import Access
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

_SHAPES = "|".join(f"m64n{columns}k16" for columns in range(8, 257, 8))


def _require_warpgroups(group: Group, instruction: Instruction) -> None:
    """Raise Divergence unless the group's warps are whole and belong to warpgroups of four."""
    group.require_full_warps(instruction)
    per_cta = -(-group.geometry.block_size // 32)
    lonely = group.warp % per_cta // 4 * 4 + 4 > group.geometry.block_size // 32
    if lonely.any():
        raise Divergence(
            "wgmma is for warpgroups of four whole warps, and the CTA's last ones are fewer",
            place=instruction.place,
            thread=group.describe(int(np.flatnonzero(lonely)[0])),
        )


def _flag(operand: Any, instruction: Instruction, allowed: tuple[int, ...]) -> int:
    if not isinstance(operand, Immediate) or operand.bits not in allowed:
        instruction.refuse(f"a modifier other than {' or '.join(map(str, allowed))}")
    return operand.bits


@operation(
    *("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"),
    forms=["wgmma.fence|commit_group|wait_group.sync.aligned"],
)
def order(instruction: Instruction) -> Operation:
    """Told to the observers."""
    if instruction.predicate is not None:
        instruction.refuse("with a predicate")
    waits = instruction.parts[1] == "wait_group"
    if len(instruction.operands) != waits or (waits and not isinstance(instruction.operands[0], Immediate)):
        raise ValueError("a number of groups for wait_group alone")

    def run(machine: Machine, group: Group) -> None:
        _require_warpgroups(group, instruction)
        machine.hooks.warp_sync(group, instruction)

    return Operation(run=run, converged=True)


@operation("wgmma.mma_async", forms=[f"wgmma.mma_async.sync.aligned.{_SHAPES}.f32.bf16.bf16"])
def mma_async(instruction: Instruction) -> Operation:
    """BF16 products, FP32 sums; A in registers or in shared memory."""
    if instruction.predicate is not None:
        instruction.refuse("with a predicate")
    columns = int(instruction.parts[4].removeprefix("m64n").removesuffix("k16"))
    d, a, b, scale_d, *flags = instruction.operands
    if not isinstance(d, Vector):
        raise ValueError("registers in braces expected")
    shared = not isinstance(a, Vector)
    left = a.elements if isinstance(a, Vector) else (a,)
    if len(d.elements) != columns // 2 or len(left) != (1 if shared else 4):
        raise ValueError("a wrong number of registers")
    if len(flags) != (4 if shared else 3):
        raise ValueError("a wrong number of modifiers")
    for flag in flags[:2]:
        _flag(flag, instruction, (1,))
    majors = [bool(_flag(flag, instruction, (0, 1))) for flag in flags[2:]]
    count = len(left)

    def run(machine: Machine, group: Group, *values: Array) -> Any:
        _require_warpgroups(group, instruction)
        machine.hooks.warp_sync(group, instruction)
        descriptor, scale, sums = values[count], values[count + 1], values[count + 2 :]
        if shared:
            first = _read(machine, values[0], 64, majors[0], "A", group, instruction)
        else:
            first = warpgroup.left_registers(values[:count])
        second = _read(machine, descriptor, columns, majors[-1], "B", group, instruction)
        c = warpgroup.load_sums(sums)
        lanes = scale.reshape(-1, 32)
        if (lanes != lanes[:, :1]).any():
            raise Divergence(
                "scale-d is not the same in all lanes",
                place=instruction.place,
                thread=group.describe(int(np.flatnonzero(lanes != lanes[:, :1])[0])),
            )
        c = np.where(lanes[:, 0], c, np.float32(0))
        return warpgroup.store_sums(warpgroup.multiply(first, second, c))

    kind = "b64" if shared else "b32"
    inputs = (
        *((x, kind) for x in left),
        (b, "b64"),
        (scale_d, "pred"),
        *((x, "f32") for x in d.elements),
    )
    outputs = tuple((x, "f32") for x in d.elements)
    return Operation(run=run, inputs=inputs, outputs=outputs, converged=True)


def _read(
    machine: Machine,
    descriptors: Array,
    extent: int,
    mn_major: bool,
    name: str,
    group: Group,
    instruction: Instruction,
) -> Operand:
    """A matrix from shared memory, of each warp; of A only the warp's own 16 rows. Tells the observers."""
    starts, facts = decode(descriptors, name, group, instruction)
    addresses = chunks(starts, facts, extent, mn_major, name, group, instruction)
    if name == "A":
        quarter = group.warp[::32] % (-(-group.geometry.block_size // 32)) % 4
        addresses = _own_rows(addresses, quarter, mn_major)
    flat = addresses.reshape(len(starts), -1)
    # Chunks are dealt to the lanes in turn, so that what each lane knows of their writers is looked at.
    lanes = np.arange(flat.shape[1]) * 32 // flat.shape[1]
    threads = (group.threads[::32, None] + lanes).ravel()
    readers = Group(group.geometry, threads)
    ((region, offsets, _),) = machine.memory.resolve("shared::cta", flat.ravel(), CHUNK, readers, instruction)
    machine.hooks.access(Access("async read", "shared", region, offsets, CHUNK, readers, instruction))
    halves = region.data.view(np.uint16).reshape(-1, 8)[offsets // CHUNK]
    if mn_major:
        return warpgroup.from_columns(halves.reshape(len(starts), 16, -1))
    return warpgroup.from_rows(halves.reshape(len(starts), -1, 16))


def _own_rows(addresses: Array, quarter: Array, mn_major: bool) -> Array:
    """Of A's chunks, those of each warp's rows; quarter: which of the four warps each is."""
    warps = np.arange(len(quarter))[:, None]
    if mn_major:
        return addresses.transpose(0, 2, 1)[warps, 2 * quarter[:, None] + np.arange(2)].transpose(0, 2, 1)
    return addresses[warps, 16 * quarter[:, None] + np.arange(16)]
