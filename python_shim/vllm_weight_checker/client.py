"""Checks all ranks of a vLLM engine: `WeightChecker` for an LLM or for URLs, `AsyncWeightChecker` for an AsyncLLM."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Mapping
from typing import Any, Literal, overload

from .baselines import Baseline, flat
from .engines import check_client, check_llm
from .errors import MismatchError, RankError
from .merging import require_compared
from .planned import audit, expect, sources_of
from .report import Report
from .servers import base_url, check_servers
from .verification import judge

StrPath = str | os.PathLike[str]


class WeightChecker:
    """Checksum, reset, compare, plan and verify on every rank of an engine.

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
        return _judged(require_compared(self._check("compare", baseline=keys), keys), raise_on_mismatch)

    def plan(self, sources: Mapping[str, Any] | None = None, checkpoint: StrPath | None = None) -> dict[str, Any]:
        """Where every element of every rank's parameters comes from, as a plan document.

        It is recorded from the engine's own loader, without weights and without touching the served model.

        Args:
            sources: the tensors that are loaded, such as a trainer's state dict; names, shapes and dtypes are
                sent, and no weights. Or a mapping of name to {"dtype", "shape"}.
            checkpoint: a path on the engine's machine. Default of both: what the engine has loaded.

        Raises:
            ValueError: both are given.
        """
        return dict(self._check("plan", **_plan_arguments(sources, checkpoint)).plan)

    def verify(
        self,
        checkpoint: StrPath | None = None,
        state_dict: Mapping[str, Any] | None = None,
        algorithm: str = "sha256",
        raise_on_mismatch: bool = False,
    ) -> Report:
        """Compares every parameter on every rank with what its loader makes of a checkpoint.

        Args:
            checkpoint: a path on the engine's machine; by default the checkpoint that the engine has loaded.
                Over HTTP another one must lie where the server permits it.
            state_dict: instead, a trainer's tensors, hashed in this process. Nobody may change them meanwhile.

        Returns:
            `match` (also the report's truth): nothing is wrong and the plan's `audit` is complete (`audited`).
            `mismatches` = `differing` + `missing` + `unexpected` + `unwritten`, `not_comparable` {key: reason},
            `parameters` = `compared` + len(`not_comparable`) + len(`unwritten`) + len(`unexpected`), `compared`
            = `equal` + len(`differing`), `bytes`, `ranks`, `algorithm`, `checkpoint`, `data_parallel_size`.

        Raises:
            CheckError: also when nothing could be compared, since that is no match.
            MismatchError: with `raise_on_mismatch`, when there is no match; it has the `report`.
            ValueError: both checkpoint and state_dict are given.
        """
        if state_dict is None:
            report = self._check("verify", checkpoint=_text(checkpoint), algorithm=algorithm)
        else:
            plans = self._check("plan", **_plan_arguments(state_dict, checkpoint))
            expected = expect(plans.plan, state_dict, algorithm=algorithm)
            report = _verified(plans, expected, self._check("checksum", algorithm=algorithm))
        return _judged(report, raise_on_mismatch)

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
        return _judged(require_compared(report, keys), raise_on_mismatch)

    async def plan(self, sources: Mapping[str, Any] | None = None, checkpoint: StrPath | None = None) -> dict[str, Any]:
        """As `WeightChecker.plan`."""
        return dict((await check_client(self._client, "plan", **_plan_arguments(sources, checkpoint))).plan)

    async def verify(
        self,
        checkpoint: StrPath | None = None,
        state_dict: Mapping[str, Any] | None = None,
        algorithm: str = "sha256",
        raise_on_mismatch: bool = False,
    ) -> Report:
        """As `WeightChecker.verify`."""
        if state_dict is None:
            report = await check_client(self._client, "verify", checkpoint=_text(checkpoint), algorithm=algorithm)
        else:
            plans = await check_client(self._client, "plan", **_plan_arguments(state_dict, checkpoint))
            expected = await asyncio.to_thread(expect, plans.plan, state_dict, algorithm=algorithm)
            live = await check_client(self._client, "checksum", algorithm=algorithm)
            report = await asyncio.to_thread(_verified, plans, expected, live)
        return _judged(report, raise_on_mismatch)


def _plan_arguments(sources: Mapping[str, Any] | None, checkpoint: StrPath | None) -> dict[str, Any]:
    if sources is not None and checkpoint is not None:
        raise ValueError("pass either a checkpoint or the tensors that are loaded, not both")
    return {"sources": None if sources is None else sources_of(sources), "checkpoint": _text(checkpoint)}


def _text(checkpoint: StrPath | None) -> str | None:
    return None if checkpoint is None else os.fspath(checkpoint)


def _verified(plans: Report, expected: dict[str, str], live: Report) -> Report:
    """The report of a verification that was made in three steps."""
    if plans.ranks != live.ranks:
        raise RankError(f"the plan is of {plans.ranks} and the digests are of {live.ranks}: ask again")
    found = {**live, "plan": plans.plan, "expected": expected, "checkpoint": None}
    return judge(found, audit(plans.plan))


def _judged(report: Report, raise_on_mismatch: bool) -> Report:
    if raise_on_mismatch and not report.match:
        raise MismatchError(report)
    return report


def _is_async(engine: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(engine, "collective_rpc", None))


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
