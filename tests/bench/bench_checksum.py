"""How fast `checksum` is beside vLLM's own digests and hashlib, as ratios from one run on two cores.

    python tests/bench/bench_checksum.py [--megabytes N] [--runs N] [--require]

The model is about 2 GB of bfloat16 in the shapes of a Llama: embedding, head, and in each layer the fused
query-key-value, output, fused gate-up and down projections and two norms. Times are medians of several runs that
take turns, so that a busy moment meets everybody. With --require, the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vllm_weight_checker import Rank, backend, checksum

TARGETS = {"sha256": (5.0, 2.6), "sha256-tree": (6.5, 3.3)}
"""Each algorithm has its rows in the table; at least so many times vLLM's own digests, and a pool of hashlib."""

CORES = 2
MEGABYTES, RUNS = 2_000, 5
VOCABULARY, HIDDEN, KEY_VALUE, INTERMEDIATE, LAYERS = 64_000, 2_048, 512, 8_192, 12
"""The shapes at `MEGABYTES`; the layers stay when the model is scaled."""

SMALL_TENSORS, SMALL_BYTES = 2_000, 4_096
TARGET_THREADS, TARGET_SMALL, TARGET_MEMORY_MIB = 1.9, 5.0, 16.0
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """A line of the table. `met` is None when there is no target."""

    what: str
    algorithm: str
    ours: str
    theirs: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None


def weight(*shape: int) -> torch.nn.Parameter:
    """Random bits, since no page of a real weight is shared or untouched."""
    bits = torch.empty(shape, dtype=torch.bfloat16)
    bits.view(torch.int16).random_()
    return torch.nn.Parameter(bits, requires_grad=False)


def llama(megabytes: int) -> torch.nn.Module:
    """About `megabytes` * 10**6 bytes: every width is scaled by the same factor, to a multiple of 16."""
    factor = math.sqrt(megabytes / MEGABYTES)
    vocabulary, hidden, key_value, intermediate = (
        max(1, round(width * factor / 16)) * 16 for width in (VOCABULARY, HIDDEN, KEY_VALUE, INTERMEDIATE)
    )
    model = torch.nn.Module()
    model.register_parameter("embed_tokens", weight(vocabulary, hidden))
    layers = model.layers = torch.nn.ModuleList()
    for _ in range(LAYERS):
        layer = torch.nn.Module()
        layer.register_parameter("qkv_proj", weight(hidden + 2 * key_value, hidden))
        layer.register_parameter("o_proj", weight(hidden, hidden))
        layer.register_parameter("gate_up_proj", weight(2 * intermediate, hidden))
        layer.register_parameter("down_proj", weight(hidden, intermediate))
        layer.register_parameter("input_layernorm", weight(hidden))
        layer.register_parameter("post_attention_layernorm", weight(hidden))
        layers.append(layer)
    model.register_parameter("norm", weight(hidden))
    model.register_parameter("lm_head", weight(vocabulary, hidden))
    return model


def hashlib_digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().view(-1).view(torch.uint8).numpy()).hexdigest()


