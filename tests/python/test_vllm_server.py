"""The endpoint, the client and the command on real API servers: two tensor-parallel ranks, and two replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bad_requests import BAD_REQUESTS
from own_endpoint import OWN_PATH
from tiny_models import tiny_llama
from vllm_servers import CHECKED, SERVER, post, serve

from vllm_weight_checker import CheckError, MismatchError, WeightChecker
from vllm_weight_checker.cli import main

RANKS = ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]
# vLLM's own functions stay in place, and its own endpoint is there too: the truth that ours is compared with.
OWN = {**CHECKED, "VLLM_PLUGINS": f"{CHECKED['VLLM_PLUGINS']},vllms_own", "VLLM_WEIGHT_CHECKER_ACCELERATE": "0"}


@pytest.fixture(scope="module")
def tensor_parallel() -> Iterator[str]:
    extension = ("--worker-extension-cls", "break_extension.BreakOneRank")
    with serve([*SERVER, "--model", str(tiny_llama()), "--tensor-parallel-size", "2", *extension], OWN) as url:
        yield url


@pytest.fixture(scope="module")
def data_parallel() -> Iterator[str]:
    extension = ("--worker-extension-cls", "flip_extension.FlipOneElement")
    with serve([*SERVER, "--model", str(tiny_llama()), "--data-parallel-size", "2", *extension], OWN) as url:
        yield url


def rpc(url: str, method: str, *args: str) -> list[Any]:
    status, answer = post(f"{url}/collective_rpc", {"method": method, "args": args})
    assert status == 200, answer
    return answer["results"]


def checked(url: str, **body: Any) -> Any:
    status, answer = post(f"{url}/weight_checker", body)
    assert status == 200, answer
    return answer


def tokens(url: str) -> str:
    body = {"model": str(tiny_llama()), "prompt": [5, 90, 17, 30], "max_tokens": 8, "temperature": 0}
    status, answer = post(f"{url}/v1/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def test_digests_are_vllms_own(tensor_parallel: str) -> None:
    own: dict[str, str] = {}
    for digests in rpc(tensor_parallel, "compute_weight_checksums"):
        own.update(digests)
    assert len(own) == 30 and len(set(own.values())) > 20
    assert checked(tensor_parallel, action="checksum") == {"checksums": own}
    assert WeightChecker(tensor_parallel).checksum() == own


def test_reset_reload_and_compare_over_http(tensor_parallel: str) -> None:
    before = tokens(tensor_parallel)
    baseline = checked(tensor_parallel, action="checksum")["checksums"]
    assert checked(tensor_parallel, action="reset") == {"status": "reset"}
    report = checked(tensor_parallel, action="compare", baseline=baseline)
    assert report == {"match": False, "mismatches": sorted(baseline)}
    rpc(tensor_parallel, "reload_weights")
    report = checked(tensor_parallel, action="compare", baseline=baseline)
    assert report == {"match": True, "mismatches": []}
    assert tokens(tensor_parallel) == before


def test_missing_and_unexpected_keys(tensor_parallel: str) -> None:
    baseline = WeightChecker(tensor_parallel).checksum()
    gone = f"{RANKS[1]}:model.norm.weight"
    extra = [f"{RANKS[0]}:no.such.weight", "dp7:pp0:pcp0:tp0:model.norm.weight", "no rank at all"]
    changed = {key: digest for key, digest in baseline.items() if key != gone} | dict.fromkeys(extra, "0" * 64)
    detailed = checked(tensor_parallel, action="compare", baseline=changed, detail=True)
    assert detailed["missing"] == sorted(extra) and detailed["unexpected"] == [gone] and detailed["differing"] == []
    assert detailed["mismatches"] == sorted([*extra, gone]) and not detailed["match"]
    assert detailed["parameters"] == 30 == detailed["compared"] + sum(detailed["skipped"].values())
    plain = checked(tensor_parallel, action="compare", baseline=changed)
    assert plain == {"match": False, "mismatches": detailed["mismatches"]}


def test_a_comparison_of_nothing_is_a_mismatch_for_vllm_and_an_error_here(tensor_parallel: str) -> None:
    assert checked(tensor_parallel, action="compare", baseline={})["match"] is False
    with pytest.raises(CheckError, match="nothing can be compared"):
        WeightChecker(tensor_parallel).compare({})


def test_the_client(tensor_parallel: str) -> None:
    checker = WeightChecker(tensor_parallel)
    detailed = checker.checksum(detail=True)
    assert detailed.ranks == RANKS and detailed.hashed == detailed.parameters == 30 and detailed.hidden == []
    assert checker.compare(detailed.checksums, raise_on_mismatch=True)
    assert checker.reset(fill="random", seed=3).written == 30
    with pytest.raises(MismatchError) as caught:
        checker.compare(detailed.checksums, raise_on_mismatch=True)
    assert len(caught.value.report.differing) == 30
    random = checker.checksum()
    checker.reset(fill="random", seed=3)
    assert checker.checksum() == random
    rpc(tensor_parallel, "reload_weights")
    assert checker.compare(detailed.checksums)


def test_the_command(tensor_parallel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "baseline.json"
    assert main(["checksum", "--url", tensor_parallel, "-o", str(file)]) == 0
    assert json.loads(file.read_text()) == WeightChecker(tensor_parallel).checksum()
    assert main(["compare", "--url", tensor_parallel, "--baseline", str(file)]) == 0
    assert "MATCH" in capsys.readouterr().out
    assert main(["reset", "--url", tensor_parallel, "--fill", "poison"]) == 0
    capsys.readouterr()
    assert main(["compare", "--url", tensor_parallel, "--baseline", str(file), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["differing"]) == 30
    rpc(tensor_parallel, "reload_weights")
    assert main(["compare", "--url", tensor_parallel, "--baseline", str(file)]) == 0


def test_answers_are_vllms_own(tensor_parallel: str) -> None:
    own_path = f"{tensor_parallel}{OWN_PATH}"
    baseline = post(own_path, {"action": "checksum"})[1]["checksums"]
    gone, changed = sorted(baseline)[:2]
    other = {**baseline, changed: "0" * 64, "dp1:pp0:pcp0:tp0:x": "1", "no rank": "2"}
    del other[gone]
    requests = [{"action": "checksum"}, *({"action": "compare", "baseline": keys} for keys in (baseline, other, {}))]
    for body in [*requests, {"action": "reset"}, *requests]:
        ours = post(f"{tensor_parallel}/weight_checker", body)
        assert ours == post(own_path, body) and ours[0] == 200, body
    rpc(tensor_parallel, "reload_weights")


def test_refusals_are_vllms_own(tensor_parallel: str) -> None:
    for body in BAD_REQUESTS:
        ours = post(f"{tensor_parallel}/weight_checker", body)
        assert ours == post(f"{tensor_parallel}{OWN_PATH}", body) and ours[0] == 400, body[:100]


def test_checks_at_once(tensor_parallel: str) -> None:
    baseline = WeightChecker(tensor_parallel).checksum()
    with ThreadPoolExecutor(4) as threads:
        checks = [threads.submit(WeightChecker(tensor_parallel).compare, baseline) for _ in range(8)]
        serving = threads.submit(tokens, tensor_parallel)
        assert all(check.result().compared == 30 for check in checks) and serving.result()


def test_an_error_on_one_rank(tensor_parallel: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = tokens(tensor_parallel)
    baseline = WeightChecker(tensor_parallel).checksum()
    rpc(tensor_parallel, "hide_model", "1")
    for body in [{"action": "checksum"}, {"action": "reset"}, {"action": "compare", "baseline": baseline}]:
        status, answer = post(f"{tensor_parallel}/weight_checker", body)
        assert status == 500, answer
        assert RANKS[1] in answer["error"]["message"] and "cannot be reached" in answer["error"]["message"]
    with pytest.raises(CheckError, match=RANKS[1]):
        WeightChecker(tensor_parallel).checksum()
    file = tmp_path / "baseline.json"
    assert main(["checksum", "--url", tensor_parallel, "-o", str(file)]) == 2
    assert RANKS[1] in capsys.readouterr().err and not file.exists()
    rpc(tensor_parallel, "show_model")
    rpc(tensor_parallel, "reload_weights")
    assert WeightChecker(tensor_parallel).compare(baseline)
    assert tokens(tensor_parallel) == before


def test_every_replica_is_checked(data_parallel: str) -> None:
    assert len(rpc(data_parallel, "compute_weight_checksums")) == 1, "vLLM answers for one engine of two here"
    both = post(f"{data_parallel}{OWN_PATH}", {"action": "checksum"})[1]["checksums"]
    assert {key.partition(":")[0] for key in both} == {"dp0", "dp1"}
    checker = WeightChecker(data_parallel)
    report = checker.checksum(detail=True)
    assert report.checksums == both
    assert report.ranks == ["dp0:pp0:pcp0:tp0", "dp1:pp0:pcp0:tp0"] and report.data_parallel_size == 2
    assert checked(data_parallel, action="checksum") == {"checksums": both}
    assert checker.reset().written == len(both)
    assert checker.compare(both).differing == sorted(both)
    rpc(data_parallel, "reload_weights")
    assert checker.compare(both, raise_on_mismatch=True).equal == len(both)
    rpc(data_parallel, "flip_one_element", "0", "model.norm.weight", "1")
    assert checker.compare(both).mismatches == ["dp1:pp0:pcp0:tp0:model.norm.weight"]


def test_every_replica_is_verified(data_parallel: str) -> None:
    name = "model.norm.weight"
    rpc(data_parallel, "reload_weights")
    checker = WeightChecker(data_parallel)
    report = checker.verify(raise_on_mismatch=True)
    assert report.ranks == ["dp0:pp0:pcp0:tp0", "dp1:pp0:pcp0:tp0"] and report.data_parallel_size == 2
    assert report.parameters == report.equal == 2 * 15 and report.not_comparable == {}
    assert report.audit["replicas"] == [{"ranks": report.ranks, "parameters": 15}]
    rpc(data_parallel, "flip_one_element", "0", name, "1")
    assert checker.verify().mismatches == [f"dp1:pp0:pcp0:tp0:{name}"]


def test_replies_out_of_step_are_never_taken_for_digests(tensor_parallel: str) -> None:
    """Last, since nothing brings this server's replies back into step."""
    checker = WeightChecker(tensor_parallel)
    baseline = checker.checksum()
    assert post(f"{tensor_parallel}/collective_rpc", {"method": "raise_on", "args": ["0"]})[0] == 500
    for body in [{"action": "checksum"}, {"action": "compare", "baseline": baseline}, {"action": "checksum"}]:
        status, answer = post(f"{tensor_parallel}/weight_checker", body)
        message = answer["error"]["message"]
        assert status == 500 and f"({RANKS[1]})" in message and "restart the engine" in message
    with pytest.raises(CheckError, match="restart the engine"):
        checker.checksum()
