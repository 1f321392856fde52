"""How to reach every rank of an engine in this process: vllm.LLM, and the async client of an API server.

vLLM's own `collective_rpc` gives the replies of one data-parallel engine only, so an async client is
asked engine by engine. Two things would harm the engine and are never done here: calling a method that
a worker lacks, and giving vLLM a timeout. Both raise where other ranks have answered, and put the
engine's replies out of step for good (see `replies`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from .errors import CheckError, RankError
from .planned import audit
from .replies import Layout, merge, new_nonce
from .report import Report
from .verification import judge

_WORKER_BASE = "vllm.v1.worker.worker_base"


def check_llm(llm: Any, action: str, baseline: Mapping[str, str] | None = None, **arguments: Any) -> Report:
    """Makes one check on every rank of a vllm.LLM; blocks until all have answered.

    Args:
        llm: has `collective_rpc` and `llm_engine.vllm_config`.
        action: "checksum", "reset", "compare", "plan" or "verify"; a compare needs the `baseline`.
        arguments: the other arguments of the worker method; those that are None are left out.

    Raises:
        CheckError: the check could not be made (`RankError`: not every rank answered as it must). What
            vLLM itself raises, because the engine is dead for example, passes unchanged.
    """
    config = llm.llm_engine.vllm_config.parallel_config
    _require_methods(config)
    dp = int(getattr(config, "data_parallel_index", 0))
    method, nonce, keywords = _call(action, baseline, arguments)
    replies = llm.collective_rpc(method, kwargs=keywords)
    return _report(action, nonce, {dp: replies}, _layout(config, (dp,)), baseline)


async def check_client(client: Any, action: str, baseline: Mapping[str, str] | None = None, **arguments: Any) -> Report:
    """`check_llm` for an async engine client, on every data-parallel engine that it manages.

    What takes time for a large model (JSON, merging) happens in a thread and not on the event loop. It
    may be cancelled: the engines finish the call, and nobody looks at their answers.
    """
    config = client.vllm_config.parallel_config
    _require_methods(config)
    engines = _managed_engines(client)
    method, nonce, keywords = await asyncio.to_thread(_call, action, baseline, arguments)
    per_engine = await _ask_engines(client, method, keywords)
    if len(per_engine) > len(engines):
        raise RankError(f"{len(per_engine)} data-parallel engines answered where {len(engines)} were expected")
    answers = dict(zip(engines, per_engine, strict=False))
    return await asyncio.to_thread(_report, action, nonce, answers, _layout(config, engines), baseline)


def _call(
    action: str, baseline: Mapping[str, str] | None, arguments: Mapping[str, Any]
) -> tuple[str, str, dict[str, Any]]:
    """The worker method, a nonce, and the method's arguments."""
    nonce = new_nonce()
    keywords = {"nonce": nonce, "baseline": baseline, **arguments}
    for name, value in keywords.items():
        if isinstance(value, Mapping):
            # One string costs vLLM's serialisation nothing. The iterating encoder lets other threads run.
            keywords[name] = "".join(json.JSONEncoder().iterencode(value))
    return f"weight_checker_{action}", nonce, {name: value for name, value in keywords.items() if value is not None}


def _report(
    action: str,
    nonce: str,
    answers: Mapping[int, Sequence[object]],
    layout: Layout,
    baseline: Mapping[str, str] | None,
) -> Report:
    """What the answers of all ranks come to."""
    report = merge(action, nonce, answers, layout, baseline)
    return judge(report, audit(report.plan)) if action == "verify" else report


async def _ask_engines(client: Any, method: str, keywords: dict[str, Any]) -> Sequence[Any]:
    """The replies of each engine, in the order of `_managed_engines`."""
    core: Any = getattr(client, "engine_core", None)
    call = ("collective_rpc", method, None, (), keywords)
    if hasattr(core, "call_utility_all_async"):  # vLLM 0.32 and later
        return list(await core.call_utility_all_async(*call))
    if hasattr(core, "_call_utility_async") and hasattr(core, "core_engines"):
        calls = [core._call_utility_async(*call, engine=engine) for engine in core.core_engines]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for failure in answers:
            if isinstance(failure, BaseException):
                raise failure
        return answers
    # An engine in this process, or a client that is not vLLM's: one engine's replies, which is enough
    # for one engine, and otherwise an error that names the ranks that are missing.
    return [await client.collective_rpc(method, kwargs=keywords)]


def _managed_engines(client: Any) -> tuple[int, ...]:
    """The data-parallel indices of the engines that this client talks to.

    An API server with external or hybrid load balancing manages only some of the deployment's.
    """
    managed = getattr(getattr(client, "engine_core", None), "engine_ranks_managed", None)
    if managed is not None:
        return tuple(managed)
    config = client.vllm_config.parallel_config
    first = int(getattr(config, "data_parallel_index", 0))
    if getattr(config, "data_parallel_rank_local", None) is not None:
        return (first,)
    if getattr(config, "data_parallel_external_lb", False) or getattr(config, "data_parallel_hybrid_lb", False):
        return tuple(range(first, first + config.data_parallel_size_local))
    return tuple(range(first, first + config.data_parallel_size))


def _layout(config: Any, engines: tuple[int, ...]) -> Layout:
    return Layout(
        dp=engines,
        pp=config.pipeline_parallel_size,
        pcp=getattr(config, "prefill_context_parallel_size", 1),
        tp=config.tensor_parallel_size,
        data_parallel_size=config.data_parallel_size,
        single=config.distributed_executor_backend == "external_launcher",
    )


def _require_methods(config: Any) -> None:
    """Raises `CheckError` unless this engine's workers have the methods.

    A worker gets them from the plugin, which vLLM loads in this process by the same rule as in the
    worker's, or from the extension class. Asking a worker that lacks them would be harm enough.
    """
    worker_base = getattr(sys.modules.get(_WORKER_BASE), "WorkerBase", None)
    if hasattr(worker_base, "weight_checker_checksum") or _extends_workers(config.worker_extension_cls):
        return
    raise CheckError(
        "the workers of this engine have no weight checker methods, and asking for them would put vLLM's replies out "
        "of step for good. Before the engine is made, append weight_checker to VLLM_PLUGINS or leave that unset; "
        'or pass worker_extension_cls="vllm_weight_checker.WorkerExtension"'
    )


def _extends_workers(extension: str) -> bool:
    """Whether an extension class gives workers the methods: ours, one that inherits from it, or one that has them."""
    module, _, name = (extension or "").rpartition(".")
    if not module:
        return False
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return False
    # By name: importing `worker` here would be an import upwards.
    bases = {f"{base.__module__}.{base.__qualname__}" for base in found.__mro__}
    return f"{__package__}.worker.WorkerExtension" in bases or hasattr(found, "weight_checker_checksum")
