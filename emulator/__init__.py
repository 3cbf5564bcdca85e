"""Runs a kernel's PTX on the CPU, whole warps, CTAs and clusters at once in NumPy, and checks what it does.

    report = emulator.launch(ptx, grid=(64, 1, 1), cluster=(16, 1, 1), block=(128, 1, 1), arguments=[...])

Only what the kernels of this project need of PTX is covered; the rest is refused by name.
"""

from emulator.interface import EmulatorError, Observer, Report
from emulator.launch import launch
from emulator.regions import sparse

__all__ = ["EmulatorError", "Observer", "Report", "launch", "sparse"]
