"""Calls beside other Python threads, from several threads, in a forked child, with progress and cancellation."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from truth import PREFIX, painted, sha256

from vllm_weight_checker import NativeError, checksum, compare, reset
from vllm_weight_checker.errors import Status

MIB = 1 << 20


def model(seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors of 12 MiB in all, and hashlib's digests of them."""
    arrays = {f"w{index}": painted(size, seed + index) for index, size in enumerate([8 * MIB, 3 * MIB, MIB, 5, 0])}
    return (
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        {PREFIX + name: sha256(array) for name, array in arrays.items()},
    )


@pytest.fixture
def no_forced_switches() -> Iterator[None]:
    """Threads take turns only where one of them lets go of the GIL by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("verb", ["checksum", "reset", "compare"])
def test_other_python_threads_run_during_a_call(no_forced_switches: None, verb: str, threads: int) -> None:
    tensors = {"w": torch.zeros(64 * MIB, dtype=torch.uint8)}
    baseline = checksum(tensors)
    ticks: list[int] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter_ns())
            time.sleep(0)  # lets go of the GIL

    ticking = threading.Thread(target=tick)
    ticking.start()
    call = {"checksum": lambda: checksum(tensors, threads=threads), "reset": lambda: reset(tensors, threads=threads)}
    call["compare"] = lambda: compare(tensors, baseline, threads=threads)
    start = time.perf_counter_ns()
    call[verb]()
    end = time.perf_counter_ns()
    stop.set()
    ticking.join()
    assert any(start < tick < end for tick in ticks)


def test_many_threads_at_once_get_their_own_answers_and_errors() -> None:
    def work(number: int) -> None:
        tensors, truth = model(10 * number)
        for _ in range(5):
            assert checksum(tensors, threads=1 + number % 3) == truth
            with pytest.raises(NativeError, match=f"'bad {number}'"):
                checksum({f"bad {number}": np.zeros(8)[::-1]})
            report = compare(tensors, {**truth, PREFIX + f"gone {number}": "0" * 64})
            assert report.mismatches == [PREFIX + f"gone {number}"]

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()


def check_in_child(arrays: dict[str, np.ndarray[Any, Any]], truth: dict[str, str]) -> None:
    """What each forked child does. It uses no torch, whose own threads do not survive a fork."""
    for _ in range(3):
        assert checksum(arrays, threads=2) == truth
    copies = {name: array.copy() for name, array in arrays.items()}
    assert reset(copies).written == len(copies)
    assert len(compare(copies, truth).differing) == len(copies) - 1


FORKING = """
import multiprocessing, threading
from test_threads import check_in_child, checksum, model

tensors, truth = model()
arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
stop = threading.Event()

def work():
    while not stop.is_set():
        checksum(arrays)

parents = [threading.Thread(target=work) for _ in range(2)]
for thread in parents:
    thread.start()
context = multiprocessing.get_context("fork")
children = [context.Process(target=check_in_child, args=(arrays, truth)) for _ in range(12)]
for child in children:
    child.start()
for child in children:
    child.join(100)
stop.set()
for child in children:
    child.kill()
for thread in parents:
    thread.join()
print([child.exitcode for child in children])
"""


def test_forked_children_can_check_while_the_parent_does() -> None:
    """In a process of its own, which has nothing else that a fork could disturb."""
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", FORKING], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str([0] * 12), done.stderr


FORKING_WHILE_LOADING = """
import ctypes, os, signal, threading, time
from vllm_weight_checker._native import library

loading, original = threading.Event(), ctypes.CDLL

def slow(path):
    loading.set()
    time.sleep(1)
    return original(path)

ctypes.CDLL = slow
loader = threading.Thread(target=library)
loader.start()
loading.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends a child that waits for a thread which it does not have
    os._exit(0 if library().wc_abi_version() == 1 else 1)
loader.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_is_forked_while_the_library_is_loaded_has_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING_WHILE_LOADING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("verb", ["checksum", "reset", "compare"])
def test_progress_goes_from_nothing_to_all_without_overlap(verb: str) -> None:
    tensors, truth = model()
    tensors["large"] = torch.ones(40 * MIB, dtype=torch.uint8)
    total = sum(tensor.nbytes for tensor in tensors.values())
    calls: list[tuple[int, int]] = []
    busy = threading.Lock()

    def progress(done: int, of: int) -> None:
        assert busy.acquire(blocking=False), "two calls of progress at once"
        calls.append((done, of))
        time.sleep(0.001)  # time for another call to come in between
        busy.release()

    if verb == "checksum":
        assert checksum(tensors, progress=progress)[PREFIX + "w0"] == truth[PREFIX + "w0"]
    elif verb == "reset":
        assert reset(tensors, progress=progress).bytes == total
    else:
        assert compare(tensors, truth, progress=progress).unexpected == [PREFIX + "large"]
    done = [done for done, _ in calls]
    assert done == sorted(done) and len(set(done)) > 2
    hashed = total - 40 * MIB if verb == "compare" and done[-1] != total else total
    assert calls[0] == (0, hashed) and calls[-1] == (hashed, hashed)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_true_result_of_progress_cancels(at: int) -> None:
    tensors, truth = model()
    tensors["large"] = torch.ones(64 * MIB, dtype=torch.uint8)
    seen: list[int] = []

    def progress(done: int, total: int) -> bool:
        seen.append(done)
        return len(seen) > at

    for call in (checksum, reset, lambda t, progress: compare(t, truth, progress=progress)):
        seen.clear()
        with pytest.raises(NativeError) as caught:
            call(tensors, progress=progress)  # type: ignore[operator]
        assert caught.value.status is Status.CANCELLED
        assert len(seen) == at + 1


def test_a_reset_that_is_cancelled_at_once_writes_nothing() -> None:
    tensor = torch.ones(100)
    with pytest.raises(NativeError):
        reset({"w": tensor}, progress=lambda done, total: True)
    assert tensor.all()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_progress_cancels_and_comes_out(kind: type[BaseException]) -> None:
    tensors, truth = model()
    calls: list[int] = []

    def progress(done: int, total: int) -> None:
        calls.append(done)
        raise kind("enough")

    with pytest.raises(kind, match="enough"):
        checksum(tensors, progress=progress)
    assert len(calls) == 1
    assert checksum(tensors) == truth


def test_an_exception_in_progress_keeps_no_tensor_alive() -> None:
    tensors = {"w": torch.zeros(10)}
    alive = weakref.ref(tensors["w"])

    def progress(done: int, total: int) -> None:
        raise ValueError

    gc.disable()  # so that what is in a circle stays
    try:
        with pytest.raises(ValueError):
            checksum(tensors, progress=progress)
        tensors.clear()
        assert alive() is None
    finally:
        gc.enable()


class Holder:
    """A tensor that says when it is gone."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def test_tensors_live_through_the_call() -> None:
    array = painted(20 * MIB)
    truth = sha256(array)
    tensors: dict[str, object] = {"w": Holder(array), "t": torch.from_numpy(array.copy())}
    del array
    alive = [weakref.ref(tensor) for tensor in tensors.values()]
    held: list[bool] = []

    def progress(done: int, total: int) -> None:
        tensors.clear()
        gc.collect()
        held.append(all(reference() is not None for reference in alive))

    assert set(checksum(tensors, progress=progress).values()) == {truth}
    assert len(held) > 1 and all(held)
    gc.collect()
    assert all(reference() is None for reference in alive)
