"""What every kind of tensor is read into: where its elements lie, in DLPack's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .dtypes import BYTE

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 10, 11, 13
"""DLPack's device types that a weight of an engine can be on."""

HOST = (CPU, 0)


class Buffer(NamedTuple):
    """The elements of one tensor; none of its fields keeps the memory alive."""

    address: int
    """Of the first element, less `byte_offset`."""
    device: tuple[int, int]
    """DLPack's (device type, device index)."""
    dtype: int
    """A word of `dtypes.dlpack_type`."""
    shape: Sequence[int]
    strides: Sequence[int] | None
    """In elements, one per dimension; None for row-major without gaps."""
    readonly: str = ""
    """Why the elements must not be written; empty when they may be."""
    byte_offset: int = 0


STAND_IN = Buffer(0, HOST, BYTE, (0,), None)
"""No element, in the place of a tensor that the library cannot reach: on a device that torch knows and we do not."""
