"""Every way in which the methods reach a real engine's workers, no way at all, and what the environment turns off."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from in_worker import is_accelerated, linear_weights, own_digests
from tiny_models import tiny_llama
from vllm_engines import generate, run, start

from vllm_weight_checker import CheckError, WeightChecker

OURS = "vllm_weight_checker.WorkerExtension"
NOTHING = hashlib.sha256(b"").hexdigest()
NO_PLUGIN = {"VLLM_PLUGINS": ""}
PLUGIN = {"VLLM_PLUGINS": "weight_checker"}


def checked(extension: str, theirs: bool) -> dict[str, Any]:
    """Starts an engine with this extension, and checks it."""
    llm = start(tiny_llama(), worker_extension_cls=extension)
    (own,) = llm.collective_rpc(own_digests)
    checker = WeightChecker(llm)
    return {
        "own": own,
        "checksum": checker.checksum(),
        "match": checker.compare(own)["match"],
        "by name": llm.collective_rpc("weight_checker_checksum", args=("a nonce",)),
        "accelerated": llm.collective_rpc(is_accelerated)[0],
        "theirs": llm.collective_rpc("their_method") if theirs else None,
    }


@pytest.mark.parametrize(
    ("env", "extension", "theirs"),
    [
        pytest.param(NO_PLUGIN, OURS, False, id="extension alone"),
        pytest.param(PLUGIN, "", False, id="plugin alone"),
        pytest.param(PLUGIN, OURS, False, id="both"),
        pytest.param(PLUGIN, "their_extensions.Theirs", True, id="plugin beside theirs"),
        pytest.param(NO_PLUGIN, "their_extensions.TheirsWithOurs", True, id="theirs inherits from ours"),
        pytest.param(PLUGIN, "their_extensions.TheirsWithOurs", True, id="plugin and theirs that inherits from ours"),
    ],
)
def test_the_engine_starts_and_answers(env: dict[str, str], extension: str, theirs: bool) -> None:
    seen = run(checked, env=env, extension=extension, theirs=theirs)
    assert seen["checksum"] == seen["own"]
    assert seen["match"] is True
    (reply,) = seen["by name"]
    assert (reply["nonce"], reply["result"]["checksums"]) == ("a nonce", seen["own"])
    assert seen["accelerated"] == [env is PLUGIN] * 2
    assert seen["theirs"] == (["theirs"] if theirs else None)


def neither_way() -> dict[str, Any]:
    llm = start(tiny_llama())
    before = generate(llm)
    try:
        WeightChecker(llm).checksum()
        told = None
    except CheckError as error:
        told = str(error)
    return {"told": told, "tokens": [before, generate(llm)]}


def test_without_plugin_and_extension_the_check_says_so_and_the_engine_serves_on() -> None:
    seen = run(neither_way, env=NO_PLUGIN)
    assert "VLLM_PLUGINS" in seen["told"] and OURS in seen["told"]
    assert seen["tokens"][0] == seen["tokens"][1]


def packed() -> dict[str, Any]:
    """An engine as vLLM packs it on CPU, without the library in vLLM's own functions."""
    llm = start(tiny_llama())
    (own,) = llm.collective_rpc(own_digests)
    (linear,) = llm.collective_rpc(linear_weights)
    checker = WeightChecker(llm)
    record = {"own": own, "linear": linear, "checksum": checker.checksum(detail=True), "compare": checker.compare(own)}
    record["accelerated"] = llm.collective_rpc(is_accelerated)[0]
    record["vllms own method"] = llm.collective_rpc("compute_weight_checksums")[0]
    record["reset"] = checker.reset()
    record["after reset"] = checker.compare(own)
    return record


@pytest.fixture(scope="module")
def default() -> dict[str, Any]:
    return run(packed, env={"VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS": "0", "VLLM_WEIGHT_CHECKER_ACCELERATE": "0"})


def test_packed_weights_are_hidden_and_their_digests_vllms(default: dict[str, Any]) -> None:
    report = default["checksum"]
    assert report["checksums"] == default["own"]
    assert report["hidden"] == sorted(default["linear"])
    assert {report["checksums"][key] for key in default["linear"]} == {NOTHING}
    assert report["parameters"] == report["hashed"] + len(report["hidden"]) == len(default["own"])


def test_packed_weights_are_no_part_of_a_comparison(default: dict[str, Any]) -> None:
    visible = len(default["own"]) - len(default["linear"])
    report = default["compare"]
    assert (report["match"], report["compared"], report["equal"]) == (True, visible, visible)
    assert report["skipped"] == {"hidden": len(default["linear"]), "not in the baseline": 0}
    assert default["reset"]["written"] + default["reset"]["shared"] == visible
    assert default["reset"]["hidden"] == report["hidden"] == sorted(default["linear"])
    assert default["after reset"]["differing"] == sorted(default["own"].keys() - set(default["linear"]))


def test_acceleration_is_off_when_the_environment_says_so(default: dict[str, Any]) -> None:
    assert default["accelerated"] == [False, False]
    assert default["vllms own method"] == default["own"]
