"""What stands for tensors of torch and of others on a CUDA device, over the memory of the fake driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from capsules import Exporter

from fake_cuda import DeviceMemory


class CudaTensor(torch.Tensor):
    """Looks to a reader as torch's tensors on CUDA devices do. torch itself holds no memory for it (it is meta)."""

    memory: DeviceMemory

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.memory.device)

    def data_ptr(self) -> int:
        return self.memory.address + self.storage_offset() * self.element_size()


def on_cuda(memory: DeviceMemory, layout: torch.Tensor) -> CudaTensor:
    """A tensor at `memory` with the type, shape, strides and offset of the meta tensor `layout`."""
    tensor = layout.as_subclass(CudaTensor)
    tensor.memory = memory
    return tensor


def meta(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Stream:
    """`torch.cuda.Stream`, as far as a reader asks."""

    def __init__(self, handle: int, device: int = 0, is_capturing: bool = False) -> None:
        self.cuda_stream, self.device, self.is_capturing = handle, torch.device("cuda", device), is_capturing
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1


class CudaExporter(Exporter):
    """Bytes on a device that only `__dlpack__` tells of. `late` is written once it is asked, in the stream told."""

    def __init__(self, memory: DeviceMemory, late: bytes = b"") -> None:
        shape = np.empty(memory.size, np.uint8)
        super().__init__(shape, data=memory.address, device_type=2, device_id=memory.device)
        self.memory, self.late = memory, late
        self.told: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.memory.device

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> object:
        self.told.append(stream)
        if self.late:
            self.memory.write_later(stream, self.late)
        return super().__dlpack__()


class OldCudaExporter(CudaExporter):
    """From before DLPack 1.0."""

    def __dlpack__(self, stream: Any = None) -> object:  # type: ignore[override]
        return super().__dlpack__(stream=stream)
