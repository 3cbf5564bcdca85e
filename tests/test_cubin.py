"""The stack frame that a cubin tells of is the one that ptxas reports: none, or that of spilled registers."""

import contextlib
import io
import re
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass.cute as cute
import pytest
from cutlass import Int32, Int64
from cutlass.cute.runtime import make_fake_stream

from stages.fragments import registers
from stages.ptx.barrier import cta_sync
from stages.ptx.global_memory import load_global_i32, store_global_i32
from tests.cubin import stack_bytes
from tests.device import Launch, MicroKernel, compile_kernel, pointer
from variants.loading.compile import dump_folder


@dataclass(frozen=True)
class Holding(MicroKernel):
    """Each thread loads `count` words, all before the first is stored."""

    threads: int
    count: int

    @property
    def where(self) -> Launch:
        return Launch(block=(self.threads, 1, 1))

    @cute.jit
    def __call__(self, words: cute.Pointer, stream: cuda.CUstream):
        self.kernel(words.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, words: Int64):
        thread, _, _ = cute.arch.thread_idx()
        held = registers(Int32, self.count)
        for i in range(self.count):
            held[i] = load_global_i32(words + Int64(4 * (self.threads * i + thread)))
        cta_sync()
        for i in range(self.count):
            store_global_i32(words + Int64(4 * (self.threads * i + thread)), held[self.count - 1 - i])


FEW, MANY = Holding(32, 8), Holding(1024, 100)
"""What registers can hold, and more than the 64 that a thread of 1024 has."""


@pytest.mark.parametrize(("kernel", "spills"), [(FEW, False), (MANY, True)], ids=["few", "many"])
def test_ptxas_reports_the_same(kernel, spills, arch):
    """Spilled registers are in the stack frame, so a kernel without a frame has spilled none."""
    heard = io.StringIO()
    with dump_folder() as folder, contextlib.redirect_stderr(heard):
        options = f"--gpu-arch {arch} --keep-cubin --dump-dir {folder} remarks{{ptx}}"
        cubin = cute.compile(kernel, pointer(16), make_fake_stream(), options=options).artifacts.CUBIN
    said = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", heard.getvalue())
    frame, stores = int(said[1]), int(said[2])
    assert (stores > 0) == spills
    assert stack_bytes(cubin) == frame >= stores


def test_a_kernel_that_spills_is_refused(arch):
    """The check that every micro-kernel passes when it is compiled."""
    with pytest.raises(AssertionError, match=f"stack or spills on {arch}: [1-9]"):
        compile_kernel(MANY, arch)
