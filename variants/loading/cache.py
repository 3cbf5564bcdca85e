"""The kernels of this process: each is compiled once and loaded once a device.

Contract
    The cache of images has a key of everything that machine code depends on and that can differ within a
    process: form and architecture. Loaded kernels are the device's besides. Any thread may ask for any
    kernel: those who ask for the same one wait for the first, the others do not.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cutlass
import torch

from variants.identity import DIGEST, variant_named
from variants.loading.artefact import read
from variants.loading.compile import Image, compile_image
from variants.loading.launch import LoadedKernel
from variants.refusal import require
from variants.variant import Form

Value = TypeVar("Value")


class Once(Generic[Value]):
    """Values that are made once for each key, whoever asks first."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """The key's value. What `make` raises is raised, and the next who asks tries again."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self.values:
                self.values[key] = make()
            return self.values[key]


IMAGES: Once[Image] = Once()
"""Compiled here, by form and architecture."""

# The operator of a module is registered once in a process, by the copy that is imported first; copies share
# what they load, so it launches the kernel that any of them prepared.
LOADED: Once[LoadedKernel] = vars(cutlass).setdefault(f"_stagewright_kernels_{DIGEST}", Once())
"""Kernels by form and device index."""


def loaded_kernel(form: Form, device: int, folder: Any = None) -> LoadedKernel:
    """The kernel on a device: the one that is loaded already, or it is loaded now.

    folder: of kernels compiled ahead of time, instead of compiling one. Raises RuntimeError in a capture.
    """
    found = LOADED.values.get((form, device))
    if found is not None:
        return found
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"kernel {form} is not loaded on cuda:{device}, and a graph capture is no time to do it: "
                "call prepare() first, before the capture begins"
            )

    def load() -> LoadedKernel:
        kernel = variant_named(form.variant).kernel.form(pdl=form.pdl, windowed=form.windowed)
        return LoadedKernel(kernel, image(form, device_arch(device), folder), device)

    return LOADED.get((form, device), load)


def image(form: Form, arch: str, folder: Any = None) -> Image:
    """A form's machine code: from a folder of compiled kernels, or compiled here."""
    if folder is not None:
        return read(folder, form, arch)
    return IMAGES.get((form, arch), lambda: compile_image(form, arch))


def device_arch(device: int) -> str:
    """The architecture that a device's kernels are compiled for."""
    major, minor = torch.cuda.get_device_capability(device)
    require(
        (major, minor) >= (9, 0),
        f"the device must have compute capability 9.0 or later, cuda:{device} has {major}.{minor}",
    )
    return f"sm_{major}{minor}a"
