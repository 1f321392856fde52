"""What a verification says of every kind of parameter, and which answers of servers are believed. Pure."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_weight_checker.errors import CheckError, MismatchError, RankError
from vllm_weight_checker.merging import Part
from vllm_weight_checker.plans import parameters_of, parse
from vllm_weight_checker.rank import Rank
from vllm_weight_checker.verification import combine_verified, judge

RANKS = [Rank(tp=0), Rank(tp=1)]
PLACE = {"shape": [1], "offset": 0, "strides": [1]}
SOURCE = {"source": "s", "source_offset": 0, "source_strides": [1], **PLACE}
COMPUTED = {"computed": "add", "sources": ["s"], **PLACE}
NO_FAULT = {name: [] for name in ("unplaced", "partly_placed", "unwritten", "overlapping", "past_the_end", "replicas")}
COMPLETE = {"complete": True, **NO_FAULT}
INCOMPLETE = {**COMPLETE, "complete": False, "unplaced": [{"source": "t", "explained": None}]}
KINDS = ["plain", "rewritten", "computed", "unmade", "unwritten", "hidden", "unplanned"]
LIVE = ["equal", "different", "absent"]
LISTS = ("differing", "missing", "unexpected", "unwritten")


def digest(text: str, algorithm: str = "sha256") -> str:
    made = hashlib.sha256(text.encode()).hexdigest()
    return made if algorithm == "sha256" else f"{algorithm}:{made}"


def findings(parameters: dict[str, tuple[str, str]], algorithm: str = "sha256") -> dict[str, Any]:
    """What ranks found of parameters {key: (kind, what the live one is)}."""
    planned: dict[str, dict[str, Any]] = {str(rank): {} for rank in RANKS}
    expected, live, hidden = {}, {}, []
    for key, (kind, state) in parameters.items():
        rank, name = key.rsplit(":", 1)
        entry: dict[str, Any] = {"dtype": "uint8", "shape": [1], "pieces": []}
        if kind != "unwritten":
            entry["pieces"] = [COMPUTED, SOURCE] if kind == "computed" else [SOURCE]
        if kind == "rewritten":
            entry["rewritten"] = f"why {name}"
        if kind != "unplanned":
            planned[rank][name] = entry
        if kind in ("plain", "rewritten", "hidden"):
            expected[key] = digest(key, algorithm)
        if state != "absent":
            live[key] = digest(key if state == "equal" else f"not {key}", algorithm)
            hidden += [key] * (kind == "hidden")
    plan = {
        "format": "weight-checker-plan",
        "version": 1,
        "sources": {"s": {"dtype": "uint8", "shape": [1]}},
        "ranks": [{"rank": vars(rank), "parameters": planned[str(rank)]} for rank in RANKS],
    }
    facts = {"bytes": 9, "ranks": list(planned), "checkpoint": "/models/a", "data_parallel_size": 1}
    return {"plan": parse(plan), "expected": expected, "checksums": live, "hidden": hidden, **facts}


def with_unwritten(audit: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The audit of a plan in which nothing writes the parameters without pieces."""
    keys = [key for key, parameter in parameters_of(found["plan"]) if not parameter["pieces"]]
    return {**audit, "unwritten": [{"key": key, "elements": 1, "of": 1, "first": [0]} for key in keys]}


def verdict(kind: str, state: str) -> str:
    """The rule, said once more: what the report says of such a parameter."""
    if state == "absent":
        return "absent" if kind == "unplanned" else "missing"
    if kind == "unplanned":
        return "unexpected"
    if kind in ("hidden", "computed", "unmade"):
        return "not_comparable"
    if kind == "unwritten":
        return "unwritten"
    if state == "equal":
        return "equal"
    return "not_comparable" if kind == "rewritten" else "differing"


keys = st.sampled_from([f"{rank.prefix}p{number}" for rank in RANKS for number in range(8)])
parameters = st.dictionaries(keys, st.tuples(st.sampled_from(KINDS), st.sampled_from(LIVE)), min_size=1)


