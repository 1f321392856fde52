"""Verify on a real API server with two tensor-parallel ranks: what it finds, and what it may be asked to read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_llama
from vllm_servers import CHECKED, SERVER, post, serve

from vllm_weight_checker import CheckError, WeightChecker
from vllm_weight_checker.checkpoint_roots import REFUSAL, VARIABLE

RANKS = ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that clients may name: "changed" has one other element, "as-pickle" is the model in torch's format."""
    root = tmp_path_factory.mktemp("models")
    for name in ("changed", "as-pickle"):
        shutil.copytree(tiny_llama(), root / name)
    weights = load_file(tiny_llama() / "model.safetensors")
    (root / "as-pickle" / "model.safetensors").unlink()
    torch.save(weights, root / "as-pickle" / "pytorch_model.bin")
    up = weights["model.layers.1.mlp.up_proj.weight"]
    up[-1, -1] += 1  # of the last row, so of the second rank, behind what gate_proj has there
    save_file(weights, root / "changed" / "model.safetensors", {"format": "pt"})
    return root


@pytest.fixture(scope="module")
def url(roots: Path) -> Iterator[str]:
    extension = ("--worker-extension-cls", "flip_extension.FlipOneElement")
    command = [*SERVER, "--model", str(tiny_llama()), "--tensor-parallel-size", "2", *extension]
    with serve(command, {**CHECKED, VARIABLE: str(roots)}) as url:
        yield url


def test_the_served_model_is_its_checkpoint(url: str) -> None:
    report = WeightChecker(url).verify(raise_on_mismatch=True)
    assert report.ranks == RANKS and report.checkpoint == str(tiny_llama())
    assert report.parameters == report.compared == report.equal > 20 and report.not_comparable == {}


def test_one_flipped_element_on_one_rank_is_exactly_that_key(url: str) -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    checker = WeightChecker(url)
    before = checker.checksum()
    flip = {"method": "flip_one_element", "args": ["1", name]}
    assert post(f"{url}/collective_rpc", flip)[0] == 200
    try:
        report = checker.verify()
        assert report.mismatches == report.differing == [f"{RANKS[1]}:{name}"] and report.audited
    finally:
        post(f"{url}/collective_rpc", flip)
    assert checker.checksum() == before and checker.verify().match


def test_another_checkpoint_where_the_server_permits_it(url: str, roots: Path) -> None:
    key = f"{RANKS[1]}:model.layers.1.mlp.gate_up_proj.weight"
    assert WeightChecker(url).verify(roots / "changed").mismatches == [key]
    assert WeightChecker(url).verify(roots / "as-pickle", algorithm="sha256-tree").match


def test_no_other_path_is_read(url: str, roots: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama(), tmp_path / "elsewhere")
    (roots / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere", roots / "link", tmp_path / "absent", "/etc", "models"):
        for action in ("verify", "plan"):
            status, answer = post(f"{url}/weight_checker", {"action": action, "checkpoint": str(path)})
            assert (status, answer["error"]["message"]) == (403, REFUSAL)
    with pytest.raises(CheckError, match=r"refused \(HTTP 403\)"):
        WeightChecker(url).verify(tmp_path / "elsewhere")


def test_a_trainers_tensors_over_http(url: str) -> None:
    weights = load_file(tiny_llama() / "model.safetensors")
    checker = WeightChecker(url)
    assert checker.verify(state_dict=weights).match
    weights["model.norm.weight"] = weights["model.norm.weight"] * 2
    assert checker.verify(state_dict=weights).mismatches == [f"{rank}:model.norm.weight" for rank in RANKS]
    del weights["model.layers.0.mlp.down_proj.weight"]
    lacking = checker.verify(state_dict=weights)
    assert lacking.unwritten == [f"{rank}:model.layers.0.mlp.down_proj.weight" for rank in RANKS]
    assert not lacking.audited and [one["key"] for one in lacking.audit["unwritten"]] == lacking.unwritten
