"""Recordings that fail on a real engine, and engines out of the ordinary: LoRA, transformers, other weights."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recorder_faults
import tiny_models
import worker_traces
from vllm_engines import generate, run, start

from vllm_weight_checker import CheckError, WeightChecker

Record = dict[str, Any]

SECOND = "rank dp0:pp0:pcp0:tp1"
EMBEDDING = {"dtype": "bfloat16", "shape": [512, 256]}
WRONG_SOURCES: dict[str, tuple[Any, str]] = {
    "a number": (3, "sources is of type int; pass what the tensors are"),
    "a list": ([["model.norm.weight", EMBEDDING]], "sources is of type list; pass what the tensors are"),
    "no JSON": ("{", "the sources is no JSON text"),
    "nothing": ({}, "the state dict is empty"),
    "no dtype": ({"model.norm.weight": {"shape": [256]}}, "'model.norm.weight' of the state dict"),
    "no shape": ({"model.norm.weight": {"dtype": "bfloat16"}}, "'model.norm.weight' of the state dict"),
    "another dtype": ({"model.norm.weight": {"dtype": "finfo", "shape": [256]}}, "of dtype finfo and shape"),
    "a negative size": ({"model.norm.weight": {"dtype": "bfloat16", "shape": [-1]}}, r"and shape \[-1\]"),
    "half a size": ({"model.norm.weight": {"dtype": "bfloat16", "shape": [2.5]}}, r"and shape \[2.5\]"),
    "a dtype only": ({"model.norm.weight": "bfloat16"}, "is a str of dtype"),
    "another name": (
        {"model.nonsense.weight": EMBEDDING},
        "the loader of this model fails at '.*nonsense.weight', .*: ValueError: .*nonsense",
    ),
    "another size": ({"lm_head.weight": {**EMBEDDING, "shape": [2, 3]}}, "the loader of this model fails"),
}
"""Sources as a worker may be sent them, and what is said of them."""


def attempt(check: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """What a check fails with, or None."""
    try:
        check(*args, **kwargs)
    except CheckError as error:
        return str(error)
    return None


def failures(folders: dict[str, str]) -> Record:
    """One engine on which recordings fail in one way after the other."""
    llm = start(tiny_models.tiny_llama(), tensor_parallel_size=2)
    checker = WeightChecker(llm)
    baseline, tokens, plan = checker.checksum(), generate(llm), checker.plan()
    record: Record = {"planted": {}, "folders": {}, "sources": {}, "harm": {}}

    def harm(what: str, before: list[Any]) -> None:
        found = worker_traces.differences(before, llm.collective_rpc(worker_traces.traces))
        if checker.checksum() != baseline or checker.plan() != plan or generate(llm) != tokens:
            found.append("checks or tokens differ")
        record["harm"][what] = found

    for fault in ("constructor_raises", "loader_raises"):
        before = llm.collective_rpc(worker_traces.traces)
        llm.collective_rpc(getattr(recorder_faults, fault))
        record["planted"][fault] = [attempt(check) for check in (checker.plan, checker.verify)]
        still = checker.checksum() == baseline and generate(llm) == tokens
        llm.collective_rpc(recorder_faults.mend)
        record["planted"][fault].append(still)
        harm(fault, before)
    before = llm.collective_rpc(worker_traces.traces)
    for name, folder in folders.items():
        record["folders"][name] = [attempt(checker.plan, checkpoint=folder), attempt(checker.verify, folder)]
    harm("folders", before)
    for name, (sources, _) in WRONG_SOURCES.items():
        record["sources"][name] = llm.collective_rpc("weight_checker_plan", kwargs={"sources": sources})
    both = {"sources": {"lm_head.weight": EMBEDDING}, "checkpoint": str(tiny_models.tiny_llama())}
    record["both"] = llm.collective_rpc("weight_checker_plan", kwargs=both)
    harm("sources", before)
    llm.collective_rpc(recorder_faults.loader_looks_at_values)
    record["looked at"] = checker.plan() == plan and checker.verify().match
    record["looked at, without values"] = attempt(checker.plan, plan["sources"])
    llm.collective_rpc(recorder_faults.mend)
    harm("looked at", before)
    return record


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders without a checkpoint, or with a spoilt one."""
    root = tmp_path_factory.mktemp("spoilt")
    spoilt = ("truncated", "cut in the header", "no header", "index is no JSON", "index is a list", "index names more")
    for name in spoilt:
        shutil.copytree(tiny_models.tiny_llama(), root / name)
    data = (root / spoilt[0] / "model.safetensors").read_bytes()
    (root / "truncated" / "model.safetensors").write_bytes(data[:-1000])
    (root / "cut in the header" / "model.safetensors").write_bytes(data[:100])
    (root / "no header" / "model.safetensors").write_bytes(b"")
    index = "model.safetensors.index.json"
    (root / "index is no JSON" / index).write_text('{"weight_map": ')
    (root / "index is a list" / index).write_text("[]")
    weight_map = '{"weight_map": {"lm_head.weight": "model.safetensors", "more.weight": "more.safetensors"}}'
    (root / "index names more" / index).write_text(weight_map)
    (root / "empty").mkdir()
    (root / "a file").write_text("no folder")
    return {name: root / name for name in (*spoilt, "empty", "a file", "absent")}


