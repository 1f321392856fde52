"""Which replies are believed, and what they are merged to. Pure: no engine, no library."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_engines import Worker, replies, workers

from vllm_weight_checker.errors import CheckError, RankError
from vllm_weight_checker.merging import require_compared
from vllm_weight_checker.replies import Layout, merge, new_nonce

NONCE = "a" * 32
TP2 = Layout(dp=(0,), pp=1, pcp=1, tp=2, data_parallel_size=1)
sizes = st.integers(1, 3)


def answers_of(layout: Layout, action: str, nonce: str = NONCE, **arguments: Any) -> dict[int, list[Any]]:
    return {dp: replies(workers(dp, layout.pp, layout.pcp, layout.tp), action, nonce, **arguments) for dp in layout.dp}


def digests_of(layout: Layout) -> dict[str, str]:
    """Everything that the simulated ranks of `layout` hold, straight from hashlib."""
    ranks = [worker for dp in layout.dp for worker in workers(dp, layout.pp, layout.pcp, layout.tp)]
    return {key: digest for worker in ranks for key, digest in worker.digests().items()}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dp = tuple(sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=3))))
    return Layout(dp, draw(sizes), draw(sizes), draw(sizes), data_parallel_size=21)


@given(layouts())
def test_checksum_is_the_union_of_all_ranks(layout: Layout) -> None:
    report = merge("checksum", NONCE, answers_of(layout, "checksum"), layout)
    ranks = [str(rank) for dp in layout.dp for rank in layout.ranks(dp)]
    assert report.checksums == digests_of(layout)
    assert report.ranks == ranks
    assert report.parameters == len(digests_of(layout)) == report.hashed + len(report.hidden)
    assert report.hidden == sorted(key for key in digests_of(layout) if key.endswith("packed.weight"))
    assert report.data_parallel_size == 21
    assert json.loads(json.dumps(dict(report), indent=1)) == report


def test_reset_adds_up() -> None:
    report = merge("reset", NONCE, answers_of(TP2, "reset"), TP2)
    assert report == {
        "status": "reset",
        "ranks": ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"],
        "parameters": 8,
        "written": 6,
        "shared": 0,
        "bytes": sum(len(data) for worker in workers(tp=2) for data in worker.weights.values()),
        "hidden": ["dp0:pp0:pcp0:tp0:packed.weight", "dp0:pp0:pcp0:tp1:packed.weight"],
        "data_parallel_size": 1,
    }


@given(layouts(), st.data())
def test_compare_finds_what_a_dictionary_comparison_finds(layout: Layout, data: st.DataObject) -> None:
    """The truth is vLLM's rule: a key whose two digests are not the same, absence included."""
    held = digests_of(layout)
    keys = st.sampled_from(sorted(held))
    baseline = dict(held)
    for key in data.draw(st.sets(keys, max_size=3), label="changed"):
        baseline[key] = "0" * 64
    for key in data.draw(st.sets(keys, max_size=3), label="left out"):
        baseline.pop(key, None)
    foreign = ["dp99:pp0:pcp0:tp0:x", "no rank at all", "dp0:pp0:pcp0:tp0:extra", "dp00:pp0:pcp0:tp0:x"]
    for key in data.draw(st.sets(st.sampled_from(foreign)), label="added"):
        baseline[key] = "1" * 64
    report = merge("compare", NONCE, answers_of(layout, "compare", baseline=baseline), layout, baseline)
    expected = sorted(key for key in held.keys() | baseline.keys() if held.get(key) != baseline.get(key))
    assert report.mismatches == expected
    assert report.match is (not expected) and bool(report) is report.match
    assert report.missing == sorted(baseline.keys() - held.keys())
    assert report.unexpected == sorted(held.keys() - baseline.keys())
    assert report.differing == sorted(set(expected) - set(report.missing) - set(report.unexpected))
    assert report.parameters == report.compared + sum(report.skipped.values()) == len(held)
    assert report.compared == report.equal + len(report.differing)


def test_nothing_compared_says_nothing() -> None:
    baseline = {"dp7:pp0:pcp0:tp0:x": "0" * 64}
    report = merge("compare", NONCE, answers_of(TP2, "compare", baseline=baseline), TP2, baseline)
    assert report.compared == 0 and report.match is False
    assert report.mismatches == sorted({*digests_of(TP2), *baseline})
    with pytest.raises(CheckError, match=r"nothing compared: .*8 parameters on dp0:pp0:pcp0:tp0.*dp7:pp0:pcp0:tp0"):
        require_compared(report, baseline)


