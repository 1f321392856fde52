"""Starts vLLM's API server for tests, on a free loopback port, and stops it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_engines import ENVIRONMENT, KEEP_CPU_WEIGHTS

SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
CHECKED = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_PLUGINS": "weight_checker"}
"""What the endpoint needs."""

_SMALL = ("--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "64", "--gpu-memory-utilization", "0.3")
_SECONDS_TO_START = 240


@contextmanager
def serve(command: Sequence[str], env: dict[str, str]) -> Iterator[str]:
    """Runs `command`, which becomes an API server when told a host and a port, until the block ends. Yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **ENVIRONMENT, **KEEP_CPU_WEIGHTS, "PYTHONPATH": os.pathsep.join(paths), **env}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen([*command, "--port", str(port), *_SMALL], env=environment, stdout=log, stderr=log)
        try:
            _wait_until_it_answers(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def post(url: str, body: Any, timeout: float = 120) -> tuple[int, Any]:
    """The status and the JSON that a POST of `body`, bytes or what JSON can hold, is answered with."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Any) -> None:
    end = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    log.seek(0)
    raise AssertionError(f"the server does not answer (status {process.poll()}):\n{log.read()[-6000:]}")
