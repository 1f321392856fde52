"""Between addresses and Python's buffer protocol: the address of a buffer, and a buffer over an address."""

from __future__ import annotations

import ctypes
from typing import Any

from .errors import TensorError


class _PyBuffer(ctypes.Structure):
    """Python's `Py_buffer`, which is part of its stable ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_SIMPLE = 0
"""PyBUF_SIMPLE: bytes in one piece, writable or not."""

_GET_BUFFER = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyBuffer_Release", ctypes.pythonapi))


class _Held:
    """A buffer that is held until this object goes: its exporter cannot move or resize it."""

    def __init__(self, exporter: Any) -> None:
        self.view = _PyBuffer()
        _GET_BUFFER(exporter, ctypes.byref(self.view), _SIMPLE)

    def __del__(self) -> None:
        _RELEASE(ctypes.byref(self.view))


def pybuffer(exporter: Any) -> tuple[object, int, int, bool]:
    """What to keep alive, the address, the length in bytes, and whether the buffer is read-only.

    Raises:
        TensorError: `exporter` has no buffer, or none that lies in one piece.
    """
    try:
        held = _Held(exporter)
    except (TypeError, BufferError) as error:
        kind = type(exporter).__qualname__
        raise TensorError(f"has data in a {kind} without one contiguous buffer: {error}") from error
    return held, held.view.buf or 0, held.view.len, bool(held.view.readonly)


def memory_at(address: int, length: int) -> memoryview:
    """The bytes there. Whoever calls holds what they belong to for as long as the view is used."""
    return memoryview((ctypes.c_ubyte * length).from_address(address))
