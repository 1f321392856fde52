"""The fake CUDA driver of tests/fake_cuda: built, loaded as this process's libcuda, its control calls wrapped.

`FakeCuda()` must come before the library under test looks for libcuda, which then finds it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = Path(__file__).resolve().parents[1] / "fake_cuda"
OUTPUT = Path(__file__).resolve().parents[2] / "target" / "fake_cuda"
"""Where the tests in Rust build it too."""

LEGACY_STREAM, PER_THREAD_STREAM = 1, 2
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
"""Capture modes."""
OUT_OF_MEMORY, INVALID_PTX, UNKNOWN = 2, 218, 999
"""Some of the driver's error codes."""

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "fake_reset": (None, []),
    "fake_counts": (None, [c_void_p]),
    "fake_device_count": (None, [c_int]),
    "fake_device_limit": (None, [c_uint64]),
    "fake_pinned_limit": (None, [c_uint64]),
    "fake_alloc": (c_uint64, [c_int, c_uint64]),
    "fake_free": (c_int, [c_uint64]),
    "fake_offload": (c_uint64, [c_uint64]),
    "fake_reserve": (c_uint64, [c_int, c_uint64]),
    "fake_map": (c_int, [c_uint64, c_uint64]),
    "fake_unmap": (c_int, [c_uint64, c_uint64]),
    "fake_split": (c_int, [c_uint64, c_uint64]),
    "fake_unreserve": (c_int, [c_uint64]),
    "fake_write": (c_int, [c_uint64, c_void_p, c_uint64]),
    "fake_read": (c_int, [c_void_p, c_uint64, c_uint64]),
    "fake_stream": (c_uint64, [c_int]),
    "fake_stream_free": (c_int, [c_uint64]),
    "fake_write_later": (c_int, [c_uint64, c_uint64, c_void_p, c_uint64]),
    "fake_run": (None, [c_int]),
    "fake_push_context": (c_int, [c_int]),
    "fake_pop_context": (c_int, []),
    "fake_capture": (c_int, [c_uint64, c_int]),
    "fake_capture_invalidated": (c_int, [c_uint64]),
    "fake_context_depth": (c_int, []),
    "fake_context_device": (c_int, []),
    "fake_capture_mode": (c_int, []),
    "fake_fail": (None, [c_char_p, c_uint64, c_int]),
    "fake_fail_nth": (None, [c_uint64, c_int]),
    "fake_clear_failures": (None, []),
    "fake_failures_left": (c_uint64, []),
    "fake_call_count": (c_uint64, []),
    "fake_call_name": (c_char_p, [c_uint64]),
    "fake_clear_log": (None, []),
    "fake_misuse_count": (c_uint64, []),
    "fake_misuse": (c_char_p, [c_uint64]),
    "fake_clear_misuses": (None, []),
}


class Counts(ctypes.Structure):
    """What the library under test holds; see fake_cuda.h."""

    _fields_ = (
        ("contexts", c_uint64 * 8),
        *(
            (name, c_uint64)
            for name in (
                "streams",
                "events",
                "modules",
                "device_allocations",
                "device_bytes",
                "pinned_allocations",
                "pinned_bytes",
                "most_device_bytes",
                "most_pinned_bytes",
                "queued",
                "queued_elsewhere",
            )
        ),
    )

    def as_dict(self) -> dict[str, Any]:
        return {name: list(self.contexts) if name == "contexts" else getattr(self, name) for name, _ in self._fields_}


class DeviceMemory:
    """Memory of a framework on a fake device, of `address` and `size` bytes."""

    def __init__(self, fake: FakeCuda, device: int, address: int, size: int) -> None:
        self.fake, self.device, self.address, self.size = fake, device, address, size

    def write(self, data: Any, offset: int = 0) -> None:
        """At once, whatever is queued."""
        data = _bytes(data)
        _done(self.fake.calls.fake_write(self.address + offset, data, len(data)), "write")

    def write_later(self, stream: int, data: Any, offset: int = 0) -> None:
        """Queued: the work of a producer."""
        data = _bytes(data)
        _done(self.fake.calls.fake_write_later(stream, self.address + offset, data, len(data)), "write_later")

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """As it is now; nothing queued runs."""
        size = self.size - offset if size is None else size
        buffer = ctypes.create_string_buffer(size)
        _done(self.fake.calls.fake_read(buffer, self.address + offset, size), "read")
        return buffer.raw

    def free(self) -> None:
        _done(self.fake.calls.fake_free(self.address), "free")


class FakeCuda:
    """The driver. `calls` has the control calls of fake_cuda.h and those of cuda.h."""

    def __init__(self, as_libcuda: bool = True) -> None:
        """Without `as_libcuda` nobody else in this process finds it."""
        subprocess.run(["bash", str(SOURCES / "build.sh"), str(OUTPUT)], check=True)
        if as_libcuda:
            self.calls = ctypes.CDLL(str(OUTPUT / "libcuda.so.1"))
        else:
            self.calls = ctypes.CDLL(str(OUTPUT / "libfake_cuda.so"))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.calls, name)
            function.restype, function.argtypes = result, arguments

    def reset(self) -> None:
        self.calls.fake_reset()

    def alloc(self, size: int, device: int = 0) -> DeviceMemory:
        address = self.calls.fake_alloc(device, size)
        _done(address, "alloc")
        return DeviceMemory(self, device, address, size)

    def put(self, data: Any, device: int = 0) -> DeviceMemory:
        """Memory that holds `data`."""
        data = _bytes(data)
        memory = self.alloc(len(data), device)
        memory.write(data)
        return memory

    def reserve(self, size: int, device: int = 0) -> DeviceMemory:
        """Addresses without memory; `map` gives them some."""
        address = self.calls.fake_reserve(device, size)
        _done(address, "reserve")
        return DeviceMemory(self, device, address, size)

    def map(self, address: int, size: int) -> None:
        _done(self.calls.fake_map(address, size), "map")

    def unmap(self, address: int, size: int) -> None:
        _done(self.calls.fake_unmap(address, size), "unmap")

    def stream(self, device: int = 0) -> int:
        handle = self.calls.fake_stream(device)
        _done(handle, "stream")
        return handle

    @contextmanager
    def capturing(self, stream: int, mode: int = GLOBAL) -> Iterator[None]:
        _done(self.calls.fake_capture(stream, mode), "capture")
        try:
            yield
        finally:
            self.calls.fake_capture(stream, -1)

    def capture_invalidated(self, stream: int) -> bool:
        return bool(self.calls.fake_capture_invalidated(stream))

    def fail(self, name: str, nth: int = 1, error: int = UNKNOWN) -> None:
        self.calls.fake_fail(name.encode(), nth, error)

    def fail_nth(self, nth: int, error: int = UNKNOWN) -> None:
        self.calls.fake_fail_nth(nth, error)

    def log(self) -> list[str]:
        """The driver calls since the last `clear_log`."""
        return [self.calls.fake_call_name(index).decode() for index in range(self.calls.fake_call_count())]

    def clear_log(self) -> None:
        self.calls.fake_clear_log()

    def misuses(self) -> list[str]:
        return [self.calls.fake_misuse(index).decode() for index in range(self.calls.fake_misuse_count())]

    def counts(self) -> Counts:
        counts = Counts()
        self.calls.fake_counts(ctypes.byref(counts))
        return counts


def _bytes(data: Any) -> bytes:
    return data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()


def _done(result: int, what: str) -> None:
    if not result:
        raise RuntimeError(f"the fake driver refused: {what}")
