"""Memory with an end that must not be crossed: pages between pages that cannot be touched."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
PROT_NONE = 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def protect(address: int, length: int, protection: int) -> None:
    if _libc.mprotect(address, length, protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


class Island:
    """`pages` pages of readable and writable memory with an untouchable page on either side.

    Attributes:
        inside: uint8 array of the pages between.
        address: where that begins.
    """

    def __init__(self, pages: int = 1) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        whole: np.ndarray[Any, Any] = np.frombuffer(self._map, dtype=np.uint8)
        self.inside = whole[PAGE:-PAGE]
        self.address = int(self.inside.ctypes.data)
        protect(self.address - PAGE, PAGE, PROT_NONE)
        protect(self.address + pages * PAGE, PAGE, PROT_NONE)

    def make_readonly(self) -> None:
        protect(self.address, len(self.inside), mmap.PROT_READ)
