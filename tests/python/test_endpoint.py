"""The HTTP endpoint beside vLLM's own, on the same application, handlers and client, for the same simulated ranks."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from bad_requests import BAD_REQUESTS
from fastapi import FastAPI
from simulated_engines import SimulatedClient, parallel_config, workers
from vllm import plugins
from vllm.entrypoints.rl.online.api_router import router as vllm_router
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin, attach_endpoint_plugins, init_endpoint_plugins_state

from vllm_weight_checker import endpoint, engines, loop_json
from vllm_weight_checker.endpoint import WeightCheckerEndpoint

JSON = {"content-type": "application/json"}


class Client(SimulatedClient):
    """Also answers what vLLM's own endpoint asks an engine client."""

    def __init__(self, dp: int = 2, tp: int = 2) -> None:
        super().__init__({i: workers(i, tp=tp) for i in range(dp)}, parallel_config(tp=tp, size=dp))

    @property
    def ranks(self) -> list[Any]:
        return [worker for ranks in self.engines.values() for worker in ranks]

    def digests(self) -> dict[str, str]:
        return {key: digest for worker in self.ranks for key, digest in worker.digests().items()}

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        return [worker.digests() for worker in self.ranks]

    async def collective_rpc(self, method: str, *_: Any, **__: Any) -> list[Any]:
        assert method == "reset_weights"
        return [worker.answer("weight_checker_reset") and None for worker in self.ranks]


