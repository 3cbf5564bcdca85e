"""Runs a kernel's PTX on the CPU, whole warps, CTAs and clusters at once in NumPy, and checks what it does.

    report = emulator.launch(ptx, grid=(64, 1, 1), cluster=(16, 1, 1), block=(128, 1, 1), arguments=[...])

Only what the kernels of this project need of PTX is covered; the rest is refused by name.

Layers, from the top; each imports only from those below it. `lint-imports` checks this, and that no modules
import each other in a circle; imports under TYPE_CHECKING count.

    launch                             puts the parts together and runs a kernel
      |
    checks                             an observer: races, reads of unwritten memory, unfinished copies
    counts                             an observer: instructions, traffic, bank conflicts
    arguments                          arguments of a launch become parameters and buffers
    instruction_set                    imports all operations, which registers them
      |
    operations                         what instructions do
    asynchronous                       copies in flight and mbarriers, with their instructions
    machine                            runs a wave: scheduling, memory, barriers of threads
      |
    wave                               what the layers above share: geometry, groups of threads, regions,
      |                                observers and their hooks, protocols of the machine and its parts
    ptx                                PTX text to basic blocks compiled to Python; the table of operations
      |
    numerics                           the arithmetic of the device on arrays
      |
    arrays, errors

Those in one layer do not import each other.
"""

from emulator.arrays import sparse
from emulator.errors import EmulatorError
from emulator.launch import Report, launch
from emulator.wave.observing import Observer
from emulator.wave.tensor_maps import TensorMap

__all__ = ["EmulatorError", "Observer", "Report", "TensorMap", "launch", "sparse"]
