"""Plan and verify through every way to an engine: an LLM, an async client, one server and several."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
from played_servers import PlayedServer, serving
from simulated_engines import SERVED, SimulatedClient, SimulatedLLM, Worker, loaded, parallel_config, workers

from vllm_weight_checker import AsyncWeightChecker, CheckError, MismatchError, WeightChecker, audit, expect
from vllm_weight_checker.errors import RankError, TensorError
from vllm_weight_checker.plans import ranks_of

WAYS = ["llm", "async", "server", "servers"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def reached(stack: ExitStack) -> Callable[[str], tuple[Any, list[Worker]]]:
    """A checker of four ranks that have loaded one checkpoint, by the way to them; and the ranks."""

    def reach(way: str) -> tuple[Any, list[Worker]]:
        size = 1 if way in ("llm", "server") else 2
        engines = [workers(dp, tp=4 // size) for dp in range(size)]
        ranks = [worker for engine in engines for worker in engine]
        loaded(ranks)
        config = parallel_config(tp=4 // size, size=size)
        if way == "llm":
            return WeightChecker(SimulatedLLM(ranks, config)), ranks
        if way == "async":
            return InOneLoop(SimulatedClient(dict(enumerate(engines)), config)), ranks
        return WeightChecker(*[stack.enter_context(serving(engine, size)).url for engine in engines]), ranks

    return reach


class InOneLoop:
    """An AsyncWeightChecker whose methods wait for their results."""

    def __init__(self, client: SimulatedClient) -> None:
        self._checker = AsyncWeightChecker(client)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **keywords: asyncio.run(getattr(self._checker, name)(*arguments, **keywords))


def state_dict(ranks: list[Worker]) -> dict[str, Any]:
    return {name: numpy.frombuffer(data, numpy.uint8) for name, data in ranks[0].checkpoint.items()}


def hidden(ranks: list[Worker]) -> list[str]:
    return sorted(worker.prefix + "packed.weight" for worker in ranks)


@pytest.mark.parametrize("way", WAYS)
def test_the_plan_of_every_rank(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    plan = checker.plan()
    assert list(map(str, ranks_of(plan))) == [worker.prefix[:-1] for worker in ranks]
    assert plan["sources"].keys() == ranks[0].checkpoint.keys()
    assert json.loads(json.dumps(plan)) == plan and audit(plan).complete


@pytest.mark.parametrize("way", WAYS)
def test_a_verify_until_an_element_changes(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    report = checker.verify(raise_on_mismatch=True)
    assert report.match and report.audited and report.compared == report.equal == 12 and report.parameters == 16
    assert sorted(report.not_comparable) == hidden(ranks) and report.checkpoint == SERVED
    assert report.ranks == [worker.prefix[:-1] for worker in ranks] and report.algorithm == "sha256"
    json.dumps(dict(report))
    ranks[2].weights["layers.1.weight"] += b"!"
    key = ranks[2].prefix + "layers.1.weight"
    assert checker.verify("/models/other").mismatches == [key]
    with pytest.raises(MismatchError, match=key) as caught:
        checker.verify(raise_on_mismatch=True)
    assert caught.value.report.differing == [key]


@pytest.mark.parametrize("way", WAYS)
def test_a_verify_against_a_trainers_tensors(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    held = state_dict(ranks)
    report = checker.verify(state_dict=held)
    assert report.match and report.compared == 12 and sorted(report.not_comparable) == hidden(ranks)
    assert report.checkpoint is None and report.data_parallel_size in (1, 2)
    key = ranks[3].prefix + "layers.2.weight"
    held[key] = held[key] ^ 1
    assert checker.verify(state_dict=held).differing == [key]
    with pytest.raises(MismatchError, match=key):
        checker.verify(state_dict=held, raise_on_mismatch=True)


@pytest.mark.parametrize("way", WAYS)
def test_the_plan_of_a_state_dict_is_that_of_the_checkpoint(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    plan = checker.plan(state_dict(ranks))
    assert plan == checker.plan(plan["sources"]) == checker.plan() == checker.plan(checkpoint="/models/a")
    baseline = expect(plan, state_dict(ranks))
    report = checker.compare(baseline)
    assert report.differing == hidden(ranks) and report.equal == 12


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_that_no_rank_takes_is_no_match(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    ranks[0].checkpoint["forgotten"] = b"weights"
    report = checker.verify()
    assert not report and not report.audited and report.mismatches == [] and report.equal == 12
    assert report.audit["unplaced"] == [{"source": "forgotten", "explained": None}]
    with pytest.raises(MismatchError, match="the audit of the plan found faults"):
        checker.verify(state_dict=state_dict(ranks), raise_on_mismatch=True)


@pytest.mark.parametrize("way", WAYS)
def test_wrong_arguments_are_refused_before_anything_is_asked(way: str, reached: Any, stack: ExitStack) -> None:
    checker, ranks = reached(way)
    for worker in ranks:
        worker.answer = None  # type: ignore[method-assign,assignment]
    for call in (
        lambda: checker.plan(state_dict(ranks), "/models/a"),
        lambda: checker.verify("/models/a", state_dict(ranks)),
    ):
        with pytest.raises(ValueError, match="not both"):
            call()
    for wrong in ({}, {"a": None}, [1]):
        with pytest.raises(TensorError, match="state dict"):
            checker.verify(state_dict=wrong)


@pytest.mark.parametrize("way", ["llm", "async"])
def test_what_ranks_fail_with_is_told(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    ranks[3].failure = "the loader of this model fails: KeyError: 'w'"
    for call in (checker.plan, checker.verify, lambda: checker.verify(state_dict=state_dict(ranks))):
        with pytest.raises(RankError, match=f"rank {ranks[3].prefix[:-1]}: the loader of this model fails"):
            call()


@pytest.mark.parametrize("way", ["llm", "async"])
def test_nothing_compared_is_no_mismatch(way: str, reached: Any) -> None:
    checker, ranks = reached(way)
    for worker in ranks:
        worker.hidden = (*worker.weights, *worker.hidden)
        worker.weights = {}
    with pytest.raises(CheckError, match="nothing compared: of 16 live parameters"):
        checker.verify(raise_on_mismatch=True)


def test_one_of_several_servers_cannot_audit_and_is_not_asked_to(stack: ExitStack) -> None:
    engines = [workers(dp) for dp in range(2)]
    loaded(engines[0] + engines[1])
    servers = [stack.enter_context(serving(engine, 2)) for engine in engines]
    own = json.loads(servers[0].respond({"action": "verify", "detail": True})[1])
    assert own["match"] is False and own["audited"] is False
    report = WeightChecker(*[server.url for server in servers]).verify("/models/a", algorithm="sha256")
    assert report.match and report.audit["replicas"] == [] and report.audit["ranks"] == 2
    verify = {"action": "verify", "detail": True, "algorithm": "sha256", "checkpoint": "/models/a"}
    plan = {"action": "plan", "detail": True, "checkpoint": "/models/a"}
    assert servers[0].requests == servers[1].requests == [verify, plan]


def test_one_server_is_asked_once(stack: ExitStack) -> None:
    ranks = workers(tp=2)
    loaded(ranks)
    server = stack.enter_context(serving(ranks))
    WeightChecker(server.url).verify()
    assert server.requests == [{"action": "verify", "detail": True, "algorithm": "sha256"}]


@pytest.mark.parametrize(
    "lie",
    [
        {"match": True, "differing": []},
        {"audit": None},
        {"audited": "yes"},
        {"parameters": 10**6},
        {"not_comparable": {}},
        {"checkpoint": 3},
    ],
)
def test_an_answer_that_contradicts_itself_is_no_match(lie: dict[str, Any], stack: ExitStack) -> None:
    ranks = workers(tp=2)
    loaded(ranks)
    ranks[0].weights["layers.0.weight"] += b"!"
    server = stack.enter_context(serving(ranks))
    honest = server.respond
    server.respond = lambda request: (200, json.dumps({**json.loads(honest(request)[1]), **lie}).encode())
    with pytest.raises(RankError, match=f"answer of {server.url} is unsound"):
        WeightChecker(server.url).verify()


def test_servers_with_different_checkpoints_are_an_error(stack: ExitStack) -> None:
    engines = [workers(dp) for dp in range(2)]
    for engine in engines:
        loaded(engine)
    urls = [stack.enter_context(serving(engine, 2)).url for engine in engines]
    for call in (WeightChecker(*urls).verify, WeightChecker(*urls).plan):
        with pytest.raises(RankError, match="different checkpoints"):
            call()


@pytest.mark.parametrize("action", ["plan", "verify"])
def test_a_server_that_knows_no_such_action_says_so(action: str, stack: ExitStack) -> None:
    refusal = {"error": {"message": "Input should be 'checksum', 'reset' or 'compare'"}}
    old = stack.enter_context(PlayedServer(lambda request: (400, json.dumps(refusal).encode())))
    with pytest.raises(CheckError, match=r"refused \(HTTP 400\): Input should be"):
        getattr(WeightChecker(old.url), action)()


def test_an_async_verify_keeps_the_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_weight_checker import client, engines

    ranks = workers(tp=2)
    loaded(ranks)
    checker = AsyncWeightChecker(SimulatedClient({0: ranks}, parallel_config(tp=2)))
    threads: dict[str, int] = {}

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            threads[f"{module.__name__} {name}"] = threading.get_ident()
            return function(*arguments, **keywords)

        monkeypatch.setattr(module, name, watched)

    for module, name in (
        (engines, "merge"),
        (engines, "audit"),
        (engines, "judge"),
        (client, "audit"),
        (client, "expect"),
    ):
        watch(module, name)
    assert asyncio.run(checker.verify()).match and asyncio.run(checker.verify(state_dict=state_dict(ranks))).match
    assert len(threads) == 5 and threading.get_ident() not in threads.values()


def test_both_checkers_take_the_same_arguments() -> None:
    for name in ("plan", "verify"):
        ours, twin = (inspect.signature(getattr(kind, name)) for kind in (WeightChecker, AsyncWeightChecker))
        assert ours == twin
