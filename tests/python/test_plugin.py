"""The plugin against stand-ins for vLLM's modules, as they are and as another version might have them."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.model_loader import weight_checksum

from vllm_weight_checker import accelerate, notices, plugin, verbs
from vllm_weight_checker.worker import METHODS

BASE = "vllm.v1.worker.worker_base"
WORKERS = "stand_in_for_a_worker_module"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())
    monkeypatch.delenv("VLLM_WEIGHT_CHECKER_ACCELERATE", raising=False)
    monkeypatch.delenv("VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS", raising=False)


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def worker_base() -> type:
    class WorkerBase:
        def __init__(self, vllm_config: object, local_rank: int, is_driver_worker: bool = False) -> None:
            self.made_with = (vllm_config, local_rank, is_driver_worker)

    return WorkerBase


def worker_module(monkeypatch: pytest.MonkeyPatch, base: type, **functions: Callable[..., Any]) -> type:
    """A module with a worker class that calls these functions, as vllm.v1.worker.gpu_worker does."""
    module = stand_in(monkeypatch, WORKERS, **functions)

    class Worker(base):
        def compute_weight_checksums(self, model: torch.nn.Module) -> dict[str, str]:
            return module.compute_tensor_digests(model)

    Worker.__module__ = WORKERS
    return Worker


def vllms_own() -> dict[str, Callable[..., Any]]:
    return {
        "compute_tensor_digests": weight_checksum.compute_tensor_digests,
        "zero_weights": weight_checksum.zero_weights,
    }


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3))


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_every_worker_class_has_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    base = worker_base()
    stand_in(monkeypatch, BASE, WorkerBase=base)

    class Worker(base):
        pass

    plugin.register()
    for name, method in METHODS.items():
        assert getattr(Worker, name) is method
    worker = Worker("config", 1, is_driver_worker=True)
    assert worker.made_with == ("config", 1, True)
    assert worker.weight_checker_checksum("n")["nonce"] == "n"


def test_registering_again_changes_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    base = worker_base()
    stand_in(monkeypatch, BASE, WorkerBase=base)
    own_init = base.__init__
    plugin.register()
    once = dict(vars(base))
    plugin.register()
    plugin.register()
    assert dict(vars(base)) == once
    assert inspect.signature(base.__init__) == inspect.signature(own_init)
    assert messages(caplog) == []


def without_worker_base(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, BASE)


def without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, BASE, None)  # how import is told that there is none


def with_a_base_that_is_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, BASE, WorkerBase=SimpleNamespace())


def with_a_base_without_init(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, BASE, WorkerBase=type("WorkerBase", (), {}))


def with_a_method_of_our_name(monkeypatch: pytest.MonkeyPatch) -> None:
    base = worker_base()
    base.weight_checker_reset = lambda self: "vLLM's own"
    stand_in(monkeypatch, BASE, WorkerBase=base)


@pytest.mark.parametrize(
    "other_vllm",
    [
        without_worker_base,
        without_the_module,
        with_a_base_that_is_no_class,
        with_a_base_without_init,
        with_a_method_of_our_name,
    ],
)
def test_an_unexpected_vllm_is_left_untouched_with_one_warning(
    other_vllm: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other_vllm(monkeypatch)
    base = getattr(sys.modules[BASE], "WorkerBase", None)
    before = dict(vars(base)) if base is not None else None
    plugin.register()
    plugin.register()
    assert len(messages(caplog)) == 1
    assert (dict(vars(base)) if base is not None else None) == before


def test_making_a_worker_accelerates_vllms_two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    base = worker_base()
    stand_in(monkeypatch, BASE, WorkerBase=base)
    worker_class = worker_module(monkeypatch, base, **vllms_own())
    plugin.register()
    module = sys.modules[WORKERS]
    assert module.compute_tensor_digests is weight_checksum.compute_tensor_digests
    worker = worker_class("config", 0)
    worker_class("config", 1)
    assert module.compute_tensor_digests is not weight_checksum.compute_tensor_digests
    assert module.compute_tensor_digests._weight_checker_replaces is weight_checksum.compute_tensor_digests
    calls = []
    monkeypatch.setattr(verbs, "checksum", lambda *args, own=verbs.checksum, **kw: calls.append(1) or own(*args, **kw))
    some = model()
    assert worker.compute_weight_checksums(some) == weight_checksum.compute_tensor_digests(some)
    assert calls == [1]
    assert any(parameter.any() for parameter in some.parameters())
    assert module.zero_weights(some) is None
    assert not any(parameter.any() for parameter in some.parameters())


def test_acceleration_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("VLLM_WEIGHT_CHECKER_ACCELERATE", "0")
    worker_class = worker_module(monkeypatch, worker_base(), **vllms_own())
    accelerate.install(worker_class)
    assert {name: getattr(sys.modules[WORKERS], name) for name in vllms_own()} == vllms_own()
    assert messages(caplog) == []


def test_a_vllm_without_its_own_checksum_has_nothing_to_accelerate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As before 0.32."""
    stand_in(monkeypatch, WORKERS)
    worker_class = type("Worker", (worker_base(),), {"__module__": WORKERS})
    accelerate.install(worker_class)
    assert messages(caplog, logging.INFO) == []


def test_a_checksum_that_calls_other_functions_is_left_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker_class = worker_module(monkeypatch, worker_base(), digests_of_parameters=lambda model: {})
    accelerate.install(worker_class)
    accelerate.install(worker_class)
    (warning,) = messages(caplog)
    assert "left as it is" in warning


def test_a_function_of_another_signature_is_left_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compute_tensor_digests(model: Any, algorithm: str) -> dict[str, str]:
        return {}

    own = {**vllms_own(), "compute_tensor_digests": compute_tensor_digests}
    worker_class = worker_module(monkeypatch, worker_base(), **own)
    accelerate.install(worker_class)
    accelerate.install(worker_class)
    assert sys.modules[WORKERS].compute_tensor_digests is compute_tensor_digests
    (warning,) = messages(caplog)
    assert "compute_tensor_digests(model" in warning and "algorithm" in warning


def test_what_the_library_cannot_do_vllm_does_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker_class = worker_module(monkeypatch, worker_base(), **vllms_own())
    accelerate.install(worker_class)
    module = sys.modules[WORKERS]
    some = model()
    some.register_parameter("on_meta", torch.nn.Parameter(torch.empty(2, device="meta")))
    # vLLM's own function cannot hash a tensor without data either: its error comes out, as without this package.
    with pytest.raises(NotImplementedError, match="meta"):
        module.compute_tensor_digests(some)
    module.zero_weights(some)
    module.zero_weights(some)
    assert not any(parameter.any() for name, parameter in some.named_parameters() if name != "on_meta")
    warnings = messages(caplog)
    assert len(warnings) == 2
    assert all("'on_meta'" in warning for warning in warnings)


def test_a_failing_preparation_does_not_keep_a_worker_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = worker_base()
    stand_in(monkeypatch, BASE, WorkerBase=base)

    def fail(*_: object) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(accelerate, "install", fail)
    monkeypatch.setattr(plugin.cpu_weights, "keep_if_asked", fail)
    plugin.register()
    assert [base("config", rank).made_with[1] for rank in (0, 1)] == [0, 1]
    warnings = messages(caplog)
    assert len(warnings) == 2
    assert all("a surprise" in warning for warning in warnings)
