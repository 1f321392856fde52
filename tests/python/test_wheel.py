"""The wheel: built by pip alone, for any Python 3, complete, and of use without torch, numpy or vLLM."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from vllm_weight_checker._native import LIBRARY_VARIABLE

SHIM = Path(__file__).resolve().parents[2] / "python_shim"
USE = """
import vllm_weight_checker as package
from vllm_weight_checker import _native

class Weights:
    def __init__(self, data):
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": (2, 256), "data": data}

data = bytearray(bytes(range(256)) * 8)
weights = {"layer.weight": Weights(data)}
baseline = package.checksum(weights)
assert package.compare(weights, baseline)
assert package.reset(weights).bytes == len(data) and not any(data)
assert package.compare(weights, baseline).differing == list(baseline)
print(package.__version__, _native.library()._name, *baseline.values())
"""


def environment() -> dict[str, str]:
    """Without what points to a checkout: only what is installed counts."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", LIBRARY_VARIABLE}}


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(SHIM))
    (path,) = folder.iterdir()
    return path


def test_the_tag_is_any_python_3_on_this_kind_of_machine(wheel: Path) -> None:
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, python, abi) == ("vllm_weight_checker", "py3", "none")
    assert platform == f"linux_{os.uname().machine}"


def test_the_wheel_holds_the_library_and_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
        shipped = {name.name for name in names if name.parent.name == "vllm_weight_checker"}
        metadata = {name.name: archive.read(str(name)).decode() for name in names if ".dist-info" in str(name)}
    sources = {path.name for path in (SHIM / "vllm_weight_checker").glob("*.py")}
    assert shipped == sources | {"py.typed", "libweight_checker.so"}
    assert {name.parts[0] for name in names} == {
        "vllm_weight_checker",
        f"vllm_weight_checker-{version(wheel)}.dist-info",
    }
    assert "Requires-Dist" not in metadata["METADATA"] and "License-Expression: Apache-2.0" in metadata["METADATA"]
    assert metadata["LICENSE"] == (SHIM.parent / "LICENSE").read_text(encoding="utf-8")
    assert "Root-Is-Purelib: false" in metadata["WHEEL"]
    for group, entry in (
        ("console_scripts", "weight-checker = vllm_weight_checker.cli:main"),
        ("vllm.general_plugins", "weight_checker = vllm_weight_checker.plugin:register"),
        ("vllm.endpoint_plugins", "weight_checker = vllm_weight_checker.endpoint:WeightCheckerEndpoint"),
    ):
        assert entry in metadata["entry_points.txt"].split(f"[{group}]")[1].split("[")[0]


def version(wheel: Path) -> str:
    return wheel.stem.split("-")[1]


def test_it_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip("--python", str(python), "install", "--no-index", str(wheel))
    done = subprocess.run([python, "-c", USE], env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, library, digest = done.stdout.split()
    assert found == version(wheel)
    assert Path(library).is_relative_to(tmp_path / "env")
    assert digest == hashlib.sha256(bytes(range(256)) * 8).hexdigest()
    command = [tmp_path / "env" / "bin" / "weight-checker", "--help"]
    assert "compare" in subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
