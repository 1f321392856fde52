"""Ctrl-C while the library works: the call ends soon, nothing of it is kept, and it is never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CALLS = {
    "expect": "expect(plan, {'a': a})",
    "expect with progress": "expect(plan, {'a': a}, progress=lambda done, total: None)",
    "checksum": "checksum({'a': a})",
    "compare": "compare({'a': a}, {'dp0:pp0:pcp0:tp0:a': '0' * 64}, Rank())",
    "audit": "[audit(plan) for _ in range(1 << 20)]",
}
SCRIPT = """
import json, sys, numpy
from vllm_weight_checker import Rank, audit, checksum, compare, expect
plan = json.loads(sys.argv[1])
# One element again and again: 64 GiB that take no memory, and half a minute to hash.
a = numpy.lib.stride_tricks.as_strided(numpy.zeros(1, numpy.float32), (1 << 34,), (0,))
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    sys.exit(7)
sys.exit("not interrupted")
"""


def whole(extent: int) -> str:
    """The plan of a parameter that is one source."""
    piece = {"source": "a", "source_offset": 0, "source_strides": [1], "offset": 0, "strides": [1], "shape": [extent]}
    tensor = {"dtype": "float32", "shape": [extent]}
    rank = {"rank": dict.fromkeys(("dp", "pp", "pcp", "tp"), 0), "parameters": {"p": {**tensor, "pieces": [piece]}}}
    engine = {"name": "by hand", "version": "1"}
    head = {"format": "weight-checker-plan", "version": 1, "engine": engine, "sources": {"a": tensor}}
    return json.dumps({**head, "ranks": [rank]})


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Sends Ctrl-C once the process is at work; its exit status and what it complained of."""
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    return process.returncode, errors


@pytest.mark.parametrize("call", list(CALLS))
def test_a_call_ends_with_the_interrupt(call: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(call=CALLS[call]), whole(1 << 34)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        status, errors = interrupt(process)
    assert (status, errors) == (7, "")


def test_the_command_ends_with_2_and_writes_nothing(tmp_path: Path) -> None:
    extent = 1 << 33
    header = json.dumps({"a": {"dtype": "F32", "shape": [extent], "data_offsets": [0, 4 * extent]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * extent)  # a hole, which takes no place on the disk
    (tmp_path / "plan.json").write_text(whole(extent))
    command = [sys.executable, "-m", "vllm_weight_checker.cli", "expect", "--plan", str(tmp_path / "plan.json")]
    command += ["--checkpoint", str(tmp_path), "-o", str(tmp_path / "out.json")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        time.sleep(1.5)  # it has begun to hash then
        status, errors = interrupt(process)
    assert status == 2 and "interrupted" in errors and "Traceback" not in errors
    assert not (tmp_path / "out.json").exists()


def test_an_interrupt_handler_of_somebody_else_is_left_alone() -> None:
    from vllm_weight_checker.interrupts import held_back

    def theirs(number: int, frame: object) -> None:
        raise AssertionError("nobody sent a signal")

    before = signal.signal(signal.SIGINT, theirs)
    try:
        with held_back() as interrupted:
            assert interrupted is None and signal.getsignal(signal.SIGINT) is theirs
    finally:
        signal.signal(signal.SIGINT, before)
