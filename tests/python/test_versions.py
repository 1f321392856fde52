"""One version, and one list of functions and numbers, in Cargo.toml, the header, the library and the package."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import vllm_weight_checker
from vllm_weight_checker import _native
from vllm_weight_checker.errors import Status

REPOSITORY = Path(__file__).resolve().parents[2]
HEADER = re.sub(r"/\*.*?\*/", "", (REPOSITORY / "include" / "weight_checker.h").read_text(encoding="utf-8"), flags=re.S)


def constant(name: str) -> str:
    found = re.search(rf"^#define {name} (.+)$", HEADER, re.MULTILINE)
    assert found, f"the header has no {name}"
    return found[1].strip()


def declarations() -> dict[str, list[str]]:
    """The functions that the header declares, with their parameters as written."""
    found = re.findall(r"\b(wc_\w+)\(([^()]*)\);", HEADER)
    return {name: [] if text.strip() == "void" else text.split(",") for name, text in found}


def test_all_versions_are_the_crates() -> None:
    package = (REPOSITORY / "Cargo.toml").read_text(encoding="utf-8").split("[package]")[1]
    version = re.search(r'^version = "(.+)"$', package, re.MULTILINE)
    assert version
    found = {
        "package": vllm_weight_checker.__version__,
        "metadata": metadata.version("vllm-weight-checker"),
        "header": constant("WC_VERSION").strip('"'),
        "library": _native.library().wc_version().decode(),
    }
    assert found == dict.fromkeys(found, version[1])


def test_the_abi_version_is_the_headers() -> None:
    assert _native.ABI_VERSION == int(constant("WC_ABI_VERSION")) == _native.library().wc_abi_version()


def test_the_function_table_is_the_header() -> None:
    declared = declarations()
    assert len(declared) >= 9
    assert {name: len(arguments) for name, (_, arguments) in _native.SIGNATURES.items()} == {
        name: len(parameters) for name, parameters in declared.items()
    }


def test_results_that_are_checked_are_statuses() -> None:
    returning = set(re.findall(r"^WcStatus (wc_\w+)\(", HEADER, re.MULTILINE))
    assert returning == {name for name, (result, _) in _native.SIGNATURES.items() if result is _native.ctypes.c_int32}


def test_statuses_are_the_headers() -> None:
    found = re.findall(r"\bWC_STATUS_(\w+) = (\d+)", HEADER)
    assert {name: int(number) for name, number in found} == {status.name: status.value for status in Status}


def test_algorithms_and_fills_are_the_headers() -> None:
    for prefix, table in (("WC_ALGORITHM_", _native.ALGORITHMS), ("WC_FILL_", _native.FILLS)):
        names = re.findall(rf"^#define {prefix}(\w+) ", HEADER, re.MULTILINE)
        assert {name.lower().replace("_", "-"): int(constant(prefix + name)) for name in names} == table
