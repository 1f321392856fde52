"""Every command and every example of the README is run, as it stands there but for names of models and ports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from tiny_models import tiny_llama
from vllm_engines import run
from vllm_servers import post, serve

import vllm_weight_checker
from vllm_weight_checker import audit, expect

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIBRARY = Path(vllm_weight_checker.__file__).with_name("libweight_checker.so")
URL = "http://127.0.0.1:8000"

ELSEWHERE = {
    "bash tests/run.sh": ".ci/run",
    "pip install ./python_shim": "tests/setup.sh",
    "bash tests/gpu/run.sh": "tests/python/test_gpu_suite.py",
}
"""Commands that a test here cannot run, since it is run by them: the file that does, where the text must stand."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command of the console blocks, without comments and with continued lines joined."""
    lines = "".join(blocks("console")).replace("\\\n", " ").splitlines()
    return [" ".join(line.split("  #")[0].split()) for line in lines]


def server_commands() -> list[str]:
    """The commands about a running server and its plan, with the reset at the end: it leaves no weights to verify."""
    found = [line for line in commands() if URL in line or "plan.json" in line]
    return sorted(found, key=lambda line: " reset " in line)


def python_block(word: str) -> str:
    (block,) = [block for block in blocks("python") if word in block]
    return block


def test_every_command_has_a_test() -> None:
    run_by_the_server_test = [*server_commands(), *[line for line in commands() if "api_server" in line]]
    run_by_others = [*ELSEWHERE, "bash tests/demo.sh", BENCH, BACKEND_BENCH]
    assert sorted(commands()) == sorted([*run_by_the_server_test, *run_by_others])
    for command, file in ELSEWHERE.items():
        assert command.removeprefix("bash ") in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not run it"


def test_the_demonstration() -> None:
    subprocess.run(["bash", "tests/demo.sh"], cwd=ROOT, check=True, timeout=600)


BENCH = ".venv/bin/python tests/bench/bench_checksum.py"


def test_the_bench() -> None:
    command = [sys.executable, str(ROOT / BENCH.split()[1]), "--megabytes", "64", "--runs", "2"]
    printed = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout
    assert "compute_tensor_digests" in printed and "hashlib" in printed


BACKEND_BENCH = "cargo run --release --manifest-path tests/bench/lanes/Cargo.toml"


def test_the_bench_of_the_backends() -> None:
    command = [*shlex.split(BACKEND_BENCH), "--target-dir", "target/bench"]
    printed = subprocess.run(command, cwd=ROOT, check=True, timeout=600, capture_output=True, text=True).stdout
    assert "sha2" in printed and "hash_many" in printed


def test_tensors() -> None:
    exec(python_block("import numpy"), {})


def test_c(tmp_path: Path) -> None:
    (block,) = blocks("c")
    (tmp_path / "example.c").write_text(block, encoding="utf-8")
    link = [str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]
    compile_it = ["cc", "-std=c11", "-Wall", "-Werror", f"-I{ROOT / 'include'}", "example.c", *link, "-o", "example"]
    subprocess.run(compile_it, cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "example"], check=True, capture_output=True, text=True).stdout
    assert json.loads(printed) == {"dp0:pp0:pcp0:tp0:layer.weight": hashlib.sha256(bytes(24)).hexdigest()}


def examples_with_an_llm(source: str, options: str) -> dict[str, object]:
    """A case for `vllm_engines`: the two examples with an LLM, one after the other."""
    names: dict[str, object] = {}
    exec(source.replace('"MODEL"', f'"{tiny_llama()}"').replace("tensor_parallel_size=2", options), names)
    return {"report": names["report"], "replies": names["replies"], "baseline": len(names["baseline"])}  # type: ignore[arg-type]


def test_llm() -> None:
    source = python_block("LLM(") + python_block("weight_checker_last_report")
    options = "tensor_parallel_size=2, enforce_eager=True, max_model_len=64, gpu_memory_utilization=0.3"
    outcome = run(examples_with_an_llm, source=source, options=options)
    assert outcome["report"]["match"] and outcome["report"]["compared"] == outcome["baseline"] > 20
    assert [reply["result"]["of"] for reply in outcome["replies"]] == ["compare", "compare"]


def example_with_a_trainer(source: str, options: str) -> dict[str, object]:
    """A case for `vllm_engines`: an LLM's weights against those of a model of transformers."""
    names: dict[str, object] = {}
    exec(source.replace('"MODEL"', f'"{tiny_llama()}"').replace("tensor_parallel_size=2", options), names)
    return {name: names[name] for name in ("verified", "expected", "baseline")}


def test_a_trainers_state_dict() -> None:
    source = python_block("LLM(") + python_block("AutoModelForCausalLM") + python_block("audit")
    options = "tensor_parallel_size=2, enforce_eager=True, max_model_len=64, gpu_memory_utilization=0.3"
    outcome = run(example_with_a_trainer, source=source, options=options)
    assert outcome["verified"]["match"] and outcome["verified"]["not_comparable"] == {}
    assert outcome["expected"] == outcome["baseline"]


def test_the_plan_document() -> None:
    (block,) = blocks("json")
    assert audit(block).complete
    embed = numpy.arange(24, dtype=numpy.float32).reshape(6, 4)
    found = expect(block, {"embed": embed, "rotary": numpy.ones(2, numpy.float32)})
    padded = numpy.concatenate([embed, numpy.zeros((2, 4), numpy.float32)])
    assert found == {"dp0:pp0:pcp0:tp0:embed.weight": hashlib.sha256(padded.tobytes()).hexdigest()}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The README's server with a tiny model; its URL."""
    (start,) = [line for line in commands() if "api_server" in line]
    start = start.replace("MODEL", str(tiny_llama())).replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    # `env` sets the variables before the command, as a shell would, and then becomes the server.
    with serve(["env", *shlex.split(start)], env={}) as url:
        yield url


def test_server(server: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    outputs: dict[str, list[str]] = {}
    for command in server_commands():
        shell = ["bash", "-c", command.replace(URL, server).replace("MODEL", shlex.quote(str(tiny_llama())))]
        done = subprocess.run(shell, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        outputs.setdefault(command.split()[1] if command.startswith("weight-checker") else "curl", []).append(
            done.stdout
        )
    begins = {"checksum": "CHECKSUM", "verify": "MATCH", "plan": "PLAN", "audit": "COMPLETE", "expect": "EXPECT"}
    begins |= {"compare": "MATCH", "reset": "RESET", "curl": "{"}
    assert outputs.keys() == begins.keys() and len(outputs["compare"]) == 2
    assert all(text.startswith(begins[action]) for action, texts in outputs.items() for text in texts)
    baseline = json.loads((tmp_path / "baseline.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "expected.json").read_text(encoding="utf-8")) == baseline
    answer = json.loads(outputs["curl"][0])
    assert answer["checksums"].keys() == baseline.keys() and answer["ranks"] == ["dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"]


def test_the_table_of_requests(server: str) -> None:
    """The requests of the table, with the keys of their answers."""
    rows = re.findall(r"^\| `(\{.*?\})`.* \| `(\{.*?\})` \|$", README, re.MULTILINE)
    assert len(rows) == 5
    baseline: dict[str, str] = {}
    for request, answer in rows:
        body = json.loads(request.replace("{key: digest}", json.dumps(baseline)))
        status, found = post(f"{server}/weight_checker", body)
        assert status == 200
        assert set(found) == set(re.findall(r'"(\w+)":', answer))
        baseline = found.get("checksums", baseline)
