"""Checks all ranks of a vLLM engine: `WeightChecker` for an LLM or for URLs, `AsyncWeightChecker` for an AsyncLLM."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any, Literal, overload

from .baselines import Baseline, flat
from .engines import check_client, check_llm
from .errors import MismatchError
from .merging import require_compared
from .report import Report
from .servers import base_url, check_servers


class WeightChecker:
    """Checksum, reset and compare on every rank of an engine.

    `WeightChecker(llm)` takes a vllm.LLM of this process. `WeightChecker("http://host:8000", ...)` takes the
    URLs of all API servers of one deployment; they need VLLM_SERVER_DEV_MODE=1 and weight_checker in
    VLLM_PLUGINS. Every method answers only when each rank has answered exactly once, and raises
    `CheckError` otherwise: then nothing is known about the weights (after a reset: some ranks may have
    been reset). Methods may be called from several threads at once; those of an LLM wait for each other,
    and the LLM must not be in use by other threads meanwhile.
    """

    def __init__(self, engine_or_url: Any, *more_urls: str, timeout: float = 600.0) -> None:
        """
        Args:
            engine_or_url: a vllm.LLM (any object with `collective_rpc` and `llm_engine`), or a URL.
            more_urls: the other API servers of the same deployment.
            timeout: seconds that a server may be silent. An LLM is waited for until it answers: a call
                that is given up would put its replies out of step.

        Raises:
            TypeError: an async engine, or neither an engine nor URLs.
            ValueError: a malformed URL, or one given twice.
        """
        self._timeout = timeout
        self._lock = threading.Lock()
        self._urls: list[str] = []
        if isinstance(engine_or_url, str):
            self._urls = list(map(base_url, (engine_or_url, *more_urls)))
            if len(set(self._urls)) < len(self._urls):
                raise ValueError(f"give each API server once: {', '.join(self._urls)}")
        elif _is_async(engine_or_url):
            raise TypeError(f"{_kind(engine_or_url)} is asynchronous: use AsyncWeightChecker")
        elif more_urls or not hasattr(engine_or_url, "collective_rpc") or not hasattr(engine_or_url, "llm_engine"):
            raise TypeError(f"WeightChecker takes one vllm.LLM, or URLs of API servers; not {_kind(engine_or_url)}")
        self._llm = engine_or_url

    @overload
    def checksum(self, detail: Literal[False] = False, algorithm: str = "sha256") -> dict[str, str]: ...
    @overload
    def checksum(self, detail: Literal[True], algorithm: str = "sha256") -> Report: ...
    def checksum(self, detail: bool = False, algorithm: str = "sha256") -> dict[str, str] | Report:
        """The digest of every parameter on every rank: {key: digest}.

        With `detail` the whole report, which holds that map as `checksums`, and `ranks`, `parameters` =
        `hashed` + len(`hidden`), `bytes` and `data_parallel_size`. A hidden parameter has no bytes where
        the layer keeps its weights elsewhere; its digest is that of no bytes.
        """
        report = self._check("checksum", algorithm=algorithm)
        return report if detail else dict(report.checksums)

    def reset(self, fill: str = "zero", seed: int = 0) -> Report:
        """Overwrites every parameter on every rank: the model serves nonsense until it is loaded again.

        Args:
            fill: "zero", "random" (seeded by `seed`, 0 to 2**64 - 1) or "poison" (bytes 0xFF).

        Returns:
            `ranks`, `parameters` = `written` + `shared` + len(`hidden`), `bytes`, `data_parallel_size`.
        """
        return self._check("reset", fill=fill, seed=seed)

    def compare(self, baseline: Baseline, raise_on_mismatch: bool = False) -> Report:
        """Compares every parameter on every rank with an earlier `checksum()`, plain or detailed, or its JSON text.

        Returns:
            `match` (also the report's truth), `mismatches` = `differing` + `missing` + `unexpected` (sorted
            keys), `ranks`, `parameters` = `compared` + the counts of `skipped`, `compared` = `equal` +
            len(`differing`), `hidden`, `bytes`, `data_parallel_size`.

        Raises:
            CheckError: also when nothing was compared, since that is no match.
            MismatchError: with `raise_on_mismatch`, when the weights differ; it has the `report`.
        """
        keys = flat(baseline)
        return _judged(self._check("compare", baseline=keys), keys, raise_on_mismatch)

    def _check(self, action: str, **arguments: Any) -> Report:
        if self._urls:
            return check_servers(self._urls, action, self._timeout, **arguments)
        with self._lock:
            return check_llm(self._llm, action, **arguments)


class AsyncWeightChecker:
    """`WeightChecker` for an async engine client (AsyncLLM, or `app.state.engine_client` of an API server).

    Reaches every data-parallel engine that the client manages. All methods belong on the client's event
    loop and do their longer work in threads; any number may run at once, and each may be cancelled.
    """

    def __init__(self, engine_client: Any) -> None:
        if isinstance(engine_client, str) or not hasattr(engine_client, "collective_rpc"):
            raise TypeError(
                f"AsyncWeightChecker takes an AsyncLLM, not {_kind(engine_client)}; WeightChecker takes URLs"
            )
        if not _is_async(engine_client):
            raise TypeError(f"{_kind(engine_client)} is not asynchronous: use WeightChecker")
        self._client = engine_client

    @overload
    async def checksum(self, detail: Literal[False] = False, algorithm: str = "sha256") -> dict[str, str]: ...
    @overload
    async def checksum(self, detail: Literal[True], algorithm: str = "sha256") -> Report: ...
    async def checksum(self, detail: bool = False, algorithm: str = "sha256") -> dict[str, str] | Report:
        """As `WeightChecker.checksum`."""
        report = await check_client(self._client, "checksum", algorithm=algorithm)
        return report if detail else dict(report.checksums)

    async def reset(self, fill: str = "zero", seed: int = 0) -> Report:
        """As `WeightChecker.reset`."""
        return await check_client(self._client, "reset", fill=fill, seed=seed)

    async def compare(self, baseline: Baseline, raise_on_mismatch: bool = False) -> Report:
        """As `WeightChecker.compare`."""
        keys = await asyncio.to_thread(flat, baseline)
        report = await check_client(self._client, "compare", baseline=keys)
        return _judged(report, keys, raise_on_mismatch)


def _judged(report: Report, baseline: dict[str, str], raise_on_mismatch: bool) -> Report:
    require_compared(report, baseline)
    if raise_on_mismatch and not report.match:
        raise MismatchError(report)
    return report


def _is_async(engine: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(engine, "collective_rpc", None))


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