@given(parameters, st.booleans())
def test_every_parameter_is_in_the_right_place(given_parameters: dict[str, tuple[str, str]], complete: bool) -> None:
    found = findings(given_parameters)
    audit = with_unwritten(COMPLETE if complete else INCOMPLETE, found)
    truth: dict[str, list[str]] = {}
    for key in sorted(given_parameters):
        truth.setdefault(verdict(*given_parameters[key]), []).append(key)
    if not truth.get("equal") and not truth.get("differing"):
        with pytest.raises(CheckError, match="nothing compared"):
            judge(found, audit)
        return
    report = judge(found, audit)
    for name in LISTS:
        assert report[name] == truth.get(name, [])
    assert sorted(report.not_comparable) == truth.get("not_comparable", [])
    assert report.mismatches == sorted(key for name in LISTS for key in truth.get(name, []))
    assert report.match is bool(report) is (complete and not report.mismatches)
    assert report.equal == len(truth.get("equal", [])) and report.compared == report.equal + len(report.differing)
    others = len(report.not_comparable) + len(report.unwritten) + len(report.unexpected)
    assert report.parameters == len(found["checksums"]) == report.compared + others
    assert report.audit == audit and report.audited is complete and report.algorithm == "sha256"
    facts = ("bytes", "ranks", "checkpoint", "data_parallel_size")
    assert [report[name] for name in facts] == [found[name] for name in facts]
    assert json.loads(json.dumps(dict(report))) == report


def test_reasons_are_those_of_the_plan() -> None:
    states = {"rewritten": "different", "computed": "equal", "hidden": "equal", "plain": "equal"}
    report = judge(findings({f"dp0:pp0:pcp0:tp1:{kind}": (kind, state) for kind, state in states.items()}), COMPLETE)
    assert report.match
    reasons = {key.rsplit(":", 1)[1]: reason for key, reason in report.not_comparable.items()}
    assert reasons.pop("hidden").startswith("hidden: the parameter has no bytes")
    assert reasons == {"rewritten": "why rewritten", "computed": "computed: add"}


def test_a_rewritten_parameter_that_is_equal_is_verified() -> None:
    report = judge(findings({"dp0:pp0:pcp0:tp0:w": ("rewritten", "equal")}), COMPLETE)
    assert report.match and report.equal == 1 and report.not_comparable == {}


def test_a_rewritten_parameter_with_an_empty_reason_is_excused_too() -> None:
    found = findings({"dp0:pp0:pcp0:tp0:w": ("rewritten", "different"), "dp0:pp0:pcp0:tp0:v": ("plain", "equal")})
    found["plan"]["ranks"][0]["parameters"]["w"]["rewritten"] = ""
    assert judge(found, COMPLETE).not_comparable == {"dp0:pp0:pcp0:tp0:w": ""}


def test_an_incomplete_audit_alone_is_no_match() -> None:
    report = judge(findings({"dp0:pp0:pcp0:tp0:w": ("plain", "equal")}), INCOMPLETE)
    assert not report and report.mismatches == [] and report.compared == report.equal == 1
    assert "the audit of the plan found faults" in str(MismatchError(report))
    other = judge(findings({"dp0:pp0:pcp0:tp0:w": ("plain", "different")}), COMPLETE)
    assert "do not match the checkpoint: 1 differing, 0 missing, 0 unexpected, 0 unwritten: dp0" in str(
        MismatchError(other)
    )
    assert "audit" not in str(MismatchError(other))


@pytest.mark.parametrize("told", [1, "true", None])
def test_only_true_is_complete(told: object) -> None:
    assert not judge(findings({"dp0:pp0:pcp0:tp0:w": ("plain", "equal")}), {**COMPLETE, "complete": told})


def test_digests_of_two_algorithms_are_never_compared() -> None:
    found = findings({"dp0:pp0:pcp0:tp0:w": ("plain", "equal")})
    found["expected"] = findings({"dp0:pp0:pcp0:tp0:w": ("plain", "equal")}, "sha256-tree")["expected"]
    with pytest.raises(CheckError, match="two algorithms: sha256 .*, sha256-tree"):
        judge(found, COMPLETE)
    assert judge(findings({"dp0:pp0:pcp0:tp0:w": ("plain", "equal")}, "sha256-tree"), COMPLETE).match


def part(rank: Rank, states: dict[str, tuple[str, str]], audit: dict[str, Any] = COMPLETE) -> Part:
    found = findings({rank.prefix + name: state for name, state in states.items()})
    report = judge(found, with_unwritten(audit, found))
    return Part(f"http://tp{rank.tp}", (rank,), json.loads(json.dumps(dict(report))))


