"""Engines made of plain dictionaries: what workers answer, by hashlib, and the objects that callers hold.

`Worker` follows the contract of the worker methods without sharing code with them. `SimulatedLLM` and
`SimulatedClient` have the attributes of vLLM's LLM and AsyncLLM that the package uses, no more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from itertools import product
from types import SimpleNamespace
from typing import Any

SERVED = "/models/served"

Indices = tuple[int, int, int, int]


class Worker:
    """One rank that holds `weights` (name -> bytes); `hidden` parameters have no bytes."""

    def __init__(self, indices: Indices, weights: dict[str, bytes], hidden: tuple[str, ...] = ()) -> None:
        self.rank = dict(zip(("dp", "pp", "pcp", "tp"), indices))
        self.prefix = "".join(f"{axis}{index}:" for axis, index in self.rank.items())
        self.weights = weights
        self.hidden = hidden
        self.checkpoint: dict[str, bytes] = {}
        self.failure: str | None = None

    def answer(self, method: str, nonce: str | None = None, **arguments: Any) -> dict[str, Any]:
        action = method.removeprefix("weight_checker_")
        reply = {"weight_checker": 1, "action": action, "nonce": nonce, "rank": dict(self.rank)}
        if self.failure:
            return {**reply, "error": {"type": "NativeError", "message": self.failure}, "result": None}
        return {**reply, "error": None, "result": getattr(self, f"_{action}")(**arguments)}

    def digests(self) -> dict[str, str]:
        held = {**self.weights, **dict.fromkeys(self.hidden, b"")}
        return {self.prefix + name: hashlib.sha256(data).hexdigest() for name, data in held.items()}

    def _hidden_keys(self) -> list[str]:
        return [self.prefix + name for name in self.hidden]

    def _checksum(self, algorithm: str = "sha256") -> dict[str, Any]:
        digests = self.digests()
        counts = {"parameters": len(digests), "hashed": len(self.weights), "bytes": self._bytes()}
        return {"checksums": digests, **counts, "hidden": self._hidden_keys()}

    def _reset(self, fill: str = "zero", seed: int = 0) -> dict[str, Any]:
        self.weights = {name: _filled(fill, seed, name, len(data)) for name, data in self.weights.items()}
        written = len(self.weights)
        counts = {"parameters": written + len(self.hidden), "written": written, "shared": 0, "bytes": self._bytes()}
        return {**counts, "hidden": self._hidden_keys()}

    def _compare(self, baseline: dict[str, str] | str, algorithm: str = "sha256") -> dict[str, Any]:
        parsed = json.loads(baseline) if isinstance(baseline, str) else baseline
        mine = {key: digest for key, digest in parsed.items() if key.startswith(self.prefix)}
        digests = self.digests()
        hidden = set(self._hidden_keys())
        differing = sorted(key for key, digest in digests.items() if mine.get(key, digest) != digest)
        unexpected = sorted(digests.keys() - mine.keys())
        missing = sorted(mine.keys() - digests.keys())
        silent = [key for key in hidden & mine.keys() if key not in differing]
        compared = len(digests) - len(unexpected) - len(silent)
        mismatches = sorted(differing + missing + unexpected)
        return {
            "match": not mismatches and compared > 0,
            "mismatches": mismatches,
            "differing": differing,
            "missing": missing,
            "unexpected": unexpected,
            "parameters": len(digests),
            "compared": compared,
            "equal": compared - len(differing),
            "skipped": {"hidden": len(silent), "not in the baseline": len(unexpected)},
            "hidden": sorted(hidden),
            "bytes": self._bytes(),
            "through_host": 0,
        }

    def _plan(self, checkpoint: str | None = None, sources: Any = None) -> dict[str, Any]:
        parsed = json.loads(sources) if isinstance(sources, str) else sources
        document = self.document(parsed)
        parameters = len(document["ranks"][0]["parameters"])
        path = None if sources else checkpoint or SERVED
        return {"plan": json.dumps(document), "parameters": parameters, "checkpoint": path}

    def _verify(self, checkpoint: str | None = None, algorithm: str = "sha256") -> dict[str, Any]:
        data = self.checkpoint.items()
        expected = {key: hashlib.sha256(value).hexdigest() for key, value in data if key.startswith(self.prefix)}
        plan = self._plan(checkpoint)
        return {**self._checksum(), "plan": plan["plan"], "expected": expected, "checkpoint": plan["checkpoint"]}

    def document(self, sources: Any = None) -> dict[str, Any]:
        """The plan of this rank: every parameter is the whole of the checkpoint tensor that is called as its key."""
        own = {key.removeprefix(self.prefix): len(data) for key, data in self.checkpoint.items()}
        parameters = {
            name: {"dtype": "uint8", "shape": [size], "pieces": [_whole(self.prefix + name, size)]}
            for name, size in own.items()
            if self.prefix + name in self.checkpoint
        }
        every = {name: {"dtype": "uint8", "shape": [len(data)]} for name, data in self.checkpoint.items()}
        return {
            "format": "weight-checker-plan",
            "version": 1,
            "engine": {"name": "simulated", "version": "1"},
            "sources": every if sources is None else sources,
            "ranks": [{"rank": self.rank, "parameters": parameters}],
        }

    def _bytes(self) -> int:
        return sum(map(len, self.weights.values()))


def workers(dp: int = 0, pp: int = 1, pcp: int = 1, tp: int = 1, seed: int = 0) -> list[Worker]:
    """The ranks of one engine in vLLM's order, each with its own random weights and one hidden parameter."""
    made = []
    for indices in product([dp], range(pp), range(pcp), range(tp)):
        source = random.Random(f"{seed} {indices}")
        weights = {f"layers.{i}.weight": source.randbytes(source.randrange(1, 40)) for i in range(3)}
        made.append(Worker(indices, weights, hidden=("packed.weight",)))
    return made


