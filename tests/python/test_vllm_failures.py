"""Checks that cannot be made on a real engine with two ranks: what is said, and what becomes of the engine."""

from __future__ import annotations

from typing import Any

import pytest
from in_worker import break_checks, flip, mend_checks, own_digests
from tiny_models import tiny_llama
from vllm_engines import generate, run, start

from vllm_weight_checker import CheckError, WeightChecker

TP0, TP1 = "dp0:pp0:pcp0:tp0:", "dp0:pp0:pcp0:tp1:"
OTHER_MODEL = {"dp3:pp0:pcp0:tp0:model.norm.weight": "0" * 64}

Record = dict[str, Any]


def outcome(check: Any, *arguments: Any) -> list[Any]:
    """["answer", what it is] or [class of the error, its text]."""
    try:
        return ["answer", check(*arguments)]
    except CheckError as error:
        return [type(error).__name__, str(error)]


def failing_checks() -> Record:
    """First checks that fail and leave the engine as it was, then another's method that raises."""
    llm = start(tiny_llama(), tensor_parallel_size=2, worker_extension_cls="their_extensions.Theirs")
    checker = WeightChecker(llm)
    record: Record = {"tokens": [generate(llm)]}
    baseline = record["checksum"] = checker.checksum()
    record["own"] = {key: digest for rank in llm.collective_rpc(own_digests) for key, digest in rank.items()}

    llm.collective_rpc(break_checks, args=(TP1,))
    record["broken rank"] = [
        outcome(check, *arguments)
        for check, *arguments in ((checker.checksum,), (checker.compare, baseline), (checker.reset,))
    ]
    llm.collective_rpc(mend_checks)
    llm.collective_rpc("reload_weights")  # rank 0 has been reset
    record["refused"] = [
        outcome(checker.compare, OTHER_MODEL),
        outcome(checker.compare, {TP0 + "model.norm.weight": "blake3:" + "0" * 64}),
        outcome(checker.checksum, False, "md5"),
        outcome(checker.reset, "ones"),
        outcome(checker.reset, "random", -1),
    ]
    record["mended"] = checker.compare(baseline)
    record["tokens"].append(generate(llm))

    record["theirs"] = theirs_raises(llm)
    key = next(key for key in baseline if key.startswith(TP1))
    llm.collective_rpc(flip, args=(key,))  # since then every digest of before is a lie
    record["after theirs"] = [
        outcome(check, *arguments)
        for check, *arguments in ((checker.checksum,), (checker.compare, baseline), (checker.reset,))
        for _ in range(2)  # the second one gets an answer to the same question
    ]
    return record


def theirs_raises(llm: Any) -> str:
    try:
        llm.collective_rpc("raise_on", args=(TP0,))
    except Exception as error:
        return str(error)
    return "nothing was raised"


@pytest.fixture(scope="module")
def seen() -> Record:
    return run(failing_checks, env={"VLLM_PLUGINS": "weight_checker"})


def test_an_error_on_one_rank_is_an_error_that_names_the_rank(seen: Record) -> None:
    assert len(seen["broken rank"]) == 3
    for kind, text in seen["broken rank"]:
        assert kind == "RankError"
        assert f"rank {TP1[:-1]}: the model of this rank cannot be reached" in text
        assert TP0[:-1] not in text


def test_what_is_refused_says_why(seen: Record) -> None:
    other_model, other_algorithm, md5, ones, negative = seen["refused"]
    assert other_model[0] == "CheckError" and "nothing compared" in other_model[1]
    for (kind, text), told in ((other_algorithm, "blake3"), (md5, "md5"), (ones, "ones"), (negative, "seed")):
        assert kind == "RankError" and told in text


def test_the_engine_serves_on_and_its_checks_are_true(seen: Record) -> None:
    assert seen["checksum"] == seen["own"]
    assert seen["mended"]["match"] is True
    assert seen["mended"]["equal"] == len(seen["own"])
    assert seen["tokens"][0] == seen["tokens"][1]


def test_after_anothers_method_has_raised_no_stale_digest_is_ever_reported(seen: Record) -> None:
    assert "their method has failed" in seen["theirs"]
    assert len(seen["after theirs"]) == 6
    for kind, text in seen["after theirs"]:
        assert kind == "RankError", text
        assert TP1[:-1] in text
        assert "restart the engine" in text
    earlier = ["checksum", "checksum", "compare", "compare", "reset"]
    for (_, text), action in zip(seen["after theirs"][1:], earlier, strict=True):
        assert f"stale: it answers an earlier {action!r}" in text
