"""A recording leaves no trace in a worker and does not disturb what is served."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tiny_models
import worker_traces
from vllm_engines import generate, run, start
from vllm_servers import CHECKED, SERVER, post, serve

from vllm_weight_checker import WeightChecker

Record = dict[str, Any]

LAYOUTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama, tp=2": ("tiny_llama", {"tensor_parallel_size": 2}, 2),
    "mixtral": ("tiny_mixtral", {}, 1),
}
"""What a layout is called -> the model, options of vllm.LLM, how many ranks it has."""

RECORDINGS = 20
MOST_CHECKS = 100
"""After which requests should have been served in between."""

MEMORY = 48 << 20
"""More than an allocator keeps, and far less than 20 recordings."""


def recorded(model: str, options: dict[str, Any]) -> Record:
    """One engine, whose workers are looked at before and after recordings."""
    llm = start(getattr(tiny_models, model)(), **options)
    checker = WeightChecker(llm)
    ask = llm.collective_rpc
    record: Record = {"tokens": [generate(llm)], "rope": [ask(worker_traces.rope_cache)]}
    record["context"] = [ask(worker_traces.layers_in_context)]
    record["digests"] = {key: digest for rank in ask(worker_traces.digests) for key, digest in rank.items()}
    before = ask(worker_traces.traces)
    plans = [checker.plan()]
    after = ask(worker_traces.traces)
    verified = checker.verify()
    last = ask(worker_traces.traces)
    # The traces themselves are long; what they hold is counted, so that nothing is missed silently.
    record["traces"] = [len(rank) for rank in before]
    record["differences"] = worker_traces.differences(before, after)[:20]
    record["differences after a verify"] = worker_traces.differences(after, last)[:20]
    record["match"] = verified.match
    plans.append(checker.plan())
    alive = [ask(worker_traces.alive)]
    plans += [checker.plan() for _ in range(RECORDINGS)]
    record["alive"] = [*alive, ask(worker_traces.alive)]
    record["same plans"] = [plan == plans[0] for plan in plans]
    record["second model"] = ask(worker_traces.second_model)
    record["tokens"].append(generate(llm))
    record["rope"].append(ask(worker_traces.rope_cache))
    record["context"].append(ask(worker_traces.layers_in_context))
    record["match at the end"] = checker.verify().match
    return record


@pytest.fixture(scope="module", params=list(LAYOUTS))
def seen(request: pytest.FixtureRequest) -> Record:
    model, options, ranks = LAYOUTS[request.param]
    return {**run(recorded, model=model, options=options), "ranks": ranks}


def test_nothing_in_a_worker_changes(seen: Record) -> None:
    assert seen["differences"] == [] and seen["differences after a verify"] == []
    assert len(seen["traces"]) == seen["ranks"] and min(seen["traces"]) > 1000
    assert seen["match"] and seen["match at the end"]


def test_shared_layers_are_the_served_models_own(seen: Record) -> None:
    for kind in ("rope", "context"):
        before, after = seen[kind]
        assert before == after and len(before) == seen["ranks"] and all(before)


def test_each_recording_gives_the_same_plan(seen: Record) -> None:
    assert seen["same plans"] == [True] * (RECORDINGS + 2)


def test_tokens_are_the_same_before_and_after(seen: Record) -> None:
    before, after = seen["tokens"]
    assert before == after and len(set(map(tuple, before))) == 2


def test_nothing_is_kept_from_a_recording(seen: Record) -> None:
    for before, after in zip(*seen["alive"], strict=True):
        assert (after["modules"], after["tensors"]) == (before["modules"], before["tensors"])
        assert before["modules"] > 20 and before["tensors"] > 20
        assert after["bytes"] - before["bytes"] < MEMORY


def test_a_second_model_can_be_loaded_afterwards(seen: Record) -> None:
    again = seen["second model"]
    assert {key: digest for rank in again for key, digest in rank["digests"].items()} == seen["digests"]
    assert [rank["same outputs"] for rank in again] == [[True] * 3] * seen["ranks"]
    assert [rank["in context"] for rank in again] == seen["context"][0]


def test_requests_are_served_meanwhile() -> None:
    """One sequence at a time, so that what is computed does not depend on what else is asked."""
    model = tiny_models.tiny_llama()
    prompts = [[5, 90, 17, 30], [200, 3, 3, 71, 140, 9], [8], [77, 78, 79]]
    command = [*SERVER, "--model", str(model), "--tensor-parallel-size", "2", "--max-num-seqs", "1"]
    with serve(command, CHECKED) as url, ThreadPoolExecutor(len(prompts)) as threads:

        def tokens(prompt: list[int]) -> str:
            body = {"model": str(model), "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            status, answer = post(f"{url}/v1/completions", body)
            assert status == 200, answer
            return answer["choices"][0]["text"]

        def ask_until(checked: threading.Event, prompt: list[int], answers: list[str]) -> None:
            while not checked.is_set():
                answers.append(tokens(prompt))

        before = [tokens(prompt) for prompt in prompts]
        checker, checked = WeightChecker(url), threading.Event()
        answers: list[list[str]] = [[] for _ in prompts]
        asked = [threads.submit(ask_until, checked, *each) for each in zip(prompts, answers, strict=True)]
        plans, reports = [], []
        try:
            while len(reports) < 3 or (min(map(len, answers)) < 3 and len(reports) < MOST_CHECKS):
                plans.append(checker.plan())
                reports.append(checker.verify())
                assert not any(each.done() for each in asked), [each.exception() for each in asked if each.done()]
        finally:
            checked.set()
        for each in asked:
            each.result()
    assert [set(each) for each in answers] == [{each} for each in before] and len(set(before)) == len(prompts)
    assert min(map(len, answers)) >= 3, "no requests were served between the checks"
    assert plans[1:] == plans[:-1] and all(report.match and report.equal == 30 for report in reports)
