"""A CUDA driver for modules on a machine without one: real structures, functions that note their arguments.

It answers what a module asks while it loads and launches kernels. What it knows of a kernel's parameters it
has from the kernel's PTX, and it reads their values from memory as the driver would.
"""

import contextlib
import ctypes
import re
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import cuda.bindings.driver as real
import torch

CONTEXT = 0x1000
"""The primary context of device 0; those of others follow."""

TYPES = {".u64": ctypes.c_int64, ".u32": ctypes.c_int32, ".f32": ctypes.c_float}
"""How a parameter's type in the PTX is read from memory."""


PTX_TYPES = {"q": ".u64", "i": ".u32", "f": ".f32"}
"""How the PTX calls what Python's struct calls so."""


def parameter_types(ptx: str) -> list[str]:
    """The types of the entry's parameters."""
    parameters = re.search(r"\.entry \w+\((.*?)\)", ptx, re.DOTALL).group(1)
    return re.findall(r"\.param (\.\w+)", parameters)


@dataclass(frozen=True)
class Launch:
    """What the driver was told to launch, and the context that was current."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    pdl: bool
    stream: int
    values: list[int | float]
    context: int


@dataclass
class NotedDriver:
    """Put in place of a module's `cuda`.

    ptx: of the kernel that is loaded. contexts: the thread's stack of current ones. clusters: that the device
    can hold. residency_error, launch_error: what those calls end with. delay: seconds that a launch takes
    before it reads its parameters.
    """

    ptx: str
    contexts: list[int] = field(default_factory=list)
    clusters: int = 8
    residency_error: Any = real.CUresult.CUDA_SUCCESS
    launch_error: Any = real.CUresult.CUDA_SUCCESS
    delay: float = 0.0
    images: list[bytes] = field(default_factory=list)
    attributes: dict[Any, int] = field(default_factory=dict)
    occupancy: list[tuple[int, int]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        """Structures and enumerations are the real ones."""
        if name.startswith("cu") and name != "cuda":
            raise AssertionError(f"{name} is not expected to be called")
        return getattr(real, name)

    def cuDeviceGet(self, index):
        return real.CUresult.CUDA_SUCCESS, real.CUdevice(index)

    def cuDeviceGetName(self, length, device):
        return real.CUresult.CUDA_SUCCESS, b"NVIDIA H200 MIG 1g.18gb".ljust(length, b"\0")

    def cuDevicePrimaryCtxRetain(self, device):
        return real.CUresult.CUDA_SUCCESS, real.CUcontext(CONTEXT + int(device))

    def cuCtxGetCurrent(self):
        return real.CUresult.CUDA_SUCCESS, real.CUcontext(self.contexts[-1] if self.contexts else 0)

    def cuCtxPushCurrent(self, context):
        self.contexts.append(int(context))
        return (real.CUresult.CUDA_SUCCESS,)

    def cuCtxPopCurrent(self):
        return real.CUresult.CUDA_SUCCESS, real.CUcontext(self.contexts.pop())

    def cuModuleLoadData(self, image):
        self.images.append(image)
        return real.CUresult.CUDA_SUCCESS, real.CUmodule(len(self.images))

    def cuModuleGetFunction(self, module, name):
        assert name in self.images[int(module) - 1]
        return real.CUresult.CUDA_SUCCESS, real.CUfunction(100 + int(module))

    def cuFuncSetAttribute(self, function, attribute, value):
        self.attributes[attribute] = value
        return (real.CUresult.CUDA_SUCCESS,)

    def cuFuncGetParamInfo(self, function, index):
        sizes = [ctypes.sizeof(TYPES[kind]) for kind in parameter_types(self.ptx)]
        if index >= len(sizes):
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, None, None
        end = 0
        for size in sizes[: index + 1]:
            start = -(-end // size) * size
            end = start + size
        return real.CUresult.CUDA_SUCCESS, start, sizes[index]

    def cuOccupancyMaxActiveClusters(self, function, config):
        self.occupancy.append((_cluster(config)[0], config.sharedMemBytes))
        return self.residency_error, self.clusters

    def cuGetErrorName(self, error):
        return real.CUresult.CUDA_SUCCESS, error.name.encode()

    def cuGetErrorString(self, error):
        return real.CUresult.CUDA_SUCCESS, b"in words"

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        assert extra == 0
        time.sleep(self.delay)
        kinds = [TYPES[kind] for kind in parameter_types(self.ptx)]
        addresses = (ctypes.c_void_p * len(kinds)).from_address(pointers)
        self.launches.append(
            Launch(
                function=int(function),
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                cluster=_cluster(config),
                shared_bytes=config.sharedMemBytes,
                pdl=any(
                    a.id == _PDL and a.value.programmaticStreamSerializationAllowed for a in _given(config)
                ),
                stream=int(config.hStream),
                values=[
                    kind.from_address(address).value for kind, address in zip(kinds, addresses, strict=True)
                ],
                context=self.contexts[-1],
            )
        )
        return (self.launch_error,)


_PDL = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


def _given(config) -> list[Any]:
    return list(config.attrs)[: config.numAttrs]


def _cluster(config) -> tuple[int, int, int]:
    kind = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    (size,) = (a.value.clusterDim for a in _given(config) if a.id == kind)
    return size.x, size.y, size.z


STREAM = 0x5000
"""The current stream of device 0; those of others follow."""


class OnDevice(torch.Tensor):
    """A tensor in the CPU's memory that says of itself that it lies on device 1."""

    is_cuda = True

    def get_device(self):
        return 1


def pretend_there_is_a_device(monkeypatch, module: ModuleType, driver: NotedDriver, capturing: bool = False):
    """Let a module believe in a Hopper device, with no kernels loaded, and give it the driver."""
    monkeypatch.setattr(module, "cuda", driver)
    monkeypatch.setattr(module, "LOADED", module.Once())
    monkeypatch.setattr(module, "IMAGES", module.Once())
    for name, answer in {
        "is_available": True,
        "current_device": 0,
        "device_count": 2,
        "is_current_stream_capturing": capturing,
        "get_device_capability": (9, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    raw_stream = "_cuda_getCurrentRawStream"
    monkeypatch.setattr(torch._C, raw_stream, lambda device: STREAM + device, raising=False)
    # Such tensors go the way of plain ones, past the dispatcher.
    monkeypatch.setattr(module, "PLAIN_TYPES", module.PLAIN_TYPES | {OnDevice})