def test_hidden_parameters_alone_are_no_comparison() -> None:
    ranks = [Worker((0, 0, 0, 0), {}, hidden=("a", "b"))]
    layout = Layout((0,), 1, 1, 1, 1)
    baseline = ranks[0].digests()
    report = merge("compare", NONCE, {0: replies(ranks, "compare", NONCE, baseline=baseline)}, layout, baseline)
    assert report.skipped == {"hidden": 2, "not in the baseline": 0}
    with pytest.raises(CheckError, match="nothing compared: .*2 hidden"):
        require_compared(report, baseline)


@pytest.mark.parametrize("action", ["checksum", "reset", "compare"])
def test_no_parameter_at_all_is_an_error(action: str) -> None:
    arguments = {"baseline": {"dp0:pp0:pcp0:tp0:x": "0"}} if action == "compare" else {}
    ranks = [Worker((0, 0, 0, tp), {}) for tp in range(2)]
    with pytest.raises(CheckError, match="nothing was checked: no rank .*tp0.*tp1.* has a parameter"):
        merge(action, NONCE, {0: replies(ranks, action, NONCE, **arguments)}, TP2, arguments.get("baseline"))


@given(layouts(), st.data())
def test_a_missing_a_double_and_an_unknown_rank_are_named(layout: Layout, data: st.DataObject) -> None:
    answers = answers_of(layout, "checksum")
    dp = data.draw(st.sampled_from(layout.dp))
    index = data.draw(st.integers(0, len(answers[dp]) - 1))
    rank = str(layout.ranks(dp)[index])
    for wrong, name in (
        (answers[dp][:index] + answers[dp][index + 1 :], f"no answer from {rank}"),
        ([*answers[dp], copy.deepcopy(answers[dp][index])], f"more than one answer from {rank}"),
        (
            [*answers[dp], *replies([Worker((77, 0, 0, 0), {"w": b"x"})], "checksum", NONCE)],
            "unknown dp77:pp0:pcp0:tp0",
        ),
    ):
        with pytest.raises(RankError, match=f"not every rank answered exactly once: .*{name}"):
            merge("checksum", NONCE, {**answers, dp: wrong}, layout)


def test_a_whole_engine_that_is_missing_is_named() -> None:
    layout = Layout((0, 1), 1, 1, 2, 2)
    with pytest.raises(RankError, match="no answer from dp1:pp0:pcp0:tp0, dp1:pp0:pcp0:tp1"):
        merge("checksum", NONCE, {0: answers_of(layout, "checksum")[0]}, layout)


def test_an_external_launcher_answers_for_one_rank() -> None:
    layout = Layout((3,), 1, 1, 2, 4, single=True)
    ranks = workers(3, tp=2)
    report = merge("checksum", NONCE, {3: replies(ranks[1:], "checksum", NONCE)}, layout)
    assert report.ranks == ["dp3:pp0:pcp0:tp1"]
    for wrong, message in (
        (ranks, "more than one answer from one rank of dp3"),
        ([], "no answer from one rank of dp3"),
    ):
        with pytest.raises(RankError, match=message):
            merge("checksum", NONCE, {3: replies(wrong, "checksum", NONCE)}, layout)
    with pytest.raises(RankError, match="unknown dp3:pp0:pcp0:tp5"):
        merge("checksum", NONCE, {3: replies([Worker((3, 0, 0, 5), {"w": b"x"})], "checksum", NONCE)}, layout)


@pytest.mark.parametrize(
    "stale",
    [
        None,
        {},
        {"dp0:pp0:pcp0:tp1:w": "0" * 64},
        "OK",
        [],
        replies(workers(tp=2), "checksum", "b" * 32)[1],
        replies(workers(tp=2), "reset", NONCE)[1],
        {**replies(workers(tp=2), "checksum", NONCE)[1], "nonce": None},
    ],
)
def test_a_stale_or_foreign_reply_is_an_error_that_says_what_to_do(stale: object) -> None:
    answers = {0: [answers_of(TP2, "checksum")[0][0], stale]}
    with pytest.raises(RankError) as caught:
        merge("checksum", NONCE, answers, TP2)
    assert "position 1 of engine dp0 (dp0:pp0:pcp0:tp1)" in str(caught.value)
    assert "raised" in str(caught.value) and "restart the engine" in str(caught.value)


def test_a_stale_reply_outweighs_the_error_of_another_rank() -> None:
    """An error of this call is worth little once the engine is out of step."""
    ranks = workers(tp=2)
    ranks[0].failure = "broken"
    mixed = [replies(ranks, "checksum", NONCE)[0], replies(ranks, "checksum", "b" * 32)[1]]
    with pytest.raises(RankError, match="stale"):
        merge("checksum", NONCE, {0: mixed}, TP2)


def test_every_rank_that_failed_is_named() -> None:
    ranks = workers(tp=6)
    for worker in ranks[1:]:
        worker.failure = f"tensor {worker.prefix} is gone"
    with pytest.raises(RankError) as caught:
        merge("checksum", NONCE, {0: replies(ranks, "checksum", NONCE)}, Layout((0,), 1, 1, 6, 1))
    assert str(caught.value).startswith("rank dp0:pp0:pcp0:tp1: tensor dp0:pp0:pcp0:tp1: is gone; rank ")
    assert "tp4: is gone; and 1 more ranks failed" in str(caught.value)


