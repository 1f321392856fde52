"""Every rank of an engine in this process is reached, once, and the engine is not harmed by asking."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from simulated_engines import SimulatedClient, SimulatedLLM, Worker, parallel_config, workers

from vllm_weight_checker import AsyncWeightChecker, CheckError, MismatchError, WeightChecker
from vllm_weight_checker.errors import RankError


def held(ranks: list[Worker]) -> dict[str, str]:
    return {key: digest for worker in ranks for key, digest in worker.digests().items()}


def llm(pp: int = 2, tp: int = 2, index: int = 0, **config: Any) -> SimulatedLLM:
    return SimulatedLLM(workers(index, pp=pp, tp=tp), parallel_config(pp=pp, tp=tp, index=index, **config))


def client(dp: int = 2, tp: int = 2, api: str = "all", **config: Any) -> SimulatedClient:
    return SimulatedClient({i: workers(i, tp=tp) for i in range(dp)}, parallel_config(tp=tp, size=dp, **config), api)


def all_ranks(engine: SimulatedClient) -> list[Worker]:
    return [worker for ranks in engine.engines.values() for worker in ranks]


def test_an_llm_through_the_whole_cycle() -> None:
    engine = llm()
    checker = WeightChecker(engine)
    before = held(engine.ranks)
    baseline = checker.checksum()
    assert baseline == before
    assert checker.checksum(detail=True).checksums == before
    assert checker.compare(baseline).match
    saved = [worker.weights for worker in engine.ranks]
    assert checker.reset().written == 12
    assert all(set(b"".join(worker.weights.values())) == {0} for worker in engine.ranks)
    report = checker.compare(baseline)
    assert not report and report.differing == sorted(key for key in before if "packed" not in key)
    for worker, weights in zip(engine.ranks, saved, strict=True):
        worker.weights = weights
    assert checker.compare(checker.checksum(detail=True)).match


def test_reset_passes_fill_and_seed() -> None:
    engine = llm()
    WeightChecker(engine).reset(fill="random", seed=7)
    other = llm()
    for worker in other.ranks:
        worker.answer("weight_checker_reset", fill="random", seed=7)
    assert held(engine.ranks) == held(other.ranks)


def test_a_mismatch_raises_on_demand_with_its_report() -> None:
    engine = llm()
    checker = WeightChecker(engine)
    baseline = checker.checksum()
    engine.ranks[3].weights["layers.1.weight"] += b"!"
    key = "dp0:pp1:pcp0:tp1:layers.1.weight"
    assert checker.compare(baseline).mismatches == [key]
    with pytest.raises(MismatchError, match=key) as caught:
        checker.compare(baseline, raise_on_mismatch=True)
    assert caught.value.report.differing == [key]


def test_nothing_compared_raises_and_is_no_mismatch() -> None:
    checker = WeightChecker(llm())
    for raising in (False, True):
        with pytest.raises(CheckError, match="nothing compared"):
            checker.compare({"dp5:pp0:pcp0:tp0:x": "0" * 64}, raise_on_mismatch=raising)


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ({}, "empty"),
        ("{}", "empty"),
        ({"checksums": {}}, "empty"),
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "not list"),
        (7, "not int"),
        ({"a": 1}, "'a' has 1"),
        ({1: "a"}, "1 has 'a'"),
        ('{"a": "0", "b": "1", "a": "2"}', "names 'a' twice"),
    ],
)
def test_what_is_no_baseline_is_refused_before_anything_is_asked(baseline: Any, message: str) -> None:
    engine = llm()
    engine.collective_rpc = None  # type: ignore[assignment,method-assign]
    with pytest.raises(CheckError, match=message):
        WeightChecker(engine).compare(baseline)


def test_the_llm_of_another_data_parallel_index_is_told_by_its_keys() -> None:
    assert WeightChecker(llm(index=3, size=4)).checksum(detail=True).ranks[0] == "dp3:pp0:pcp0:tp0"
    engine = llm(index=3, size=4)
    engine.llm_engine.vllm_config.parallel_config.data_parallel_index = 0
    with pytest.raises(RankError, match="no answer from dp0.*unknown dp3"):
        WeightChecker(engine).checksum()


def test_an_external_launcher_holds_one_rank_per_process() -> None:
    config = parallel_config(pp=1, tp=2, distributed_executor_backend="external_launcher")
    assert WeightChecker(SimulatedLLM(workers(tp=2)[1:], config)).checksum(detail=True).ranks == ["dp0:pp0:pcp0:tp1"]


def test_calls_from_several_threads_wait_for_each_other() -> None:
    engine = llm()
    inside, most, answers = 0, 0, []
    answer = engine.collective_rpc
    entered = threading.Event()

    def counting(*arguments: Any, **keywords: Any) -> list[Any]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        entered.wait(0.01)  # lets another thread come in, if it can
        inside -= 1
        return answer(*arguments, **keywords)

    engine.collective_rpc = counting  # type: ignore[method-assign]
    checker = WeightChecker(engine)
    threads = [threading.Thread(target=lambda: answers.append(checker.checksum())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [held(engine.ranks)] * 8 and most == 1


@pytest.mark.parametrize("api", ["all", "each"])
def test_every_data_parallel_engine_of_an_async_client_is_reached(api: str) -> None:
    engine = client(dp=3, api=api)
    checker = AsyncWeightChecker(engine)

    async def cycle() -> None:
        baseline = await checker.checksum()
        assert baseline == held(all_ranks(engine))
        assert (await checker.checksum(detail=True)).data_parallel_size == 3
        assert (await checker.compare(baseline)).match
        assert (await checker.reset()).written == 18
        assert set(b"".join(b"".join(worker.weights.values()) for worker in all_ranks(engine))) == {0}
        with pytest.raises(MismatchError):
            await checker.compare(baseline, raise_on_mismatch=True)
        with pytest.raises(CheckError, match="nothing compared"):
            await checker.compare({"x": "y"})

    asyncio.run(cycle())


def test_a_client_that_reaches_only_its_first_engine_is_no_pass() -> None:
    with pytest.raises(RankError, match="no answer from dp1:pp0:pcp0:tp0, dp1:pp0:pcp0:tp1"):
        asyncio.run(AsyncWeightChecker(client(api="first")).checksum())
    alone = client(dp=1, api="first")
    assert asyncio.run(AsyncWeightChecker(alone).checksum()) == held(all_ranks(alone))


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ({"data_parallel_external_lb": True, "index": 2, "data_parallel_size_local": 1}, {2}),
        ({"data_parallel_hybrid_lb": True, "index": 2, "data_parallel_size_local": 2}, {2, 3}),
        ({"data_parallel_rank_local": 1, "index": 1}, {1}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_which_engines_an_api_server_manages(config: dict[str, Any], ranks: set[int]) -> None:
    """Without vLLM's own list, that is; the refusal names every rank that ought to have answered."""
    engine = SimulatedClient({0: []}, parallel_config(**{"size": 4, **config}), "first")
    with pytest.raises(RankError) as caught:
        asyncio.run(AsyncWeightChecker(engine).checksum())
    names = ", ".join(f"dp{dp}:pp0:pcp0:tp0" for dp in sorted(ranks))
    assert f"no answer from {names}." in str(caught.value)


