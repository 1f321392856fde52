"""Tensors on a GPU, their twins on the host, and truth about their bytes that the library has no part in."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from capsules import Exporter

PREFIX = "dp0:pp0:pcp0:tp0:"
SHAPE = (6, 10, 16)

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.permute(2, 1, 0),
    "two axes swapped": lambda t: t.permute(1, 0, 2),
    "narrowed outside": lambda t: t[1:4],
    "narrowed inside": lambda t: t[:, :, 3:8],
    "every second": lambda t: t[::2, 1::2, ::2],
    "expanded": lambda t: t[:, :1].expand(6, 7, 16),
    "expanded inside": lambda t: t[:, :, 3:4].expand(6, 10, 5),
    "diagonal": lambda t: t.diagonal(0, 0, 1),
    "without dimensions": lambda t: t[3, 5, 7],
    "empty": lambda t: t[:, 2:2],
}


def random_bytes(count: int, seed: int = 0, device: int = 0) -> torch.Tensor:
    """Bytes without a period, made on the device."""
    generator = torch.Generator(f"cuda:{device}").manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device=f"cuda:{device}", generator=generator)


def of_type(raw: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """The same memory as a tensor of any type; torch can do no more than make it for some of them."""
    return torch.empty(0, dtype=dtype, device=raw.device).set_(raw.untyped_storage(), 0, shape)


def sha256(tensor: torch.Tensor) -> str:
    """hashlib's digest of a uint8 tensor, as vLLM makes one: of a copy on the host."""
    host = tensor.cpu().contiguous()
    return hashlib.sha256(memoryview((ctypes.c_ubyte * host.numel()).from_address(host.data_ptr() or 1))).hexdigest()


def hashed(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The sha256 baseline of uint8 tensors."""
    return {PREFIX + name: sha256(tensor) for name, tensor in tensors.items()}


class ThroughDLPack:
    """A tensor that tells of itself by the DLPack protocol only, as those of other frameworks do."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)


def raw(address: int, count: int, device: int = 0) -> Exporter:
    """A claim that bytes are at an address of a device."""
    nothing = SimpleNamespace(ctypes=SimpleNamespace(data=0), shape=())
    return Exporter(nothing, shape=(count,), data=address, device_type=2, device_id=device)
