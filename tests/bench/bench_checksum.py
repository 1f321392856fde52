"""How fast `checksum` is beside vLLM's own digests and hashlib, as ratios from one run on two cores.

    python tests/bench/bench_checksum.py [--require]

The model is about 2 GB of bfloat16 in the shapes of a Llama: embedding, head, and in each layer the fused
query-key-value, output, fused gate-up and down projections and two norms. Times are medians of several rounds that
take turns, so that a busy moment meets everybody. With --require, the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from vllm_weight_checker import Rank, checksum

CORES = 2
ROUNDS = 7
VOCABULARY, HIDDEN, KEY_VALUE, INTERMEDIATE, LAYERS = 64_000, 2_048, 512, 8_192, 12
SMALL_TENSORS, SMALL_BYTES = 2_000, 4_096
TARGET_SPEED, TARGET_MEMORY_MIB = 1.8, 16.0
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """A line of the table. A `target` is a least ratio."""

    what: str
    ours: str
    theirs: str
    ratio: float
    target: float | None = None

    def missed(self) -> bool:
        return self.target is not None and self.ratio < self.target


def weight(*shape: int) -> torch.nn.Parameter:
    """Random bits, since no page of a real weight is shared or untouched."""
    bits = torch.empty(shape, dtype=torch.bfloat16)
    bits.view(torch.int16).random_()
    return torch.nn.Parameter(bits, requires_grad=False)


def llama() -> torch.nn.Module:
    model = torch.nn.Module()
    model.register_parameter("embed_tokens", weight(VOCABULARY, HIDDEN))
    layers = model.layers = torch.nn.ModuleList()
    for _ in range(LAYERS):
        layer = torch.nn.Module()
        layer.register_parameter("qkv_proj", weight(HIDDEN + 2 * KEY_VALUE, HIDDEN))
        layer.register_parameter("o_proj", weight(HIDDEN, HIDDEN))
        layer.register_parameter("gate_up_proj", weight(2 * INTERMEDIATE, HIDDEN))
        layer.register_parameter("down_proj", weight(HIDDEN, INTERMEDIATE))
        layer.register_parameter("input_layernorm", weight(HIDDEN))
        layer.register_parameter("post_attention_layernorm", weight(HIDDEN))
        layers.append(layer)
    model.register_parameter("norm", weight(HIDDEN))
    model.register_parameter("lm_head", weight(VOCABULARY, HIDDEN))
    return model


def hashlib_digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().view(-1).view(torch.uint8).numpy()).hexdigest()


def medians(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds for each, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(ROUNDS + 1):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            if number > 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def large_rows() -> list[Row]:
    from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

    model = llama()
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(f"Model: {len(tensors)} tensors, {size / 1e9:.2f} GB of bfloat16; medians of {ROUNDS} rounds\n")
    if checksum(tensors) != {Rank().prefix + name: digest for name, digest in compute_tensor_digests(model).items()}:
        raise SystemExit("the digests are not vLLM's: nothing was measured")
    largest_first = sorted(tensors.values(), key=lambda tensor: -tensor.nbytes)
    with ThreadPoolExecutor(CORES) as pool:
        seconds = medians(
            {
                "vllm": lambda: compute_tensor_digests(model),
                "pool": lambda: list(pool.map(hashlib_digest, largest_first)),
                "one": lambda: checksum(tensors, threads=1),
                "two": lambda: checksum(tensors, threads=2),
                "ours": lambda: checksum(tensors),
            }
        )

    def row(what: str, ours: str, theirs: str, target: float | None = None) -> Row:
        speed = {name: f"{size / seconds[name] / 1e9:.2f} GB/s" for name in (ours, theirs)}
        return Row(what, speed[ours], speed[theirs], seconds[theirs] / seconds[ours], target)

    return [
        row("checksum : vLLM's compute_tensor_digests", "ours", "vllm", TARGET_SPEED),
        row(f"checksum : hashlib in a pool of {CORES} threads", "ours", "pool"),
        row("checksum on two threads : on one", "two", "one"),
    ]


def small_row() -> Row:
    tensors = {f"layers.{n}.scale": torch.randn(SMALL_BYTES // 4) for n in range(SMALL_TENSORS)}
    seconds = medians(
        {
            "ours": lambda: checksum(tensors),
            "theirs": lambda: {name: hashlib_digest(tensor) for name, tensor in tensors.items()},
        }
    )
    each = {name: f"{value / SMALL_TENSORS * 1e6:.2f} us" for name, value in seconds.items()}
    what = f"a tensor of {SMALL_TENSORS} with {SMALL_BYTES} bytes : hashlib in a loop"
    return Row(what, each["ours"], each["theirs"], seconds["theirs"] / seconds["ours"])


def memory_row() -> Row:
    command = [sys.executable, __file__, "--measure-memory"]
    extra = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    what = "peak extra memory : what it may be"
    return Row(what, f"{extra:.1f} MiB", f"{TARGET_MEMORY_MIB:.1f} MiB", TARGET_MEMORY_MIB / max(extra, 0.1), 1.0)


def measure_memory() -> None:
    """Prints by how many MiB the resident memory rises at most during a checksum; in a process of its own."""
    tensors: dict[str, torch.Tensor] = dict(llama().named_parameters())
    # A strided tensor too, which has to be gathered.
    tensors["transposed"] = tensors["layers.0.gate_up_proj"].t()
    checksum({"w": torch.zeros(1)})  # loads the library
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    checksum(tensors)
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


def print_table(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}  {'ours':>10}  {'theirs':>10}  {'ratio':>6}")
    for row in rows:
        verdict = "" if row.target is None else f"  target {row.target:g}: {'MISSED' if row.missed() else 'met'}"
        print(f"{row.what:{width}}  {row.ours:>10}  {row.theirs:>10}  {row.ratio:6.2f}{verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--require", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--measure-memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    if len(cores) < CORES:
        raise SystemExit(f"this needs {CORES} cores, and may use {len(cores)}")
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(CORES)
    if arguments.measure_memory:
        measure_memory()
        return 0
    print_machine()
    rows = [*large_rows(), small_row(), memory_row()]
    print_table(rows)
    return 1 if arguments.require and any(row.missed() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
