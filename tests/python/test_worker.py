"""What a worker answers: every reply to the verbs, and its counts."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import pytest
import torch
from plain_workers import (
    NOTHING,
    PARAMETERS,
    RANK,
    Worker,
    checksums,
    module,
    packed_model,
    some_model,
    stand_in_groups,
)

from vllm_weight_checker import replies
from vllm_weight_checker.merging import Part, combine
from vllm_weight_checker.worker import METHODS


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_groups(monkeypatch)


def test_counts_of_a_checksum_add_up() -> None:
    reply = Worker(some_model()).weight_checker_checksum(nonce="abc")
    assert reply["error"] is None
    assert (reply["nonce"], reply["action"], reply["rank"]) == ("abc", "checksum", dict(dp=2, pp=1, pcp=0, tp=3))
    result = reply["result"]
    assert sorted(result["checksums"]) == sorted(RANK.prefix + name for name in PARAMETERS)
    assert result["parameters"] == result["hashed"] == len(PARAMETERS)
    assert result["hidden"] == []
    assert result["bytes"] == 4 * (128 + 64 + 8 + 2 * 2 * 8 + 2 + 1) + 2 * 15


def test_a_digest_is_of_the_elements_in_order_not_of_the_storage() -> None:
    model = some_model()
    truth = hashlib.sha256(model.linear.weight.contiguous().numpy().tobytes()).hexdigest()
    assert checksums(Worker(model))[RANK.prefix + "linear.weight"] == truth


def test_reset_writes_every_weight_and_nothing_else() -> None:
    model = some_model()
    buffer = torch.ones(3)
    model.register_buffer("buffer", buffer)
    between = model.experts.w13_weight.data
    result = Worker(model).weight_checker_reset("n")["result"]
    assert all(not parameter.any() for parameter in model.parameters())
    assert buffer.tolist() == [1, 1, 1]
    rows_left_out = torch.as_strided(between, (2, 2, 8), (32, 16, 1), 8)
    assert rows_left_out.abs().min() > 0
    assert result["parameters"] == len(PARAMETERS) == result["written"] + result["shared"]
    assert result["shared"] == 0


@pytest.mark.parametrize("seed", [7, "7"])
def test_reset_with_a_seed_is_the_same_on_every_run_also_as_text(seed: int | str) -> None:
    models = some_model(), some_model()
    Worker(models[0]).weight_checker_reset("n", fill="random", seed=7)
    Worker(models[1]).weight_checker_reset("n", "random", seed)
    ours, again = (list(model.parameters()) for model in models)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
    assert not torch.equal(ours[0], next(some_model().parameters()))


def test_compare_tells_what_differs_what_is_missing_and_what_is_unexpected() -> None:
    worker = Worker(some_model())
    baseline = checksums(worker)
    same = worker.weight_checker_compare("n", baseline)["result"]
    assert same["match"] is True
    assert (same["parameters"], same["compared"], same["equal"]) == (7, 7, 7)
    assert same["skipped"] == {"hidden": 0, "not in the baseline": 0}
    worker.model_runner.get_model().narrow.weight.data[1, 1] += 1
    missing, unexpected = RANK.prefix + "gone.weight", RANK.prefix + "scalar"
    baseline[missing] = NOTHING
    del baseline[unexpected]
    other_ranks = {"dp0:pp1:pcp0:tp3:linear.weight": NOTHING, "dp2:pp1:pcp0:tp30:linear.weight": NOTHING, "x": "y"}
    result = worker.weight_checker_compare("n", json.dumps({**baseline, **other_ranks}))["result"]
    assert result["match"] is False
    assert result["differing"] == [RANK.prefix + "narrow.weight"]
    assert result["missing"] == [missing]
    assert result["unexpected"] == [unexpected]
    assert result["mismatches"] == sorted([RANK.prefix + "narrow.weight", missing, unexpected])
    assert (result["compared"], result["equal"]) == (6, 5)
    assert result["skipped"] == {"hidden": 0, "not in the baseline": 1}
    assert result["parameters"] == result["compared"] + sum(result["skipped"].values())


def test_a_mismatch_is_logged_as_an_error_that_names_the_keys(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(some_model())
    baseline = {**checksums(worker), RANK.prefix + "scalar": NOTHING}
    with caplog.at_level(logging.ERROR, "vllm_weight_checker"):
        worker.weight_checker_compare("n", baseline)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert RANK.prefix + "scalar" in record.getMessage()


def test_no_key_in_common_is_a_mismatch_and_no_error() -> None:
    worker = Worker(some_model())
    gone = RANK.prefix + "gone.weight"
    reply = worker.weight_checker_compare("n", {gone: NOTHING})
    assert reply["error"] is None
    result = reply["result"]
    assert result["match"] is False
    assert (result["compared"], result["equal"], result["bytes"], result["differing"]) == (0, 0, 0, [])
    assert result["missing"] == [gone]
    assert result["unexpected"] == sorted(RANK.prefix + name for name in PARAMETERS)
    assert result["skipped"] == {"hidden": 0, "not in the baseline": 7}


def test_packed_weights_are_hidden_and_keep_vllms_digest_of_nothing() -> None:
    worker = Worker(packed_model())
    result = worker.weight_checker_checksum("n")["result"]
    hidden = [RANK.prefix + name for name in ("packed.weight", "experts.w13_weight", "experts.w2_weight")]
    assert result["hidden"] == hidden
    assert (result["parameters"], result["hashed"]) == (5, 2)
    assert {result["checksums"][key] for key in hidden} == {NOTHING}
    reset = worker.weight_checker_reset("n")["result"]
    assert reset["hidden"] == hidden
    assert reset["parameters"] == reset["written"] + reset["shared"] + len(hidden)


def test_a_hidden_weight_that_equals_the_baseline_is_skipped_and_one_that_differs_is_not() -> None:
    worker = Worker(packed_model())
    baseline = checksums(worker)
    result = worker.weight_checker_compare("n", baseline)["result"]
    assert (result["match"], result["compared"], result["equal"]) == (True, 2, 2)
    assert result["skipped"] == {"hidden": 3, "not in the baseline": 0}
    differing = RANK.prefix + "packed.weight"
    baseline[differing] = hashlib.sha256(b"unpacked").hexdigest()
    del baseline[RANK.prefix + "experts.w2_weight"]
    result = worker.weight_checker_compare("n", baseline)["result"]
    assert result["match"] is False
    assert result["differing"] == [differing]
    assert result["unexpected"] == [RANK.prefix + "experts.w2_weight"]
    assert (result["compared"], result["equal"]) == (3, 2)
    assert result["skipped"] == {"hidden": 1, "not in the baseline": 1}
    assert result["parameters"] == 5


def test_hidden_weights_alone_compare_nothing() -> None:
    worker = Worker(module(packed=module(weight=torch.empty(0))))
    result = worker.weight_checker_compare("n", checksums(worker))["result"]
    assert (result["match"], result["compared"], result["mismatches"]) == (False, 0, [])
    assert result["skipped"] == {"hidden": 1, "not in the baseline": 0}


def test_the_last_report_can_be_had_again() -> None:
    worker = Worker(some_model())
    assert "no check yet" in worker.weight_checker_last_report("n")["error"]["message"]
    result = worker.weight_checker_compare("n1", checksums(worker))["result"]
    again = worker.weight_checker_last_report("n2")
    assert (again["nonce"], again["action"]) == ("n2", "last_report")
    assert again["result"] == {"of": "compare", **result}
    assert worker.weight_checker_last_report("n3")["result"] == again["result"]
    worker.weight_checker_checksum("n4", "md5")
    assert "the last checksum failed" in worker.weight_checker_last_report("n5")["error"]["message"]


@pytest.mark.parametrize("make", [some_model, packed_model])
def test_callers_accept_the_replies(make: Any) -> None:
    """The rules that the caller's side applies to every reply: fields, nonce, sums, keys of this rank."""
    worker = Worker(make())
    layout = replies.Layout(dp=(RANK.dp,), pp=2, pcp=1, tp=4, data_parallel_size=3, single=True)
    baseline = checksums(worker)
    for action, arguments in (("checksum", {}), ("compare", {"baseline": baseline}), ("reset", {})):
        reply = json.loads(json.dumps(METHODS[f"weight_checker_{action}"](worker, nonce="fresh", **arguments)))
        report = combine(action, [Part("this", (RANK,), reply["result"])], 3, baseline)
        assert report == replies.merge(action, "fresh", {RANK.dp: [reply]}, layout, baseline)
        assert report["parameters"] == len(baseline)
