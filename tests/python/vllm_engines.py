"""Runs functions of the tests in processes that have vLLM imported already, one process per call.

Importing vLLM takes 15 seconds and a spawned engine as long again. So `run` keeps one process that has
imported it and never used it, and forks a child from that for every call; the engine's workers fork
from the child. A tiny model then loads in about 4 seconds.

    def case(tensor_parallel_size):          # in a module of tests/python; returns what JSON can hold
        llm = start(tiny_llama(), tensor_parallel_size=tensor_parallel_size)
        return llm.collective_rpc("weight_checker_checksum")

    replies = run(case, tensor_parallel_size=2, env={"VLLM_PLUGINS": ""})
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # collective_rpc with a function, as some tests do it, needs pickle.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What vLLM needs on a machine with two cores and no GPU; also for tests that start its API server."""

KEEP_CPU_WEIGHTS = {"VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS": "1"}
FAILED = "failed"


def run(case: Callable[..., Any], *, env: dict[str, str] | None = None, timeout: float = 120, **arguments: Any) -> Any:
    """Calls `case(**arguments)` in a fresh process and returns its result, which went through JSON.

    Args:
        case: a function of an importable module in tests/python.
        env: environment variables of that process; CPU weights are kept as loaded unless it says otherwise.
        timeout: seconds until it is ended, with all that it started.

    Raises:
        AssertionError: it raised, died or did not end; with its traceback and the end of its output.
    """
    return _server().run(case, {**KEEP_CPU_WEIGHTS, **(env or {})}, timeout, arguments)


def start(model: Path, **options: Any) -> Any:
    """A vLLM engine for a tiny model; to be called inside a case."""
    from vllm import LLM

    defaults = {
        "enforce_eager": True,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "gpu_memory_utilization": 0.3,
        "disable_log_stats": True,
    }
    return LLM(str(model), **{**defaults, **options})


def generate(llm: Any, tokens: int = 8) -> list[list[int]]:
    """The token numbers that follow two fixed prompts, without sampling."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": prompt} for prompt in ([5, 90, 17, 30], [200, 3, 3, 71, 140, 9])]
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


class _Server:
    """The process that forks children, seen from the tests. One call at a time."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="weight-checker-tests-")
        self._busy = threading.Lock()
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": ""},
        )
        atexit.register(self._end)

    def run(self, case: Callable[..., Any], env: dict[str, str], timeout: float, arguments: dict[str, Any]) -> Any:
        with self._busy, self._file() as output, self._file() as answer:
            request = {
                "module": case.__module__,
                "function": case.__name__,
                "arguments": arguments,
                "env": env,
                "timeout": timeout,
                "output": output.name,
                "answer": answer.name,
            }
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            log = output.read()
        assert line, f"the process that holds vLLM has ended with status {self._process.poll()}"
        reply = json.loads(line)
        assert FAILED not in reply, f"{reply[FAILED]}\n--- end of its output:\n{log[-6000:]}"
        return reply["result"]

    def _file(self) -> IO[str]:
        return tempfile.NamedTemporaryFile("r", dir=self._folder.name, errors="replace")

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._folder.cleanup()


_the_server: _Server | None = None


def _server() -> _Server:
    global _the_server
    if _the_server is None:
        _the_server = _Server()
    return _the_server


def _serve() -> None:
    """The loop of the forking process: one request per line of the input, one answer per line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # vLLM's CPU platform sets VLLM_WORKER_MULTIPROC_METHOD=spawn for itself; this is who reads it.
    system_utils = importlib.import_module("vllm.utils.system_utils")
    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    # All that a worker needs; importing starts no thread, so that forking is safe.
    for module in ("vllm.entrypoints.llm", "vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker"):
        importlib.import_module(module)
    # What is imported stays as it is: no child need look through it for garbage, and copy it by doing so.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_in_child(request)) + "\n")
        answers.flush()


def _in_child(request: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        _be_child(request)
    ended = threading.Event()
    guard = threading.Thread(target=_end_late, args=(child, request["timeout"], ended))
    guard.start()
    os.waitpid(child, 0)
    ended.set()
    guard.join()
    _kill_group(child)  # what it has left running
    answer = Path(request["answer"])
    return json.loads(answer.read_text() or json.dumps({FAILED: f"died, or ran over {request['timeout']} seconds"}))


def _be_child(request: dict[str, Any]) -> None:
    """Runs the case and ends the process as usual, so that its engine is shut down too."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(request["env"])
    try:
        case = getattr(importlib.import_module(request["module"]), request["function"])
        answer = json.dumps({"result": case(**request["arguments"])}, default=dict)  # a Report is a mapping
    except BaseException:
        answer = json.dumps({FAILED: traceback.format_exc()})
    Path(request["answer"]).write_text(answer)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # the exit functions are all that is needed of an end; taking everything apart takes seconds


def _end_late(child: int, timeout: float, ended: threading.Event) -> None:
    if not ended.wait(timeout):
        _kill_group(child)


def _kill_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return
    time.sleep(0.1)


if __name__ == "__main__":
    _serve()
