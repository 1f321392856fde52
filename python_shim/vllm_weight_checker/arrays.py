"""Reads numpy arrays (without importing numpy) and anything with `__array_interface__`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._pybuffer import pybuffer
from .buffers import HOST, Buffer
from .dtypes import BY_NAME
from .errors import TensorError

if TYPE_CHECKING:
    import numpy

_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_READONLY = "its array is marked read-only"
_FOREIGN_ORDER = ">" if sys.byteorder == "little" else "<"


def read_numpy(array: numpy.ndarray[Any, Any]) -> Buffer:
    """Where the elements of a numpy array are; types of ml_dtypes are known by their names.

    Raises:
        TensorError: the array cannot be read in place.
    """
    dtype = array.dtype
    if not dtype.isnative:
        native = dtype.newbyteorder("=").str
        raise TensorError(f"has the dtype {dtype.str} in foreign byte order; pass .astype({native!r})")
    if dtype.name not in BY_NAME:
        raise TensorError(f"has the dtype {dtype}, which is no number of a known width; pass an array of numbers")
    readonly = "" if array.flags.writeable else _READONLY
    strides = element_strides(array.shape, array.strides, dtype.itemsize)
    return Buffer(array.ctypes.data, HOST, BY_NAME[dtype.name], array.shape, strides, readonly)


def read_interface(exporter: Any) -> tuple[Buffer, object]:
    """Where the elements of an object with a version 3 `__array_interface__` are, and what keeps them there.

    Raises:
        TensorError: the interface cannot be read in place, or says something that cannot be.
    """
    interface = exporter.__array_interface__
    if not isinstance(interface, dict) or not {"shape", "typestr", "version"} <= interface.keys():
        raise TensorError("has an __array_interface__ without shape, typestr and version")
    if interface.get("mask") is not None:
        raise TensorError("has a mask in its __array_interface__; pass the plain array")
    dtype, size = _of_typestr(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = None if strides is None else element_strides(shape, strides, size)
    data = interface.get("data")
    if isinstance(data, tuple):
        # A numpy scalar shows a copy of itself, which lives as long as what its interface refers to.
        is_copy = isinstance(exporter, getattr(sys.modules.get("numpy"), "generic", ()))
        readonly = "a numpy scalar, whose memory is a copy" if is_copy else _READONLY if data[1] else ""
        return Buffer(int(data[0]), HOST, dtype, shape, strides, readonly), interface
    keep, address, length, is_readonly = pybuffer(exporter if data is None else data)
    offset = int(interface.get("offset", 0))
    if offset < 0 or offset + _extent(shape, strides, size) > length:
        raise TensorError(f"has an __array_interface__ whose elements leave its buffer of {length} bytes")
    return Buffer(address, HOST, dtype, shape, strides, _READONLY if is_readonly else "", offset), keep


def element_strides(shape: Sequence[int], strides: Sequence[int], size: int) -> list[int]:
    """Strides in elements of `size` bytes from strides in bytes; 0 where a dimension takes no step.

    Raises:
        TensorError: a stride that is no whole number of elements.
    """
    if len(shape) != len(strides):
        raise TensorError(f"has {len(shape)} dimensions and {len(strides)} strides")
    steps = [stride if extent > 1 else 0 for extent, stride in zip(shape, strides)]
    if any(step % size for step in steps):
        raise TensorError(
            f"has strides of {tuple(strides)} bytes, no multiple of its {size}-byte elements; pass a copy"
        )
    return [step // size for step in steps]


def _of_typestr(typestr: Any) -> tuple[int, int]:
    """DLPack's type and the size in bytes of an `__array_interface__` typestr such as "<f4"."""
    order, kind, digits = str(typestr)[:1], str(typestr)[1:2], str(typestr)[2:]
    size = int(digits) if digits.isdecimal() else 0
    if order == _FOREIGN_ORDER and size > 1:
        raise TensorError(f"has the typestr {typestr!r} in foreign byte order; pass it in the native order")
    name = "bool" if (kind, size) == ("b", 1) else f"{_KINDS.get(kind, '')}{8 * size}"
    if kind not in _KINDS or name not in BY_NAME:
        raise TensorError(f"has the typestr {typestr!r}, which is no number of a known width; pass an array of numbers")
    return BY_NAME[name], size


def _extent(shape: Sequence[int], strides: Sequence[int] | None, size: int) -> int:
    """How many bytes from the first element's begin to the last one's end."""
    if 0 in shape:
        return 0
    if strides is None:
        for extent in shape:
            size *= extent
        return size
    return size * (1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides)))
