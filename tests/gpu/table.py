"""Prints how fast digests and resets are on this GPU, beside what limits them and beside vLLM's way.

    python tests/gpu/table.py [--gigabytes 1 8] [--runs 5] [--instructions N] [--require]

The tensors are bfloat16, about 200 of them in the shapes of a decoder. Times are medians after a warm-up, of whole
calls from Python; every speed is in 10**9 bytes of tensors per second. Besides the library's own lines it prints:

- floor: what the multiprocessors can do, 64 integer instructions a clock each, if nothing else limits them
- device copy: torch's copy from device memory to device memory, counted once
- link: torch's copies into pinned host memory; lanes: the library on the same bytes in host memory
- vLLM's way: each tensor .cpu(), then hashlib
- memset: torch's zero_ of one tensor of all the bytes

With --require the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vllm_weight_checker import backend, checksum, reset

INTEGER_INSTRUCTIONS = 947
"""Of the integer pipe for 64 bytes, as tests/kernels/instructions.py counts them for sm_90; a test compares."""
LANES, BLOCK = 64, 64
"""Integer instructions that a multiprocessor of sm_80 to sm_100 does in a clock; bytes that SHA-256 takes at a time."""

TREE_OF_FLOOR, TREE_GIGABYTES, SHA256_OF_LIMIT, RESET_OF_MEMSET = 0.85, 700.0, 0.90, 0.80
"""The targets; that in GB/s is for an H200."""

LAYERS = 33
PINNED = 256 << 20


@dataclass(frozen=True)
class Line:
    """A row of the table. `met` is None when there is no target."""

    what: str
    speed: float
    beside: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        return f"{self.what:<28}{self.speed:>9.1f}  {self.beside:<64}{verdict}".rstrip()


def floor(multiprocessors: int, hertz: float, instructions: float) -> float:
    """The most GB/s that the integer pipes allow."""
    return multiprocessors * LANES * hertz / instructions * BLOCK / 1e9


def shapes(gigabytes: float) -> list[tuple[int, ...]]:
    """Those of a decoder's bfloat16 tensors, of about so many bytes in all."""
    # A layer has 13 hidden**2 elements, embedding and head 8 each.
    hidden = max(1, round(math.sqrt(gigabytes * 1e9 / 2 / (13 * LAYERS + 16)) / 16)) * 16
    layer = [(3 * hidden // 2, hidden), (hidden, hidden), (7 * hidden, hidden), (hidden, 7 * hidden // 2)]
    return [(8 * hidden, hidden), *[*layer, (hidden,), (hidden,)] * LAYERS, (hidden,), (8 * hidden, hidden)]


def line_of_tree(speed: float, most: float, copy: float, is_h200: bool) -> Line:
    met = speed >= TREE_OF_FLOOR * most and (not is_h200 or speed > TREE_GIGABYTES)
    beside = f"{speed / most:.0%} of the floor {most:.0f}, {speed / copy:.0%} of a device copy {copy:.0f}"
    return Line("sha256-tree", speed, beside, met)


def line_of_sha256(speed: float, link: float, lanes: float) -> Line:
    limit = min(link, lanes)
    beside = f"{speed / limit:.0%} of the smaller of link {link:.1f} and lanes {lanes:.1f}"
    return Line("sha256", speed, beside, speed >= SHA256_OF_LIMIT * limit)


def line_of_reset(fill: str, speed: float, memset: float) -> Line:
    beside = f"{speed / memset:.0%} of memset {memset:.0f}"
    return Line(f"reset {fill}", speed, beside, speed >= RESET_OF_MEMSET * memset)


def hertz() -> float:
    """The highest clock of the first device's multiprocessors."""
    # Not by its index, which CUDA_VISIBLE_DEVICES changes for torch only.
    device = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    query = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits", f"--id={device}"]
    try:
        return float(subprocess.run(query, check=True, capture_output=True, text=True).stdout) * 1e6
    except (OSError, subprocess.CalledProcessError, ValueError):
        return float(torch.cuda.get_device_properties(0).clock_rate) * 1e3


def seconds(act: Callable[[], object], runs: int) -> float:
    """The median time of a call and of what it has queued."""
    times = []
    for _ in range(runs + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def weights(gigabytes: float) -> dict[str, torch.Tensor]:
    """Random bits on the device."""
    made = {}
    for index, shape in enumerate(shapes(gigabytes)):
        bits = torch.empty(shape, dtype=torch.int16, device="cuda")
        made[f"w{index}"] = bits.random_(-(1 << 15), 1 << 15).view(torch.bfloat16)
    return made


def to_pinned(tensors: dict[str, torch.Tensor], pinned: torch.Tensor) -> None:
    for tensor in tensors.values():
        bits = tensor.view(torch.uint8).view(-1)
        for start in range(0, len(bits), len(pinned)):
            piece = bits[start : start + len(pinned)]
            pinned[: len(piece)].copy_(piece, non_blocking=True)


def vllms_way(tensors: dict[str, torch.Tensor]) -> None:
    for tensor in tensors.values():
        host = tensor.cpu()
        hashlib.sha256(memoryview((ctypes.c_ubyte * host.nbytes).from_address(host.data_ptr()))).hexdigest()


def copy_and_memset(size: int, runs: int) -> tuple[float, float]:
    """Seconds of a device copy and of a memset of so many bytes."""
    flat, other = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    return seconds(lambda: other.copy_(flat), runs), seconds(flat.zero_, runs)


def measure(gigabytes: float, runs: int, most: float) -> list[Line]:
    tensors = weights(gigabytes)
    size = sum(tensor.nbytes for tensor in tensors.values())

    def speed(act: Callable[[], object], some: int = runs) -> float:
        return size / seconds(act, some) / 1e9

    copy, memset = (size / some / 1e9 for some in copy_and_memset(size, runs))
    torch.cuda.empty_cache()
    is_h200 = "H200" in torch.cuda.get_device_name(0)
    lines = [line_of_tree(speed(lambda: checksum(tensors, algorithm="sha256-tree")), most, copy, is_h200)]
    pinned = torch.empty(PINNED, dtype=torch.uint8, pin_memory=True)
    link = speed(lambda: to_pinned(tensors, pinned))
    host = {name: tensor.cpu() for name, tensor in tensors.items()}
    assert checksum(tensors) == checksum(host), "the digests of this GPU are wrong"
    lanes = speed(lambda: checksum(host))
    lines.append(line_of_sha256(speed(lambda: checksum(tensors)), link, lanes))
    lines.append(Line("vLLM's way", speed(lambda: vllms_way(tensors), 1)))
    for fill in ("zero", "random", "poison"):
        lines.append(line_of_reset(fill, speed(lambda fill=fill: reset(tensors, fill)), memset))  # type: ignore[misc]
    return [Line(f"{len(tensors)} tensors", size / 1e9, "GB"), *lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--instructions", type=float, default=INTEGER_INSTRUCTIONS)
    parser.add_argument("--require", action="store_true")
    arguments = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    clock = hertz()
    most = floor(device.multi_processor_count, clock, arguments.instructions)
    print(f"{device.name}: {device.multi_processor_count} multiprocessors at {clock / 1e9:.2f} GHz; host: {backend()}")
    print(f"floor: {arguments.instructions:.0f} integer instructions for {BLOCK} bytes are {most:.0f} GB/s\n")
    missed = 0
    for gigabytes in arguments.gigabytes:
        # Beside the tensors there is as much twice for the copy.
        if torch.cuda.mem_get_info()[0] < 3.2e9 * gigabytes:
            print(f"{gigabytes} GB do not fit three times\n")
            continue
        for line in measure(gigabytes, arguments.runs, most):
            print(line)
            missed += line.met is False
        print()
        torch.cuda.empty_cache()
    print(f"{missed} targets missed" if missed else "no target missed")
    return 1 if arguments.require and missed else 0


if __name__ == "__main__":
    sys.exit(main())
