"""Verify on real engines of many architectures, stored and spread in several ways: nothing is wrong, and it says so.

What each rank must hold, which a plan and the checkpoint's files say, is compared with what vLLM's own function
says of each rank. One engine per kind and layout; the tests look at what was recorded there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from in_worker import linear_weights, own_digests
from safetensors.torch import load_file
from tiny_models import kind
from vllm_engines import run, start

from vllm_weight_checker import WeightChecker, expect

Record = dict[str, Any]

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama, grouped heads": ("llama_gqa", {}),
    "Llama, one head of keys": ("llama_1kv", {}),
    "Llama, tied": ("llama_tied", {}),
    "Llama, 509 words": ("llama_509", {}),
    "Llama in shards": ("llama_gqa", {"sharded": True}),
    "Llama in float32": ("llama_gqa", {"stored": "float32"}),
    "Llama in float16": ("llama_gqa", {"stored": "float16"}),
    "Llama in a pickle": ("llama_gqa", {"pickled": True}),
    "Llama, tied, with its head": ("llama_tied", {"head": "same"}),
    "Llama, tied, with another head": ("llama_tied", {"head": "other"}),
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Mixtral": ("mixtral", {}),
    "Qwen3-MoE": ("qwen3_moe", {}),
    "Qwen2-MoE": ("qwen2_moe", {}),
    "DeepSeek-V2": ("deepseek_v2", {}),
    "Phi-3": ("phi3", {}),
    "GPT-2": ("gpt2", {}),
    "GPT-NeoX": ("gpt_neox", {}),
    "OPT": ("opt", {}),
    "Gemma-2": ("gemma2", {}),
    "Bloom": ("bloom", {}),
    "Falcon": ("falcon40", {}),
}
"""What a kind is called -> its entry in `model_kinds`, and how it is stored."""

TP2 = {"tensor_parallel_size": 2}
PP2 = {"pipeline_parallel_size": 2}
TP_RANKS = ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]
PP_RANKS = ["dp0:pp0:pcp0:tp0", "dp0:pp1:pcp0:tp0"]


@dataclass(frozen=True)
class Case:
    """`not_comparable`: {key: what its reason begins with}; `packed`: so are the weights of all linear layers."""

    model: str
    storage: dict[str, Any]
    options: dict[str, Any]
    ranks: list[str]
    not_comparable: dict[str, str] = field(default_factory=dict)
    packed: bool = False


def cases() -> Iterator[tuple[str, Case]]:
    for what, (model, storage) in KINDS.items():
        options = {"attention_backend": "CPU_MLA"} if model == "deepseek_v2" else {}
        yield f"{what}, tp=1", Case(model, storage, options, TP_RANKS[:1])
        yield f"{what}, tp=2", Case(model, storage, options | TP2, TP_RANKS)
    for what in ("Llama, grouped heads", "Llama, tied", "Mixtral", "GPT-2"):
        yield f"{what}, pp=2", Case(*KINDS[what], PP2, PP_RANKS)
    for what in ("Mixtral", "Qwen3-MoE"):
        yield f"{what}, whole experts", Case(*KINDS[what], {**TP2, "enable_expert_parallel": True}, TP_RANKS)
    # vLLM keeps minus the exponential of what the checkpoint has.
    computed = {f"{TP_RANKS[0]}:backbone.layers.{layer}.mixer.A": "computed" for layer in (0, 1)}
    yield "Mamba-2, tp=1", Case("mamba2", {}, {}, TP_RANKS[:1], computed)
    yield "Llama, packed for kernels", Case(*KINDS["Llama, grouped heads"], TP2, TP_RANKS, packed=True)


CASES = dict(cases())


def check(folder: str, options: dict[str, Any]) -> Record:
    llm = start(Path(folder), skip_tokenizer_init=True, max_model_len=64, **options)
    checker = WeightChecker(llm)
    plan = checker.plan()
    return {
        "report": checker.verify(),
        "plan": plan,
        "expected": expect(plan, folder),
        "own": {key: digest for rank in llm.collective_rpc(own_digests) for key, digest in rank.items()},
        "linear": [key for rank in llm.collective_rpc(linear_weights) for key in rank],
    }


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def seen(case: Case) -> Record:
    """What was recorded for one kind in one layout."""
    # The engine in the process of the case starts sooner; its workers are processes as usual.
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if case.packed:
        env["VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS"] = "0"
    return run(check, folder=str(kind(case.model, **case.storage)), options=case.options, env=env)


def test_the_plan_is_of_every_parameter_of_every_rank(case: Case, seen: Record) -> None:
    planned = [
        ":".join(f"{index}{rank['rank'][index]}" for index in ("dp", "pp", "pcp", "tp")) + f":{name}"
        for rank in seen["plan"]["ranks"]
        for name in rank["parameters"]
    ]
    assert len(planned) == len(seen["own"]) > 10 and set(planned) == set(seen["own"])
    assert {key.rpartition(":")[0] for key in planned} == set(case.ranks)


def test_what_ranks_must_hold_is_what_vllm_says_they_hold(seen: Record) -> None:
    own, others = seen["own"], seen["report"]["not_comparable"]
    expected = {key: digest for key, digest in seen["expected"].items() if key not in others}
    assert expected == {key: digest for key, digest in own.items() if key not in others}
    assert [key for key in others if seen["expected"].get(key) == own[key]] == []


def test_it_matches(case: Case, seen: Record) -> None:
    report = seen["report"]
    assert report["match"] is True and report["mismatches"] == []
    assert report["audited"] is True and report["audit"]["complete"] is True
    assert report["ranks"] == case.ranks
    assert report["parameters"] == len(seen["own"]) == report["audit"]["parameters"]
    assert report["equal"] == report["compared"] == len(seen["own"]) - len(report["not_comparable"]) > 0


def test_what_cannot_be_compared_is_named(case: Case, seen: Record) -> None:
    stated = dict.fromkeys(seen["linear"], "hidden") if case.packed else case.not_comparable
    found = seen["report"]["not_comparable"]
    assert {key: reason.partition(":")[0] for key, reason in found.items()} == stated
    assert not case.packed or len(stated) == 2 * 4 * len(case.ranks), "four linear layers in each of two"


def test_experts_are_spread_as_asked(case: Case, seen: Record) -> None:
    """Four whole experts on one rank or in slices on two, or two whole ones on each of two."""
    counts = {
        parameter["shape"][0]
        for rank in seen["plan"]["ranks"]
        for name, parameter in rank["parameters"].items()
        if name.endswith(("w13_weight", "w2_weight"))
    }
    has_experts = case.model in ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2")
    assert counts == ({2 if "enable_expert_parallel" in case.options else 4} if has_experts else set())


def test_checkpoints_are_stored_as_they_are_called() -> None:
    """Otherwise the cases of this module would all be one."""
    plain = load_file(kind("llama_gqa") / "model.safetensors")
    assert {tensor.dtype for tensor in plain.values()} == {torch.bfloat16}
    for name in ("float32", "float16"):
        folder = kind("llama_gqa", stored=name)
        stored = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, name)} and stored.keys() == plain.keys()
        assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    shards = kind("llama_gqa", sharded=True)
    files = set(json.loads((shards / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(files) > 2 and files == {path.name for path in shards.glob("*.safetensors")}
    pickled = kind("llama_gqa", pickled=True)
    assert not list(pickled.glob("*.safetensors"))
    assert torch.load(pickled / "pytorch_model.bin", weights_only=True).keys() == plain.keys()
    for head, is_same in (("same", True), ("other", False)):
        tied = load_file(kind("llama_tied", head=head) / "model.safetensors")
        assert torch.equal(tied["lm_head.weight"], tied["model.embed_tokens.weight"]) is is_same
    assert "lm_head.weight" not in load_file(kind("llama_tied") / "model.safetensors")
