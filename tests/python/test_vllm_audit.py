"""Faults of loaders and holes in checkpoints, on real engines of two tensor-parallel ranks: what verify finds.

vLLM loads all of these without a word. What is found is worked out by hand from the shapes of the tiny models:
hidden size 256, 8 heads of 32 over 2 groups of keys and values, 512 rows in the MLP, 512 tokens. So each of two ranks
has 128 + 32 + 32 rows of q, k and v, 256 columns of down_proj and 128 of o_proj.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted_faults
import pytest
from changed_models import ODD_SIZES, changed, with_odd_sizes, with_qkv_in_one, without
from tiny_models import tiny_llama, tiny_mixtral
from vllm_engines import run, start

from vllm_weight_checker import WeightChecker, expect

Finding = dict[str, Any]

RANKS = ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]
LISTS = ("unplaced", "partly_placed", "unwritten", "overlapping", "past_the_end")
"""The findings of an audit."""


def verified(model: str, fault: str | None = None, **options: Any) -> Finding:
    """The report of one engine, made with a fault or without."""
    if fault is not None:
        getattr(planted_faults, fault)(**options)
    return dict(WeightChecker(start(Path(model), tensor_parallel_size=2)).verify())


def seen(model: Path, fault: str | None = None, **options: Any) -> Finding:
    return run(verified, model=str(model), fault=fault, **options)


def assert_found(report: Finding, **findings: list[Finding]) -> None:
    """The audit has these findings and no others, and what can be compared is equal: the fault is in the plan too."""
    assert {name: report["audit"][name] for name in LISTS} == {name: findings.get(name, []) for name in LISTS}
    keys = [found["key"] for found in findings.get("unwritten", [])]
    assert report["unwritten"] == report["mismatches"] == sorted(keys)
    assert report["match"] is report["audited"] is report["audit"]["complete"] is False
    assert report["not_comparable"] == {} and report["ranks"] == RANKS
    assert report["compared"] == report["equal"] == report["parameters"] - len(keys) > 20


def partly(source: str, elements: int, of: int, *first: int) -> Finding:
    return {"source": source, "elements": elements, "of": of, "first": list(first)}


def unwritten(rank: int, name: str, elements: int, of: int, *first: int) -> Finding:
    return {"key": f"{RANKS[rank]}:{name}", "elements": elements, "of": of, "first": list(first)}


def unplaced(*names: str) -> list[Finding]:
    return [{"source": name, "explained": None} for name in sorted(names)]


def test_every_rank_takes_the_first_shard() -> None:
    found = seen(tiny_llama(), "every_rank_takes_the_first_shard")
    lost = {
        "mlp.down_proj": (65536, 131072, 0, 256),
        "mlp.gate_proj": (65536, 131072, 256, 0),
        "mlp.up_proj": (65536, 131072, 256, 0),
        "self_attn.k_proj": (8192, 16384, 32, 0),
        "self_attn.o_proj": (32768, 65536, 0, 128),
        "self_attn.q_proj": (32768, 65536, 128, 0),
        "self_attn.v_proj": (8192, 16384, 32, 0),
    }
    second_half = [partly(f"model.layers.{at}.{name}.weight", *lost[name]) for at in (0, 1) for name in lost]
    assert_found(found, partly_placed=second_half)
    # Four linear layers in each of two, and five norms; not the embedding and the head.
    assert found["audit"]["replicas"] == [{"ranks": RANKS, "parameters": 13}]


def test_qkv_split_evenly_although_k_and_v_are_smaller(tmp_path: Path) -> None:
    """The first third is q's: 128 rows for rank 0 and none for rank 1. k and v take the first 64 of 128 rows each."""
    found = seen(changed(tiny_llama(), tmp_path / "model", with_qkv_in_one), "qkv_split_evenly")
    name = "model.layers.{}.self_attn.qkv_proj.weight"
    # Rows 192 to 255 and 320 to 383 of 384; on rank 1 the 128 rows of q, of 192.
    lost = [partly(name.format(at), 128 * 256, 384 * 256, 192, 0) for at in (0, 1)]
    empty = [unwritten(1, name.format(at), 128 * 256, 192 * 256, 0, 0) for at in (0, 1)]
    assert_found(found, partly_placed=lost, unwritten=empty)


def test_one_expert_skipped() -> None:
    found = seen(tiny_mixtral(), "an_expert_is_skipped")
    experts = "model.layers.{}.block_sparse_moe.experts"
    skipped = unplaced(*[f"{experts.format(at)}.2.w{number}.weight" for at in (0, 1) for number in (1, 2, 3)])
    # Of four experts on each rank: w1 and w3 are 256 of 512 rows each, w2 is 256 of 512 columns.
    sizes = {"w13_weight": 512 * 256, "w2_weight": 256 * 256}
    parameters = [
        (rank, f"{experts.format(at)}.routed_experts.{name}", size, 4 * size, 2, 0, 0)
        for rank in (0, 1)
        for at in (0, 1)
        for name, size in sizes.items()
    ]
    assert_found(found, unplaced=skipped, unwritten=[unwritten(*parameter) for parameter in parameters])


