"""The outer form of plan documents, and how the plans of several ranks become one. Pure: no engine, no library."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from simulated_engines import loaded, workers

from vllm_weight_checker import Rank, Report
from vllm_weight_checker.errors import CheckError, RankError
from vllm_weight_checker.plans import PlanReader, merge_plans, parameters_of, parse, ranks_of, text_of


def documents(tp: int = 3) -> list[dict[str, Any]]:
    ranks = workers(tp=tp)
    loaded(ranks)
    return [worker.document() for worker in ranks]


def test_a_document_is_itself_as_a_mapping_and_as_text() -> None:
    (one,) = documents(1)
    assert parse(one) == parse(json.dumps(one)) == parse(Report(one)) == one
    assert json.loads(text_of(one)) == json.loads(text_of(Report({**one, "sources": Report(one["sources"])}))) == one
    assert text_of("any text") == "any text"


def test_unknown_fields_are_let_through() -> None:
    (one,) = documents(1)
    one["ranks"][0]["rank"]["ep"] = 7
    assert parse({**one, "later": [1]})["later"] == [1]
    assert ranks_of(one) == [Rank()]


def test_merging_concatenates_the_ranks() -> None:
    parts = documents()
    merged = merge_plans([parts[2], json.dumps(parts[0]), parts[1]])
    assert ranks_of(merged) == [Rank(tp=2), Rank(tp=0), Rank(tp=1)]
    assert {name: merged[name] for name in merged if name != "ranks"} == {
        name: parts[0][name] for name in parts[0] if name != "ranks"
    }
    keys = {f"dp0:pp0:pcp0:tp{tp}:{name}" for tp in range(3) for name in parts[tp]["ranks"][0]["parameters"]}
    assert {key for key, _ in parameters_of(merged)} == keys and len(keys) == 12
    assert merge_plans([merge_plans(parts[:2]), parts[2]]) == merge_plans(parts)


def test_a_rank_that_is_there_twice_is_an_error() -> None:
    parts = documents()
    with pytest.raises(RankError, match="rank dp0:pp0:pcp0:tp1 twice"):
        merge_plans([*parts, parts[1]])
    with pytest.raises(RankError, match="rank dp0:pp0:pcp0:tp0 twice"):
        parse({**parts[0], "ranks": parts[0]["ranks"] * 2})


def test_other_sources_are_an_error_that_names_the_first() -> None:
    for change, told in (
        ({"a": {"dtype": "uint8", "shape": [1]}}, r"'a' is absent on rank \S*tp0 and \{.*\} on rank \S*tp1"),
        (
            {"dp0:pp0:pcp0:tp1:layers.2.weight": {"dtype": "int8", "shape": [3]}},
            "'dp0:pp0:pcp0:tp1:layers.2.weight' is",
        ),
    ):
        parts = documents(2)
        parts[1]["sources"] = {**parts[1]["sources"], **change}
        with pytest.raises(RankError, match=f"different checkpoints: {told}"):
            merge_plans(parts)
    parts = documents(2)
    parts[1]["engine"] = {"name": "simulated", "version": "2"}
    with pytest.raises(RankError, match="different engines"):
        merge_plans(parts)


def test_nothing_to_merge_is_an_error() -> None:
    with pytest.raises(CheckError, match="no plan"):
        merge_plans([])


PARAMETER = {"dtype": "uint8", "shape": [1], "pieces": []}
RANK = {"dp": 0, "pp": 0, "pcp": 0, "tp": 0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "other"}, "no plan"),
        ({"format": None}, "no plan"),
        ({"version": 2}, "version 2, and this package reads version 1"),
        ({"version": "1"}, "version '1'"),
        ({"version": True}, "version True"),
        ({"version": None}, "version None"),
        ({"sources": None}, "'sources' is absent"),
        ({"sources": []}, "'sources' is a list, not an object"),
        ({"ranks": {}}, "'ranks' is a dict, not a list"),
        ({"ranks": []}, "no rank"),
        ({"ranks": [7]}, "a rank of the plan is None"),
        ({"ranks": [{"rank": {**RANK, "tp": -1}, "parameters": {}}]}, "a rank of the plan is .*-1"),
        ({"ranks": [{"rank": {**RANK, "tp": True}, "parameters": {}}]}, "a rank of the plan is .*True"),
        ({"ranks": [{"rank": {"dp": 0}, "parameters": {}}]}, "a rank of the plan is"),
        ({"ranks": [{"rank": RANK}]}, "'parameters' of rank dp0:pp0:pcp0:tp0 is absent"),
        ({"ranks": [{"rank": RANK, "parameters": {"w": 1}}]}, "dp0:pp0:pcp0:tp0:w has no list of pieces"),
        ({"ranks": [{"rank": RANK, "parameters": {"w": {"pieces": {}}}}]}, "w has no list of pieces"),
        ({"ranks": [{"rank": RANK, "parameters": {"w": {**PARAMETER, "pieces": [3]}}}]}, "w has a piece .* 3"),
        ({"ranks": [{"rank": RANK, "parameters": {"w": {**PARAMETER, "rewritten": None}}}]}, "w is rewritten without"),
    ],
)
def test_what_is_no_plan(change: dict[str, Any], told: str) -> None:
    (one,) = documents(1)
    wrong = {**copy.deepcopy(one), **change}
    for plan in (wrong, json.dumps(wrong)):
        with pytest.raises(CheckError, match=told):
            parse(plan)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "7", "[" * 100_000, '{"format": "a", "format": "b"}'])
def test_what_is_no_plan_at_all(text: str) -> None:
    with pytest.raises(CheckError, match="no plan|no JSON|names 'format' twice"):
        parse(text)


def test_a_name_that_is_there_twice_is_an_error() -> None:
    (one,) = documents(1)
    text = json.dumps(one).replace('"parameters": {', '"parameters": {"layers.0.weight": {"pieces": []}, ')
    with pytest.raises(CheckError, match="'layers.0.weight' twice"):
        parse(text)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes"])
def test_what_json_cannot_hold_is_an_error(value: object) -> None:
    (one,) = documents(1)
    with pytest.raises(CheckError, match="no JSON form"):
        text_of({**one, "more": value})


def test_plans_that_begin_alike_are_read_as_by_themselves() -> None:
    texts = [json.dumps(document) for document in documents()]
    other = json.dumps({**documents(1)[0], "engine": {"name": 'a", "ranks": ["'}})
    reader = PlanReader()
    for text in [*texts, other, texts[0], text_of(json.loads(other))]:
        assert reader.parse(text) == json.loads(text)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text: text[:-1],
        lambda text: text + "}",
        lambda text: text[:-1] + ', "sources": {}}',
        lambda text: text[:-1] + ', "ranks": []}',
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"sources": {', '"sources": {"x": [0], "ranks": [0], '),
        lambda text: text.replace('"sources": {', '"sources": {"ranks": [0], "x": 0, "x": 0, '),
        lambda text: text.replace(', "ranks": [', '}, "ranks": ['),
        lambda text: "[" + text + "]",
    ],
)
def test_a_plan_that_begins_like_another_is_refused_as_by_itself(wrong: Any) -> None:
    text = json.dumps(documents(1)[0])
    reader = PlanReader()
    reader.parse(text)
    try:
        truth: object = parse(wrong(text))
    except CheckError:
        truth = CheckError
    try:
        found: object = reader.parse(wrong(text))
    except CheckError:
        found = CheckError
    assert found == truth
