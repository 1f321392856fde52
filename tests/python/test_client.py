"""`WeightChecker` over HTTP, against servers on this machine that play API servers in every mood."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from played_servers import PlayedServer, answering, report, serving
from simulated_engines import Worker, workers

from vllm_weight_checker import CheckError, MismatchError, WeightChecker
from vllm_weight_checker.errors import RankError


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def held(ranks: list[Worker]) -> dict[str, str]:
    return {key: digest for worker in ranks for key, digest in worker.digests().items()}


def test_the_cycle_with_one_server(stack: ExitStack) -> None:
    ranks = workers(tp=2)
    server = stack.enter_context(serving(ranks))
    checker = WeightChecker(server.url + "/")
    baseline = checker.checksum()
    assert baseline == held(ranks)
    assert checker.compare(baseline).match
    assert checker.reset(fill="random", seed=3).written == 6
    assert held(ranks) != baseline
    assert not checker.compare(json.dumps(baseline)).match
    with pytest.raises(MismatchError):
        checker.compare(baseline, raise_on_mismatch=True)
    assert server.paths == ["/weight_checker"] * 5
    assert server.requests[0] == {"action": "checksum", "detail": True, "algorithm": "sha256"}
    assert server.requests[1] == {"action": "compare", "detail": True, "baseline": baseline}
    assert server.requests[2] == {"action": "reset", "detail": True, "fill": "random", "seed": 3}


def test_several_servers_are_one_deployment(stack: ExitStack) -> None:
    ranks = [workers(dp, tp=2) for dp in range(4)]
    first, last = (stack.enter_context(serving(ranks[i] + ranks[i + 1], 4)) for i in (0, 2))
    everything = [worker for engine in ranks for worker in engine]
    checker = WeightChecker(last.url, first.url)
    found = checker.checksum(detail=True)
    assert found.checksums == held(everything)
    assert found.ranks == sorted(worker.prefix[:-1] for worker in everything)
    assert found.parameters == 8 * 4 and found.data_parallel_size == 4
    baseline = {**found.checksums, "dp9:pp0:pcp0:tp0:x": "0", "no rank": "1"}
    changed, gone, added = (
        "dp3:pp0:pcp0:tp1:layers.0.weight",
        "dp2:pp0:pcp0:tp0:gone",
        "dp0:pp0:pcp0:tp1:layers.2.weight",
    )
    ranks[3][1].weights["layers.0.weight"] += b"!"
    baseline[gone] = "2"
    del baseline[added]
    compared = checker.compare(baseline)
    assert compared.differing == [changed] and compared.unexpected == [added]
    assert compared.missing == sorted(["dp9:pp0:pcp0:tp0:x", "no rank", gone])
    assert compared.parameters == compared.compared + sum(compared.skipped.values()) == 32
    assert compared.compared == compared.equal + 1
    assert checker.reset().written == 24


def test_one_server_of_several_with_nothing_in_common_is_no_error(stack: ExitStack) -> None:
    servers = [stack.enter_context(serving(workers(dp), 2)) for dp in range(2)]
    found = WeightChecker(*[server.url for server in servers]).compare(held(workers(0)))
    assert found.unexpected == sorted(held(workers(1))) and found.compared == 3


def test_a_deployment_must_be_whole(stack: ExitStack) -> None:
    urls = [stack.enter_context(serving(workers(dp), 4)).url for dp in range(3)]
    with pytest.raises(RankError, match="no answer from dp1, dp3 of 4 .*: give the URL of every API server"):
        WeightChecker(urls[0], urls[2]).checksum()
    again = stack.enter_context(serving(workers(0), 4))
    with pytest.raises(RankError, match=f"{urls[0]} and {again.url} both answered for rank dp0:pp0:pcp0:tp0"):
        WeightChecker(*urls, again.url).checksum()
    other = stack.enter_context(serving(workers(3), 5))
    with pytest.raises(RankError, match=f"not of one deployment: .*{urls[0]}: 4, {other.url}: 5"):
        WeightChecker(urls[0], other.url).checksum()
    beyond = stack.enter_context(serving(workers(0) + workers(1), 1))
    with pytest.raises(RankError, match="dp1 answered by .*, but the deployment has 1"):
        WeightChecker(beyond.url).checksum()


def test_nothing_compared_and_nothing_checked(stack: ExitStack) -> None:
    with pytest.raises(CheckError, match="nothing compared"):
        WeightChecker(stack.enter_context(serving(workers())).url).compare({"x": "y"})
    empty = stack.enter_context(serving([Worker((0, 0, 0, 0), {})]))
    with pytest.raises(CheckError, match="nothing was checked"):
        WeightChecker(empty.url).checksum()


SOUND = report(workers(tp=2), 1, "checksum", True)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            404,
            {"detail": "Not Found"},
            "has no endpoint /weight_checker .*VLLM_PLUGINS and with VLLM_SERVER_DEV_MODE=1",
        ),
        (405, {"detail": "Method Not Allowed"}, "has no endpoint /weight_checker"),
        (400, {"error": {"message": "bad field"}}, r"refused \(HTTP 400\): bad field"),
        (
            500,
            {"error": {"message": "rank dp0:pp0:pcp0:tp1: gone"}},
            r"refused \(HTTP 500\): rank dp0:pp0:pcp0:tp1: gone",
        ),
        (500, {"detail": "plain FastAPI"}, "plain FastAPI"),
        (500, {"other": 1}, '{"other": 1}'),
        (500, [1], r"\[1\]"),
        (502, b"<html>bad gateway", "HTTP 502.*<html>bad gateway"),
        (503, b"", r"\(HTTP 503\): Service Unavailable"),
        (200, {"checksums": {}}, "vLLM's own endpoint; .*VLLM_PLUGINS"),
        (200, b"", "no JSON"),
        (200, b'{"checksums": {"a', "no JSON"),
        (200, b"\xff\xfe\x00", "no JSON"),
        (200, b"[" * 100_000, "no JSON"),
        (200, {"hello": "world"}, 'no report: {"hello": "world"}'),
        (200, ["checksums"], "no report"),
        (200, {"ranks": "all"}, "no report"),
        (200, {**SOUND, "ranks": ["tp0"]}, "unsound: its ranks"),
        (200, {**SOUND, "ranks": ["dp0:pp0:pcp0:tp0:x"]}, "unsound: its ranks"),
        (200, {**SOUND, "ranks": [0]}, "unsound: its ranks"),
        (200, {**SOUND, "ranks": SOUND["ranks"] * 2}, "both answered for rank"),
        (200, {**SOUND, "ranks": SOUND["ranks"][:1]}, "a key of another rank"),
        (200, {**SOUND, "ranks": []}, "no answer from dp0 of 1"),
        (200, {**SOUND, "data_parallel_size": None}, "not of one deployment"),
        (200, {**SOUND, "parameters": 1}, "do not add up"),
        (200, {**SOUND, "hidden": None}, "unsound: 'hidden'"),
        (0, b"", "cannot be reached"),
    ],
)
def test_every_bad_answer_names_the_server(stack: ExitStack, status: int, body: object, message: str) -> None:
    server = stack.enter_context(answering(status, body))
    with pytest.raises(CheckError, match=message) as caught:
        WeightChecker(server.url).checksum()
    assert server.url in str(caught.value)


def test_a_reset_by_vllms_own_endpoint_is_admitted(stack: ExitStack) -> None:
    server = stack.enter_context(answering(200, {"status": "reset"}))
    with pytest.raises(CheckError, match="vLLM's own endpoint, which has set all weights to zero"):
        WeightChecker(server.url).reset(fill="random")


def test_a_reset_that_one_of_two_servers_refuses_says_what_is_gone(stack: ExitStack) -> None:
    good = stack.enter_context(serving(workers(0), 2))
    bad = stack.enter_context(answering(500, {"error": {"message": "read-only memory"}}))
    with pytest.raises(CheckError, match=f"{bad.url} refused .*read-only memory.*behind {good.url} have been reset"):
        WeightChecker(good.url, bad.url).reset()


def test_a_server_that_is_silent(stack: ExitStack) -> None:
    released = threading.Event()
    stack.callback(released.set)
    silent = stack.enter_context(PlayedServer(lambda request: (0, b"") if released.wait(30) else (500, b"")))
    stack.callback(released.set)
    with pytest.raises(CheckError, match=f"{silent.url} did not answer within 0.2 s"):
        WeightChecker(silent.url, timeout=0.2).checksum()


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(CheckError, match=f"{url} cannot be reached: .*[Rr]efused"):
            WeightChecker(url).checksum()
    with pytest.raises(CheckError, match="https://127.0.0.1:1 cannot be reached: ."):
        WeightChecker("https://127.0.0.1:1").checksum()


@pytest.mark.parametrize(
    "rest", ["127.0.0.1:99999", "127.0.0.1:port", "127.0.0.1:0", "me:secret@host", "host?a=b", "host#f", "[::1"]
)
def test_addresses_that_would_reach_something_else_are_refused(rest: str) -> None:
    with pytest.raises(ValueError) as caught:
        WeightChecker(f"http://{rest}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "lie",
    [
        {"match": False},
        {"match": "yes"},
        {"mismatches": ["dp0:pp0:pcp0:tp0:layers.0.weight"]},
        {"parameters": 10**6, "compared": 10**6, "equal": 10**6, "skipped": {}, "hidden": []},
    ],
)
def test_an_answer_that_contradicts_itself_is_no_match(lie: dict[str, Any]) -> None:
    with serving(workers(tp=1)) as server:
        baseline = WeightChecker(server.url).checksum()
        honest = server.respond

        def respond(request: dict[str, Any]) -> tuple[int, bytes]:
            status, body = honest(request)
            return status, json.dumps({**json.loads(body), **lie}).encode()

        server.respond = respond
        with pytest.raises(RankError, match="unsound"):
            WeightChecker(server.url).compare(baseline)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "https:///", "/weight_checker"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="no address of an API server"):
        WeightChecker("http://127.0.0.1:1", url)


def test_a_server_given_twice() -> None:
    with pytest.raises(ValueError, match="give each API server once"):
        WeightChecker("http://127.0.0.1:1", "http://127.0.0.1:1/")


def test_checks_from_several_threads(stack: ExitStack) -> None:
    ranks = workers(tp=2)
    checker = WeightChecker(stack.enter_context(serving(ranks)).url)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(checker.checksum())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [held(ranks)] * 8
