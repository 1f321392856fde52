"""The endpoint's own actions plan and verify, and that no client can make the server read a file of its choice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_engines import SERVED, loaded
from test_endpoint import Client, app_of, post

from vllm_weight_checker.checkpoint_roots import REFUSAL, VARIABLE
from vllm_weight_checker.plans import ranks_of


class Served(Client):
    """An engine client that also says which model it serves, and remembers what the ranks were asked."""

    def __init__(self, model: str = SERVED) -> None:
        super().__init__()
        self.vllm_config.model_config = SimpleNamespace(model=model)
        loaded(self.ranks)
        self.asked: list[dict[str, Any]] = []
        for worker in self.ranks:
            worker.answer = self._remembering(worker.answer)  # type: ignore[method-assign]

    def _remembering(self, answer: Any) -> Any:
        def remember(method: str, *arguments: Any, **keywords: Any) -> Any:
            self.asked.append({name: value for name, value in keywords.items() if name != "nonce"})
            return answer(method, *arguments, **keywords)

        return remember


@pytest.fixture(autouse=True)
def development_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served()
    app = app_of(client, True, monkeypatch)
    assert post(app, {"action": "verify"}).json() == {"match": True, "mismatches": []}
    assert client.asked == [{"algorithm": "sha256"}] * 4
    worker = client.ranks[3]
    worker.weights["layers.0.weight"] += b"!"
    key = worker.prefix + "layers.0.weight"
    assert post(app, {"action": "verify"}).json() == {"match": False, "mismatches": [key]}
    report = post(app, {"action": "verify", "detail": True}).json()
    assert report["differing"] == [key] and report["audited"] is True and report["checkpoint"] == SERVED
    assert report["parameters"] == 16 == report["compared"] + len(report["not_comparable"])
    assert "checksums" not in report and "expected" not in report and "plan" not in report


def test_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served()
    app = app_of(client, True, monkeypatch)
    plan = post(app, {"action": "plan"}).json()["plan"]
    assert list(map(str, ranks_of(plan))) == [worker.prefix[:-1] for worker in client.ranks]
    detailed = post(app, {"action": "plan", "detail": True}).json()
    assert detailed["plan"] == plan and detailed["checkpoint"] == SERVED and detailed["parameters"] == 16
    sources = {"w": {"dtype": "bfloat16", "shape": [2, 3]}, "scalar": {"dtype": "uint8", "shape": []}}
    named = post(app, {"action": "plan", "sources": sources, "detail": True}).json()
    assert named["plan"]["sources"] == sources and named["checkpoint"] is None


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"checkpoint": 7}, "checkpoint"),
        ({"checkpoint": ["/models"]}, "checkpoint"),
        ({"sources": ["w"]}, "sources"),
        ({"sources": {"w": 3}}, "sources.w"),
        ({"sources": {"w": {"dtype": "uint8"}}}, "sources.w.shape"),
        ({"sources": {"w": {"dtype": 8, "shape": []}}}, "sources.w.dtype"),
        ({"sources": {"w": {"dtype": "uint8", "shape": [-1]}}}, "sources.w.shape.0"),
        ({"sources": {"w": {"dtype": "uint8", "shape": [2**63]}}}, "sources.w.shape.0"),
        ({"sources": {"w": {"dtype": "uint8", "shape": "3"}}}, "sources.w.shape"),
        ({"algorithm": "md5"}, "algorithm"),
    ],
)
@pytest.mark.parametrize("action", ["plan", "verify"])
def test_wrong_fields_are_refused(
    action: str, more: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Served()
    response = post(app_of(client, True, monkeypatch), {"action": action, **more})
    assert response.status_code == 400 and response.json()["error"]["param"] == f"body.{field}"
    assert client.asked == []


def test_a_checkpoint_and_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served()
    body = {"action": "plan", "checkpoint": SERVED, "sources": {"w": {"dtype": "uint8", "shape": [1]}}}
    response = post(app_of(client, True, monkeypatch), body)
    assert response.status_code == 400 and "not both" in response.json()["error"]["message"] and client.asked == []


@pytest.mark.parametrize("action", ["plan", "verify"])
def test_a_permitted_checkpoint_is_passed_on_resolved(
    action: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models" / "step-2").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "models")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "models"))
    client = Served()
    response = post(app_of(client, True, monkeypatch), {"action": action, "checkpoint": f"{tmp_path}/link/step-2"})
    assert response.status_code == 200
    assert {asked["checkpoint"] for asked in client.asked} == {str(tmp_path / "models" / "step-2")}


@pytest.mark.parametrize("action", ["plan", "verify"])
def test_any_other_path_is_refused_alike(action: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("models/good", "models-evil", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "models" / "good" / "a.safetensors").symlink_to("/etc/passwd")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "models"))
    client = Served()
    app = app_of(client, True, monkeypatch)
    paths = ["", ".", "~", "/etc", "/no/such/folder", "/etc/passwd", "a\0b", "/" + "x" * 5000, "\ud800"]
    paths += [f"{tmp_path}/{path}" for path in ("models-evil", "models/../elsewhere", "models/absent", "models/good")]
    for path in paths:
        response = post(app, {"action": action, "checkpoint": path})
        assert (response.status_code, response.json()["error"]["message"]) == (403, REFUSAL), path
    assert client.asked == []


@pytest.mark.parametrize("model", ["organisation/model", "{}/served"])
def test_the_served_model_may_be_named(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    client = Served(model.format(tmp_path))
    body = {"action": "verify", "checkpoint": model.format(tmp_path)}
    assert post(app_of(client, True, monkeypatch), body).status_code == 200
    assert client.asked == [{"algorithm": "sha256"}] * 4


@pytest.mark.parametrize("action", ["plan", "verify"])
def test_a_check_that_failed_is_an_error_of_the_server(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.ranks[3].failure = "the loader of this model fails"
    response = post(app_of(client, True, monkeypatch), {"action": action})
    assert response.status_code == 500
    assert "rank dp1:pp0:pcp0:tp1: the loader of this model fails" in response.json()["error"]["message"]
    assert post(app_of(None, True, monkeypatch), {"action": action}).status_code == 501