def test_a_checkpoint_name_silently_ignored() -> None:
    found = seen(tiny_llama(), "a_name_is_ignored")
    lower_half = [unwritten(rank, "model.layers.1.mlp.gate_up_proj.weight", 65536, 131072, 256, 0) for rank in (0, 1)]
    assert_found(found, unplaced=unplaced("model.layers.1.mlp.up_proj.weight"), unwritten=lower_half)


@pytest.mark.parametrize("fill", [False, True])
def test_a_padded_size_as_stride_between_ranks(fill: bool, tmp_path: Path) -> None:
    """Rank 1 starts one row late at gate_proj and up_proj, and the vocabulary ends three rows before its part does."""
    model = changed(tiny_llama(), tmp_path / "model", with_odd_sizes, **ODD_SIZES)
    found = seen(model, "padded_rows", fill=fill)
    projections = [f"model.layers.{at}.mlp.{name}_proj.weight" for at in (0, 1) for name in ("gate", "up")]
    lost = [partly(name, 256, 510 * 256, 255, 0) for name in projections]
    # The last row of gate_proj's 255 and of up_proj's; tokens 509 to 511.
    empty = [
        unwritten(1, "model.embed_tokens.weight", 3 * 256, 256 * 256, 253, 0),
        *[unwritten(1, f"model.layers.{at}.mlp.gate_up_proj.weight", 2 * 256, 510 * 256, 254, 0) for at in (0, 1)],
        unwritten(1, "lm_head.weight", 3 * 256, 256 * 256, 253, 0),
    ]
    assert_found(found, partly_placed=lost, unwritten=[] if fill else empty)


def test_one_source_written_to_two_places() -> None:
    found = seen(tiny_llama(), "gate_is_written_twice")
    name = "model.layers.0.mlp.{}_proj.weight"
    twice = {"elements": 65536, "first": [256, 0], "sources": [name.format("gate"), name.format("up")]}
    overlapping = [{"key": f"{rank}:{name.format('gate_up')}", **twice} for rank in RANKS]
    assert_found(found, overlapping=overlapping, unplaced=unplaced("model.layers.1.mlp.up_proj.weight"))


def sound() -> Finding:
    return WeightChecker(start(tiny_llama(), tensor_parallel_size=2)).plan()


def swapped(plan: Finding) -> dict[str, Finding]:
    """What an engine with k and v swapped says: by its own plan, by a sound engine's, and with its loader mended."""
    planted_faults.k_and_v_are_swapped()
    llm = start(tiny_llama(), tensor_parallel_size=2)
    checker = WeightChecker(llm)
    reports = {"own plan": checker.verify(), "sound plan": checker.compare(expect(plan, tiny_llama()))}
    llm.collective_rpc(planted_faults.mend_k_and_v)
    return {**reports, "mended": checker.verify()}


def test_k_and_v_swapped() -> None:
    """That loses and doubles nothing, so the plan of the very loader that did it says what the engine holds."""
    found = run(swapped, plan=run(sound))
    keys = [f"{rank}:model.layers.{at}.self_attn.qkv_proj.weight" for rank in RANKS for at in (0, 1)]
    for report in (found["sound plan"], found["mended"]):
        assert report["mismatches"] == report["differing"] == keys and not report["match"]
        assert (report["compared"], report["equal"]) == (30, 26)
    assert found["own plan"]["match"] and found["own plan"]["equal"] == 30


INCOMPLETE = {
    "llama without an up_proj": (
        tiny_llama,
        "model.layers.1.mlp.up_proj.weight",
        ("model.layers.1.mlp.gate_up_proj.weight", 65536, 131072, 256, 0),
    ),
    "llama without an o_proj": (
        tiny_llama,
        "model.layers.0.self_attn.o_proj.weight",
        ("model.layers.0.self_attn.o_proj.weight", 32768, 32768, 0, 0),
    ),
    "mixtral without an expert's down_proj": (
        tiny_mixtral,
        "model.layers.1.block_sparse_moe.experts.3.w2.weight",
        ("model.layers.1.block_sparse_moe.experts.routed_experts.w2_weight", 65536, 262144, 3, 0, 0),
    ),
}
"""What lacks -> the model, the tensor that its file lacks, what is then not written on either rank."""


@pytest.mark.parametrize("case", list(INCOMPLETE))
def test_an_incomplete_checkpoint(case: str, tmp_path: Path) -> None:
    model, tensor, parameter = INCOMPLETE[case]
    found = seen(changed(model(), tmp_path / "model", without(tensor)))
    assert_found(found, unwritten=[unwritten(rank, *parameter) for rank in (0, 1)])
    assert found["checkpoint"] == str(tmp_path / "model")
