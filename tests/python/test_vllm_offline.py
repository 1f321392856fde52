"""The verbs on real engines of several layouts, against what vLLM's own function says of every rank.

Each engine goes through one cycle and the tests look at what was recorded on the way.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tiny_models
from in_worker import flip, is_accelerated, own_digests, prepare_stages
from vllm_engines import generate, run, start

from vllm_weight_checker import MismatchError, WeightChecker

Record = dict[str, Any]

LAYOUTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "tp=1": ("tiny_llama", {}, ["dp0:pp0:pcp0:tp0"]),
    "tp=2": ("tiny_llama", {"tensor_parallel_size": 2}, ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]),
    "pp=2": ("tiny_llama", {"pipeline_parallel_size": 2}, ["dp0:pp0:pcp0:tp0", "dp0:pp1:pcp0:tp0"]),
    "experts, tp=2": ("tiny_mixtral", {"tensor_parallel_size": 2}, ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]),
}
"""What a layout is called -> the model, options of vllm.LLM, the ranks."""


def joined(digests: list[dict[str, str]]) -> dict[str, str]:
    return {key: digest for rank in digests for key, digest in rank.items()}


def cycle(model: str, options: dict[str, Any]) -> Record:
    """One engine: checked, damaged and repaired, reset, reloaded; and what was seen each time."""
    llm = start(getattr(tiny_models, model)(), **options)
    llm.collective_rpc(prepare_stages)
    checker = WeightChecker(llm)
    record: Record = {"tokens": generate(llm), "own": joined(llm.collective_rpc(own_digests))}
    record["accelerated"] = llm.collective_rpc(is_accelerated)
    record["vllms own method"] = joined(llm.collective_rpc("compute_weight_checksums"))
    record["checksum"] = checker.checksum(detail=True)
    baseline = record["plain checksum"] = checker.checksum()
    record["unharmed"] = checker.compare(baseline)
    with ThreadPoolExecutor(2) as threads:
        record["at once"] = list(threads.map(lambda _: checker.checksum(), range(6)))
    record |= damage(llm, checker, baseline)
    record |= other_baselines(checker, baseline)
    record |= reset_and_reload(llm, checker, baseline)
    return record


def damage(llm: Any, checker: WeightChecker, baseline: dict[str, str]) -> Record:
    key = list(baseline)[-2]  # of the last rank
    flipped = llm.collective_rpc(flip, args=(key,))
    seen = checker.compare(baseline)
    try:
        checker.compare(baseline, raise_on_mismatch=True)
        raised = None
    except MismatchError as error:
        raised = str(error)
    own = joined(llm.collective_rpc(own_digests))
    last = llm.collective_rpc("weight_checker_last_report", args=("a nonce",))
    llm.collective_rpc(flip, args=(key,))
    found = {"key": key, "flipped": flipped, "report": seen, "own": own, "raised": raised, "last": last}
    return {"damage": found, "repaired": checker.compare(baseline)}


def other_baselines(checker: WeightChecker, baseline: dict[str, str]) -> Record:
    """A key too few; a key too many on a rank, of a rank that does not exist, and of none."""
    fewer = dict(list(baseline.items())[1:])
    extra = ["dp0:pp0:pcp0:tp0:gone.weight", "dp0:pp0:pcp0:tp7:model.norm.weight", "no rank"]
    more = {**fewer, **dict.fromkeys(extra, "0" * 64)}
    return {"extra": extra, "other baseline": checker.compare(json.dumps(more))}


def reset_and_reload(llm: Any, checker: WeightChecker, baseline: dict[str, str]) -> Record:
    record: Record = {"reset": checker.reset(), "own after reset": joined(llm.collective_rpc(own_digests))}
    record["zeroed"] = checker.compare(baseline)
    randoms = []
    for seed in (7, 7, 8):
        checker.reset("random", seed)
        randoms.append(checker.checksum())
    record["random"] = randoms
    llm.collective_rpc("reload_weights")
    record["reloaded"] = checker.compare(baseline)
    record["own after reload"] = joined(llm.collective_rpc(own_digests))
    record["tokens after reload"] = generate(llm)
    return record


@pytest.fixture(scope="module", params=list(LAYOUTS))
def seen(request: pytest.FixtureRequest) -> Record:
    """What `cycle` recorded for one layout, and the ranks that this layout has."""
    model, options, ranks = LAYOUTS[request.param]
    return {**run(cycle, model=model, options=options), "expected ranks": ranks}


def test_digests_are_vllms_own_for_every_key(seen: Record) -> None:
    report = seen["checksum"]
    assert report["checksums"] == seen["own"] == seen["plain checksum"]
    assert report["ranks"] == seen["expected ranks"]
    assert {key.rpartition(":")[0] for key in seen["own"]} == set(seen["expected ranks"])
    assert report["parameters"] == report["hashed"] == len(seen["own"])
    assert report["hidden"] == []


def test_vllms_own_method_uses_the_library_and_answers_the_same(seen: Record) -> None:
    assert seen["accelerated"] == [[True, True]] * len(seen["expected ranks"])
    assert seen["vllms own method"] == seen["own"]


def test_unharmed_weights_match(seen: Record) -> None:
    for report in (seen["unharmed"], seen["repaired"], seen["reloaded"]):
        assert report["match"] is True
        assert report["mismatches"] == []
        assert report["parameters"] == report["compared"] == report["equal"] == len(seen["own"])
        assert report["skipped"] == {"hidden": 0, "not in the baseline": 0}
        assert report["ranks"] == seen["expected ranks"]


def test_checks_at_once_do_not_disturb_each_other(seen: Record) -> None:
    assert seen["at once"] == [seen["own"]] * 6


def test_one_flipped_element_on_one_rank_is_exactly_that_key(seen: Record) -> None:
    damage = seen["damage"]
    key = damage["key"]
    assert damage["flipped"] == [key.startswith(rank) for rank in seen["expected ranks"]]
    assert [other for other in seen["own"] if damage["own"][other] != seen["own"][other]] == [key]
    report = damage["report"]
    assert (report["match"], report["mismatches"], report["differing"]) == (False, [key], [key])
    assert (report["missing"], report["unexpected"]) == ([], [])
    assert (report["compared"], report["equal"]) == (len(seen["own"]), len(seen["own"]) - 1)
    assert key in damage["raised"]


def test_each_worker_keeps_its_last_report(seen: Record) -> None:
    last = seen["damage"]["last"]
    assert [reply["nonce"] for reply in last] == ["a nonce"] * len(seen["expected ranks"])
    assert {reply["result"]["of"] for reply in last} == {"compare"}
    assert [key for reply in last for key in reply["result"]["mismatches"]] == [seen["damage"]["key"]]


def test_a_missing_and_an_extra_key_of_the_baseline_are_named(seen: Record) -> None:
    report = seen["other baseline"]
    first = next(iter(seen["own"]))
    assert report["match"] is False
    assert report["unexpected"] == [first]
    assert report["missing"] == sorted(seen["extra"])
    assert report["differing"] == []
    assert report["mismatches"] == sorted([first, *seen["extra"]])
    assert report["skipped"] == {"hidden": 0, "not in the baseline": 1}
    assert report["compared"] == report["equal"] == len(seen["own"]) - 1


def test_reset_changes_every_digest(seen: Record) -> None:
    report = seen["reset"]
    assert report["status"] == "reset"
    assert report["parameters"] == report["written"] + report["shared"] == len(seen["own"])
    after = seen["own after reset"]
    assert after.keys() == seen["own"].keys()
    assert [key for key in after if after[key] == seen["own"][key]] == []
    assert seen["zeroed"]["differing"] == sorted(seen["own"])
    assert (seen["zeroed"]["match"], seen["zeroed"]["equal"]) == (False, 0)


def test_a_seed_gives_the_same_random_weights_each_time(seen: Record) -> None:
    first, again, other = seen["random"]
    assert first == again
    assert [key for key in first if first[key] in (seen["own"][key], other[key])] == []


def test_reload_brings_every_digest_and_every_token_back(seen: Record) -> None:
    assert seen["own after reload"] == seen["own"]
    assert seen["tokens after reload"] == seen["tokens"]
    assert len(set(map(tuple, seen["tokens"]))) == len(seen["tokens"]) == 2