def loaded(ranks: list[Worker]) -> dict[str, bytes]:
    """The checkpoint that all these ranks have loaded: what they hold now, each parameter under its key."""
    checkpoint: dict[str, bytes] = {}
    for worker in ranks:
        checkpoint.update({worker.prefix + name: data for name, data in worker.weights.items()})
        checkpoint.update({worker.prefix + name: b"packed" for name in worker.hidden})
    for worker in ranks:
        worker.checkpoint = checkpoint
    return checkpoint


def replies(ranks: list[Worker], action: str, nonce: str, **arguments: Any) -> list[dict[str, Any]]:
    return [worker.answer(f"weight_checker_{action}", nonce, **arguments) for worker in ranks]


def parallel_config(
    pp: int = 1, pcp: int = 1, tp: int = 1, size: int = 1, index: int = 0, **more: Any
) -> SimpleNamespace:
    settings = {
        "pipeline_parallel_size": pp,
        "prefill_context_parallel_size": pcp,
        "tensor_parallel_size": tp,
        "data_parallel_size": size,
        "data_parallel_index": index,
        "data_parallel_size_local": size,
        "data_parallel_rank_local": None,
        "data_parallel_external_lb": False,
        "data_parallel_hybrid_lb": False,
        "distributed_executor_backend": "mp",
        "worker_extension_cls": "vllm_weight_checker.WorkerExtension",
    }
    return SimpleNamespace(**{**settings, **more})


class SimulatedLLM:
    """What the package uses of vllm.LLM."""

    def __init__(self, ranks: list[Worker], config: SimpleNamespace) -> None:
        self.ranks = ranks
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=config))

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        return [worker.answer(method, *args, **(kwargs or {})) for worker in self.ranks]


class SimulatedClient:
    """What the package uses of vllm.v1.engine.async_llm.AsyncLLM.

    `engines` are the ranks of each engine, by data-parallel index. `api` is the way to reach them all:
    "all" (vLLM 0.32 and later), "each" (before), or "first" (only collective_rpc, which answers for one).
    """

    def __init__(self, engines: dict[int, list[Worker]], config: SimpleNamespace, api: str = "all") -> None:
        self.engines = engines
        self.vllm_config = SimpleNamespace(parallel_config=config)
        self.engine_core = SimpleNamespace()
        self.gate: asyncio.Event | None = None
        if api in ("all", "each"):
            self.engine_core.engine_ranks_managed = list(engines)
            self.engine_core.core_engines = [dp.to_bytes(2, "little") for dp in engines]
            self.engine_core._call_utility_async = self._one
        if api == "all":
            self.engine_core.call_utility_all_async = self._all

    async def _one(
        self, utility: str, method: str, timeout: Any, args: Any, kwargs: Any, *, engine: bytes
    ) -> list[Any]:
        assert (utility, timeout) == ("collective_rpc", None)
        if self.gate is not None:
            await self.gate.wait()
        ranks = self.engines[int.from_bytes(engine, "little")]
        return [worker.answer(method, *args, **kwargs) for worker in ranks]

    async def _all(self, *arguments: Any) -> list[list[Any]]:
        return [await self._one(*arguments, engine=dp.to_bytes(2, "little")) for dp in self.engines]

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        first = next(iter(self.engines))
        return await self._one(
            "collective_rpc", method, timeout, args, kwargs or {}, engine=first.to_bytes(2, "little")
        )


def _whole(source: str, size: int) -> dict[str, Any]:
    place = {"shape": [size], "offset": 0, "strides": [1]}
    return {"source": source, "source_offset": 0, "source_strides": [1], **place}


def _filled(fill: str, seed: int, name: str, size: int) -> bytes:
    if fill == "random":
        return random.Random(f"{seed} {name}").randbytes(size)
    return {"zero": b"\x00", "poison": b"\xff"}[fill] * size
