"""Reads the DLTensor out of a DLPack capsule, without consuming the capsule.

A consumer that takes a capsule over renames it and calls its deleter. We only look, so the capsule
keeps its name and its own destructor frees the tensor once we let go of it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .buffers import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, ROCM, ROCM_HOST, Buffer
from .dtypes import BYTE, dlpack_type
from .errors import TensorError


class DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h; the tail of `WcTensor` too."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensorVersioned(ctypes.Structure):
    """`DLManagedTensorVersioned` of dlpack.h 1.x."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_MAJOR = 1
_READ_ONLY, _COPIED, _SUBBYTE_PADDED = 1, 2, 4
_MAX_NDIM = 64
_DEVICES = {CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED}

_IS_VALID = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def cuda_device(exporter: Any) -> int | None:
    """The index of the CUDA device that an object with `__dlpack__` is on, if it is on one."""
    tell = getattr(exporter, "__dlpack_device__", None)
    device_type, index = (CPU, 0) if tell is None else tell()
    return int(index) if device_type == CUDA else None


def read_dlpack(exporter: Any, stream: int | None = None) -> tuple[Buffer, object]:
    """Where the elements of an object with `__dlpack__` are, and the capsule that keeps them there.

    Args:
        stream: for an object on a CUDA device, the stream that its producer makes wait for what it still writes;
            0 is the legacy default stream.

    Raises:
        TensorError: the object exports nothing that can be read in place.
    """
    # The protocol calls the legacy default stream 1, and on CUDA has no 0.
    capsule = _export(exporter, {} if stream is None else {"stream": stream or 1})
    if _IS_VALID(capsule, b"dltensor_versioned"):
        managed = DLManagedTensorVersioned.from_address(_POINTER(capsule, b"dltensor_versioned"))
        if managed.major != _MAJOR:
            raise TensorError(f"is exported as DLPack {managed.major}.{managed.minor}; only {_MAJOR}.x is understood")
        return _read(managed.tensor, managed.flags), capsule
    if _IS_VALID(capsule, b"dltensor"):
        # A DLManagedTensor begins with its DLTensor.
        return _read(DLTensor.from_address(_POINTER(capsule, b"dltensor")), flags=0), capsule
    raise TensorError("has a __dlpack__ that returned no unused DLPack capsule")


def _export(exporter: Any, ordered: dict[str, int]) -> object:
    try:
        try:
            return exporter.__dlpack__(**ordered, max_version=(_MAJOR, 3), copy=False)
        except TypeError:
            # A producer from before DLPack 1.0, which knows neither argument.
            return exporter.__dlpack__(**ordered)
    except Exception as error:
        raise TensorError(f"cannot be exported with DLPack: {type(error).__name__}: {error}") from error


def _read(tensor: DLTensor, flags: int) -> Buffer:
    if tensor.device_type not in _DEVICES:
        raise TensorError(
            f"is on the DLPack device type {tensor.device_type}, which cannot be read in place; pass a copy on the host"
        )
    if not 0 <= tensor.ndim <= _MAX_NDIM:
        raise TensorError(f"is exported by DLPack with {tensor.ndim} dimensions")
    if flags & _SUBBYTE_PADDED and tensor.bits * tensor.lanes < 8:
        dtype = BYTE
    else:
        dtype = dlpack_type(tensor.code, tensor.bits, tensor.lanes)
    readonly = "DLPack exported it read-only" if flags & _READ_ONLY else ""
    if flags & _COPIED:
        readonly = "DLPack exported a copy, so that the tensor itself would not change"
    return Buffer(
        address=tensor.data or 0,
        device=(tensor.device_type, tensor.device_id),
        dtype=dtype,
        shape=tensor.shape[: tensor.ndim] if tensor.ndim else (),
        strides=tensor.strides[: tensor.ndim] if tensor.ndim and tensor.strides else None,
        readonly=readonly,
        byte_offset=tensor.byte_offset,
    )