def app_of(client: Any, ours: bool, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """An application put together as vLLM does it, with our endpoint or with vLLM's own."""
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.include_router(vllm_router)
    monkeypatch.setattr(plugins, "load_endpoint_plugins", lambda tasks: [WeightCheckerEndpoint()] if ours else [])
    attach_endpoint_plugins(app, ("generate",))
    init_exception_handler(app)
    app.state.engine_client = client
    asyncio.run(init_endpoint_plugins_state(client, app.state, app.state.args))
    return app


@pytest.fixture(autouse=True)
def development_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")


def post(app: FastAPI, content: Any, headers: dict[str, str] = JSON) -> httpx.Response:
    """One request, on an event loop of its own. `content` is text, bytes, or what JSON can hold."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as asking:
            return await asking.post("/weight_checker", content=content, headers=headers)

    if not isinstance(content, (str, bytes)):
        content = json.dumps(content)
    return asyncio.run(ask())


def both(content: Any, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str] = JSON) -> tuple[Any, Any, Client]:
    """What our endpoint and vLLM's answer to the same request about the same weights, and our client after it."""
    answers = []
    for ours in (False, True):
        client = Client()
        response = post(app_of(client, ours, monkeypatch), content, headers)
        answers.append((response.status_code, response.headers["content-type"], response.json()))
    return answers[1], answers[0], client


DIGESTS = Client().digests()
KEYS = sorted(DIGESTS)
CHANGED = {**DIGESTS, KEYS[3]: "0" * 64, KEYS[5]: "no digest"}
VALID = [
    {"action": "checksum"},
    {"action": "checksum", "baseline": None},
    {"action": "checksum", "baseline": {}},
    {"action": "checksum", "unknown": [1]},
    {"action": "reset"},
    {"action": "reset", "baseline": {"a": "b"}},
    {"action": "compare", "baseline": DIGESTS},
    {"action": "compare", "baseline": CHANGED},
    {"action": "compare", "baseline": {key: DIGESTS[key] for key in KEYS[2:]}},
    {
        "action": "compare",
        "baseline": {**DIGESTS, "zzz": "0", "dp7:pp0:pcp0:tp0:x": "1", "dp0:pp0:pcp0:tp0:x": "2", "": ""},
    },
    {"action": "compare", "baseline": {}},
    {"action": "compare", "baseline": {"dp7:pp0:pcp0:tp0:x": "1", "\u00e4": "\u00f6"}},
]


@pytest.mark.parametrize("request_body", VALID, ids=lambda body: f"{body['action']} {len(body.get('baseline') or {})}")
def test_answers_are_those_of_vllms_own_endpoint(request_body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, vllms, client = both(request_body, monkeypatch)
    assert ours == vllms and ours[0] == 200
    zeroed = {bytes(len(data)) == data for worker in client.ranks for data in worker.weights.values()}
    assert zeroed == {request_body["action"] == "reset"}


@pytest.mark.parametrize("content", BAD_REQUESTS, ids=lambda text: repr(text[:40]))
def test_refusals_are_those_of_vllms_own_endpoint(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, vllms, client = both(content, monkeypatch)
    assert ours == vllms and ours[0] == 400
    assert client.digests() == DIGESTS


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x+json"}])
def test_other_content_types_are_treated_as_by_vllm(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, vllms, _ = both({"action": "checksum"}, monkeypatch, headers)
    assert ours == vllms


def test_details_add_to_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    app = app_of(client, True, monkeypatch)
    found = post(app, {"action": "checksum", "detail": True}).json()
    assert found["checksums"] == DIGESTS and found["parameters"] == 16 == found["hashed"] + len(found["hidden"])
    assert found["ranks"] == [f"dp{dp}:pp0:pcp0:tp{tp}" for dp in range(2) for tp in range(2)]
    compared = post(app, {"action": "compare", "detail": True, "baseline": CHANGED}).json()
    assert compared["differing"] == [KEYS[3], KEYS[5]] and compared["match"] is False
    nothing = post(app, {"action": "compare", "detail": True, "baseline": {}}).json()
    assert nothing["compared"] == 0 and nothing["match"] is False
    done = post(app, {"action": "reset", "detail": True, "fill": "random", "seed": 2**64 - 1}).json()
    assert done["written"] == 12 and done["status"] == "reset"
    other = Client()
    for worker in other.ranks:
        worker.answer("weight_checker_reset", fill="random", seed=2**64 - 1)
    assert client.digests() == other.digests() != DIGESTS


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"detail": "perhaps"}, "detail"),
        ({"algorithm": "md5"}, "algorithm"),
        ({"fill": "ones"}, "fill"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "many"}, "seed"),
    ],
)
def test_wrong_values_of_our_own_fields_are_refused(
    more: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    response = post(app_of(client, True, monkeypatch), {"action": "reset", **more})
    assert response.status_code == 400 and response.json()["error"]["param"] == f"body.{field}"
    assert client.digests() == DIGESTS


@pytest.mark.parametrize("detail", [True, False])
@pytest.mark.parametrize("action", ["checksum", "reset", "compare"])
def test_a_check_that_failed_is_an_error_of_the_server(
    action: str, detail: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    client.ranks[3].failure = "'lm_head.weight' lies on a device of type 9"
    app = app_of(client, True, monkeypatch)
    request = {"action": action, "detail": detail, **({"baseline": DIGESTS} if action == "compare" else {})}
    response = post(app, request)
    message = "rank dp1:pp0:pcp0:tp1: 'lm_head.weight' lies on a device of type 9"
    assert response.status_code == 500
    assert response.json() == {
        "error": {"message": message, "type": "Internal Server Error", "param": None, "code": 500}
    }
    assert f"{action} failed: {message}" in caplog.text
    client.ranks[3].failure = None
    assert post(app, {"action": "checksum"}).status_code == 200


def test_a_rank_that_is_missing_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    app = app_of(client, True, monkeypatch)
    del client.engines[1][0]
    response = post(app, {"action": "compare", "baseline": client.digests()})
    assert response.status_code == 500 and "no answer from dp1:pp0:pcp0:tp0" in response.json()["error"]["message"]


def test_outside_development_mode_there_is_no_route(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    app = FastAPI()
    with caplog.at_level(logging.INFO, "vllm_weight_checker"):
        WeightCheckerEndpoint().attach_router(app)
    assert post(app, {"action": "checksum"}).status_code == 404
    assert [record.levelname for record in caplog.records] == ["INFO"] and "VLLM_SERVER_DEV_MODE=1" in caplog.text


def test_a_server_without_an_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(None, True, monkeypatch)
    response = post(app, {"action": "checksum"})
    assert response.status_code == 501 and "no engine" in response.json()["error"]["message"]
    del app.state.engine_client
    assert post(app, {"action": "checksum"}).status_code == 501


def test_it_is_what_vllm_calls_an_endpoint_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(WeightCheckerEndpoint(), EndpointPlugin)
    app = app_of(Client(), True, monkeypatch)
    routes = [route for route in app.routes if getattr(route, "path", "") == "/weight_checker"]
    assert len(routes) == 1 and routes[0].endpoint is endpoint.weight_checker


def test_before_032_the_route_is_simply_added() -> None:
    app = FastAPI()
    app.state.engine_client = Client()
    WeightCheckerEndpoint().attach_router(app)
    assert post(app, {"action": "checksum"}).json() == {"checksums": DIGESTS}


def test_other_requests_are_served_while_ranks_work(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    app = app_of(client, True, monkeypatch)
    app.get("/ping")(lambda: "pong")

    async def interleaved() -> None:
        client.gate = asyncio.Event()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as asking:
            checks = [
                asyncio.create_task(asking.post("/weight_checker", json={"action": "checksum"})) for _ in range(2)
            ]
            assert (await asking.get("/ping")).json() == "pong"
            assert not any(check.done() for check in checks)
            client.gate.set()
            assert [(await check).json() for check in checks] == [{"checksums": DIGESTS}] * 2

    asyncio.run(interleaved())


def test_the_longer_work_is_not_done_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[str, int] = {}

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*arguments: Any) -> Any:
            places[name] = threading.get_ident()
            return function(*arguments)

        monkeypatch.setattr(module, name, watched)

    for module, name in ((loop_json, "_read"), (loop_json, "_write"), (engines, "_call"), (engines, "merge")):
        watch(module, name)
    response = post(app_of(Client(), True, monkeypatch), {"action": "compare", "baseline": DIGESTS})
    assert response.json()["match"] is True
    # asyncio.run ran the loop in this thread.
    assert set(places) == {"_read", "_write", "_call", "merge"} and threading.get_ident() not in places.values()


def test_json_in_a_thread_lets_other_threads_run() -> None:
    """The C functions of json would hold the GIL from the first byte to the last."""
    text = json.dumps({f"key {i}": "0" * 64 for i in range(50_000)}).encode()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async def beats_during(work: Any) -> int:
        before = beats
        await work
        return beats - before

    async def measured() -> None:
        beating = asyncio.create_task(beat())
        value = json.loads(text)
        assert await loop_json.read(text) == value and json.loads(await loop_json.write(value)) == value
        # Starting and ending a thread takes a few turns of the loop by itself.
        idle = await beats_during(asyncio.to_thread(len, text))
        assert await beats_during(loop_json.read(text)) > idle + 10
        assert await beats_during(loop_json.write(value)) > idle + 3
        beating.cancel()

    asyncio.run(measured())
