"""Independent truth for the tests: tensors whose bytes are known, and hashlib's digests of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

PREFIX = "dp0:pp0:pcp0:tp0:"
TORCH_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
"""All that this torch has, so that a dtype which a newer torch brings is tested before it is met."""
QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
PACKED = {torch.quint4x2, torch.quint2x4}

View = Callable[[Any], Any]


def sha256(data: bytes | np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.tobytes()).hexdigest()


def painted(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """`count` bytes without a period."""
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def twins(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    """A torch tensor, and a numpy array of void elements that are the same memory, so the same bytes."""
    if dtype in QUANTISED:
        tensor = torch._empty_affine_quantized(list(shape), scale=1.0, zero_point=0, dtype=dtype)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    raw[:] = painted(len(raw), seed)
    return tensor, raw if dtype in PACKED else raw.view(f"V{tensor.element_size()}").reshape(shape)


def strided_torch(tensor: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(tensor, (5, 4), (2, 1))


def strided_numpy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    size = array.itemsize
    # As void, since numpy cannot make such a view of some types of ml_dtypes.
    return np.lib.stride_tricks.as_strided(array.view(f"V{size}"), (5, 4), (2 * size, size)).view(array.dtype)


LAYOUTS: dict[str, tuple[View, View]] = {
    "contiguous": (lambda t: t, lambda a: a),
    "transposed": (lambda t: t.permute(2, 1, 0), lambda a: a.transpose(2, 1, 0)),
    "two axes swapped": (lambda t: t.permute(1, 0, 2), lambda a: a.transpose(1, 0, 2)),
    "narrowed outside": (lambda t: t[1:3], lambda a: a[1:3]),
    "narrowed inside": (lambda t: t[:, :, 2:5], lambda a: a[:, :, 2:5]),
    "every second": (lambda t: t[::2, 1::2, ::2], lambda a: a[::2, 1::2, ::2]),
    "narrowed and transposed": (lambda t: t[:, 1:4, ::3].permute(2, 0, 1), lambda a: a[:, 1:4, ::3].transpose(2, 0, 1)),
    "expanded outside": (lambda t: t[:1].expand(3, 6, 8), lambda a: np.broadcast_to(a[:1], (3, 6, 8))),
    "expanded inside": (lambda t: t[:, :, 3:4].expand(4, 6, 5), lambda a: np.broadcast_to(a[:, :, 3:4], (4, 6, 5))),
    "expanded all": (
        lambda t: t[1:2, 1:2, 1:2].expand(2, 3, 4),
        lambda a: np.broadcast_to(a[1:2, 1:2, 1:2], (2, 3, 4)),
    ),
    "overlapping windows": (strided_torch, strided_numpy),
    "diagonal": (lambda t: t.diagonal(0, 0, 1), lambda a: a.diagonal(0, 0, 1)),
    "one element": (lambda t: t[3, 5, 7, ...], lambda a: a[3, 5, 7, ...]),
    "new axes": (lambda t: t[None, :, None, ::2], lambda a: a[None, :, None, ::2]),
    "empty": (lambda t: t[:, 2:2], lambda a: a[:, 2:2]),
}
"""Views of a (4, 6, 8) tensor, in torch and in numpy."""
SHAPE = (4, 6, 8)