def medians(work: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Seconds for each, after one run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(runs + 1):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            if number > 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def large_rows(megabytes: int, runs: int) -> list[Row]:
    from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

    model = llama(megabytes)
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(f"Model: {len(tensors)} tensors, {size / 1e9:.2f} GB of bfloat16; medians of {runs} runs\n")
    if checksum(tensors) != {Rank().prefix + name: digest for name, digest in compute_tensor_digests(model).items()}:
        raise SystemExit("the digests are not vLLM's: nothing was measured")
    largest_first = sorted(tensors.values(), key=lambda tensor: -tensor.nbytes)
    with ThreadPoolExecutor(CORES) as pool:
        work: dict[str, Callable[[], object]] = {
            "vllm": lambda: compute_tensor_digests(model),
            "pool": lambda: list(pool.map(hashlib_digest, largest_first)),
        }
        for algorithm in TARGETS:
            for name, threads in (("one", 1), ("two", 2), ("ours", 0)):
                work[f"{name} {algorithm}"] = partial(checksum, tensors, algorithm=algorithm, threads=threads)
        seconds = medians(work, runs)

    def row(what: str, algorithm: str, ours: str, theirs: str, target: float | None = None) -> Row:
        speed = {name: f"{size / seconds[name] / 1e9:.2f} GB/s" for name in (ours, theirs)}
        ratio = seconds[theirs] / seconds[ours]
        goal, met = ("", None) if target is None else (f"at least {target:g}", ratio >= target)
        return Row(what, algorithm, speed[ours], speed[theirs], f"{ratio:.2f}", goal, met)

    rows = []
    for algorithm, (target, pool_target) in TARGETS.items():
        ours, one, two = f"ours {algorithm}", f"one {algorithm}", f"two {algorithm}"
        rows += [
            row("checksum : vLLM's compute_tensor_digests", algorithm, ours, "vllm", target),
            row(f"checksum : hashlib in a pool of {CORES} threads", algorithm, ours, "pool", pool_target),
            row("checksum on two threads : on one", algorithm, two, one, TARGET_THREADS),
        ]
    return rows


def small_rows(runs: int) -> list[Row]:
    tensors = {f"layers.{n}.scale": torch.randn(SMALL_BYTES // 4) for n in range(SMALL_TENSORS)}
    work: dict[str, Callable[[], object]] = {
        "hashlib": lambda: {name: hashlib_digest(tensor) for name, tensor in tensors.items()}
    }
    work |= {algorithm: partial(checksum, tensors, algorithm=algorithm) for algorithm in TARGETS}
    seconds = medians(work, runs)
    each = {name: f"{value / SMALL_TENSORS * 1e6:.2f} us" for name, value in seconds.items()}
    what = f"a tensor of {SMALL_TENSORS} with {SMALL_BYTES} bytes : hashlib in a loop"
    rows = []
    for algorithm in TARGETS:
        ratio = seconds["hashlib"] / seconds[algorithm]
        goal, met = f"at least {TARGET_SMALL:g}", ratio >= TARGET_SMALL
        rows.append(Row(what, algorithm, each[algorithm], each["hashlib"], f"{ratio:.2f}", goal, met))
    return rows


def memory_row(algorithm: str, megabytes: int) -> Row:
    command = [sys.executable, __file__, "--megabytes", str(megabytes), "--measure-memory", algorithm]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    extra = float(done.stdout)
    goal = f"under {TARGET_MEMORY_MIB:g} MiB"
    return Row("peak extra memory", algorithm, f"{extra:.1f} MiB", target=goal, met=extra < TARGET_MEMORY_MIB)


def measure_memory(algorithm: str, megabytes: int) -> None:
    """Prints by how many MiB the resident memory rises at most during a checksum; in a process of its own."""
    tensors: dict[str, torch.Tensor] = dict(llama(megabytes).named_parameters())
    # A strided tensor too, which has to be gathered.
    tensors["transposed"] = tensors["layers.0.gate_up_proj"].t()
    checksum({"w": torch.zeros(1)})  # loads the library
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    checksum(tensors, algorithm=algorithm)
    print((resident("VmHWM") - before) / MIB)


def resident(field: str) -> int:
    """A size from /proc/self/status, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"/proc/self/status has no {field}")
    return int(found[1]) * 1024


def print_machine() -> None:
    text = Path("/proc/cpuinfo").read_text()
    facts = {name: value for name, value in re.findall(r"^(model name|flags)\s*: (.*)$", text, re.MULTILINE)}
    features = [flag for flag in ("sha_ni", "avx2", "avx512f", "avx512vl", "gfni") if flag in facts["flags"].split()]
    print(f"CPU: {facts['model name']}; {', '.join(features) or 'none of the features that matter'}")
    print(f"Cores: {len(os.sched_getaffinity(0))} of {os.cpu_count()}; torch {torch.__version__}")
    print(f"Hash backend: {backend()}")


def print_table(rows: list[Row]) -> None:
    table = [("", "algorithm", "ours", "theirs", "ratio", "target")]
    for row in rows:
        verdict = "" if row.met is None else f"{row.target}: {'met' if row.met else 'MISSED'}"
        table.append((row.what, row.algorithm, row.ours, row.theirs, row.ratio, verdict))
    widths = [max(map(len, column)) for column in zip(*table)]
    for what, algorithm, *numbers, verdict in table:
        cells = [what.ljust(widths[0]), algorithm.ljust(widths[1])]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[2:])]
        print("  ".join([*cells, verdict]).rstrip())


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=positive, default=MEGABYTES, metavar="N", help="size of the model (2000)")
    parser.add_argument("--runs", type=positive, default=RUNS, metavar="N", help="runs that a median is of (5)")
    parser.add_argument("--require", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--measure-memory", choices=list(TARGETS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    if len(cores) < CORES:
        raise SystemExit(f"this needs {CORES} cores, and may use {len(cores)}")
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(CORES)
    if arguments.measure_memory:
        measure_memory(arguments.measure_memory, arguments.megabytes)
        return 0
    print_machine()
    rows = [*large_rows(arguments.megabytes, arguments.runs), *small_rows(arguments.runs)]
    rows += [memory_row(algorithm, arguments.megabytes) for algorithm in TARGETS]
    print_table(rows)
    return 1 if arguments.require and any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
