"""Which replies to plan and verify are believed, and what they are merged to. Pure: no engine, no library."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from simulated_engines import SERVED, Worker, loaded, replies, workers
from test_replies import NONCE, TP2, layouts

from vllm_weight_checker.errors import RankError
from vllm_weight_checker.plans import parameters_of, ranks_of
from vllm_weight_checker.replies import Layout, merge


def ranks_of_layout(layout: Layout) -> dict[int, list[Worker]]:
    ranks = {dp: workers(dp, layout.pp, layout.pcp, layout.tp) for dp in layout.dp}
    loaded([worker for engine in ranks.values() for worker in engine])
    return ranks


def answers_of(layout: Layout, action: str, **arguments: Any) -> dict[int, list[Any]]:
    return {dp: replies(ranks, action, NONCE, **arguments) for dp, ranks in ranks_of_layout(layout).items()}


@given(layouts())
def test_the_plan_is_that_of_all_ranks(layout: Layout) -> None:
    report = merge("plan", NONCE, answers_of(layout, "plan"), layout)
    assert ranks_of(report.plan) == [rank for dp in layout.dp for rank in layout.ranks(dp)]
    keys = {
        worker.prefix + name
        for ranks in ranks_of_layout(layout).values()
        for worker in ranks
        for name in worker.document()["ranks"][0]["parameters"]
    }
    assert {key for key, _ in parameters_of(report.plan)} == keys == report.plan["sources"].keys()
    assert report.parameters == len(keys) and report.checkpoint == SERVED
    assert report.ranks == list(map(str, sorted(ranks_of(report.plan)))) and report.data_parallel_size == 21
    json.dumps(dict(report))


@given(layouts())
def test_a_verify_is_all_that_its_verdict_is_made_from(layout: Layout) -> None:
    report = merge("verify", NONCE, answers_of(layout, "verify", checkpoint="/models/other"), layout)
    every = [worker for ranks in ranks_of_layout(layout).values() for worker in ranks]
    held = {key: digest for worker in every for key, digest in worker.digests().items()}
    assert report.checksums == held and report.expected.keys() == held.keys()
    assert {key for key in held if held[key] != report.expected[key]} == set(report.hidden)
    assert report.checkpoint == "/models/other" and report.parameters == report.hashed + len(report.hidden)
    assert len(ranks_of(report.plan)) == len(every)


SOUND = {action: answers_of(TP2, action)[0] for action in ("plan", "verify")}
FIELDS = [(action, name) for action, both in SOUND.items() for name in both[1]["result"] if name != "checkpoint"]
OTHER = "dp0:pp0:pcp0:tp0:layers.0.weight"


def refused(action: str, result: dict[str, Any], told: str = "") -> None:
    answers = copy.deepcopy(SOUND[action])
    answers[1]["result"] = result
    with pytest.raises(RankError, match=f"answer of rank dp0:pp0:pcp0:tp1 is unsound.*{told}"):
        merge(action, NONCE, {0: answers}, TP2)


@pytest.mark.parametrize(("action", "field"), FIELDS)
@pytest.mark.parametrize("value", ["absent", None, -1, 1.5, True, "3", [OTHER], [7], {"a": "b"}, {OTHER: "0" * 64}])
def test_a_result_that_contradicts_itself_is_an_error(action: str, field: str, value: object) -> None:
    result = dict(SOUND[action][1]["result"])
    if value == "absent":
        del result[field]
    else:
        result[field] = value
    refused(action, result)


@pytest.mark.parametrize("action", ["plan", "verify"])
@pytest.mark.parametrize("value", [7, ["/models"], True])
def test_a_checkpoint_that_is_no_path_is_an_error(action: str, value: object) -> None:
    refused(action, {**SOUND[action][1]["result"], "checkpoint": value}, "'checkpoint'")


@pytest.mark.parametrize("action", ["plan", "verify"])
def test_a_plan_of_another_rank_is_an_error(action: str) -> None:
    other = SOUND[action][0]["result"]["plan"]
    refused(action, {**SOUND[action][1]["result"], "plan": other}, "its plan is of dp0:pp0:pcp0:tp0, not of .*tp1")


@pytest.mark.parametrize(("action", "field"), [("plan", "parameters"), ("verify", "parameters"), ("verify", "hashed")])
def test_counts_that_do_not_add_up_are_an_error(action: str, field: str) -> None:
    result = SOUND[action][1]["result"]
    refused(action, {**result, field: result[field] + 1}, "add up|its plan has 4 parameters, not 5")


def test_a_digest_of_what_is_not_planned_is_an_error() -> None:
    result = SOUND["verify"][1]["result"]
    expected = {**result["expected"], "dp0:pp0:pcp0:tp1:more": "0" * 64}
    refused("verify", {**result, "expected": expected}, "'dp0:pp0:pcp0:tp1:more', which is not in its plan")


@pytest.mark.parametrize("action", ["plan", "verify"])
def test_plans_of_different_checkpoints_are_an_error(action: str) -> None:
    ranks = workers(tp=2)
    loaded(ranks[:1])
    loaded(ranks[1:])
    with pytest.raises(RankError, match="different checkpoints"):
        merge(action, NONCE, {0: replies(ranks, action, NONCE)}, TP2)


def test_machines_may_call_the_checkpoint_differently() -> None:
    answers = copy.deepcopy(SOUND["plan"])
    answers[1]["result"]["checkpoint"] = "/mnt/models"
    assert merge("plan", NONCE, {0: answers}, TP2).checkpoint == f"/mnt/models, {SERVED}"
