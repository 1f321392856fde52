"""The library on a real GPU: right digests and fills, in order, beside other work, and errors that harm nothing.

Run by tests/gpu/run.sh. Some tests with `small` in their names also run under compute-sanitizer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from gpu_tensors import LAYOUTS, PREFIX, SHAPE, ThroughDLPack, hashed, of_type, random_bytes, raw, sha256

from vllm_weight_checker import NativeError, checksum, compare, reset, tensors
from vllm_weight_checker._exchange import exchange_table
from vllm_weight_checker.errors import Status

MIB = 1 << 20
ALGORITHMS = ["sha256", "sha256-tree"]
QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)} - QUANTISED, key=str)
SLEEP = 200_000_000
"""Cycles of the GPU: about a tenth of a second."""


@pytest.fixture(autouse=True)
def context_is_whole() -> Iterator[None]:
    """No test may leave an error behind in the context, which is the one that the engine serves from."""
    assert torch.cuda.is_available(), "torch sees no CUDA device"
    yield
    torch.cuda.synchronize()
    assert int(torch.ones(1000, device="cuda").sum()) == 1000


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_views_of_every_dtype(dtype: torch.dtype) -> None:
    memory = random_bytes(960 * dtype.itemsize)
    ours, host = of_type(memory, dtype, SHAPE), of_type(memory.cpu(), dtype, SHAPE)
    for algorithm in ALGORITHMS:
        found = checksum({name: view(ours) for name, view in LAYOUTS.items()}, algorithm=algorithm)
        assert found == checksum({name: view(host) for name, view in LAYOUTS.items()}, algorithm=algorithm)
    assert checksum({"w": ours}) == {PREFIX + "w": sha256(memory)}


@pytest.mark.parametrize("fill", ["zero", "random", "poison"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_resets_of_every_dtype(dtype: torch.dtype, fill: str) -> None:
    for name, view in LAYOUTS.items():
        memory = random_bytes(960 * dtype.itemsize)
        twin = memory.cpu()
        ours, host = view(of_type(memory, dtype, SHAPE)), view(of_type(twin, dtype, SHAPE))
        assert reset({"w": ours}, fill, 7) == reset({"w": host}, fill, 7)
        assert torch.equal(memory.cpu(), twin), name


def test_small_lengths_at_every_misalignment() -> None:
    memory = random_bytes(MIB + 100_000)
    cuts = [(start, start + size) for start in range(18) for size in (0, 1, 15, 16, 17, 63, 64, 65, 8191, 8192, 8193)]
    cuts += [
        (start, start + size) for start in (0, 1, 16) for size in (65_535, 65_536, MIB - 1, MIB, MIB + 1, MIB + 8193)
    ]
    ours = {str(cut): memory[slice(*cut)] for cut in cuts}
    assert checksum(ours) == hashed(ours)
    host = {str(cut): memory.cpu()[slice(*cut)] for cut in cuts}
    assert checksum(ours, algorithm="sha256-tree") == checksum(host, algorithm="sha256-tree")


def test_many_tensors_are_described_at_once_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {f"w{index}": random_bytes(1000 + index, index) for index in range(300)}
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # torch 2.10 and later
        assert exchange_table(list(ours.values())) is not None
    at_once = checksum(ours)
    monkeypatch.setattr(tensors, "exchange_table", lambda _: None)
    assert checksum(ours) == at_once == hashed(ours)


def test_sizes_up_to_8_gb() -> None:
    ran = []
    for size in (1000, 5_000_001, 100 * MIB + 13, 1 << 30, 8_000_000_000):
        torch.cuda.empty_cache()
        # torch makes random bytes where they stay; a tenth more is for all else.
        if torch.cuda.mem_get_info()[0] < 1.1 * size:
            print(f"{size} bytes do not fit")
            continue
        memory = random_bytes(size)
        host = memory.cpu()
        assert checksum({"w": memory}) == {PREFIX + "w": sha256(host)}, size
        tree = {"algorithm": "sha256-tree"}
        assert checksum({"w": memory}, **tree) == checksum({"w": host}, **tree), size  # type: ignore[arg-type]
        ran.append(size)
        del memory, host
    assert ran, "no size fits"


def test_host_memory_keeps_to_its_bound_and_digests_to_theirs() -> None:
    ours = {
        "large": random_bytes(50 * MIB),
        "strided": random_bytes(8 * MIB, 1).view(2048, 4096).t(),
        "small": random_bytes(9),
    }
    for bound in (MIB, 3 * MIB, 0):
        assert checksum(ours, max_host_bytes=bound) == hashed(ours)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("through", [lambda t: t, ThroughDLPack], ids=["torch", "dlpack"])
@pytest.mark.parametrize("on_side", [True, False])
def test_work_in_the_current_stream_is_waited_for(on_side: bool, through: Any, algorithm: str) -> None:
    expected = checksum({"w": torch.full((64 * MIB,), 7, dtype=torch.uint8)}, algorithm=algorithm)
    weights = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    # A producer without torch knows of the default stream only, so here torch's tensor tells of the other one.
    others = {"of torch": weights[:10]} if on_side else {}
    with torch.cuda.stream(torch.cuda.Stream() if on_side else torch.cuda.default_stream()):
        torch.cuda._sleep(SLEEP)
        weights.fill_(7)
        found = checksum({"w": through(weights), **others}, algorithm=algorithm)
    assert found[PREFIX + "w"] == expected[PREFIX + "w"]


def test_a_reset_comes_after_earlier_work_and_before_later_work() -> None:
    weights = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLEEP)
        weights.fill_(7)
        reset({"w": weights}, "poison")
        total = weights.sum(dtype=torch.int64)
        torch.cuda.current_stream().synchronize()
    assert int(total) == 0xFF * 64 * MIB


def test_threads_at_once_beside_matrix_products() -> None:
    # Whole numbers, whose sums are exact in any order.
    left, right = (torch.randint(-2, 3, (2048, 2048), device="cuda").float() for _ in range(2))
    product = left @ right
    ours = [
        {f"w{index}": random_bytes(20 * MIB + 17 * index, 10 * call + index) for index in range(4)} for call in range(4)
    ]
    truth = [hashed(some) for some in ours]
    torch.cuda.synchronize()
    stop = threading.Event()
    wrong: list[int] = []

    def multiply() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            turn = 0
            while not stop.is_set():
                if not torch.equal(left @ right, product):
                    wrong.append(turn)
                turn += 1

    def check(call: int) -> None:
        for _ in range(5):
            assert checksum(ours[call]) == truth[call]
            assert compare(ours[call], truth[call], threads=2).match
            checksum(ours[call], algorithm="sha256-tree")

    beside = threading.Thread(target=multiply)
    beside.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(check, call) for call in range(4)]:
                done.result()
    finally:
        stop.set()
        beside.join()
    assert wrong == []


def freed() -> int:
    """The address of memory that torch has given back to the driver."""
    memory = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    address = memory.data_ptr()
    del memory
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return address


@pytest.mark.parametrize("case", ["freed", "unmapped", "past the end"])
def test_memory_that_is_not_there_is_refused_before_anything_is_written(case: str) -> None:
    good = random_bytes(1000)
    before = sha256(good)
    address = {"freed": freed, "unmapped": lambda: 1 << 45, "past the end": good.data_ptr}[case]()
    bad = raw(address, 1 << 40 if case == "past the end" else 4096)
    for call in (checksum, reset, lambda both: compare(both, {PREFIX + "good": before})):
        with pytest.raises(NativeError, match="'bad'") as caught:
            call({"good": good, "bad": bad})
        assert caught.value.status is Status.UNALLOCATED_DEVICE_MEMORY
    assert checksum({"good": good}) == {PREFIX + "good": before}


def test_a_device_without_room_for_scratch() -> None:
    ours = {"w": random_bytes(100 * MIB), "strided": random_bytes(16 * MIB, 1).view(4096, 4096).t()}
    truth = hashed(ours)
    tree = checksum({name: tensor.cpu() for name, tensor in ours.items()}, algorithm="sha256-tree")
    torch.cuda.empty_cache()
    ballast = []
    for size in (1 << 30, 64 * MIB, 2 * MIB):
        try:
            while True:
                ballast.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass
    for algorithm, expected in (("sha256", truth), ("sha256-tree", tree)):
        try:
            assert checksum(ours, algorithm=algorithm) == expected
        except NativeError as error:
            assert error.status is Status.OUT_OF_DEVICE_MEMORY
    del ballast
    torch.cuda.empty_cache()
    assert checksum(ours) == truth and checksum(ours, algorithm="sha256-tree") == tree


def test_a_stream_that_is_captured_is_refused_and_the_capture_goes_on() -> None:
    weights, count = random_bytes(1000), torch.zeros(1000, device="cuda")
    expected = checksum({"w": weights})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        count.add_(1)
        for call in (checksum, reset):
            with pytest.raises(NativeError) as caught:
                call({"w": weights})
            assert caught.value.status is Status.STREAM_CAPTURING
        count.add_(1)
    graph.replay()
    assert count.eq(2).all() and checksum({"w": weights}) == expected


def test_a_call_beside_a_capture_of_another_thread_breaks_neither() -> None:
    weights, count = random_bytes(10 * MIB), torch.zeros(1000, device="cuda")
    expected = {algorithm: checksum({"w": weights}, algorithm=algorithm) for algorithm in ALGORITHMS}
    torch.cuda.synchronize()
    found: dict[str, dict[str, str]] = {}

    def check() -> None:
        found.update({algorithm: checksum({"w": weights}, algorithm=algorithm) for algorithm in ALGORITHMS})

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        count.add_(1)
        beside = threading.Thread(target=check)
        beside.start()
        beside.join()
        count.add_(1)
    graph.replay()
    assert count.eq(2).all() and found == expected


def test_host_and_device_in_one_call() -> None:
    first, second = random_bytes(3 * MIB), random_bytes(2 * MIB, 1).cpu()
    twin = first.cpu()
    ours = {"device": first, "host": second, "tied": first[:], "empty": first[:0]}
    on_host = {"device": twin, "host": second.clone(), "tied": twin[:], "empty": twin[:0]}
    for algorithm in ALGORITHMS:
        assert checksum(ours, algorithm=algorithm) == checksum(on_host, algorithm=algorithm)
    assert reset(ours, "random", 3) == reset(on_host, "random", 3)
    assert checksum(ours) == hashed(on_host)


def test_offloaded_weights_are_read_through_the_device() -> None:
    """As vLLM offloads them: torch says CUDA, the memory is the host's and pinned."""
    host = random_bytes(3 * MIB + 5).cpu().pin_memory()
    for algorithm in ALGORITHMS:
        found = checksum({"w": raw(host.data_ptr(), len(host))}, algorithm=algorithm)
        assert found == checksum({"w": host}, algorithm=algorithm)


