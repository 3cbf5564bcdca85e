"""How the tests compile a micro-kernel and run it: nothing else in the tests knows.

A micro-kernel wraps one stage: a frozen dataclass that derives from `MicroKernel`, whose `__call__` takes raw
pointers and scalars and, last, the stream, and hands all but the stream on to its kernel in the same order.
Its launch is data (`Launch`), because the PTX holds neither grid nor cluster nor dynamic shared memory.

`compile_kernel` needs no GPU. `run` gives inputs and scalars to the kernel, on the GPU or, where there is
none, on the emulator, and returns the outputs, whole arrays in NumPy. BF16 and registers travel as the
unsigned integers that hold their bits.
"""

import functools
import inspect
import re
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_stream, make_ptr

import emulator
from emulator import TensorMap
from tests.cubin import stack_bytes
from tests.tensor_maps import encode_on_gpu
from variants.loading.compile import dump_folder

ARCHITECTURES = ("sm_90a", "sm_100a")
"""What micro-kernels are compiled for, whatever the machine, unless they say otherwise."""

PARAMETER_TYPES = {cute.Pointer: ".u64", Int64: ".u64", Int32: ".u32", Float32: ".f32"}
"""How an argument of `__call__` appears in the PTX entry."""

UNFLUSHED = re.compile(r"\b(?:add|sub|mul|fma|mad|div|max|min)(?:\.r[nzmp])?\.f(?:32|64)\b")
"""Floating-point arithmetic whose bits the compiler is free to choose: stages spell out `.ftz` forms."""


@dataclass(frozen=True)
class Launch:
    """The launch of a micro-kernel: what its PTX does not say."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0

    def keywords(self) -> dict[str, object]:
        """The arguments of CuTe DSL's `launch`."""
        return {
            "grid": list(self.grid),
            "block": list(self.block),
            "cluster": list(self.cluster),
            "smem": self.shared_bytes,
        }


@dataclass(frozen=True)
class MicroKernel:
    """A kernel of a few lines around one stage; fields are compile-time facts."""

    @property
    def where(self) -> Launch:
        """The launch: one warp unless the micro-kernel says otherwise."""
        return Launch()

    @property
    def architectures(self) -> tuple[str, ...]:
        """What it is compiled for: all, unless it has instructions that only some of them have."""
        return ARCHITECTURES

    def __str__(self) -> str:
        """What CuTe DSL makes part of the kernel's entry name, and pytest of a test's."""
        return type(self).__name__


@dataclass(frozen=True)
class Compiled:
    """A micro-kernel for one architecture. function: to be called with real pointers and a stream."""

    function: object
    ptx: str
    entry: str


@dataclass(frozen=True)
class Out:
    """An output to be written whole by the kernel."""

    dtype: type
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Scratch:
    """Memory that the kernel reads and writes, and what it holds before; it comes back as an output."""

    before: np.ndarray


def out(dtype, *shape: int) -> Out:
    """An output array of this type and shape."""
    return Out(dtype, shape)


def _parameters(kernel: MicroKernel) -> list[type]:
    signature = inspect.signature(inspect.unwrap(type(kernel).__call__))
    kinds = [parameter.annotation for parameter in signature.parameters.values()][1:]
    assert kinds[-1] is cuda.CUstream, "the stream comes last"
    return kinds[:-1]


def pointer(address: int):
    """What stands for device memory in a call."""
    return make_ptr(cutlass.Uint8, address, cute.AddressSpace.gmem, assumed_align=16)


@functools.cache
def compile_kernel(kernel: MicroKernel, arch: str) -> Compiled:
    """Compile for one architecture, no GPU needed, and check what every stage promises.

    No spills and no stack; the entry's parameters are those of `__call__`, in order; no floating-point
    arithmetic that leaves flushing or contraction to the compiler.
    """
    kinds = _parameters(kernel)
    fakes = [pointer(16) if kind is cute.Pointer else kind(0) for kind in kinds]
    with dump_folder() as folder:
        options = f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {folder}"
        function = cute.compile(kernel, *fakes, make_fake_stream(), options=options)
        ptx, cubin = function.artifacts.PTX, function.artifacts.CUBIN
    entry, parameters = re.search(r"\.entry (\w+)\((.*?)\)", ptx, re.DOTALL).groups()
    assert re.findall(r"\.param (\.\w+)", parameters) == [PARAMETER_TYPES[kind] for kind in kinds]

    stack = stack_bytes(cubin)
    assert stack == 0, f"{kernel} uses stack or spills on {arch}: {stack} bytes"
    assert ".local" not in ptx, f"{kernel} indexes registers dynamically on {arch}"
    assert not UNFLUSHED.findall(ptx), f"{kernel}: {UNFLUSHED.findall(ptx)}"
    return Compiled(function, ptx, entry)


