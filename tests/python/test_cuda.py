"""Tensors on CUDA devices, on the fake driver: digests, fills, streams, several devices, and every failure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capsules import Exporter
from cuda_tensors import CudaExporter, OldCudaExporter, Stream, meta, on_cuda
from truth import LAYOUTS, PREFIX, QUANTISED, SHAPE, TORCH_DTYPES, painted, sha256

from fake_cuda import OUT_OF_MEMORY, DeviceMemory, FakeCuda
from vllm_weight_checker import NativeError, checksum, compare, reset
from vllm_weight_checker.errors import Status

MIB = 1 << 20
ALGORITHMS = ["sha256", "sha256-tree"]
PLAIN_DTYPES = [dtype for dtype in TORCH_DTYPES if dtype not in QUANTISED]
LATER = b"what the producer writes, when its stream gets there. "


@pytest.fixture(scope="module")
def driver() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def fake(driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The driver; torch's current streams are the default ones. Nothing that a real driver forbids may happen."""
    driver.reset()
    streams(monkeypatch, Stream(0), Stream(0, 1))
    yield driver
    assert driver.misuses() == []
    assert driver.calls.fake_context_depth() == 0 and driver.calls.fake_capture_mode() == 0
    # What calls keep of the two devices.
    assert held(driver)["device_bytes"] <= 2 * 16 * MIB and held(driver)["pinned_bytes"] <= 2 * 256 * MIB


def held(driver: FakeCuda) -> dict[str, Any]:
    """What the library has of the driver; its streams may have waits in their queues."""
    counts = driver.counts().as_dict()
    return {name: count for name, count in counts.items() if not name.startswith(("most", "queued"))}


