"""Importing the package needs neither torch, numpy nor vLLM, and does not load the library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_weight_checker
from vllm_weight_checker._native import LIBRARY_VARIABLE

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy", "vllm", "ml_dtypes"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
"""
BUFFER = """
class Weights(bytearray):
    __array_interface__ = {"version": 3, "typestr": "|u1", "shape": (3,)}
"""


def run(program: str, library: str | None = None) -> str:
    """What a new Python without torch, numpy and vLLM prints for `program`."""
    environment = {**os.environ, **({LIBRARY_VARIABLE: library} if library else {})}
    command = [sys.executable, "-c", BLOCKED + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_neither_the_library_nor_what_is_heavy() -> None:
    program = """
import vllm_weight_checker as package
assert "checksum" in dir(package) and "WorkerExtension" in dir(package)
print(sorted({"ctypes", "torch", "numpy", "vllm"} & set(sys.modules)))
assert package.checksum and package.CheckError and package.Report
print(package.Rank(1, 2, 3, 4).prefix, package.Rank.of_key("dp1:pp2:pcp3:tp4:w"))
print("libweight_checker" in open("/proc/self/maps").read())
"""
    assert run(program).splitlines() == ["[]", "dp1:pp2:pcp3:tp4: dp1:pp2:pcp3:tp4", "False"]


def test_everything_but_checking_works_without_a_library() -> None:
    program = """
import vllm_weight_checker as package
for name in package.__all__:
    assert getattr(package, name) is not None, name
try:
    package.checksum({})
except package.CheckError as error:
    print(error)
"""
    message = run(program, library="/nonexistent/library.so")
    assert LIBRARY_VARIABLE in message and "/nonexistent/library.so" in message


def test_the_verbs_work_without_torch_and_numpy() -> None:
    program = """
import vllm_weight_checker as package
weights = {"w": Weights(b"abc")}
baseline = package.checksum(weights)
print(baseline)
assert package.compare(weights, baseline)
assert package.reset(weights).bytes == 3 and weights["w"] == bytes(3)
"""
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", in FIPS 180-2
    assert run(BUFFER + program) == str({"dp0:pp0:pcp0:tp0:w": digest})


def test_a_blocked_torch_is_no_torch() -> None:
    """`sys.modules["torch"] = None` is how Python is told that a module must not be imported."""
    program = """
sys.modules["torch"] = sys.modules["numpy"] = None
import vllm_weight_checker as package
print(len(package.checksum({"w": Weights(b"abc")})))
"""
    assert run(BUFFER + program) == "1"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        vllm_weight_checker.nonsense  # noqa: B018


def test_the_names_for_type_checkers_are_those_that_are_fetched() -> None:
    source = Path(vllm_weight_checker.__file__).read_text(encoding="utf-8")
    typed = {
        alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    assert typed == vllm_weight_checker._HOME
    assert set(vllm_weight_checker.__all__) == {*typed, "__version__"}