@pytest.fixture(scope="module")
def seen(folders: dict[str, Path]) -> Record:
    return run(failures, folders={name: str(folder) for name, folder in folders.items()})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("constructor_raises", f"cannot be built a second time .*: RuntimeError: {recorder_faults.CONSTRUCTOR}"),
        ("loader_raises", f"the loader of this model fails.*: LookupError: '?{recorder_faults.LOADER}"),
    ],
)
def test_the_models_own_error_and_its_rank_are_told(fault: str, message: str, seen: Record) -> None:
    *errors, still = seen["planted"][fault]
    assert len(errors) == 2 and still
    for error in errors:
        assert re.search(f"^{SECOND}: .*{message}", error) and "tp0" not in error


def test_a_spoilt_checkpoint_is_an_error_that_names_it(seen: Record, folders: dict[str, Path]) -> None:
    assert seen["folders"].keys() == folders.keys()
    for name, errors in seen["folders"].items():
        for error in errors:
            assert error is not None, name
            assert f"the checkpoint {folders[name]} cannot be read" in error, name


@pytest.mark.parametrize("name", list(WRONG_SOURCES))
def test_sources_of_a_wrong_form(name: str, seen: Record) -> None:
    replies = seen["sources"][name]
    assert len(replies) == 2 and [reply["result"] for reply in replies] == [None, None]
    for reply in replies:
        assert reply["error"]["type"] in ("CheckError", "TensorError")
        assert re.search(WRONG_SOURCES[name][1], reply["error"]["message"])


def test_sources_and_a_checkpoint_are_refused_together(seen: Record) -> None:
    messages = [reply["error"]["message"] for reply in seen["both"]]
    assert messages == ["checkpoint and sources are both given; pass the one that the weights are from"] * 2


def test_a_failure_does_no_harm(seen: Record) -> None:
    assert seen["harm"] == {what: [] for what in (*seen["planted"], "folders", "sources", "looked at")}


def test_a_loader_that_computes_with_values_of_large_tensors(seen: Record) -> None:
    assert seen["looked at"] is True
    name = "model.layers.0.self_attn.o_proj.weight"
    refusal = f"the loader computes with the values of {name}, and only .* given; record from the checkpoint's files"
    assert re.search(refusal, seen["looked at, without values"])


def pushed() -> Record:
    model = tiny_models.tiny_llama()
    llm = start(model, load_format="dummy")
    checker = WeightChecker(llm)
    record = {"dummy": checker.verify(), "keys": list(checker.checksum())}
    llm.collective_rpc(recorder_faults.load_file, args=(str(model / "model.safetensors"),))
    return {**record, "pushed": checker.verify()}


def test_an_engine_with_dummy_weights_until_the_real_ones_are_pushed() -> None:
    seen = run(pushed)
    dummy, real = seen["dummy"], seen["pushed"]
    assert dummy["mismatches"] == dummy["differing"] == sorted(seen["keys"]) and len(seen["keys"]) == 15
    assert dummy["audited"] and not dummy["match"] and dummy["checkpoint"] == str(tiny_models.tiny_llama())
    assert real["match"] and real["equal"] == real["parameters"] == 15


def verified(**options: Any) -> Record:
    checker = WeightChecker(start(tiny_models.tiny_llama(), **options))
    return {"report": checker.verify(), "keys": list(checker.checksum())}


def test_an_engine_with_lora() -> None:
    """vLLM wraps linear layers and the head after loading."""
    seen = run(verified, enable_lora=True, max_lora_rank=8)
    wrapped = [key for key in seen["keys"] if ".base_layer." in key]
    assert seen["report"]["match"] and seen["report"]["equal"] == seen["report"]["parameters"] == 15
    assert "dp0:pp0:pcp0:tp0:model.layers.0.self_attn.qkv_proj.base_layer.weight" in wrapped and len(wrapped) >= 8


def test_the_model_of_transformers() -> None:
    seen = run(verified, model_impl="transformers")
    assert seen["report"]["match"] and seen["report"]["equal"] == seen["report"]["parameters"] == len(seen["keys"])
    assert len(seen["keys"]) >= 15 and seen["report"]["not_comparable"] == {}
