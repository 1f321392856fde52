"""Describes many torch tensors at once, through the C function that torch has for it (DLPack's exchange API).

Asking each tensor for its attributes takes some microseconds in Python, which is as long as hashing a small
one. The function takes a fifth of a microsecond, and is in torch since 2.10. It says nothing of what it leaves
out, so everything unusual is left to `torch_tensors`, which knows the remedies.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from .buffers import CPU, CUDA
from .dtypes import BY_NAME

WORDS = 8
"""64-bit words of a WcTensor: its size, its name, and the six of a DLTensor."""

_MAJOR = 1
_DTYPES = frozenset(BY_NAME.values())
_TO_DLTENSOR = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _ExchangeAPI(ctypes.Structure):
    """`DLPackExchangeAPI` of dlpack.h 1.x, with its header."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("dltensor_from_object", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    ]


def exchange_table(tensors: Sequence[object]) -> array[int] | None:
    """An array of WcTensor for plain torch tensors on the host or on CUDA devices, without sizes and names; else None.

    Shapes and strides are those inside the tensors, so the array is good as long as nobody changes these.
    """
    torch = sys.modules.get("torch")
    to_dltensor = _function(torch)
    if to_dltensor is None or not tensors or not all(_is_plain(torch, kind) for kind in set(map(type, tensors))):
        return None
    size = 8 * WORDS
    table = array("Q", bytes(size * len(tensors)))
    first = table.buffer_info()[0] + 16
    with torch._C.DisableTorchFunction():  # that of a parameter's class would multiply the time by ten
        try:
            if any(map(torch.Tensor.is_neg, tensors)) or any(map(torch.Tensor.is_conj, tensors)):
                return None  # the elements are not what lies in memory
            if any(map(to_dltensor, map(id, tensors), range(first, first + size * len(tensors), size))):
                return None
        except (RuntimeError, BufferError):
            return None
    kinds, dtypes = {kind for kind, _ in devices_of(table)}, {word >> 32 for word in table[4::WORDS]}
    has_all_data = 0 not in table[2::WORDS]
    return table if kinds <= {CPU, CUDA} and dtypes <= _DTYPES and has_all_data else None


def devices_of(table: array[int]) -> set[tuple[int, int]]:
    """DLPack's (device type, device index) of all tensors in a table."""
    return {(word & 0xFFFF_FFFF, word >> 32) for word in set(table[3::WORDS])}


def _is_plain(torch: Any, kind: type) -> bool:
    """Whether tensors of this class hold their elements themselves."""
    own_dispatch = getattr(kind, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
    return issubclass(kind, torch.Tensor) and own_dispatch and not hasattr(kind, "__tensor_flatten__")


def _function(torch: Any) -> Any:
    """`dltensor_from_py_object_no_sync` of torch's table of functions, if it has one that is known here."""
    capsule = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api = _ExchangeAPI.from_address(get(capsule, b"dlpack_exchange_api"))
    return _TO_DLTENSOR(api.dltensor_from_object) if api.major == _MAJOR and api.dltensor_from_object else None