GOOD = {"a": ("plain", "equal"), "b": ("rewritten", "different")}


def test_several_servers_are_one_report() -> None:
    bad = {
        "c": ("plain", "different"),
        "d": ("plain", "absent"),
        "e": ("unplanned", "equal"),
        "f": ("unwritten", "equal"),
    }
    parts = [part(RANKS[1], bad, INCOMPLETE), part(RANKS[0], GOOD, INCOMPLETE)]
    report = combine_verified(parts, 2, COMPLETE)
    assert report.mismatches == [f"{RANKS[1].prefix}{name}" for name in "cdef"]
    assert not report.match and report.audited and report.audit == COMPLETE
    assert report.ranks == list(map(str, RANKS)) and report.data_parallel_size == 2
    assert (report.parameters, report.compared, report.equal, report.bytes) == (5, 2, 1, 18)
    assert report.not_comparable == {f"{RANKS[0].prefix}b": "why b"} and report.checkpoint == "/models/a"
    good = combine_verified([part(rank, GOOD, INCOMPLETE) for rank in RANKS], 2, COMPLETE)
    assert good.match and good.parameters == 4


def test_the_audit_of_all_ranks_decides() -> None:
    assert not combine_verified([part(rank, GOOD) for rank in RANKS], 2, INCOMPLETE)
    assert not combine_verified([part(RANKS[0], GOOD, INCOMPLETE)], 1)
    assert combine_verified([part(RANKS[0], GOOD)], 1)


def test_servers_that_disagree_on_the_algorithm_or_the_path() -> None:
    parts = [part(rank, GOOD) for rank in RANKS]
    parts[1].result["checkpoint"] = "/mnt/a"  # type: ignore[index]
    assert combine_verified(parts, 2, COMPLETE).checkpoint == "/mnt/a, /models/a"
    parts[1].result["algorithm"] = "sha256-tree"  # type: ignore[index]
    with pytest.raises(CheckError, match="two algorithms: sha256 .*http://tp0.*, sha256-tree .*http://tp1"):
        combine_verified(parts, 2, COMPLETE)


SOUND = dict(part(RANKS[0], {**GOOD, "c": ("plain", "different")}).result)
KEY = RANKS[0].prefix


@pytest.mark.parametrize("field", sorted(SOUND.keys() - {"ranks", "data_parallel_size", "checkpoint"}))
@pytest.mark.parametrize("value", ["absent", None, -1, 1.5, "3", ["dp0:pp0:pcp0:tp1:a"], [7], {"a": "b"}, {}])
def test_a_report_that_contradicts_itself_is_an_error(field: str, value: object) -> None:
    result = copy.deepcopy(SOUND)
    if value == "absent":
        del result[field]
    else:
        result[field] = value
    if field == "algorithm" and value == "3":
        return  # a name like another, which this test knows nothing of
    with pytest.raises(RankError, match="answer of that server is unsound"):
        combine_verified([Part("that server", RANKS[:1], result)], 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"match": True},
        {"match": 0},
        {"mismatches": []},
        {"audited": False},
        {"audit": INCOMPLETE},
        {"parameters": 4},
        {"equal": 2},
        {"compared": 3},
        {"differing": [], "mismatches": [], "compared": 1, "parameters": 2, "match": False},
        {"unwritten": [f"{KEY}c"], "mismatches": [f"{KEY}c"] * 2, "parameters": 4},
        {"missing": [f"{KEY}c"], "mismatches": [f"{KEY}c"] * 2},
        {"not_comparable": {f"{KEY}b": "b", f"{KEY}c": "c"}, "parameters": 4},
        {"compared": 0, "equal": 0, "differing": [], "mismatches": [], "parameters": 1, "match": True},
        {"checkpoint": 7},
        {"audit": {**INCOMPLETE, "complete": True}},
        {"audit": {**COMPLETE, "unwritten": [7]}},
        {"audit": {**COMPLETE, "overlapping": None}},
    ],
)
def test_a_report_that_lies_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(RankError, match="answer of that server is unsound"):
        combine_verified([Part("that server", (RANKS[0],), {**SOUND, **change})], 1)