def streams(monkeypatch: pytest.MonkeyPatch, *current: Stream) -> None:
    """Makes these torch's current streams of its devices."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[device])
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: any(one.is_capturing for one in current))


def put(fake: FakeCuda, data: Any, device: int = 0) -> tuple[DeviceMemory, torch.Tensor]:
    """Bytes on a device, and the tensor of them."""
    memory = fake.put(data, device)
    return memory, on_cuda(memory, meta((memory.size,)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_every_dtype_in_every_layout(fake: FakeCuda, dtype: torch.dtype, algorithm: str) -> None:
    layout = meta(SHAPE, dtype)
    raw = painted(layout.nbytes)
    memory = fake.put(raw)
    host = raw.view(f"V{dtype.itemsize}").reshape(SHAPE)
    views = {name: on_cuda(memory, view(layout)) for name, (view, _) in LAYOUTS.items()}
    truth = {name: view(host).tobytes() for name, (_, view) in LAYOUTS.items()}
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in truth.items()}
    assert checksum(views, algorithm=algorithm) == checksum(arrays, algorithm=algorithm)
    if algorithm == "sha256":
        assert checksum(views) == {PREFIX + name: sha256(data) for name, data in truth.items()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lengths_and_places(fake: FakeCuda, algorithm: str) -> None:
    raw = painted(3 * MIB)
    memory = fake.put(raw)
    cuts = [(start, start + size) for start in (0, 1, 2, 8, 15, 16) for size in (0, 1, 63, 64, 65, 8191, 8192, 8193)]
    cuts += [(0, MIB), (16, MIB + 17), (3, 2 * MIB + 8195), (0, 3 * MIB)]
    tensors = {str(cut): on_cuda(memory, meta((len(raw),))[slice(*cut)]) for cut in cuts}
    arrays = {str(cut): raw[slice(*cut)] for cut in cuts}
    assert checksum(tensors, algorithm=algorithm) == checksum(arrays, algorithm=algorithm)


def test_the_bound_on_host_memory_is_kept(fake: FakeCuda) -> None:
    # Earlier calls have kept memory of both devices, which a call that may use little frees.
    small = {str(device): put(fake, painted(10), device)[1] for device in (0, 1)}
    checksum(small, max_host_bytes=MIB)
    fake.reset()
    raw = painted(9 * MIB)
    _, tensor = put(fake, raw)
    assert checksum({"w": tensor}, max_host_bytes=2 * MIB) == checksum({"w": raw})
    assert 0 < fake.counts().most_pinned_bytes <= 2 * MIB
    for wrong in (-1, 1, MIB - 1, 1 << 64):
        with pytest.raises(NativeError, match="max_host_bytes") as caught:
            checksum({"w": tensor}, max_host_bytes=wrong)
        assert caught.value.status is Status.BAD_OPTION
    with pytest.raises(TypeError):
        checksum({"w": tensor}, max_host_bytes=1.5)  # type: ignore[arg-type]


def test_compare_on_the_device_and_beside_the_host(fake: FakeCuda) -> None:
    raw = painted(MIB)
    memory, tensor = put(fake, raw)
    tensors = {"device": tensor, "host": raw, "tied": tensor[:]}
    tensors["tied"].memory = memory
    for algorithm in ALGORITHMS:
        baseline = checksum(tensors, algorithm=algorithm)
        assert len(set(baseline.values())) == 1
        assert compare(tensors, baseline) == {**compare(dict.fromkeys(tensors, raw), baseline), "through_host": 0}
        memory.write(bytes([raw[5000] ^ 1]), 5000)
        assert compare(tensors, baseline).differing == [PREFIX + "device", PREFIX + "tied"]
        memory.write(raw)


@pytest.mark.parametrize("fill", ["zero", "random", "poison"])
@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_reset_writes_what_it_writes_on_the_host(fake: FakeCuda, dtype: torch.dtype, fill: str) -> None:
    layout = meta(SHAPE, dtype)
    raw = painted(layout.nbytes)
    memory = fake.alloc(len(raw))
    for name, (view, _) in LAYOUTS.items():
        host = torch.from_numpy(raw.copy())
        memory.write(raw)
        on_host = view(torch.empty(0, dtype=dtype).set_(host.untyped_storage(), 0, SHAPE))
        assert reset({"w": on_cuda(memory, view(layout))}, fill, 7) == reset({"w": on_host}, fill, 7)
        assert memory.read() == host.numpy().tobytes(), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("of", ["side", "default"])
def test_torchs_current_stream_is_waited_for(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, of: str, algorithm: str
) -> None:
    handle = fake.stream() if of == "side" else 0
    streams(monkeypatch, Stream(handle))
    memory, tensor = put(fake, bytes(len(LATER)))
    memory.write_later(handle, LATER)
    expected = checksum({"w": np.frombuffer(LATER, np.uint8)}, algorithm=algorithm)
    assert memory.read() == bytes(len(LATER))
    assert checksum({"w": tensor}, algorithm=algorithm) == expected


def test_a_reset_comes_after_what_the_stream_holds(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = fake.stream()
    streams(monkeypatch, Stream(handle))
    memory, tensor = put(fake, bytes(len(LATER)))
    memory.write_later(handle, LATER)
    reset({"w": tensor}, "poison")
    fake.calls.fake_run(0)
    assert set(memory.read()) == {0xFF}


@pytest.mark.parametrize("kind", [CudaExporter, OldCudaExporter])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_dlpack_orders_its_work_before_the_call(fake: FakeCuda, kind: type[CudaExporter], algorithm: str) -> None:
    exporter = kind(fake.alloc(len(LATER)), late=LATER)
    array = np.frombuffer(LATER, np.uint8)
    assert checksum({"w": exporter}, algorithm=algorithm) == checksum({"w": array}, algorithm=algorithm)
    assert exporter.told[-1] == 1, "the protocol's name of the legacy default stream"


def test_dlpack_is_told_torchs_stream(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = fake.stream()
    streams(monkeypatch, Stream(handle))
    exporter = CudaExporter(fake.alloc(len(LATER)), late=LATER)
    _, tensor = put(fake, b"torch")
    found = checksum({"exporter": exporter, "torch": tensor})
    assert list(found.values()) == [sha256(LATER), sha256(b"torch")]
    assert exporter.told == [handle]


def test_several_devices_in_one_call(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    class Running(Stream):
        def synchronize(self) -> None:
            super().synchronize()
            fake.calls.fake_run(self.device.index)

    current = [Running(fake.stream(device), device) for device in range(2)]
    streams(monkeypatch, *current)
    (memory, first), (other_memory, second) = put(fake, bytes(len(LATER))), put(fake, bytes(len(LATER)), 1)
    memory.write_later(current[0].cuda_stream, LATER)
    other_memory.write_later(current[1].cuda_stream, LATER[::-1])
    exporter = CudaExporter(fake.alloc(len(LATER), 1), late=LATER)
    found = checksum({"first": first, "second": second, "host": painted(10), "exporter": exporter})
    assert list(found.values()) == [sha256(LATER), sha256(LATER[::-1]), sha256(painted(10)), sha256(LATER)]
    assert [stream.waited for stream in current] == [1, 1] and exporter.told == [1]
    assert reset({"first": first, "second": second}, "zero").written == 2
    assert not any(memory.read()) and not any(other_memory.read())


def test_a_capturing_stream_is_refused_and_goes_on(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = fake.stream()
    streams(monkeypatch, Stream(handle))
    _, tensor = put(fake, painted(100))
    with fake.capturing(handle):
        for call in (lambda: checksum({"w": tensor}), lambda: reset({"w": tensor})):
            with pytest.raises(NativeError) as caught:
                call()
            assert caught.value.status is Status.STREAM_CAPTURING
        assert not fake.capture_invalidated(handle)
    assert checksum({"w": tensor}) == checksum({"w": painted(100)})


def test_a_capturing_stream_of_several_devices_is_refused(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    current = Stream(0), Stream(0, 1, is_capturing=True)
    streams(monkeypatch, *current)
    with pytest.raises(NativeError, match="CUDA graph") as caught:
        checksum({"a": put(fake, b"a")[1], "b": put(fake, b"b", 1)[1]})
    assert caught.value.status is Status.STREAM_CAPTURING
    assert current[1].waited == 0


def test_a_stream_that_torch_cannot_tell_is_an_error_of_cuda(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_device: int) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "current_stream", fail)
    with pytest.raises(NativeError, match="unspecified launch failure") as caught:
        checksum({"w": put(fake, b"w")[1]})
    assert caught.value.status is Status.CUDA


def freed(fake: FakeCuda) -> torch.Tensor:
    memory, tensor = put(fake, painted(100))
    memory.free()
    return tensor


def past_the_end(fake: FakeCuda) -> torch.Tensor:
    return on_cuda(fake.alloc(4096), meta((1 << 30,)))


def asleep(fake: FakeCuda) -> torch.Tensor:
    """As vLLM's sleep mode leaves it: addresses without memory."""
    memory = fake.reserve(2 * MIB)
    fake.map(memory.address, 2 * MIB)
    fake.unmap(memory.address, 2 * MIB)
    return on_cuda(memory, meta((100,)))


