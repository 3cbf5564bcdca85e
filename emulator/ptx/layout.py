"""Where a kernel's variables lie: addresses of shared and local memory that are known before a launch."""

from __future__ import annotations

from dataclasses import dataclass, field

from emulator.errors import PtxError
from emulator.ptx.instruction import Instruction
from emulator.ptx.kernel import Kernel, Module, Parameter

SHARED_START = 1024
"""First shared-memory address that a kernel may use: the hardware keeps the first KiB."""

SHARED_LIMIT = 227 * 1024
"""Shared memory that one CTA can have, in bytes, on the architectures that are covered."""

RANK_SHIFT = 24
"""A shared::cluster address is (rank + 1) << 24 plus the address in that CTA, so that a CTA's own
(shared::cta) addresses are shared::cluster addresses of itself."""

SHARED_WINDOW = 0x7F << 40
"""Generic address of shared address 0."""

LOCAL_WINDOW = 0x7E << 40
"""Generic address of local address 0."""


@dataclass
class Layout:
    """Addresses of variables.

    dynamic: offset behind SHARED_START of the dynamic shared memory. local_bytes: a thread's.
    """

    addresses: dict[str, int] = field(default_factory=dict)
    spaces: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, tuple[int, Parameter]] = field(default_factory=dict)
    dynamic: int = 0
    local_bytes: int = 0

    @classmethod
    def of(cls, kernel: Kernel, module: Module) -> Layout:
        """Place the variables that a kernel sees."""
        layout = cls()
        shared = local = 0
        dynamic = []
        for variable in [*module.variables, *kernel.variables]:
            layout.spaces[variable.name] = variable.space
            if variable.space == "shared" and variable.bytes == 0:
                dynamic.append(variable)
            elif variable.space == "shared":
                shared = -(-shared // variable.align) * variable.align
                layout.addresses[variable.name] = SHARED_START + shared
                shared += variable.bytes
            elif variable.space == "local":
                local = -(-local // variable.align) * variable.align
                layout.addresses[variable.name] = local
                local += variable.bytes
        align = max([16, *(variable.align for variable in dynamic)])
        layout.dynamic = -(-(SHARED_START + shared) // align) * align - SHARED_START
        for variable in dynamic:
            layout.addresses[variable.name] = SHARED_START + layout.dynamic
        layout.local_bytes = -(-local // 16) * 16
        for number, parameter in enumerate(kernel.parameters):
            layout.parameters[parameter.name] = (number, parameter)
        return layout

    def address(self, name: str, instruction: Instruction) -> int:
        """The address of a variable in its own space. Raises PtxError for a name that is none."""
        found = self.addresses.get(name)
        if found is None:
            raise PtxError(f"there is no shared or local variable {name}", place=instruction.place)
        return found
