"""Tensor maps of the driver, from the emulator's."""

import cuda.bindings.driver as cuda
import numpy as np
import torch

from emulator import TensorMap

SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def encode(tensor_map: TensorMap, address: int) -> np.ndarray:
    """The 128 bytes of a map of BF16 or of other elements of 1, 2, 4 or 8 bytes at a device address."""
    kinds = cuda.CUtensorMapDataType
    kind = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_UINT{8 * tensor_map.element}")
    rank = len(tensor_map.dims)
    error, encoded = cuda.cuTensorMapEncodeTiled(
        kind,
        rank,
        address,
        [cuda.cuuint64_t(dim) for dim in tensor_map.dims],
        [cuda.cuuint64_t(stride) for stride in tensor_map.strides],
        [cuda.cuuint32_t(extent) for extent in tensor_map.box],
        [cuda.cuuint32_t(1)] * rank,
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[tensor_map.swizzle]}"),
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    assert error == cuda.CUresult.CUDA_SUCCESS, error
    return np.array([int(word) for word in encoded.opaque], np.uint64)


def encode_on_gpu(tensor_map: TensorMap) -> torch.Tensor:
    """A map in device memory, and its array, which lives as long."""
    data = np.ascontiguousarray(tensor_map.array).reshape(-1).view(np.uint8)
    array = torch.from_numpy(data.copy()).cuda()
    encoded = torch.from_numpy(encode(tensor_map, array.data_ptr()).view(np.uint8).copy()).cuda()
    encoded.described = array
    return encoded
