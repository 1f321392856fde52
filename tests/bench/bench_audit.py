"""How long `wc_audit` takes for a large mixture-of-experts model over 64 ranks.

    python tests/bench/bench_audit.py [--layers N] [--cut]

The shapes are Qwen3-235B's: 94 layers, 128 experts of 4,096 x 1,536, 64 query and 4 key-value heads of 128. Attention
is cut over all ranks; each rank has two whole experts, or with --cut a slice of every expert: many more pieces.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from typing import Any

from vllm_weight_checker._native import library

RANKS, EXPERTS, HIDDEN, INTERMEDIATE, HEAD, HEADS, KV_HEADS, WORDS = 64, 128, 4_096, 1_536, 128, 64, 4, 151_936
RUNS = 5
Json = dict[str, Any]


def rows(source: str, width: int, first: int, count: int, to: int) -> Json:
    """`count` whole rows of a source, put from element `to` on."""
    where = {"source": source, "source_offset": first * width, "source_strides": [width, 1]}
    return {**where, "shape": [count, width], "offset": to, "strides": [width, 1]}


def columns(source: str, height: int, width: int, rank: int, to: int) -> Json:
    part = width // RANKS
    where = {"source": source, "source_offset": rank * part, "source_strides": [width, 1]}
    return {**where, "shape": [height, part], "offset": to, "strides": [part, 1]}


def tensor(*shape: int) -> Json:
    return {"dtype": "bfloat16", "shape": list(shape)}


def sources(layers: int) -> Json:
    found = {"embed": tensor(WORDS, HIDDEN), "head": tensor(WORDS, HIDDEN), "norm": tensor(HIDDEN)}
    for layer in map(str, range(layers)):
        found[layer + ".q"] = tensor(HEADS * HEAD, HIDDEN)
        found |= {layer + name: tensor(KV_HEADS * HEAD, HIDDEN) for name in (".k", ".v")}
        found[layer + ".o"] = tensor(HIDDEN, HEADS * HEAD)
        found |= {layer + name: tensor(size) for name, size in ((".n1", HIDDEN), (".n2", HIDDEN), (".qn", HEAD))}
        found[layer + ".router"] = tensor(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            found |= {f"{layer}.{expert}.{name}": tensor(INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
            found[f"{layer}.{expert}.down"] = tensor(HIDDEN, INTERMEDIATE)
    return found


def experts(layer: str, rank: int, cut: bool) -> tuple[Json, Json]:
    """The fused w13 and w2 of a rank."""
    part = INTERMEDIATE // RANKS if cut else INTERMEDIATE
    first = rank * part if cut else 0
    held = range(EXPERTS) if cut else range(2 * rank, 2 * rank + 2)
    w13, w2 = [], []
    for slot, expert in enumerate(held):
        name, at = f"{layer}.{expert}.", 2 * slot * part * HIDDEN
        w13 += [
            rows(name + "gate", HIDDEN, first, part, at),
            rows(name + "up", HIDDEN, first, part, at + part * HIDDEN),
        ]
        at = slot * HIDDEN * part
        down = columns(name + "down", HIDDEN, INTERMEDIATE, rank, at)
        w2.append(down if cut else rows(name + "down", INTERMEDIATE, 0, HIDDEN, at))
    count = len(held)
    return (
        {**tensor(count, 2 * part, HIDDEN), "pieces": w13},
        {**tensor(count, HIDDEN, part), "pieces": w2},
    )


def parameters(rank: int, layers: int, cut: bool) -> Json:
    words = WORDS // RANKS
    found: Json = {"norm": {**tensor(HIDDEN), "pieces": [rows("norm", HIDDEN, 0, 1, 0)]}}
    for name in ("embed", "head"):
        found[name] = {**tensor(words, HIDDEN), "pieces": [rows(name, HIDDEN, rank * words, words, 0)]}
    kv = rank * KV_HEADS // RANKS
    for layer in map(str, range(layers)):
        qkv = [rows(layer + ".q", HIDDEN, rank * HEAD, HEAD, 0)]
        qkv += [rows(layer + name, HIDDEN, kv * HEAD, HEAD, at * HEAD * HIDDEN) for at, name in ((1, ".k"), (2, ".v"))]
        found[layer + ".qkv"] = {**tensor(3 * HEAD, HIDDEN), "pieces": qkv}
        out = columns(layer + ".o", HIDDEN, HEADS * HEAD, rank, 0)
        found[layer + ".o"] = {**tensor(HIDDEN, HEAD), "pieces": [out]}
        for name, size in ((".n1", HIDDEN), (".n2", HIDDEN), (".qn", HEAD)):
            found[layer + name] = {**tensor(size), "pieces": [rows(layer + name, size, 0, 1, 0)]}
        router = rows(layer + ".router", HIDDEN, 0, EXPERTS, 0)
        found[layer + ".router"] = {**tensor(EXPERTS, HIDDEN), "pieces": [router]}
        found[layer + ".w13"], found[layer + ".w2"] = experts(layer, rank, cut)
    return found


def audit(text: bytes) -> Json:
    native, out = library(), ctypes.c_void_p()
    assert native.wc_audit(text, out) == 0, native.wc_last_error()
    try:
        return dict(json.loads(ctypes.string_at(out)))
    finally:
        native.wc_string_free(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=94)
    parser.add_argument("--cut", action="store_true")
    asked = parser.parse_args()
    ranks = [
        {"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": rank}, "parameters": parameters(rank, asked.layers, asked.cut)}
        for rank in range(RANKS)
    ]
    plan = {"format": "weight-checker-plan", "version": 1, "sources": sources(asked.layers), "ranks": ranks}
    text = json.dumps(plan).encode()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        report = audit(text)
        times.append(time.perf_counter() - start)
    counts = ", ".join(f"{report[name]} {name}" for name in ("sources", "parameters", "pieces"))
    print(f"{counts}, {len(text) >> 20} MiB; complete: {report['complete']}")
    print(f"median of {RUNS}: {statistics.median(times):.3f} s, fastest {min(times):.3f} s")


if __name__ == "__main__":
    main()