def test_vllm_itself_says_which_engines_an_api_server_manages() -> None:
    engine = SimulatedClient({2: workers(2), 3: workers(3)}, parallel_config(size=4))
    report = asyncio.run(AsyncWeightChecker(engine).checksum(detail=True))
    assert report.ranks == ["dp2:pp0:pcp0:tp0", "dp3:pp0:pcp0:tp0"] and report.data_parallel_size == 4


def test_more_engines_than_expected_are_an_error() -> None:
    engine = client(dp=2)
    engine.engine_core.engine_ranks_managed = [0]
    with pytest.raises(RankError, match="2 data-parallel engines answered where 1 were expected"):
        asyncio.run(AsyncWeightChecker(engine).checksum())


@pytest.mark.parametrize("api", ["all", "each"])
def test_what_vllm_raises_passes_unchanged(api: str) -> None:
    class EngineDeadError(Exception):
        pass

    engine = client(api=api)

    def dead(*_: Any, **__: Any) -> dict[str, Any]:
        raise EngineDeadError("dp1 has died")

    engine.engines[1][0].answer = dead  # type: ignore[method-assign]
    with pytest.raises(EngineDeadError, match="dp1 has died"):
        asyncio.run(AsyncWeightChecker(engine).checksum())


def test_many_checks_at_once_on_one_event_loop() -> None:
    engine = client()

    async def together() -> list[dict[str, str]]:
        checker = AsyncWeightChecker(engine)
        return list(await asyncio.gather(*[checker.checksum() for _ in range(20)]))

    assert asyncio.run(together()) == [held(all_ranks(engine))] * 20


def test_a_cancelled_check_leaves_the_next_one_alone() -> None:
    engine = client()

    async def cancel_one() -> dict[str, str]:
        engine.gate = asyncio.Event()
        checker = AsyncWeightChecker(engine)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(checker.checksum(), timeout=0.05)
        engine.gate = None
        return await checker.checksum()

    assert asyncio.run(cancel_one()) == held(all_ranks(engine))


@pytest.mark.parametrize("extension", ["", "tiny", "json.JSONDecoder", "no.such.module.Extension", "json.no_such"])
def test_workers_without_the_methods_are_not_asked(extension: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking would raise in every worker, and put the engine's replies out of step."""
    monkeypatch.delitem(sys.modules, "vllm.v1.worker.worker_base", raising=False)
    engine = llm(worker_extension_cls=extension)
    engine.collective_rpc = None  # type: ignore[assignment,method-assign]
    with pytest.raises(CheckError, match="append weight_checker to VLLM_PLUGINS"):
        WeightChecker(engine).checksum()
    other = client(worker_extension_cls=extension, api="none")
    with pytest.raises(CheckError, match="append weight_checker to VLLM_PLUGINS"):
        asyncio.run(AsyncWeightChecker(other).checksum())


class OwnMethods:
    """An extension that has a method of that name without inheriting it."""

    def weight_checker_checksum(self) -> None:
        """Never called."""


@pytest.mark.parametrize("extension", ["vllm_weight_checker.WorkerExtension", f"{__name__}.OwnMethods"])
def test_an_extension_with_the_methods_is_enough(extension: str) -> None:
    engine = llm(worker_extension_cls=extension)
    assert WeightChecker(engine).checksum() == held(engine.ranks)


def test_the_right_class_for_each_engine() -> None:
    with pytest.raises(TypeError, match="AsyncWeightChecker"):
        WeightChecker(client())
    with pytest.raises(TypeError, match="use WeightChecker"):
        AsyncWeightChecker(llm())
    with pytest.raises(TypeError, match="WeightChecker takes URLs"):
        AsyncWeightChecker("http://127.0.0.1:1")
    for wrong in (None, object(), 7, {"llm": 1}):
        with pytest.raises(TypeError, match=r"takes one vllm.LLM, or URLs"):
            WeightChecker(wrong)
        with pytest.raises(TypeError, match="takes an AsyncLLM"):
            AsyncWeightChecker(wrong)
    with pytest.raises(TypeError, match=r"takes one vllm.LLM"):
        WeightChecker(llm(), "http://127.0.0.1:1")
