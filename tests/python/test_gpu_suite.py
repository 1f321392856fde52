"""The checks for machines with a GPU (tests/gpu/run.sh), as far as they can be looked at without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "kernels")]

import table  # noqa: E402
from gpu_tensors import LAYOUTS, SHAPE, hashed, of_type, raw, sha256  # noqa: E402
from instructions import assembled, loop_with_loads, work_of  # noqa: E402
from truth import PREFIX, painted  # noqa: E402
from truth import sha256 as true_sha256  # noqa: E402

from vllm_weight_checker import checksum  # noqa: E402
from vllm_weight_checker._dlpack import read_dlpack  # noqa: E402


def test_the_floor_is_that_of_the_kernel() -> None:
    _, code = assembled(TESTS.parent / "src" / "cuda" / "sha256_tree.ptx", "sm_90")
    work = work_of(loop_with_loads(code["wc_hash_full_leaves"]))
    assert table.INTEGER_INSTRUCTIONS == round(work.integer)
    assert table.floor(132, 1.98e9, work.integer) == pytest.approx(work.gigabytes("integer"))


@pytest.mark.parametrize("gigabytes", [0.1, 1.0, 8.0])
def test_the_tables_tensors_are_a_decoders(gigabytes: float) -> None:
    shapes = table.shapes(gigabytes)
    assert len(shapes) == 201
    assert 2 * sum(torch.Size(shape).numel() for shape in shapes) == pytest.approx(gigabytes * 1e9, rel=0.05)


def test_targets() -> None:
    assert table.line_of_tree(900, 1000, 2000, True).met and not table.line_of_tree(849, 1000, 2000, True).met
    assert table.line_of_tree(300, 310, 2000, False).met and not table.line_of_tree(690, 700, 2000, True).met
    assert table.line_of_sha256(45, 50, 60).met and not table.line_of_sha256(44, 60, 50).met
    assert table.line_of_reset("zero", 80, 100).met and not table.line_of_reset("zero", 79, 100).met
    assert str(table.Line("sha256", 44, "", False)).endswith("MISSED")


def test_its_truth_is_hashlibs() -> None:
    array = painted(960 * 4)
    memory = torch.from_numpy(array)
    assert sha256(memory) == true_sha256(array) and sha256(memory[:0]) == true_sha256(b"")
    assert hashed({"w": memory}) == {PREFIX + "w": true_sha256(array)}
    typed = of_type(memory, torch.float32, SHAPE)
    assert checksum({name: view(typed) for name, view in LAYOUTS.items()}) == {
        PREFIX + name: true_sha256(view(memory.view(torch.float32).view(SHAPE)).contiguous().numpy())
        for name, view in LAYOUTS.items()
    }
    buffer, _ = read_dlpack(raw(4096, 100, device=1))
    assert (buffer.address, buffer.device, list(buffer.shape)) == (4096, (2, 1), [100])


def test_pytest_finds_the_checks() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(TESTS / "gpu" / "test_gpu.py")]
    # As tests/gpu/run.sh sets it.
    path = os.pathsep.join([str(TESTS / "gpu"), str(TESTS / "python"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    listed = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=TESTS / "gpu", env=environment
    ).stdout
    assert listed.count("small") > 100


def test_without_a_gpu_the_command_says_so_and_fails() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = ["bash", str(TESTS / "gpu" / "run.sh"), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and ("sees no CUDA device" in done.stderr or "build it with cargo" in done.stderr)
