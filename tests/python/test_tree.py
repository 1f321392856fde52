"""`sha256-tree` against pymerkle and against RFC 9162 section 2.1.1 with hashlib; a baseline tells its algorithm."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree

from vllm_weight_checker import CheckError, Rank, backend, checksum, compare

LEAF = 8192
KEY = Rank().prefix + "t"


def leaves(data: bytes) -> list[bytes]:
    return [data[at : at + LEAF] for at in range(0, len(data), LEAF)]


def merkle_tree_hash(entries: list[bytes]) -> bytes:
    if not entries:
        return hashlib.sha256().digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\0" + entries[0]).digest()
    split = 1 << (len(entries) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + merkle_tree_hash(entries[:split]) + merkle_tree_hash(entries[split:])).digest()


def found(tensor: torch.Tensor) -> str:
    return checksum({"t": tensor}, algorithm="sha256-tree")[KEY]


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100])
def test_pymerkle_agrees(count: int) -> None:
    tensor = torch.randint(0, 256, (count * LEAF - 5,), dtype=torch.uint8)
    tree = InmemoryTree(algorithm="sha256")
    for leaf in leaves(bytes_of(tensor)):
        tree.append_entry(leaf)
    assert found(tensor) == "sha256-tree:" + tree.get_state().hex()


@given(st.integers(0, 40 * LEAF), st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.complex128]))
def test_the_rfc_agrees(size: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(size // dtype.itemsize).to(dtype)
    assert found(tensor) == "sha256-tree:" + merkle_tree_hash(leaves(bytes_of(tensor))).hex()


def test_strided() -> None:
    tensor = torch.arange(1500 * 700, dtype=torch.int32).view(1500, 700)
    for view in (tensor.t(), tensor[:, 3:650], tensor[::2, ::3], tensor[0].expand(1000, 700)):
        assert found(view) == "sha256-tree:" + merkle_tree_hash(leaves(bytes_of(view))).hex()


def test_a_baseline_tells_its_algorithm() -> None:
    tensors = {"t": torch.ones(100_000), "u": torch.zeros(3)}
    for algorithm in ("sha256", "sha256-tree"):
        baseline = checksum(tensors, algorithm=algorithm)
        assert compare(tensors, baseline) and compare(tensors, json.dumps(baseline), algorithm=algorithm)
        tensors["u"][0] += 1
        assert compare(tensors, baseline).differing == [Rank().prefix + "u"]


def test_algorithms_are_not_mixed() -> None:
    tensors = {"t": torch.ones(10), "u": torch.zeros(3)}
    tree, plain = checksum(tensors, algorithm="sha256-tree"), checksum(tensors)
    with pytest.raises(CheckError, match="sha256-tree"):
        compare(tensors, {**plain, KEY: tree[KEY]})
    with pytest.raises(CheckError, match="sha256-tree"):
        compare(tensors, tree, algorithm="sha256")
    with pytest.raises(CheckError, match="sha256-tree"):
        compare(tensors, plain, algorithm="sha256-tree")


def test_the_backend_has_a_name() -> None:
    assert set(backend().split("+")) <= {"portable", "shani", "avx2", "avx512"}
