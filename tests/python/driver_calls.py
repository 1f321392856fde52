"""The calls of the CUDA driver as a library makes them, for the tests of the fake driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_cuda import FakeCuda

KERNELS = Path(__file__).resolve().parents[2] / "src" / "cuda"
NON_BLOCKING = 1


class DriverError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Driver:
    """Any driver function as a method that raises when it fails; integers are passed with 64 bits."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.cuInit(0)

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self.fake.calls, name)

        def call(*arguments: Any) -> None:
            code = function(*(ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments))
            if code != 0:
                raise DriverError(code)

        return call

    def made(self, name: str, *arguments: Any) -> int:
        """What a function writes to the place that its first argument names."""
        place = ctypes.c_uint64()
        getattr(self, name)(ctypes.byref(place), *arguments)
        return place.value

    def enter(self, device: int = 0) -> None:
        self.cuCtxPushCurrent_v2(self.made("cuDevicePrimaryCtxRetain", device))

    def leave(self) -> None:
        device = ctypes.c_int()
        self.cuCtxGetDevice(ctypes.byref(device))
        self.cuCtxPopCurrent_v2(None)
        self.cuDevicePrimaryCtxRelease_v2(device.value)

    def stream(self) -> int:
        return self.made("cuStreamCreateWithPriority", NON_BLOCKING, 0)

    def pinned(self, size: int) -> ctypes.Array[ctypes.c_char]:
        return (ctypes.c_char * size).from_address(self.made("cuMemHostAlloc", size, 0))

    def function(self, file: str, name: str) -> int:
        """A kernel of a PTX file; its module stays loaded."""
        return self.made(
            "cuModuleGetFunction", self.made("cuModuleLoadDataEx", ptx(file), 0, None, None), name.encode()
        )

    def launch(self, function: int, grid: int, block: int, *parameters: Any, stream: int = 0) -> None:
        """Parameters are ctypes objects."""
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(each) for each in parameters))
        self.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers, None)


def ptx(file: str) -> bytes:
    return (KERNELS / file).read_bytes()
