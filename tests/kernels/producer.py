"""A kernel that lets its dependent start at once, sleeps, and only then writes what the dependent reads."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cute.runtime import make_fake_stream, make_ptr
from cutlass.cutlass_dsl import dsl_user_op

from stages.ptx.barrier import griddep_launch_dependents
from stages.ptx.global_memory import load_global_i32, store_global_i32

CTAS, THREADS = 64, 256


@dsl_user_op
def sleep(nanoseconds: int, *, loc=None, ip=None) -> None:
    """Return after at least so long."""
    text = (
        "{ .reg .u64 begin, now; .reg .pred early; mov.u64 begin, %globaltimer; "
        "AGAIN_${:uid}: nanosleep.u32 1000; mov.u64 now, %globaltimer; sub.u64 now, now, begin; "
        f"setp.lt.u64 early, now, {nanoseconds}; @early bra AGAIN_${{:uid}}; }}"
    )
    llvm.inline_asm(
        None, [], text, "~{memory}", has_side_effects=True, asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip
    )


@dataclass(frozen=True)
class Producer:
    """Copies five tensors, whole 32-bit words, after `nanoseconds`."""

    nanoseconds: int

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        c: cute.Pointer,
        d: cute.Pointer,
        e: cute.Pointer,
        to_a: cute.Pointer,
        to_b: cute.Pointer,
        to_c: cute.Pointer,
        to_d: cute.Pointer,
        to_e: cute.Pointer,
        words_a: Int32,
        words_b: Int32,
        words_c: Int32,
        words_d: Int32,
        words_e: Int32,
        stream: cuda.CUstream,
    ):
        sources = [x.toint() for x in (a, b, c, d, e)]
        targets = [x.toint() for x in (to_a, to_b, to_c, to_d, to_e)]
        self.kernel(*sources, *targets, words_a, words_b, words_c, words_d, words_e).launch(
            grid=[CTAS, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        a: Int64,
        b: Int64,
        c: Int64,
        d: Int64,
        e: Int64,
        to_a: Int64,
        to_b: Int64,
        to_c: Int64,
        to_d: Int64,
        to_e: Int64,
        words_a: Int32,
        words_b: Int32,
        words_c: Int32,
        words_d: Int32,
        words_e: Int32,
    ):
        griddep_launch_dependents()
        sleep(self.nanoseconds)
        self.copy(a, to_a, words_a)
        self.copy(b, to_b, words_b)
        self.copy(c, to_c, words_c)
        self.copy(d, to_d, words_d)
        self.copy(e, to_e, words_e)

    @cute.jit
    def copy(self, source: Int64, target: Int64, words: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        for i in cutlass.range(block * THREADS + thread, words, CTAS * THREADS, unroll=1):
            store_global_i32(target + Int64(i) * 4, load_global_i32(source + Int64(i) * 4))


def compile_producer(nanoseconds: int, arch: str):
    """What launches it: called with the sources, then the targets, then a stream."""
    pointer = make_ptr(cutlass.Uint8, 16, cute.AddressSpace.gmem, assumed_align=4)
    given = [*[pointer] * 10, *[Int32(1)] * 5, make_fake_stream()]
    executor = cute.compile(Producer(nanoseconds), *given, options=f"--gpu-arch {arch}")

    def launch(sources: list[torch.Tensor], targets: list[torch.Tensor], stream: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            assert source.is_contiguous() and target.is_contiguous() and source.nbytes == target.nbytes
            assert source.nbytes % 4 == 0
        pointers = [
            make_ptr(cutlass.Uint8, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=4)
            for x in (*sources, *targets)
        ]
        words = [Int32(x.nbytes // 4) for x in sources]
        executor(*pointers, *words, cuda.CUstream(stream))

    return launch
