"""The fake CUDA driver shows what a library does wrong. Nothing here is about the library itself."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_calls import Driver, DriverError, ptx

from fake_cuda import GLOBAL, OUT_OF_MEMORY, OUTPUT, RELAXED, THREAD_LOCAL, FakeCuda

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND = 1, 201, 400, 500
CAPTURE_UNSUPPORTED, CAPTURE_IMPLICIT = 900, 906


@pytest.fixture(scope="module")
def loaded() -> FakeCuda:
    return FakeCuda(as_libcuda=False)


@pytest.fixture
def fake(loaded: FakeCuda) -> FakeCuda:
    loaded.reset()
    return loaded


@pytest.fixture
def driver(fake: FakeCuda) -> Iterator[Driver]:
    driver = Driver(fake)
    driver.enter()
    yield driver
    driver.leave()


def code_of(call: str, driver: Driver, *arguments: object) -> int:
    with pytest.raises(DriverError) as raised:
        getattr(driver, call)(*arguments)
    return raised.value.code


def in_a_process(body: str) -> subprocess.CompletedProcess[str]:
    """What a process does that may end badly."""
    start = f"import ctypes, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    start += "from fake_cuda import FakeCuda\nfrom driver_calls import Driver\nfake = FakeCuda()\n"
    command = [sys.executable, "-c", start + textwrap.dedent(body)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


# Order


def test_work_of_the_producer_is_seen_only_after_its_event(driver: Driver) -> None:
    producer, own = driver.fake.stream(), driver.stream()
    memory = driver.fake.put(b"old")
    memory.write_later(producer, b"new")
    event = driver.made("cuEventCreate", 2)
    driver.cuEventRecord(event, producer)
    seen = ctypes.create_string_buffer(3)
    driver.cuMemcpyDtoHAsync_v2(seen, memory.address, 3, own)
    assert seen.raw == b"old"
    driver.cuStreamWaitEvent(own, event, 0)
    driver.cuMemcpyDtoHAsync_v2(seen, memory.address, 3, own)
    assert seen.raw == b"new"
    driver.cuStreamDestroy_v2(own)
    driver.cuEventDestroy_v2(event)
    assert driver.fake.misuses() == []


def test_an_event_waits_for_what_was_recorded_only(driver: Driver) -> None:
    producer, own = driver.fake.stream(), driver.stream()
    memory = driver.fake.put(b"0")
    memory.write_later(producer, b"1")
    event = driver.made("cuEventCreate", 2)
    driver.cuEventRecord(event, producer)
    memory.write_later(producer, b"2")
    driver.cuStreamWaitEvent(own, event, 0)
    driver.cuStreamSynchronize(own)
    assert memory.read() == b"1"
    driver.cuStreamSynchronize(producer)
    assert memory.read() == b"2"
    driver.cuStreamDestroy_v2(own)
    driver.cuEventDestroy_v2(event)


@pytest.mark.parametrize("handle", [0, 1])
def test_the_legacy_stream_comes_after_blocking_streams(driver: Driver, handle: int) -> None:
    memory = driver.fake.put(b"old")
    memory.write_later(driver.fake.stream(), b"new")
    event = driver.made("cuEventCreate", 2)
    driver.cuEventRecord(event, handle)
    driver.cuEventSynchronize(event)
    assert memory.read() == b"new"
    driver.cuEventDestroy_v2(event)


def test_a_blocking_stream_comes_after_the_legacy_stream(driver: Driver) -> None:
    memory = driver.fake.put(b"old")
    memory.write_later(0, b"new")
    assert memory.read() == b"old"
    producer = driver.fake.stream()
    memory.write_later(producer, b"!", offset=2)
    driver.cuStreamSynchronize(producer)
    assert memory.read() == b"ne!"


def test_a_copy_to_pinned_memory_is_there_after_the_stream_ran(driver: Driver) -> None:
    memory, own, pinned = driver.fake.put(b"data"), driver.stream(), driver.pinned(4)
    pinned.raw = b"mine"
    driver.cuMemcpyDtoHAsync_v2(pinned, memory.address, 4, own)
    assert pinned.raw not in (b"mine", b"data")
    driver.cuStreamSynchronize(own)
    assert pinned.raw == b"data"
    driver.cuMemFreeHost(pinned)
    driver.cuStreamDestroy_v2(own)


def test_the_source_of_a_copy_is_read_at_the_call_unless_it_is_pinned(driver: Driver) -> None:
    memory, own = driver.fake.put(b"...."), driver.stream()
    pageable, pinned = ctypes.create_string_buffer(b"AB", 2), driver.pinned(2)
    pinned.raw = b"CD"
    driver.cuMemcpyHtoDAsync_v2(memory.address, pageable, 2, own)
    driver.cuMemcpyHtoDAsync_v2(memory.address + 2, pinned, 2, own)
    pageable.raw, pinned.raw = b"ab", b"cd"
    assert memory.read() == b"...."
    driver.cuStreamSynchronize(own)
    assert memory.read() == b"ABcd"
    driver.cuMemFreeHost(pinned)
    driver.cuStreamDestroy_v2(own)


# Capture


def test_nothing_can_be_recorded_on_a_stream_that_is_captured(driver: Driver) -> None:
    stream, event, status = driver.fake.stream(), driver.made("cuEventCreate", 2), ctypes.c_int(-1)
    with driver.fake.capturing(stream):
        driver.cuStreamIsCapturing(stream, ctypes.byref(status))
        assert status.value == 1
        assert code_of("cuStreamIsCapturing", driver, 0, ctypes.byref(status)) == CAPTURE_IMPLICIT
        assert not driver.fake.capture_invalidated(stream)
        assert code_of("cuEventRecord", driver, event, stream) == CAPTURE_UNSUPPORTED
        driver.cuStreamIsCapturing(stream, ctypes.byref(status))
        assert status.value == 2
    assert driver.fake.capture_invalidated(stream)
    driver.cuStreamIsCapturing(stream, ctypes.byref(status))
    assert status.value == 0
    driver.cuEventDestroy_v2(event)


@pytest.mark.parametrize(
    ("mode", "allowed"), [(GLOBAL, False), (THREAD_LOCAL, False), (RELAXED, True)], ids=["global", "local", "relaxed"]
)
def test_an_allocation_needs_the_relaxed_mode(driver: Driver, mode: int, allowed: bool) -> None:
    stream, own_mode = driver.fake.stream(), ctypes.c_int(mode)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(own_mode))
    assert (own_mode.value, driver.fake.calls.fake_capture_mode()) == (GLOBAL, mode)
    with driver.fake.capturing(stream):
        if allowed:
            driver.cuMemFree_v2(driver.made("cuMemAlloc_v2", 8))
        else:
            assert code_of("cuMemAlloc_v2", driver, ctypes.byref(ctypes.c_uint64()), 8) == CAPTURE_UNSUPPORTED
    assert driver.fake.capture_invalidated(stream) is not allowed
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(own_mode))
    assert driver.fake.calls.fake_capture_mode() == GLOBAL


# Handles, counts, limits


def test_calls_need_a_context(fake: FakeCuda) -> None:
    driver = Driver(fake)
    assert code_of("cuMemAlloc_v2", driver, ctypes.byref(ctypes.c_uint64()), 8) == INVALID_CONTEXT
    assert code_of("cuCtxPopCurrent_v2", driver, None) == INVALID_CONTEXT
    driver.enter(1)
    assert (fake.calls.fake_context_depth(), fake.calls.fake_context_device()) == (1, 1)
    assert list(fake.counts().contexts)[:2] == [0, 1]
    driver.leave()
    assert (fake.calls.fake_context_depth(), fake.calls.fake_context_device()) == (0, -1)
    assert code_of("cuDevicePrimaryCtxRelease_v2", driver, 1) == INVALID_CONTEXT
    assert len(fake.misuses()) == 1


def test_what_was_destroyed_cannot_be_used(driver: Driver) -> None:
    stream, event, memory = driver.stream(), driver.made("cuEventCreate", 2), driver.made("cuMemAlloc_v2", 8)
    driver.cuStreamDestroy_v2(stream)
    driver.cuEventDestroy_v2(event)
    driver.cuMemFree_v2(memory)
    assert code_of("cuStreamSynchronize", driver, stream) == INVALID_HANDLE
    assert code_of("cuEventRecord", driver, event, 0) == INVALID_HANDLE
    assert code_of("cuMemFree_v2", driver, memory) == INVALID_VALUE
    assert len(driver.fake.misuses()) == 3


def test_other_contexts_streams_and_memory_are_misuses(driver: Driver) -> None:
    host, there = ctypes.create_string_buffer(8), driver.fake.alloc(8, device=1)
    driver_stream = driver.fake.stream(1)
    assert code_of("cuMemcpyDtoHAsync_v2", driver, host, there.address, 8, 0) == INVALID_VALUE
    here = driver.fake.alloc(8)
    assert code_of("cuMemcpyDtoHAsync_v2", driver, host, here.address, 8, driver_stream) == INVALID_HANDLE
    assert code_of("cuMemcpyDtoHAsync_v2", driver, host, here.address, 9, 0) == INVALID_VALUE
    assert len(driver.fake.misuses()) == 3


def test_memory_is_counted_and_limited(driver: Driver) -> None:
    driver.fake.calls.fake_device_limit(100)
    driver.fake.calls.fake_pinned_limit(50)
    first, pinned = driver.made("cuMemAlloc_v2", 60), driver.pinned(50)
    assert code_of("cuMemAlloc_v2", driver, ctypes.byref(ctypes.c_uint64()), 41) == OUT_OF_MEMORY
    assert code_of("cuMemHostAlloc", driver, ctypes.byref(ctypes.c_uint64()), 1, 0) == OUT_OF_MEMORY
    second = driver.made("cuMemAlloc_v2", 40)
    held = driver.fake.counts()
    assert (held.device_allocations, held.device_bytes, held.pinned_allocations, held.pinned_bytes) == (2, 100, 1, 50)
    driver.cuMemFree_v2(first)
    driver.cuMemFree_v2(second)
    driver.cuMemFreeHost(pinned)
    held = driver.fake.counts()
    assert (held.device_allocations, held.device_bytes, held.pinned_allocations, held.pinned_bytes) == (0, 0, 0, 0)
    assert (held.most_device_bytes, held.most_pinned_bytes) == (100, 50)


def test_pinned_memory_that_a_copy_uses_must_not_be_freed(driver: Driver) -> None:
    memory, own, pinned = driver.fake.put(b"data"), driver.stream(), driver.pinned(4)
    driver.cuMemcpyDtoHAsync_v2(pinned, memory.address, 4, own)
    driver.cuMemFreeHost(pinned)
    assert driver.fake.misuses() == ["cuMemFreeHost of memory that a queued copy uses"]
    driver.cuStreamSynchronize(own)
    driver.cuStreamDestroy_v2(own)


def test_a_stream_with_work_queued_must_not_be_destroyed(driver: Driver) -> None:
    own, source, memory = driver.stream(), ctypes.create_string_buffer(4), driver.made("cuMemAlloc_v2", 4)
    driver.cuMemcpyHtoDAsync_v2(memory, source, 4, own)
    driver.cuStreamDestroy_v2(own)
    assert driver.fake.misuses() == ["cuStreamDestroy of a stream with work queued"]
    driver.cuMemFree_v2(memory)  # runs the work before
    assert driver.fake.counts().queued == 0


# Failures and the log


def test_calls_fail_when_a_test_wants_it(driver: Driver) -> None:
    memory = driver.made("cuMemAlloc_v2", 8)
    driver.fake.fail("cuMemFree", 2, 700)
    driver.cuMemFree_v2(0)
    assert code_of("cuMemFree_v2", driver, memory) == 700
    assert driver.fake.counts().device_allocations == 1
    driver.cuMemFree_v2(memory)
    driver.fake.fail_nth(2)
    driver.cuMemFree_v2(0)
    assert code_of("cuCtxGetDevice", driver, None) == 999
    assert driver.fake.calls.fake_failures_left() == 0


def test_calls_are_logged(driver: Driver) -> None:
    driver.fake.clear_log()
    driver.cuMemFree_v2(0)
    driver.cuStreamSynchronize(0)
    assert driver.fake.log() == ["cuMemFree_v2", "cuStreamSynchronize"]


def test_errors_have_names(driver: Driver) -> None:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(716, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_MISALIGNED_ADDRESS"
    driver.cuGetErrorString(2, ctypes.byref(text))
    assert text.value == b"out of memory"
    assert code_of("cuGetErrorName", driver, 12345, ctypes.byref(text)) == INVALID_VALUE


def test_all_functions_of_the_header_are_there_and_wrapped(fake: FakeCuda) -> None:
    header = (Path(__file__).parents[1] / "fake_cuda" / "fake_cuda.h").read_text()
    names = set(re.findall(r"\b(fake_\w+)\(", header))
    exported = {name for name in names if hasattr(fake.calls, name)}
    rust = (Path(__file__).parents[1] / "fake_cuda" / "mod.rs").read_text()
    assert names == exported == set(re.findall(r"    fn (fake_\w+)\(", rust))


# What is known about an address


def attributes(driver: Driver, address: int) -> tuple[int, ...]:
    """Memory type, device, start and size of the range, mapped."""
    codes = (ctypes.c_int * 5)(2, 9, 11, 12, 13)
    places = [ctypes.c_uint32(77), ctypes.c_int(77), ctypes.c_uint64(77), ctypes.c_uint64(77), ctypes.c_int(77)]
    pointers = (ctypes.c_void_p * 5)(*(ctypes.addressof(place) for place in places))
    driver.cuPointerGetAttributes(5, codes, pointers, address)
    return tuple(place.value for place in places)


def test_addresses_are_known(driver: Driver) -> None:
    memory, host = driver.fake.alloc(1000, device=1), ctypes.create_string_buffer(8)
    assert attributes(driver, memory.address + 999) == (2, 1, memory.address, 1000, 1)
    assert attributes(driver, memory.address + 1000) == (0, 0, 0, 0, 0)
    assert attributes(driver, ctypes.addressof(host)) == (0, 0, 0, 0, 0)
    assert code_of("cuPointerGetAttribute", driver, host, 2, ctypes.addressof(host)) == INVALID_VALUE
    pinned = driver.pinned(10)
    assert attributes(driver, ctypes.addressof(pinned)) == (1, 0, ctypes.addressof(pinned), 10, 1)
    driver.cuMemFreeHost(pinned)


def test_virtual_memory_has_chunks(driver: Driver) -> None:
    space = driver.fake.reserve(4 * 4096)
    chunks = space.address + 4096
    driver.fake.map(chunks, 4096)
    driver.fake.map(chunks + 4096, 4096)
    assert attributes(driver, chunks) == (2, 0, space.address, 4 * 4096, 1)
    assert attributes(driver, space.address)[4] == 0
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    driver.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), chunks + 5000)
    assert (start.value, size.value) == (chunks + 4096, 4096)
    assert code_of("cuMemGetAddressRange_v2", driver, None, None, space.address) == NOT_FOUND
    host = ctypes.create_string_buffer(8192)
    driver.cuMemcpyDtoHAsync_v2(host, chunks, 8192, 0)
    driver.fake.unmap(chunks + 4096, 4096)
    assert code_of("cuMemcpyDtoHAsync_v2", driver, host, chunks, 8192, 0) == INVALID_VALUE


# Modules and launches


def test_what_is_no_ptx_is_refused_with_a_text(driver: Driver) -> None:
    log = ctypes.create_string_buffer(b"x" * 20, 20)
    options, values = (ctypes.c_int * 2)(5, 6), (ctypes.c_void_p * 2)(ctypes.addressof(log), 20)
    module = ctypes.c_uint64()
    assert code_of("cuModuleLoadDataEx", driver, ctypes.byref(module), b"\x7fELF", 2, options, values) == 218
    assert log.value == b"ptxas fatal : the t"


def test_functions_are_found_by_name(driver: Driver) -> None:
    module = driver.made("cuModuleLoadDataEx", ptx("elements.ptx"), 0, None, None)
    function = driver.made("cuModuleGetFunction", module, b"wc_fill")
    place = ctypes.byref(ctypes.c_uint64())
    assert code_of("cuModuleGetFunction", driver, place, module, b"wc_fil") == NOT_FOUND
    assert driver.fake.misuses() == []
    with pytest.raises(DriverError):
        driver.launch(function, 0, 256, *(ctypes.c_uint64() for _ in range(4)))
    with pytest.raises(DriverError):
        driver.launch(function, 1, 257, *(ctypes.c_uint64() for _ in range(4)))
    driver.cuModuleUnload(module)
    with pytest.raises(DriverError):
        driver.launch(function, 1, 256, *(ctypes.c_uint64() for _ in range(4)))
    assert len(driver.fake.misuses()) == 3


def test_parameters_must_be_those_of_the_source(driver: Driver) -> None:
    stale = ptx("elements.ptx").replace(b".param .u64 wc_fill_param_3", b".param .u32 wc_fill_param_3")
    module = driver.made("cuModuleLoadDataEx", stale, 0, None, None)
    assert code_of("cuModuleGetFunction", driver, ctypes.byref(ctypes.c_uint64()), module, b"wc_fill") == NOT_FOUND
    assert driver.fake.misuses() == ["wc_fill takes other parameters in the PTX than in the .cu file"]
    driver.cuModuleUnload(module)


# What ends the process


def test_a_later_dlopen_of_libcuda_finds_it() -> None:
    ran = in_a_process("""
        same = ctypes.CDLL("libcuda.so")
        fake.alloc(8)
        fake.fail("cuInit", 1, 2)
        print(same.cuInit(0), same.cuInit(0))
    """)
    assert ran.stdout == "2 0\n", ran.stderr
    assert OUTPUT.joinpath("libcuda.so").resolve() == OUTPUT.joinpath("libcuda.so.1").resolve()


def test_the_host_cannot_touch_device_memory() -> None:
    ran = in_a_process("ctypes.string_at(fake.put(b'data').address, 1); print('read')")
    assert ran.returncode < 0
    assert ran.stdout == ""


LAUNCH = """
    driver = Driver(fake)
    driver.enter()
    function = driver.function("elements.ptx", "wc_gather")
    memory = fake.alloc(64)
    layout = (ctypes.c_uint64 * 69)(memory.address, 64, 64, 0, {grain})
    numbers = [ctypes.c_uint64(each) for each in (0, {bytes}, memory.address + {out})]
    driver.launch(function, 1, 256, layout, *numbers)
    driver.cuStreamSynchronize(0)
    print("ran")
"""


@pytest.mark.parametrize(
    ("size", "out", "grain", "error"),
    [(64, 0, 1, None), (257, 0, 1, "not its own"), (64, 8, 16, "misaligned"), (64, 2**20, 8, "not its own")],
    ids=["right", "beyond the end", "misaligned", "elsewhere"],
)
def test_a_kernel_that_goes_wrong_ends_the_process(size: int, out: int, grain: int, error: str | None) -> None:
    ran = in_a_process(LAUNCH.format(bytes=size, out=out, grain=grain))
    assert (ran.stdout == "ran\n") is (error is None), ran.stderr
    if error is not None:
        assert ran.returncode < 0
        assert "kernel wc_gather, block 0, thread" in ran.stderr
        assert error in ran.stderr
