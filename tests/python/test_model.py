"""Which tensors of a worker are its weights, which are hidden, and which rank it is: vLLM's own rule is the truth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_workers import RANK, Worker, checksums, keyed, module, packed_model, parts_model, some_model, stand_in_groups
from torch.nn import Module
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader import weight_checksum

from vllm_weight_checker import Rank
from vllm_weight_checker.model import rank_of, weights_of, weights_of_model


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_groups(monkeypatch)


@pytest.mark.parametrize("make", [some_model, parts_model, packed_model])
def test_names_order_and_digests_are_those_of_vllm(make: Any) -> None:
    model = make()
    weights = weights_of_model(model)
    assert [(name, id(tensor)) for name, tensor in weights.tensors.items()] == [
        (name, id(tensor)) for name, tensor in weight_checksum._weights(model)
    ]
    digests = weight_checksum.compute_tensor_digests(model)
    assert checksums(Worker(model)) == keyed(digests)
    assert list(checksums(Worker(model))) == list(keyed(digests))


def test_the_names_of_parts() -> None:
    names = list(weights_of_model(parts_model()).tensors)
    parts = ["pair.a", "pair.b", "plain", "shared.0", "shared.2"]
    assert sorted(names) == sorted([*parts, "deep.weight.a.a", "deep.weight.a.b", "deep.weight.b"])


def test_the_rank_is_vllms_and_counts_data_parallel_engines_by_index() -> None:
    assert rank_of(Worker(some_model())) == RANK


def test_a_vllm_without_prefill_context_parallelism_has_index_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(parallel_state, "get_pcp_group")
    assert rank_of(Worker(some_model())) == Rank(dp=RANK.dp, pp=RANK.pp, pcp=0, tp=RANK.tp)


@pytest.mark.parametrize(
    "empty",
    [
        module(w13_weight=torch.empty(0, 8, 4), w13_weight_scale=torch.empty(0)),  # no expert on this rank
        module(weight=torch.empty(0, 4), bias=torch.empty(0)),
        module(qweight=torch.ones(4, 4), g_idx=torch.empty(0, dtype=torch.int32)),  # an optional table
    ],
)
def test_what_is_truly_empty_is_not_hidden(empty: Module) -> None:
    model = module(layer=empty, norm=module(weight=torch.randn(4)))
    assert weights_of_model(model).hidden == ()
    result = Worker(model).weight_checker_checksum("n")["result"]
    assert result["hashed"] == result["parameters"] == len(list(model.parameters()))


def test_a_layer_that_says_it_has_no_experts_here_is_not_hidden() -> None:
    experts = module(w13_weight_scale=torch.empty(0))
    assert weights_of_model(module(experts=experts)).hidden == ("experts.w13_weight_scale",)
    experts.local_num_experts = 0
    assert weights_of_model(module(experts=experts)).hidden == ()


def test_weights_that_sleep_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.device_allocator

    worker = Worker(some_model())
    allocations = [SimpleNamespace(tag="weights", is_asleep=True), SimpleNamespace(tag="kv_cache", is_asleep=False)]
    allocator = SimpleNamespace(pointer_to_data=dict(enumerate(allocations)))
    monkeypatch.setattr(vllm.device_allocator, "get_mem_allocator_instance", lambda: allocator)
    state = ["SUSPENDED"]
    worker._sleep_mode_backend = SimpleNamespace(state=lambda: state[0])
    assert "asleep" in worker.weight_checker_checksum("n")["error"]["message"]
    state[0] = "RUNNING"  # only the cache has been woken
    assert "asleep" in worker.weight_checker_reset("n")["error"]["message"]
    allocations[0].is_asleep = False
    assert worker.weight_checker_checksum("n")["error"] is None
    assert weights_of(worker).tensors


def test_another_way_to_sleep_is_believed_when_it_says_that_it_runs() -> None:
    """Without vLLM's allocator, which does not exist on this platform and says so by raising."""
    worker = Worker(some_model())
    state = ["RUNNING"]
    worker._sleep_mode_backend = SimpleNamespace(state=lambda: state[0])
    assert worker.weight_checker_checksum("n")["error"] is None
    state[0] = "SUSPENDED"
    assert "asleep" in worker.weight_checker_checksum("n")["error"]["message"]
