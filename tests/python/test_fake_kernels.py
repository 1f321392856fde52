"""The kernels, built for the host and run by the fake driver, give what numpy and hashlib say.

A GPU runs the same source; what only a GPU can show is tested on one."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from driver_calls import Driver
from truth import painted

from fake_cuda import DeviceMemory, FakeCuda

CHUNK = 1 << 20
LEAF = 8192
MASK = 2**64 - 1
U64 = ctypes.c_uint64


class Tensor(ctypes.Structure):
    _fields_ = (
        *((name, U64) for name in ("start", "bytes", "block")),
        *((name, ctypes.c_uint32) for name in ("dims", "ndims", "grain", "root")),
    )


class Dim(ctypes.Structure):
    _fields_ = (("count", U64), ("stride", U64))


class Layout(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("dims", Dim * 32))


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    fake = FakeCuda(as_libcuda=False)
    fake.reset()
    driver = Driver(fake)
    driver.enter()
    yield driver
    assert driver.fake.misuses() == []
    driver.leave()


@pytest.fixture
def gather(driver: Driver) -> int:
    return driver.function("elements.ptx", "wc_gather")


@pytest.fixture
def fill(driver: Driver) -> int:
    return driver.function("elements.ptx", "wc_fill")


def described(array: np.ndarray[Any, Any], storage: np.ndarray[Any, Any], address: int) -> tuple[Tensor, list[Dim]]:
    """The kernels' description of a view of `storage`, which lies at `address` in device memory."""
    start = array.__array_interface__["data"][0] - storage.__array_interface__["data"][0] + address
    axes = [(count, stride) for count, stride in zip(array.shape, array.strides, strict=True) if count > 1]
    block = array.itemsize
    while axes and axes[-1][1] == block:
        block *= axes.pop()[0]
    numbers = [start, block, *(stride for _, stride in axes)]
    grain = next(size for size in (16, 8, 4, 2, 1) if all(number % size == 0 for number in numbers))
    dims = [Dim(count, stride & MASK) for count, stride in axes]
    return Tensor(start, array.nbytes, block, 0, len(dims), grain, 0), dims