def run(kernel: MicroKernel, arguments: list) -> list[np.ndarray]:
    """Run a micro-kernel on the GPU, or on the emulator where there is none, and return its outputs.

    arguments: those of `__call__`, without the stream: NumPy arrays (inputs), `Out`, `Scratch`, tensor maps
    of NumPy arrays (`emulator.TensorMap`), whose address the kernel gets, and plain numbers.

    Runs twice, over outputs that hold zeros and then ones in every bit: equal bits show that each output was
    written whole and that the kernel is deterministic. Inputs must come out untouched. On the emulator all
    its checks are on, and the second run lets warps and CTAs get ahead of each other.
    """
    run_once = _run_on_gpu if torch.cuda.is_available() else _run_on_emulator
    first, second = (run_once(kernel, arguments, fill) for fill in (0x00, 0xFF))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes(), f"{kernel}: an output is not written whole, or not deterministic"
    return first


def _run_on_gpu(kernel: MicroKernel, arguments: list, fill: int) -> list[np.ndarray]:
    major, minor = torch.cuda.get_device_capability()
    compiled = compile_kernel(kernel, f"sm_{major}{minor}a")
    given = _with_kinds(kernel, arguments)
    tensors = [_on_gpu(a, fill) if kind is cute.Pointer else None for a, kind in given]
    values = [
        kind(argument) if tensor is None else pointer(tensor.data_ptr())
        for (argument, kind), tensor in zip(given, tensors, strict=True)
    ]
    compiled.function(*values, cuda.CUstream(torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()

    outputs = []
    for argument, tensor in zip(arguments, tensors, strict=True):
        if tensor is None:
            continue
        data = tensor.cpu().numpy()
        if isinstance(argument, Out):
            outputs.append(data.view(argument.dtype).reshape(argument.shape))
        elif isinstance(argument, TensorMap):
            continue
        elif isinstance(argument, Scratch):
            outputs.append(data.view(argument.before.dtype).reshape(argument.before.shape))
        else:
            assert data.tobytes() == argument.tobytes(), f"{kernel} wrote to an input"
    return outputs


def _run_on_emulator(kernel: MicroKernel, arguments: list, fill: int) -> list[np.ndarray]:
    compiled = compile_kernel(kernel, ARCHITECTURES[0])
    given = [_on_cpu(a, fill) if kind is cute.Pointer else a for a, kind in _with_kinds(kernel, arguments)]
    where = kernel.where
    written = [number for number, argument in enumerate(arguments) if isinstance(argument, Out)]
    emulator.launch(
        compiled.ptx,
        compiled.entry,
        grid=where.grid,
        cluster=where.cluster,
        block=where.block,
        shared_bytes=where.shared_bytes,
        arguments=given,
        unwritten=written,
        seed=None if fill == 0 else fill,
    )
    pairs = zip(arguments, given, strict=True)
    return [array for argument, array in pairs if isinstance(argument, Out | Scratch)]


def _with_kinds(kernel: MicroKernel, arguments: list) -> list[tuple]:
    return list(zip(arguments, _parameters(kernel), strict=True))


def _on_cpu(argument, fill: int):
    """A tensor map, an input that may not be written to, scratch, or an output whose bytes are all `fill`."""
    if isinstance(argument, Out):
        count = int(np.prod(argument.shape)) * np.dtype(argument.dtype).itemsize
        return np.full(count, fill, np.uint8).view(argument.dtype).reshape(argument.shape)
    if isinstance(argument, Scratch):
        return argument.before.copy()
    if isinstance(argument, TensorMap):
        return replace(argument, array=_on_cpu(argument.array, fill))
    data = np.ascontiguousarray(argument).copy()
    data.flags.writeable = False
    return data


def _on_gpu(argument, fill: int) -> torch.Tensor:
    """The bytes of an input or scratch, or an output's, all `fill`, in an allocation of exactly that size."""
    if isinstance(argument, Out):
        count = int(np.prod(argument.shape)) * np.dtype(argument.dtype).itemsize
        return torch.full((count,), fill, dtype=torch.uint8, device="cuda")
    if isinstance(argument, TensorMap):
        return encode_on_gpu(argument)
    held = argument.before if isinstance(argument, Scratch) else argument
    data = np.ascontiguousarray(held).reshape(-1).view(np.uint8)
    return torch.from_numpy(data.copy()).cuda()
