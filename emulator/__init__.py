"""Runs a kernel's PTX on the CPU, whole warps, CTAs and clusters at once in NumPy, and checks what it does.

    report = emulator.launch(ptx, grid=(64, 1, 1), cluster=(16, 1, 1), block=(128, 1, 1), arguments=[...])

Only what the kernels of this project need of PTX is covered; the rest is refused by name.

Packages, and which may import which (`lint-imports` checks it, imports under TYPE_CHECKING included):

    launch                                  runs a kernel: puts the parts below together
      |
    arguments, instruction_set, counts      a launch's arguments; all operations; an observer that counts
      |   checks                            the checker: races, unwritten memory, unfinished copies
      |     |
    operations, asynchronous, machine       what instructions do; copies in flight and mbarriers; threads,
      |                                     memory and barriers of a wave. None of them imports another.
    wave                                    what these share: geometry, groups of threads, regions, observers
      |                                     and their hooks, protocols of the machine and its parts
    ptx                                     PTX text to basic blocks of compiled Python; the table of operations
      |
    numerics                                the device's arithmetic on arrays
      |
    arrays, errors
"""

from emulator.arrays import sparse
from emulator.errors import EmulatorError
from emulator.launch import Report, launch
from emulator.wave.observing import Observer

__all__ = ["EmulatorError", "Observer", "Report", "launch", "sparse"]