def test_compare_finds_one_bit() -> None:
    ours = {f"layers.{index}.weight": random_bytes(5 * MIB + index, index) for index in range(8)}
    baseline = hashed(ours)
    report = compare(ours, baseline)
    assert report.match and report.compared == 8 and report.through_host == 0
    ours["layers.5.weight"][-1] ^= 1
    assert compare(ours, baseline).differing == [PREFIX + "layers.5.weight"]
    tree = checksum(ours, algorithm="sha256-tree")
    ours["layers.2.weight"][3 * MIB] ^= 128
    assert compare(ours, tree).differing == [PREFIX + "layers.2.weight"]


def test_several_devices_in_one_call() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one device")
    ours = {f"w{device}": random_bytes(5 * MIB, device, device) for device in range(torch.cuda.device_count())}
    ours["host"] = random_bytes(MIB, 9).cpu()
    assert checksum(ours) == hashed(ours)
    with pytest.raises(NativeError) as caught:
        checksum({"w": raw(ours["w1"].data_ptr(), 1000, device=0)})
    assert caught.value.status is Status.WRONG_DEVICE
    for tensor in list(ours.values())[:-1]:
        with torch.cuda.device(tensor.device):
            torch.cuda._sleep(SLEEP)
            tensor.fill_(7)
    found = checksum({name: tensor for name, tensor in ours.items() if name != "host"}, algorithm="sha256-tree")
    assert len(set(found.values())) == 1