def test_an_error_without_a_rank_names_the_position() -> None:
    answers = answers_of(TP2, "checksum")
    answers[0][1].update(rank=None, error={"type": "RuntimeError", "message": "no parallel groups"}, result=None)
    with pytest.raises(RankError, match=r"position 1 of engine dp0 \(dp0:pp0:pcp0:tp1\): no parallel groups"):
        merge("checksum", NONCE, answers, TP2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_checker": 2}, "protocol 2 where 1"),
        ({"weight_checker": True, "nonce": "x"}, "stale"),
        ({"rank": None}, "names no rank"),
        ({"rank": {"dp": 0, "pp": 0, "pcp": 0}}, "names no rank"),
        ({"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": "1"}}, "names no rank"),
        ({"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": True}}, "names no rank"),
        ({"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": -1}}, "names no rank"),
        ({"result": None}, "neither a result nor an error"),
        ({"error": "text"}, "rank dp0:pp0:pcp0:tp1: 'text'"),
        ({"error": {"type": "MemoryError", "message": ""}}, "rank dp0:pp0:pcp0:tp1: MemoryError"),
    ],
)
def test_a_malformed_reply_is_an_error(change: dict[str, Any], message: str) -> None:
    answers = answers_of(TP2, "checksum")
    answers[0][1].update(change)
    with pytest.raises(RankError, match=message):
        merge("checksum", NONCE, answers, TP2)


def test_an_engine_that_answers_no_list_is_an_error() -> None:
    with pytest.raises(RankError, match="engine dp0 answered None"):
        merge("checksum", NONCE, {0: None}, TP2)  # type: ignore[dict-item]


SOUND = {
    "checksum": replies(workers(tp=2), "checksum", NONCE),
    "reset": replies(workers(tp=2), "reset", NONCE),
    "compare": replies(workers(tp=2), "compare", NONCE, baseline={}),
}
REMADE = {"match", "mismatches"}
FIELDS = [(action, name) for action, both in SOUND.items() for name in both[1]["result"] if name not in REMADE]
WRONG = ["absent", None, -1, 1.5, True, "3", ["dp0:pp0:pcp0:tp0:layers.0.weight"], [7], {"a": "b"}]


@pytest.mark.parametrize(("action", "field"), FIELDS)
@pytest.mark.parametrize("value", WRONG)
def test_a_result_that_contradicts_itself_is_an_error(action: str, field: str, value: object) -> None:
    answers = copy.deepcopy(SOUND[action])
    if value == "absent":
        del answers[1]["result"][field]
    else:
        answers[1]["result"][field] = value
    with pytest.raises(RankError, match=r"answer of rank dp0:pp0:pcp0:tp1 is unsound"):
        merge(action, NONCE, {0: answers}, TP2, {})


COUNTED = [
    ("checksum", "hashed"),
    ("reset", "written"),
    ("reset", "shared"),
    ("compare", "compared"),
    ("compare", "equal"),
]


@pytest.mark.parametrize(("action", "field"), COUNTED + [(action, "parameters") for action in SOUND])
def test_counts_that_do_not_add_up_are_an_error(action: str, field: str) -> None:
    answers = copy.deepcopy(SOUND[action])
    answers[1]["result"][field] += 1
    with pytest.raises(RankError, match="tp1 is unsound: its counts do not add up"):
        merge(action, NONCE, {0: answers}, TP2, {})


@pytest.mark.parametrize("name", ["differing", "missing", "unexpected"])
def test_an_answer_to_another_baseline_is_an_error(name: str) -> None:
    key = "dp0:pp0:pcp0:tp1:layers.0.weight"
    answers = copy.deepcopy(SOUND["compare"])
    answers[1]["result"][name] = [key]
    if name != "unexpected":
        answers[1]["result"]["unexpected"] = []
    answers[1]["result"].update(skipped={}, compared=4, equal=4 - (name == "differing"))
    baseline = {key: "0" * 64} if name == "unexpected" else {}
    with pytest.raises(RankError, match=f"tp1 is unsound: '{name}' holds '{key}', which is (not )?in the baseline"):
        merge("compare", NONCE, {0: answers}, TP2, baseline)


def test_a_key_that_is_named_twice_is_an_error() -> None:
    answers = copy.deepcopy(SOUND["checksum"])
    answers[0]["result"]["hidden"] *= 2
    with pytest.raises(RankError, match="'hidden' names a key twice"):
        merge("checksum", NONCE, {0: answers}, TP2)


def test_nonces_are_fresh() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
