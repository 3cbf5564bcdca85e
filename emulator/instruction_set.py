"""The instructions that are covered: importing this registers the operations of all of them."""

import emulator.asynchronous.bulk_copies
import emulator.asynchronous.copies
import emulator.asynchronous.mbarrier_operations
import emulator.asynchronous.tensor_copies
import emulator.operations.arithmetic
import emulator.operations.atomics
import emulator.operations.barriers
import emulator.operations.bits
import emulator.operations.compare
import emulator.operations.convert
import emulator.operations.floats
import emulator.operations.loads
import emulator.operations.matrix
import emulator.operations.moves
import emulator.operations.order
import emulator.operations.warp
import emulator.operations.wgmma  # noqa: F401 - all of these are imported for what they register
