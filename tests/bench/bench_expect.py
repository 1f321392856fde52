"""How fast `wc_expect` is beside `checksum` of the same parameters in memory, as ratios from one run on two cores.

    python tests/bench/bench_expect.py [--megabytes N] [--runs N] [--require]

The checkpoint has the shapes of a Llama in several safetensors files, in the page cache, once in bfloat16 and once in
float32; the parameters are bfloat16 on both ranks of tensor parallel 2: fused query-key-value and gate-up from row
slices, output and down projections from column slices. `transposed` stores every matrix transposed, as GPT-2 does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_checksum import CORES, Row, medians, print_machine, print_table
from safetensors.torch import save_file

from vllm_weight_checker import _native, checksum

MEGABYTES, RUNS, TP = 1_000, 5, 2
TARGET = 0.8
HIDDEN, KEY_VALUE, INTERMEDIATE, VOCABULARY = 2_048, 512, 8_192, 32_000
Plan = dict[str, Any]


def checkpoint(layers: int) -> Iterator[tuple[str, list[tuple[str, tuple[int, int]]], str]]:
    """(parameter, checkpoint tensors of it, how it is cut): `rows` of each tensor, or `columns`."""
    yield "embed_tokens", [("embed_tokens", (VOCABULARY, HIDDEN))], "rows"
    for n in range(layers):
        projections = [("q", (HIDDEN, HIDDEN)), ("k", (KEY_VALUE, HIDDEN)), ("v", (KEY_VALUE, HIDDEN))]
        yield f"{n}.qkv_proj", [(f"{n}.{name}_proj", shape) for name, shape in projections], "rows"
        yield f"{n}.o_proj", [(f"{n}.o_proj", (HIDDEN, HIDDEN))], "columns"
        gate_up = [(f"{n}.{name}_proj", (INTERMEDIATE, HIDDEN)) for name in ("gate", "up")]
        yield f"{n}.gate_up_proj", gate_up, "rows"
        yield f"{n}.down_proj", [(f"{n}.down_proj", (HIDDEN, INTERMEDIATE))], "columns"


def pieces(
    parts: list[tuple[str, tuple[int, int]]], how: str, tp: int, transposed: bool
) -> tuple[list[int], list[Plan]]:
    """The shape and the pieces of a parameter on tensor-parallel rank `tp`."""
    found: list[Plan] = []
    offset, width = 0, 0
    for name, (rows, columns) in parts:
        height, width = (rows // TP, columns) if how == "rows" else (rows, columns // TP)
        strides = [1, rows] if transposed else [columns, 1]
        start = tp * (height * strides[0] if how == "rows" else width * strides[1])
        piece = {"source": name, "shape": [height, width], "source_offset": start, "source_strides": strides}
        found.append({**piece, "offset": offset, "strides": [width, 1]})
        offset += height * width
    return [offset // width, width], found


def plan(layers: int, dtype: str, transposed: bool) -> Plan:
    sources: Plan = {}
    ranks = []
    for tp in range(TP):
        parameters: Plan = {}
        for name, parts, how in checkpoint(layers):
            shape, found = pieces(parts, how, tp, transposed)
            parameters[name] = {"dtype": "bfloat16", "shape": shape, "pieces": found}
            stored = {part: list(reversed(size)) if transposed else list(size) for part, size in parts}
            sources |= {part: {"dtype": dtype, "shape": size} for part, size in stored.items()}
        ranks.append({"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": tp}, "parameters": parameters})
    return {"format": "weight-checker-plan", "version": 1, "sources": sources, "ranks": ranks}


def save(folder: Path, sources: Plan) -> dict[str, torch.Tensor]:
    """Writes random tensors, at most 500 MB a file, with an index."""
    tensors = {name: torch.randn(of["shape"]).to(getattr(torch, of["dtype"])) for name, of in sources.items()}
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in tensors.items():
        if sum(other.nbytes for other in shards[-1].values()) + tensor.nbytes > 500e6:
            shards.append({})
        shards[-1][name] = tensor
    index = {}
    for number, shard in enumerate(shards):
        save_file(shard, folder / f"model-{number}.safetensors")
        index |= dict.fromkeys(shard, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return tensors


def expect(text: bytes, folder: str, algorithm: str) -> dict[str, str]:
    native, out = _native.library(), ctypes.c_void_p()
    options = _native.WcOptions(ctypes.sizeof(_native.WcOptions), _native.ALGORITHMS[algorithm])
    if native.wc_expect(text, folder.encode(), None, 0, options, out):
        raise SystemExit(native.wc_last_error().decode())
    digests = json.loads(ctypes.string_at(out))
    native.wc_string_free(out)
    return dict(digests)


def held(of: Plan, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every rank's parameters as torch makes them, by key."""
    made = {}
    for rank in of["ranks"]:
        for name, parameter in rank["parameters"].items():
            target = torch.empty(parameter["shape"], dtype=torch.bfloat16)
            for piece in parameter["pieces"]:
                place = target.as_strided(piece["shape"], piece["strides"], piece["offset"])
                source = tensors[piece["source"]].flatten()
                place.copy_(source.as_strided(piece["shape"], piece["source_strides"], piece["source_offset"]))
            made[f"tp{rank['rank']['tp']}.{name}"] = target
    return made


def rows(layers: int, runs: int, dtype: str, transposed: bool) -> list[Row]:
    of = plan(layers, dtype, transposed)
    text = json.dumps(of).encode()
    with tempfile.TemporaryDirectory() as folder:
        tensors = held(of, save(Path(folder), of["sources"]))
        size = sum(tensor.nbytes for tensor in tensors.values())
        work: dict[str, Callable[[], dict[str, str]]] = {}
        for algorithm in _native.ALGORITHMS:
            work[f"ours {algorithm}"] = partial(expect, text, folder, algorithm)
            work[f"theirs {algorithm}"] = partial(checksum, tensors, algorithm=algorithm)
            expected, found = work[f"ours {algorithm}"](), work[f"theirs {algorithm}"]()
            if sorted(expected.values()) != sorted(found.values()):
                raise SystemExit("the digests are not those of the parameters: nothing was measured")
        seconds = medians(dict(work), runs)
    found = []
    for algorithm in _native.ALGORITHMS:
        ours, theirs = seconds[f"ours {algorithm}"], seconds[f"theirs {algorithm}"]
        what = f"{dtype}{', transposed' if transposed else ''}: expect : checksum"
        target, met = ("", None) if transposed else (f"at least {TARGET:g}", theirs / ours >= TARGET)
        speeds = f"{size / ours / 1e9:.2f} GB/s", f"{size / theirs / 1e9:.2f} GB/s"
        found.append(Row(what, algorithm, *speeds, f"{theirs / ours:.2f}", target, met))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--megabytes", type=int, default=MEGABYTES, metavar="N", help="of parameters on all ranks (1000)"
    )
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="runs that a median is of (5)")
    parser.add_argument("--require", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    print_machine()
    layer = 2 * HIDDEN * (2 * HIDDEN + 2 * KEY_VALUE + 3 * INTERMEDIATE)
    layers = max(1, round((arguments.megabytes * 1e6 - 2 * VOCABULARY * HIDDEN) / layer))
    table = []
    for dtype, transposed in (("bfloat16", False), ("float32", False), ("bfloat16", True), ("float32", True)):
        table += rows(layers, arguments.runs, dtype, transposed)
    print_table(table)
    return 1 if arguments.require and any(row.met is False for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
