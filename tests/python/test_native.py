"""Finding and loading the library, what is said when that fails, and its log."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vllm_weight_checker import NativeError, _native, checksum, reset
from vllm_weight_checker._native import LIBRARY_VARIABLE, library

TRY_TO_LOAD = """
from vllm_weight_checker.errors import LibraryError
from vllm_weight_checker._native import library
try:
    library()
except LibraryError as error:
    print(error)
"""


def message_with(path: Path | str) -> str:
    """What loading `path` says, in a process that has loaded nothing."""
    environment = {**os.environ, LIBRARY_VARIABLE: str(path)}
    done = subprocess.run([sys.executable, "-c", TRY_TO_LOAD], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout
    return done.stdout


def compiled(folder: Path, source: str) -> Path:
    (folder / "other.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", str(folder / "other.c"), "-o", str(folder / "other.so")], check=True)
    return folder / "other.so"


@pytest.mark.parametrize("path", ["/nonexistent/libweight_checker.so", "/"])
def test_a_path_without_a_file(path: str) -> None:
    message = message_with(path)
    assert LIBRARY_VARIABLE in message and "no such file" in message


def test_a_file_that_is_no_library() -> None:
    assert "cannot be loaded" in message_with(__file__)


def test_a_library_of_something_else(tmp_path: Path) -> None:
    message = message_with(compiled(tmp_path, "int something_else(void) { return 1; }"))
    assert "no weight-checker library" in message and "wc_abi_version" in message


def test_a_library_of_another_abi(tmp_path: Path) -> None:
    message = message_with(compiled(tmp_path, "unsigned wc_abi_version(void) { return 2; }"))
    assert "version 2 of the ABI and this package version 1" in message


def test_a_library_that_lacks_a_function(tmp_path: Path) -> None:
    message = message_with(compiled(tmp_path, "unsigned wc_abi_version(void) { return 1; }"))
    assert "no weight-checker library of this version" in message


def test_a_package_without_its_library(tmp_path: Path) -> None:
    """As in a checkout that was not installed: a copy of the Python files alone."""
    source = Path(_native.__file__).parent
    shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    environment = {name: value for name, value in os.environ.items() if name != LIBRARY_VARIABLE}
    environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-c", TRY_TO_LOAD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "libweight_checker.so is missing: install the package with pip" in done.stdout
    assert LIBRARY_VARIABLE in done.stdout


def test_a_relative_path_is_found(tmp_path: Path) -> None:
    """ctypes would look for a bare name among the system's libraries instead."""
    shutil.copy(library()._name, tmp_path / "mine.so")
    program = "from vllm_weight_checker._native import library; print(library()._name)"
    environment = {**os.environ, LIBRARY_VARIABLE: "mine.so"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "mine.so")


def test_many_threads_load_it_once() -> None:
    program = """
import ctypes, threading
from vllm_weight_checker import _native
loads, original = [], ctypes.CDLL
ctypes.CDLL = lambda path: loads.append(path) or original(path)
barrier = threading.Barrier(16)
def work():
    barrier.wait()
    assert _native.library().wc_abi_version() == 1
threads = [threading.Thread(target=work) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(loads))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1", done.stderr


def test_the_librarys_log_comes_out_of_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="vllm_weight_checker.native"):
        reset({"w": torch.ones(2, 3)})
    texts = [record.getMessage() for record in caplog.records if record.name == "vllm_weight_checker.native"]
    assert any(text.startswith("weight_checker") and "1 tensors, 24 bytes" in text for text in texts)
    assert {record.levelno for record in caplog.records} <= {logging.DEBUG, logging.INFO}


def test_a_log_handler_that_raises_harms_no_check(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("the log is full")

    logger = logging.getLogger("vllm_weight_checker.native")
    logger.addFilter(refuse)
    try:
        with caplog.at_level(logging.DEBUG, logger=logger.name):
            assert reset({"w": torch.ones(2, 3)}).bytes == 24
    finally:
        logger.removeFilter(refuse)


def test_errors_say_their_status() -> None:
    with pytest.raises(NativeError, match=r"\[NEGATIVE_STRIDE\]$") as caught:
        checksum({"w": torch.ones(3).numpy()[::-1]})
    assert caught.value.status is _native.Status.NEGATIVE_STRIDE and "'w'" in caught.value.message
