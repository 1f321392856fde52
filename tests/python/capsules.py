"""DLPack capsules made by hand, with whatever fields a test wants, and the objects that export them."""

from __future__ import annotations

import ctypes
from typing import Any

from vllm_weight_checker._dlpack import DLManagedTensorVersioned, DLTensor

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))


def name_of(capsule: object) -> bytes:
    return _name(capsule)


class Exporter:
    """Exports `array` (numpy, contiguous) in a hand-made versioned capsule; `fields` replace those of the DLTensor."""

    def __init__(
        self,
        array: Any,
        flags: int = 0,
        major: int = 1,
        capsule_name: bytes = b"dltensor_versioned",
        shape: tuple[int, ...] | None = None,
        **fields: Any,
    ) -> None:
        self.array, self.capsule_name = array, capsule_name
        shape = array.shape if shape is None else shape
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        values = {"data": array.ctypes.data, "device_type": 1, "ndim": len(shape), "code": 1, "bits": 8, "lanes": 1}
        tensor = DLTensor(**{**values, "shape": self._shape, **fields})
        self._managed = DLManagedTensorVersioned(major=major, minor=0, flags=flags, tensor=tensor)

    def __dlpack__(self, **_: Any) -> object:
        return _new(ctypes.addressof(self._managed), self.capsule_name, None)


class Forwarding:
    """Exports another object's capsule as a producer of today does, and keeps the capsule for a look at it."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.capsule: object = None

    def __dlpack__(self, **options: Any) -> object:
        self.capsule = self.producer.__dlpack__(**options)
        return self.capsule


class BeforeVersions(Forwarding):
    """As a producer from before DLPack 1.0, which takes a stream and nothing else."""

    def __dlpack__(self, stream: object = None) -> object:  # type: ignore[override]
        return super().__dlpack__()
