"""A worker method never raises, whatever it is called with and whatever fails; what the extension class answers to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_workers import PARAMETERS, RANK, Worker, module, some_model, stand_in_groups
from vllm.model_executor.model_loader import weight_checksum

from vllm_weight_checker import WorkerExtension
from vllm_weight_checker.worker import METHODS


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_groups(monkeypatch)


WRONG_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("checksum", ("n", "sha256", "more"), {}, "too many positional arguments"),
    ("checksum", ("n",), {"algorithm": "md5"}, "md5"),
    ("checksum", ("n",), {"nonce": "twice"}, "multiple values for argument 'nonce'"),
    ("checksum", ("n", None), {}, "None"),
    ("reset", ("n",), {"fill": "ones"}, "ones"),
    ("reset", ("n",), {"fill": "random", "seed": "many"}, "seed 'many'"),
    ("reset", ("n",), {"fill": "random", "seed": -1}, "seed"),
    ("reset", ("n",), {"colour": "red"}, "colour"),
    ("compare", ("n",), {}, "baseline"),
    ("compare", ("n", "{no json"), {}, "no JSON"),
    ("compare", ("n", "[1]"), {}, "mapping"),
    ("compare", ("n", {1: "x"}), {}, "mapping"),
    ("compare", ("n", {RANK.prefix + "scalar": "blake3:" + "0" * 64}), {}, "blake3"),
    ("compare", ("n", {RANK.prefix + "scalar": "sha256-tree:" + "0" * 64, "x": "0" * 64}), {}, "mixes"),
    ("compare", ("n", {RANK.prefix + "scalar": "0" * 64}, "sha256-tree"), {}, "sha256-tree"),
    ("compare", ("n", {RANK.prefix + "scalar": 5}), {}, "scalar"),
    ("last_report", ("n", 1), {}, "too many positional arguments"),
]


@pytest.mark.parametrize(("action", "args", "kwargs", "told"), WRONG_CALLS)
def test_a_wrong_call_is_answered_and_never_raised(
    action: str, args: tuple[Any, ...], kwargs: dict[str, Any], told: str
) -> None:
    model = some_model()
    before = weight_checksum.compute_tensor_digests(model)
    reply = METHODS[f"weight_checker_{action}"](Worker(model), *args, **kwargs)
    assert told in reply["error"]["message"]
    assert reply["result"] is None
    assert (reply["action"], reply["nonce"], reply["rank"]["tp"]) == (action, kwargs.get("nonce", "n"), RANK.tp)
    json.dumps(reply)
    assert weight_checksum.compute_tensor_digests(model) == before


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def failing_workers() -> Iterator[tuple[str, Worker, str]]:
    yield "no model yet", Worker(None), "not loaded a model"
    half_made = Worker(None)
    half_made.model_runner = SimpleNamespace(get_model=lambda: half_made.model_runner.model)
    yield "runner without a model", half_made, "not loaded a model"
    yield "meta tensors", Worker(module(weight=torch.empty(3, device="meta"))), "'weight'"
    broken = Worker(None)
    broken.model_runner = SimpleNamespace(get_model=lambda: (_ for _ in ()).throw(Unprintable()))
    yield "an error without a text", broken, "no text"
    no_rank = Worker(some_model())
    no_rank.parallel_config = SimpleNamespace()
    yield "no rank", no_rank, "data_parallel_index"


@pytest.mark.parametrize(("worker", "told"), [pytest.param(w, t, id=name) for name, w, t in failing_workers()])
def test_whatever_goes_wrong_in_a_worker_is_answered(worker: Worker, told: str) -> None:
    for action in ("checksum", "reset"):
        reply = METHODS[f"weight_checker_{action}"](worker, "n")
        assert told in reply["error"]["message"]
        assert (reply["nonce"], reply["result"]) == ("n", None)
        assert (reply["rank"] is None) == (told == "data_parallel_index")


def test_the_extension_has_no_name_that_vllm_could_object_to() -> None:
    assert [name for name in dir(WorkerExtension) if not name.startswith("__")] == []


def test_the_extension_answers_beside_an_extension_that_also_uses_getattr() -> None:
    class TheirBase:
        def __getattr__(self, name: str) -> Any:
            if name == "theirs":
                return "theirs"
            raise AttributeError(f"{name} is not theirs")

    class Both(WorkerExtension, TheirBase):
        parallel_config = SimpleNamespace(data_parallel_index=RANK.dp)
        model_runner = SimpleNamespace(get_model=some_model)

    both = Both()
    assert both.weight_checker_checksum("n")["result"]["parameters"] == len(PARAMETERS)
    assert both.theirs == "theirs"
    with pytest.raises(AttributeError, match="nothing is not theirs"):
        _ = both.nothing


def test_the_extension_leaves_the_text_of_other_failures_as_it_is() -> None:
    class Alone(WorkerExtension):
        @property
        def failing(self) -> str:
            return self.model_runner_of_nobody

    with pytest.raises(AttributeError, match="'Alone' object has no attribute 'nothing'"):
        _ = Alone().nothing
    with pytest.raises(AttributeError, match="model_runner_of_nobody"):
        _ = Alone().failing
    assert not hasattr(Alone(), "weight_checker_other")
