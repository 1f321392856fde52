"""Verify through a cycle of an engine's life, and against checkpoints that differ in one element of one tensor.

Two tensor-parallel ranks each. Which ranks hold an element is told here by hand, from the shapes: 128 hidden and
256 intermediate features, 512 words, eight heads of 16, and two heads of keys and values, or one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from in_worker import own_digests
from safetensors.torch import load_file, save_file
from tiny_models import kind
from vllm_engines import run, start

from vllm_weight_checker import WeightChecker

Record = dict[str, Any]
Change = tuple[str, tuple[int, ...], list[str]]
"""A tensor of the checkpoint, one element of it, and the keys of the parameters that hold that element."""

FIRST, SECOND = RANKS = ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]
EMBEDDING, NORM, LAYER = "model.embed_tokens.weight", "model.norm.weight", "model.layers.1"

CHANGES: dict[str, dict[str, Change]] = {
    "llama_gqa": {
        "a word of the first rank": (EMBEDDING, (255, 100), [f"{FIRST}:{EMBEDDING}"]),
        "a word of the second rank": (EMBEDDING, (256, 100), [f"{SECOND}:{EMBEDDING}"]),
        "o_proj": (
            f"{LAYER}.self_attn.o_proj.weight",
            (3, 63),
            [f"{FIRST}:{LAYER}.self_attn.o_proj.weight"],
        ),
        "a norm": (NORM, (127,), [f"{rank}:{NORM}" for rank in RANKS]),
        "the second head of keys": (
            f"{LAYER}.self_attn.k_proj.weight",
            (16, 0),
            [f"{SECOND}:{LAYER}.self_attn.qkv_proj.weight"],
        ),
    },
    "llama_1kv": {
        "the one head of keys": (
            f"{LAYER}.self_attn.k_proj.weight",
            (15, 127),
            [f"{rank}:{LAYER}.self_attn.qkv_proj.weight" for rank in RANKS],
        ),
    },
    "mixtral": {
        "down_proj of an expert": (
            f"{LAYER}.block_sparse_moe.experts.3.w2.weight",
            (127, 128),
            [f"{SECOND}:{LAYER}.block_sparse_moe.experts.routed_experts.w2_weight"],
        ),
        "the router": (
            f"{LAYER}.block_sparse_moe.gate.weight",
            (2, 0),
            [f"{rank}:{LAYER}.block_sparse_moe.gate.weight" for rank in RANKS],
        ),
    },
}


def cycle(model: str, changed: dict[str, str]) -> Record:
    llm = start(Path(model), skip_tokenizer_init=True, max_model_len=64, tensor_parallel_size=2)
    checker = WeightChecker(llm)
    record: Record = {"own": {k: v for rank in llm.collective_rpc(own_digests) for k, v in rank.items()}}
    record["loaded"] = checker.verify()
    record["changed"] = {what: checker.verify(checkpoint=folder) for what, folder in changed.items()}
    checker.reset()
    record["reset"] = checker.verify()
    llm.collective_rpc("reload_weights")
    record["reloaded"] = checker.verify()
    return record


@pytest.fixture(scope="module", params=list(CHANGES))
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def seen(model: str, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """What `cycle` recorded of a model and of copies of its checkpoint."""
    folders = tmp_path_factory.mktemp(model)
    changed = {}
    for number, (what, (tensor, element, _)) in enumerate(CHANGES[model].items()):
        folder = shutil.copytree(kind(model), folders / str(number))
        weights = load_file(kind(model) / "model.safetensors")
        weights[tensor][element] += 1
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        changed[what] = str(folder)
    return run(cycle, model=str(kind(model)), changed=changed)


@pytest.mark.parametrize("when", ["loaded", "reloaded"])
def test_what_is_loaded_matches(seen: Record, when: str) -> None:
    report = seen[when]
    assert report["match"] is True and report["mismatches"] == [] and report["not_comparable"] == {}
    assert report["parameters"] == report["compared"] == report["equal"] == len(seen["own"]) > 20
    assert report["ranks"] == RANKS


def test_every_parameter_differs_after_a_reset(seen: Record) -> None:
    report = seen["reset"]
    assert report["match"] is False and report["equal"] == 0
    assert report["mismatches"] == report["differing"] == sorted(seen["own"])
    assert report["audited"] is True, "a plan has nothing to do with what is in memory"


def test_one_other_element_of_a_checkpoint_is_the_keys_of_the_ranks_that_hold_it(model: str, seen: Record) -> None:
    for what, (_, _, keys) in CHANGES[model].items():
        report = seen["changed"][what]
        assert report["mismatches"] == report["differing"] == keys, what
        assert report["match"] is False and report["audited"] is True
        assert report["equal"] == len(seen["own"]) - len(keys) and set(keys) < set(seen["own"])