def views(item: str) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Views with elements of a size, each with its storage."""
    made = {}
    for offset, (name, index) in itertools.product(
        (0, 1),
        {
            "whole": np.s_[:],
            "rows": np.s_[3:9],
            "columns": np.s_[:, 4:20],
            "every second": np.s_[::2, :, ::2],
            "backwards": np.s_[::-1, 1:],
            "one": np.s_[2, 3, 4:5],
        }.items(),
    ):
        storage = painted((10 * 24 * 6 + 1) * np.dtype(item).itemsize, seed=offset)
        array = storage.view(item)[offset : offset + 10 * 24 * 6].reshape(10, 24, 6)
        made[f"{name} at {offset}"] = (array[index], storage)
        made[f"{name} at {offset}, transposed"] = (array[index].T, storage)
    return made


CASES = [
    pytest.param(*case, id=f"{name}, {item}")
    for item in ("V1", "V2", "V4", "V8", "V16")
    for name, case in views(item).items()
]


@pytest.mark.parametrize(("array", "storage"), CASES)
def test_gather_gives_the_logical_bytes(
    driver: Driver, gather: int, array: np.ndarray[Any, Any], storage: np.ndarray[Any, Any]
) -> None:
    memory, out = driver.fake.put(storage), driver.fake.alloc(array.nbytes)
    tensor, dims = described(array, storage, memory.address)
    layout = Layout(tensor, (Dim * 32)(*dims))
    expected = array.tobytes()
    # In two parts, and by fewer threads than there are units.
    middle = array.nbytes // 2 // 16 * 16
    for start, end in ((0, middle), (middle, array.nbytes)):
        if start < end:
            target = U64(out.address + start)
            driver.launch(gather, 2, 64, layout, U64(start), U64(end - start), target)
    driver.cuStreamSynchronize(0)
    assert out.read() == expected
    memory.free()
    out.free()


def random_words(stream: int, count: int) -> list[int]:
    """SplitMix64, a word at a time."""
    words = []
    for index in range(count):
        z = (stream + (index + 1) * 0x9E3779B97F4A7C15) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        words.append(z ^ z >> 31)
    return words


def test_words_are_the_published_ones() -> None:
    assert random_words(1234567, 2) == [6457827717110365317, 3203168211198807973]


def filled(size: int, stream: int, keep: int, set_bits: int) -> bytes:
    count = -(-size // 8)
    words = random_words(stream, count) if keep else [0] * count
    return b"".join(((word & keep) | set_bits).to_bytes(8, "little") for word in words)[:size]


def put_table(driver: Driver, *records: ctypes.Structure | ctypes.Array[Any]) -> DeviceMemory:
    return driver.fake.put(b"".join(bytes(record) for record in records) or b"\0")


def run_fill(
    driver: Driver, fill: int, tensors: list[tuple[Tensor, list[Dim]]], words: list[tuple[int, int, int]]
) -> None:
    """One launch over all chunks of all tensors."""
    dims: list[Dim] = []
    chunks = []
    for number, (tensor, own_dims) in enumerate(tensors):
        tensor.dims = len(dims)
        dims += own_dims
        chunks += [(ctypes.c_uint32 * 2)(number, chunk) for chunk in range(-(-tensor.bytes // CHUNK))]
    tables = [
        put_table(driver, *(tensor for tensor, _ in tensors)),
        put_table(driver, *dims),
        put_table(driver, *chunks),
        put_table(driver, *((U64 * 3)(*each) for each in words)),
    ]
    driver.launch(fill, len(chunks), 256, *(U64(table.address) for table in tables))
    driver.cuStreamSynchronize(0)
    for table in tables:
        table.free()


WORDS = [(0, 0, 0), (0, 0, MASK), (99, MASK, 0), (MASK, 0x7F7F7F7F7F7F7F7F, 0x0101010101010101)]


@pytest.mark.parametrize("words", WORDS, ids=["zero", "poison", "random", "masked"])
def test_fill_writes_every_element_and_nothing_else(driver: Driver, fill: int, words: tuple[int, int, int]) -> None:
    for case in CASES:
        array, storage = (each.copy() if each is case.values[1] else each for each in case.values)
        memory = driver.fake.put(storage)
        run_fill(driver, fill, [described(array, case.values[1], memory.address)], [words])
        # The same view of a copy of the storage.
        place = array.__array_interface__["data"][0] - case.values[1].__array_interface__["data"][0]
        expected = np.ndarray(array.shape, array.dtype, storage.data, place, array.strides)
        expected[...] = np.frombuffer(filled(array.nbytes, *words), array.dtype).reshape(array.shape)
        assert memory.read() == storage.tobytes(), case.id
        memory.free()


@pytest.mark.parametrize("size", [CHUNK, CHUNK + 16, 2 * CHUNK + 4, 3 * CHUNK - 1])
def test_fill_takes_several_chunks_and_tensors(driver: Driver, fill: int, size: int) -> None:
    arrays = [painted(size), painted(24), painted(40)[:35]]
    memory = [driver.fake.put(array) for array in arrays]
    words = [(5, MASK, 0), (6, 0, 7), (7, MASK, 0)]
    run_fill(
        driver, fill, [described(array, array, on.address) for array, on in zip(arrays, memory, strict=True)], words
    )
    for array, on, own in zip(arrays, memory, words, strict=True):
        assert on.read() == filled(array.nbytes, *own)
        on.free()


def test_fill_writes_only_the_chunks_of_the_launch(driver: Driver, fill: int) -> None:
    before = painted(3 * CHUNK)
    memory = driver.fake.put(before)
    tensor, _ = described(before, before, memory.address)
    tables = [put_table(driver, each) for each in (tensor, Dim(), (ctypes.c_uint32 * 2)(0, 1), (U64 * 3)(3, MASK, 0))]
    driver.launch(fill, 1, 256, *(U64(table.address) for table in tables))
    driver.cuStreamSynchronize(0)
    expected = before.copy()
    expected[CHUNK : 2 * CHUNK] = np.frombuffer(filled(2 * CHUNK, 3, MASK, 0), np.uint8)[CHUNK:]
    assert memory.read() == expected.tobytes()
    for each in (memory, *tables):
        each.free()


# The tree


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def tree(nodes: list[bytes]) -> bytes:
    while len(nodes) > 1:
        pairs = [sha256(b"\1", *nodes[at : at + 2]) for at in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[2 * len(pairs) :]
    return nodes[0]


def chunk_roots(data: bytes) -> list[bytes]:
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return [tree([sha256(b"\0", chunk[at : at + LEAF]) for at in range(0, len(chunk), LEAF)]) for chunk in chunks]


def digests(words: bytes) -> list[bytes]:
    """Digests from the state words that kernels write."""
    return [row.astype(">u4").tobytes() for row in np.frombuffer(words, "<u4").reshape(-1, 8)]


@pytest.mark.parametrize("size", [1, 63, LEAF, LEAF + 1, 5 * LEAF - 9, CHUNK - LEAF, CHUNK, CHUNK + 1, 2 * CHUNK + 77])
@pytest.mark.parametrize("step", [1, 2], ids=["contiguous", "strided"])
def test_hash_leaves_gives_the_roots_of_chunks(driver: Driver, size: int, step: int) -> None:
    function = driver.function("sha256_tree.ptx", "wc_hash_leaves")
    storage = painted(size * step)
    array = storage[::step]
    memory = driver.fake.put(storage)
    tensor, dims = described(array, storage, memory.address)
    count = -(-size // CHUNK)
    chunks = [(ctypes.c_uint32 * 2)(0, chunk) for chunk in range(count)]
    tables = [put_table(driver, tensor), put_table(driver, *dims), put_table(driver, *chunks)]
    roots = driver.fake.alloc(32 * count)
    places = [U64(table.address) for table in (*tables, roots)]
    driver.launch(function, count, 128, *places, ctypes.c_uint32(1))
    driver.cuStreamSynchronize(0)
    assert digests(roots.read()) == chunk_roots(array.tobytes())
    for each in (memory, roots, *tables):
        each.free()


def test_hash_full_leaves_gives_the_roots_of_chunks(driver: Driver) -> None:
    function = driver.function("sha256_tree.ptx", "wc_hash_full_leaves")
    data = painted(3 * CHUNK)
    memory, roots = driver.fake.put(data), driver.fake.alloc(32 * 3)
    tensor, _ = described(data, data, memory.address)
    tables = [put_table(driver, tensor), put_table(driver, *((ctypes.c_uint32 * 2)(0, chunk) for chunk in range(3)))]
    driver.launch(function, 3, 128, *(U64(table.address) for table in (*tables, roots)), ctypes.c_uint32(1))
    driver.cuStreamSynchronize(0)
    assert digests(roots.read()) == chunk_roots(data.tobytes())
    for each in (memory, roots, *tables):
        each.free()


def test_kernels_of_several_threads_do_not_mix(driver: Driver) -> None:
    def run(seed: int) -> bool:
        own = Driver(driver.fake)
        own.enter(seed % 2)
        function, stream = own.function("sha256_tree.ptx", "wc_hash_leaves"), own.stream()
        data = painted(20 * LEAF + seed, seed)
        memory, roots = own.fake.put(data, seed % 2), own.fake.alloc(32, seed % 2)
        tensor, _ = described(data, data, memory.address)
        tables = [own.fake.put(bytes(each), seed % 2) for each in (tensor, Dim(), (ctypes.c_uint32 * 2)(0, 0))]
        places = [U64(table.address) for table in (*tables, roots)]
        own.launch(function, 1, 128, *places, ctypes.c_uint32(1), stream=stream)
        own.cuStreamSynchronize(stream)
        own.cuStreamDestroy_v2(stream)
        own.leave()
        return digests(roots.read()) == chunk_roots(data.tobytes())

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(run, range(24)))


def test_hash_nodes_gives_the_roots_of_runs(driver: Driver) -> None:
    function = driver.function("sha256_tree.ptx", "wc_hash_nodes")
    counts = [1, 2, 3, 7, 64, 129, 255, 256]
    nodes = [hashlib.sha256(bytes(each)).digest() for each in range(sum(counts))]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    words = np.frombuffer(b"".join(nodes), ">u4").astype("<u4")
    # The results are written in the opposite order.
    runs = [
        (ctypes.c_uint32 * 3)(at, count, len(counts) - 1 - index)
        for index, (at, count) in enumerate(zip(starts, counts, strict=True))
    ]
    tables = [put_table(driver, *runs), driver.fake.put(words), driver.fake.alloc(32 * len(counts))]
    driver.launch(function, len(counts), 128, *(U64(table.address) for table in tables), ctypes.c_uint32(1))
    driver.cuStreamSynchronize(0)
    expected = [tree(nodes[at : at + count]) for at, count in zip(starts, counts, strict=True)]
    assert digests(tables[2].read()) == expected[::-1]
    for table in tables:
        table.free()
