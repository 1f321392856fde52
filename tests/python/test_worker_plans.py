"""What a worker answers to plan and verify, with a recorder that says that its model is loaded as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_recorder
import pytest
import torch
from plain_workers import PARAMETERS, RANK, Worker, packed_model, some_model, stand_in_groups
from safetensors.torch import save_file

from vllm_weight_checker import replies
from vllm_weight_checker.planned import audit, sources_of
from vllm_weight_checker.replies import Layout
from vllm_weight_checker.verification import judge
from vllm_weight_checker.worker import METHODS

LAYOUT = Layout(dp=(RANK.dp,), pp=2, pcp=1, tp=4, data_parallel_size=3, single=True)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fake_recorder.FakeRecorder:
    stand_in_groups(monkeypatch)
    save(some_model(), tmp_path)
    return fake_recorder.install(monkeypatch, tmp_path)


def save(model: torch.nn.Module, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    tensors = {name: parameter.detach().contiguous().clone() for name, parameter in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors")


def call(worker: Worker, action: str, **arguments: Any) -> dict[str, Any]:
    """A reply after the way over /collective_rpc, which knows only JSON."""
    return json.loads(json.dumps(METHODS[f"weight_checker_{action}"](worker, nonce="n", **arguments)))


def result(worker: Worker, action: str, **arguments: Any) -> dict[str, Any]:
    reply = call(worker, action, **arguments)
    assert reply["error"] is None, reply
    return reply["result"]


def test_a_plan_is_of_this_rank_and_of_the_served_model(recorder: fake_recorder.FakeRecorder) -> None:
    found = result(Worker(some_model()), "plan")
    plan = json.loads(found["plan"])
    assert plan["ranks"][0]["rank"] == dict(dp=2, pp=1, pcp=0, tp=3)
    assert sorted(plan["ranks"][0]["parameters"]) == sorted(PARAMETERS) and found["parameters"] == len(PARAMETERS)
    assert found["checkpoint"] == str(recorder.served)
    assert recorder.asked == [{"checkpoint": None, "sources": None}]


def test_a_plan_is_of_what_the_caller_names(recorder: fake_recorder.FakeRecorder, tmp_path: Path) -> None:
    save(some_model(), tmp_path / "other")
    assert result(Worker(some_model()), "plan", checkpoint=str(tmp_path / "other"))["checkpoint"] == str(
        tmp_path / "other"
    )
    sources = sources_of(dict(some_model().named_parameters()))
    for given in (sources, json.dumps(sources)):
        found = result(Worker(some_model()), "plan", sources=given)
        assert json.loads(found["plan"])["sources"] == sources and found["checkpoint"] is None
    named = {"checkpoint": None, "sources": sources}
    assert recorder.asked == [{"checkpoint": str(tmp_path / "other"), "sources": None}, named, named]


@pytest.mark.parametrize(
    ("action", "arguments", "told"),
    [
        ("plan", {"sources": {"a": {"dtype": "uint8", "shape": [1]}}, "checkpoint": "/models/a"}, "both given"),
        ("plan", {"sources": "{no json"}, "sources is no JSON"),
        ("plan", {"sources": "[1]"}, "sources is of type list"),
        ("plan", {"sources": {"a": {"dtype": "md5", "shape": [1]}}}, "'a' of the state dict"),
        ("plan", {"sources": {}}, "empty"),
        ("plan", {"algorithm": "sha256"}, "algorithm"),
        ("verify", {"algorithm": "md5"}, "md5"),
        ("verify", {"checkpoint": "/no/such/folder"}, "/no/such/folder"),
        ("verify", {"checkpoint": ""}, "is no path"),
        ("verify", {"sources": {}}, "sources"),
    ],
)
def test_a_wrong_call_is_answered_and_never_raised(
    recorder: fake_recorder.FakeRecorder, action: str, arguments: dict[str, Any], told: str
) -> None:
    reply = call(Worker(some_model()), action, **arguments)
    assert reply["result"] is None and told in reply["error"]["message"]


def verified(worker: Worker, **arguments: Any) -> Any:
    report = replies.merge("verify", "n", {RANK.dp: [call(worker, "verify", **arguments)]}, LAYOUT)
    return judge(report, audit(report.plan))


@pytest.mark.parametrize("algorithm", ["sha256", "sha256-tree"])
def test_a_model_is_what_was_saved_until_an_element_changes(
    recorder: fake_recorder.FakeRecorder, algorithm: str
) -> None:
    model = some_model()
    report = verified(Worker(model), algorithm=algorithm)
    assert report.match and report.compared == report.parameters == len(PARAMETERS)
    assert report.checkpoint == str(recorder.served) and report.algorithm == algorithm
    model.narrow.weight.data[1, 1] += 1
    assert verified(Worker(model), algorithm=algorithm).mismatches == [RANK.prefix + "narrow.weight"]


def test_another_checkpoint_on_the_workers_machine(recorder: fake_recorder.FakeRecorder, tmp_path: Path) -> None:
    other = some_model()
    other.scalar.data += 1
    save(other, tmp_path / "other")
    assert verified(Worker(some_model()), checkpoint=tmp_path / "other").differing == [RANK.prefix + "scalar"]


def test_packed_weights_are_not_comparable(recorder: fake_recorder.FakeRecorder, tmp_path: Path) -> None:
    model = packed_model()
    save(model, tmp_path)
    report = verified(Worker(model))
    hidden = [RANK.prefix + name for name in ("packed.weight", "experts.w13_weight", "experts.w2_weight")]
    assert report.match and sorted(report.not_comparable) == sorted(hidden) and report.compared == 2


def test_the_last_report_holds_what_was_found(recorder: fake_recorder.FakeRecorder) -> None:
    worker = Worker(some_model())
    found = result(worker, "verify")
    assert result(worker, "last_report") == {"of": "verify", **found}


def test_a_recorder_that_fails_is_answered(
    recorder: fake_recorder.FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the loader of this model fails")

    monkeypatch.setattr(recorder, "record", fail)
    for action in ("plan", "verify"):
        assert call(Worker(some_model()), action)["error"]["message"] == "the loader of this model fails"