def elsewhere(fake: FakeCuda) -> torch.Tensor:
    memory = fake.put(painted(100), 1)
    memory.device = 0
    return on_cuda(memory, meta((100,)))


def absent(fake: FakeCuda) -> object:
    return Exporter(painted(100), device_type=2, device_id=7)


BAD: dict[str, tuple[Callable[[FakeCuda], object], set[Status]]] = {
    "freed": (freed, {Status.UNALLOCATED_DEVICE_MEMORY}),
    "past the end": (past_the_end, {Status.UNALLOCATED_DEVICE_MEMORY}),
    "asleep": (asleep, {Status.UNALLOCATED_DEVICE_MEMORY}),
    "host memory": (lambda _: Exporter(painted(100), device_type=2), {Status.UNALLOCATED_DEVICE_MEMORY}),
    "another device": (elsewhere, {Status.WRONG_DEVICE}),
    "no such device": (absent, {Status.CUDA_UNAVAILABLE}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_device_memory_is_refused_by_name_before_anything_is_written(fake: FakeCuda, case: str) -> None:
    make, statuses = BAD[case]
    memory, good = put(fake, painted(100))
    tensors = {"good": good, "bad": make(fake)}
    for call in (checksum, reset, lambda tensors: compare(tensors, {PREFIX + "good": "0" * 64})):
        with pytest.raises(NativeError, match="bad|device 7") as caught:
            call(tensors)
        assert caught.value.status in statuses
    assert memory.read() == painted(100).tobytes()


def test_pinned_memory_that_runs_out(fake: FakeCuda) -> None:
    # Of so many tensors each gets buffers too small to have been kept by an earlier call.
    tensors = {str(index): put(fake, painted(MIB))[1] for index in range(5)}
    fake.fail("cuMemHostAlloc", 1, OUT_OF_MEMORY)
    with pytest.raises(NativeError) as caught:
        checksum(tensors, threads=1, max_host_bytes=MIB)
    assert caught.value.status is Status.OUT_OF_DEVICE_MEMORY
    assert fake.calls.fake_failures_left() == 0
    assert checksum(tensors, threads=1, max_host_bytes=MIB) == checksum({name: painted(MIB) for name in tensors})


VERBS: dict[str, Callable[[dict[str, object]], Any]] = {
    # By one thread, so that each call needs as many buffers as the one before it.
    "sha256": lambda tensors: checksum(tensors, threads=1),
    "sha256-tree": lambda tensors: checksum(tensors, algorithm="sha256-tree"),
    "compare": lambda tensors: compare(tensors, {PREFIX + "w": sha256(painted(20_000))}, threads=1),
    "reset": lambda tensors: reset(tensors, "random"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_driver_call_may_fail_once(fake: FakeCuda, verb: str) -> None:
    memory = fake.put(painted(20_000))
    strided = on_cuda(memory, meta((100, 200)).t())
    tensors = {"w": on_cuda(memory, meta((20_000,))), "strided": strided, "host": painted(10)}
    good = VERBS[verb](tensors)
    before = held(fake)
    statuses = set()
    for nth in range(1, 1000):
        memory.write(painted(20_000))
        fake.fail_nth(nth)
        try:
            VERBS[verb](tensors)
        except NativeError as error:
            statuses.add(error.status)
        not_reached = fake.calls.fake_failures_left()
        fake.calls.fake_clear_failures()
        memory.write(painted(20_000))
        assert VERBS[verb](tensors) == good, f"after call {nth} failed"
        # Device memory that a call could not keep is made anew, perhaps smaller.
        now = held(fake)
        assert now["device_bytes"] <= before["device_bytes"], f"call {nth} leaks"
        assert now | {"device_bytes": 0} == before | {"device_bytes": 0}, f"call {nth} leaks"
        if not_reached:
            break
    assert nth > 10 and statuses <= {Status.CUDA, Status.UNALLOCATED_DEVICE_MEMORY, Status.WRONG_DEVICE}


# It stays in this folder, since PYTHONPATH and the library's path may be relative to it.
WITHOUT_A_DRIVER = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
try:
    ctypes.CDLL("libcuda.so.1")
    sys.exit("this machine has a driver")
except OSError:
    pass
from capsules import Exporter
from truth import painted
from vllm_weight_checker import NativeError, checksum
for _ in range(2):
    try:
        checksum({"bad": Exporter(painted(8), device_type=2), "good": painted(8)})
    except NativeError as error:
        print(error.status.name)
assert checksum({"good": painted(8)})
"""


def test_without_a_driver_everything_else_works() -> None:
    command = [sys.executable, "-c", WITHOUT_A_DRIVER, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "this machine has a driver" in done.stderr:
        pytest.skip("this machine has a driver")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["CUDA_UNAVAILABLE"] * 2
