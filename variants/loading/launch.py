"""Loads compiled kernels and launches them through the CUDA driver.

Contract
    A `LoadedKernel` is bound to one device. Making one checks all that could make a launch fail later: that
    the machine code is what the skeleton says, and that the device can hold a cluster. A launch is one call
    of the driver: it neither allocates, nor synchronises, nor changes the current device, and may be called
    from any thread and inside a graph capture, where it becomes one kernel node.
"""

import contextlib
import ctypes
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import cuda.bindings.driver as cuda

from variants.identity import VARIANTS
from variants.kernels.arguments import parameters
from variants.loading.compile import Image
from variants.refusal import require

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device allows (CUDA C++ Programming Guide, thread block clusters)."""


class LoadedKernel:
    """A kernel on a device, ready to be launched.

    kernel: the form that was compiled. image: its machine code. device: a CUDA device's index. Raises
    RuntimeError for what the driver refuses, and ValueError where the device cannot hold a cluster.
    """

    def __init__(self, kernel: Any, image: Image, device: int) -> None:
        codes = parameters(type(kernel))
        self._packing = struct.Struct("".join(codes.values()))
        self._context = int(_checked(cuda.cuDevicePrimaryCtxRetain(_checked(cuda.cuDeviceGet(device)))))
        self._own = ThreadMemory(self._packing, kernel)
        with self._current():
            # Never unloaded: graphs may hold the kernel as long as the process lives.
            module = _checked(cuda.cuModuleLoadData(image.cubin))
            self._function = _checked(cuda.cuModuleGetFunction(module, image.entry.encode()))
            attributes = cuda.CUfunction_attribute
            for attribute, value in (
                (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes),
                (
                    attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    int(kernel.cluster > PORTABLE_CLUSTER),
                ),
            ):
                _checked(cuda.cuFuncSetAttribute(self._function, attribute, value))
            self._check_parameters(codes)
            self._check_residency(kernel, device)

    def launch(self, values: Sequence[int | float], grid: tuple[int, int, int], stream: int) -> None:
        """Launch with the kernel's parameters, in order, over a grid of CTAs, on a stream of the device."""
        own = self._own
        self._packing.pack_into(own.memory, 0, *values)
        config = own.config
        if own.place != (grid, stream):
            own.place = None
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.hStream = stream
            own.place = grid, stream
        _, current = cuda.cuCtxGetCurrent()
        if int(current) == self._context:
            result = cuda.cuLaunchKernelEx(config, self._function, own.pointers, 0)
        else:
            with self._current():
                result = cuda.cuLaunchKernelEx(config, self._function, own.pointers, 0)
        if result[0]:
            _checked(result)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's context the thread's current one for a while: it may have another, or none."""
        _checked(cuda.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            _checked(cuda.cuCtxPopCurrent())

    def _check_parameters(self, codes: dict[str, str]) -> None:
        """The machine code takes what `launch` packs, at the same offsets."""
        packed = [(offset, struct.calcsize(code)) for offset, code in offsets(codes)]
        found: list[tuple[int, int]] = []
        while len(found) <= len(packed):
            error, offset, size = cuda.cuFuncGetParamInfo(self._function, len(found))
            if error:
                break
            found.append((offset, size))
        if found != packed:
            raise RuntimeError(f"the kernel's parameters lie at {found} (offset, size), not at {packed}")

    def _check_residency(self, kernel: Any, device: int) -> None:
        """The device, or the MIG slice, can hold a cluster at all."""
        config = launch_config(kernel)
        config.gridDimX, config.gridDimY, config.gridDimZ = kernel.cluster, 1, 1
        error, clusters = cuda.cuOccupancyMaxActiveClusters(self._function, config)
        if error != cuda.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE:
            _checked((error,))
        smaller = ", ".join(v.name for v in VARIANTS if v.kernel.cluster < kernel.cluster)
        way_out = f"variant {smaller}" if smaller else "a variant with smaller clusters, made in the spec"
        name = _checked(cuda.cuDeviceGetName(128, _checked(cuda.cuDeviceGet(device))))
        require(
            not error and clusters > 0,
            f"device cuda:{device} ({name.rstrip(bytes(1)).decode()}) cannot hold a cluster of "
            f"{kernel.cluster} CTAs with {kernel.shared_bytes} bytes of shared memory each, which kernel "
            f"{kernel.name} launches: it needs {way_out}, or another device",
        )


class ThreadMemory(threading.local):
    """What a thread writes its launches of one kernel to, and the driver reads before a launch returns.

    memory: the parameters. pointers: the address of an array with the address of each. config: the launch's.
    place: grid and stream that config has; None where it may have others.
    """

    def __init__(self, packing: struct.Struct, kernel: Any) -> None:
        self.memory = ctypes.create_string_buffer(packing.size)
        start = ctypes.addressof(self.memory)
        addresses = [start + offset for offset, _ in offsets(parameters(type(kernel)))]
        self._pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.pointers = ctypes.addressof(self._pointers)
        self.config = launch_config(kernel)
        self.place: tuple[tuple[int, int, int], int] | None = None


def launch_config(kernel: Any) -> Any:
    """The launch of a kernel form, but for its grid and stream."""
    cluster = cuda.CUlaunchAttribute()
    cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dimensions = cluster.value.clusterDim
    dimensions.x, dimensions.y, dimensions.z = kernel.cluster, 1, 1
    attributes = [cluster]
    if kernel.pdl:
        dependent = cuda.CUlaunchAttribute()
        dependent.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        dependent.value.programmaticStreamSerializationAllowed = 1
        attributes.append(dependent)
    config = cuda.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = 32 * kernel.warps, 1, 1
    config.sharedMemBytes = kernel.shared_bytes
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def offsets(codes: dict[str, str]) -> list[tuple[int, str]]:
    """The offset of each packed parameter in bytes, with its struct code."""
    found, before = [], ""
    for code in codes.values():
        # No items of a type take no room but its alignment.
        found.append((struct.calcsize(f"{before}0{code}"), code))
        before += code
    return found


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call of the driver returned. Raises RuntimeError if it failed."""
    error, *values = result
    if error:
        _, name = cuda.cuGetErrorName(error)
        _, text = cuda.cuGetErrorString(error)
        raise RuntimeError(f"the CUDA driver refused: {name.decode()}: {text.decode()}")
    return values[0] if values else None
