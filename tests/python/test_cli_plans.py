"""The command's verify, plan, expect and audit, run as commands: against played servers, and without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest
from played_servers import answering, serving
from safetensors.numpy import save_file
from simulated_engines import SERVED, Worker, loaded, workers
from test_cli import command, environment

from vllm_weight_checker.tables import audit_table, verify_table


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ranks() -> list[Worker]:
    made = workers(tp=2)
    loaded(made)
    return made


def saved(ranks: list[Worker], folder: Path) -> Path:
    """A checkpoint with the tensors that the ranks have loaded."""
    tensors = {name: numpy.frombuffer(data, numpy.uint8) for name, data in ranks[0].checkpoint.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_from_a_server_to_a_baseline_made_without_it(stack: ExitStack, ranks: list[Worker], tmp_path: Path) -> None:
    server = stack.enter_context(serving(ranks))
    plan, baseline, checkpoint = tmp_path / "plan.json", tmp_path / "b.json", saved(ranks, tmp_path / "model")
    done = command("plan", "--url", server.url, "-o", plan)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == f"""\
PLAN: saved as {plan}
  ranks       2  dp0:pp0:pcp0:tp0 dp0:pp0:pcp0:tp1
  parameters  8
  sources     8
"""
    )
    assert [entry["rank"]["tp"] for entry in json.loads(plan.read_text())["ranks"]] == [0, 1]
    audited = command("audit", "--plan", plan)
    assert audited.returncode == 0 and audited.stdout.startswith(f"COMPLETE: every element has its place in {plan}\n")
    made = command("expect", "--plan", plan, "--checkpoint", checkpoint, "-o", baseline)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"EXPECT: 8 digests of {checkpoint}, saved as {baseline}\n  ranks         2  dp0")
    held = {key: digest for worker in ranks for key, digest in worker.digests().items()}
    expected = json.loads(baseline.read_text())
    assert {key for key in held if held[key] != expected[key]} == {key for key in held if "packed" in key}
    assert sorted(os.listdir(tmp_path)) == ["b.json", "model", "plan.json"]
    compared = command("compare", "--url", server.url, "--baseline", baseline)
    assert compared.returncode == 1 and "  differing   2\n" in compared.stdout


def test_verify_and_its_table(stack: ExitStack, ranks: list[Worker]) -> None:
    server = stack.enter_context(serving(ranks))
    done = command("verify", "--url", server.url)
    assert (done.returncode, done.stderr) == (0, "")
    table = f"""\
MATCH: the weights are those of {SERVED}
  ranks           2  dp0:pp0:pcp0:tp0 dp0:pp0:pcp0:tp1
  parameters      8
  compared        6  6 equal, 0 differing
  not comparable  2
      dp0:pp0:pcp0:tp0:packed.weight: hidden
      dp0:pp0:pcp0:tp1:packed.weight: hidden
  differing       0
  missing         0
  unexpected      0
  unwritten       0
"""
    assert done.stdout == table
    ranks[1].weights["layers.2.weight"] += b"!"
    other = command("verify", "--url", server.url, "--checkpoint", "/models/b", "--algorithm", "sha256-tree")
    assert other.returncode == 1
    assert other.stdout.startswith("MISMATCH: the weights are not those of /models/b\n")
    assert "  differing       1\n      dp0:pp0:pcp0:tp1:layers.2.weight\n" in other.stdout
    assert server.requests[1:] == [
        {"action": "verify", "detail": True, "checkpoint": "/models/b", "algorithm": "sha256-tree"}
    ]


def test_a_misplaced_tensor_is_no_match(stack: ExitStack, ranks: list[Worker]) -> None:
    ranks[0].checkpoint["forgotten"] = b"weights"
    server = stack.enter_context(serving(ranks))
    done = command("verify", "--url", server.url)
    assert done.returncode == 1 and done.stdout.startswith(
        f"MISMATCH: the weights that were compared are those of {SERVED}, but the loader misplaces some\n"
    )
    assert "  audit: unplaced  1  placed on no rank\n      forgotten\n" in done.stdout


def test_several_urls(stack: ExitStack, tmp_path: Path) -> None:
    engines = [workers(dp) for dp in range(2)]
    loaded(engines[0] + engines[1])
    urls = [argument for engine in engines for argument in ("--url", stack.enter_context(serving(engine, 2)).url)]
    assert command("verify", *urls).returncode == 0
    assert command("plan", *urls, "-o", tmp_path / "plan.json").returncode == 0
    assert command("audit", "--plan", tmp_path / "plan.json").returncode == 0
    one = command("verify", *urls[:2])
    assert one.returncode == 2 and "no answer from dp1 of 2" in one.stderr


def test_an_incomplete_plan(ranks: list[Worker], stack: ExitStack, tmp_path: Path) -> None:
    ranks[0].checkpoint["forgotten"] = b"weights"
    command("plan", "--url", stack.enter_context(serving(ranks)).url, "-o", tmp_path / "plan.json")
    done = command("audit", "--plan", tmp_path / "plan.json")
    assert done.returncode == 1 and done.stdout.startswith("INCOMPLETE: some are misplaced in ")
    assert "\n  unplaced    1  placed on no rank\n      forgotten\n" in done.stdout
    found = command("audit", "--json", "--plan", tmp_path / "plan.json")
    assert found.returncode == 1 and json.loads(found.stdout)["unplaced"] == [
        {"source": "forgotten", "explained": None}
    ]


def test_json_is_what_is_saved(ranks: list[Worker], stack: ExitStack, tmp_path: Path) -> None:
    url = stack.enter_context(serving(ranks)).url
    plan, checkpoint = tmp_path / "plan.json", saved(ranks, tmp_path / "model")
    assert json.loads(command("plan", "--json", "--url", url, "-o", plan).stdout) == json.loads(plan.read_text())
    made = command("expect", "--json", "--plan", plan, "--checkpoint", checkpoint, "-o", tmp_path / "b")
    assert json.loads(made.stdout)["checksums"] == json.loads((tmp_path / "b").read_text())
    (tmp_path / "report").write_text(made.stdout)
    compared = command("compare", "--url", url, "--baseline", tmp_path / "report")
    assert compared.returncode == 1 and "6 equal, 2 differing" in compared.stdout
    assert json.loads(command("verify", "--json", "--url", url).stdout)["match"] is True


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "no JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"{}", "no plan"),
        (b'{"format": "weight-checker-plan", "version": 2}', "version 2"),
        (b'{"format": "weight-checker-plan", "version": 1, "sources": {}, "ranks": []}', "no rank"),
    ],
)
@pytest.mark.parametrize("action", ["expect", "audit"])
def test_a_bad_plan(action: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    done = command(action, "--plan", path, *(["--checkpoint", tmp_path] if action == "expect" else []))
    assert done.returncode == 2 and message in done.stderr and str(path) in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/dev/log"])
def test_what_has_no_end_is_no_plan(path: str) -> None:
    done = command("audit", "--plan", path)
    assert done.returncode == 2 and f"{path} is no plan" in done.stderr and "Errno" not in done.stderr


def test_a_plan_is_not_replaced_by_what_is_made_of_it(ranks: list[Worker], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(ranks[0].document()))
    (tmp_path / "link").symlink_to(plan)
    before, checkpoint = plan.read_text(), saved(ranks, tmp_path / "model")
    for output in (plan, tmp_path / "link"):
        done = command("expect", "--plan", plan, "--checkpoint", checkpoint, "-o", output)
        assert done.returncode == 2 and "is what the result is made from" in done.stderr
    assert plan.read_text() == before


def test_what_the_library_refuses_is_told(ranks: list[Worker], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(ranks[0].document()))
    before = saved(ranks, tmp_path / "model") / "model.safetensors"
    before.write_bytes(b"no safetensors")
    done = command("expect", "--plan", plan, "--checkpoint", tmp_path / "model", "-o", tmp_path / "b")
    assert done.returncode == 2 and "[BAD_CHECKPOINT]" in done.stderr and not (tmp_path / "b").exists()


@pytest.mark.parametrize("action", ["plan", "expect"])
def test_a_place_that_cannot_be_written_is_refused_first(action: str, ranks: list[Worker], stack: ExitStack) -> None:
    server = stack.enter_context(serving(ranks))
    more = ["--url", server.url] if action == "plan" else ["--plan", "/no/plan", "--checkpoint", "/no/checkpoint"]
    done = command(action, *more, "-o", "/no/such/folder/file")
    assert done.returncode == 2 and "/no/such/folder/file cannot be saved" in done.stderr and server.requests == []


def test_a_failure_leaves_the_saved_file_alone(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("old")
    url = stack.enter_context(answering(500, {"error": {"message": "the loader of this model fails"}})).url
    done = command("plan", "--url", url, "-o", "plan.json", cwd=tmp_path, env=environment())
    assert done.returncode == 2 and "the loader of this model fails" in done.stderr
    assert (tmp_path / "plan.json").read_text() == "old" and os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify"],
        ["plan"],
        ["expect"],
        ["expect", "--plan", "plan.json"],
        ["expect", "--checkpoint", "model"],
        ["expect", "--plan", "plan.json", "--checkpoint", "model", "--url", "http://127.0.0.1:1"],
        ["audit"],
        ["audit", "--plan", "plan.json", "-o", "file"],
        ["verify", "--url", "http://127.0.0.1:1", "--algorithm", "md5"],
    ],
)
def test_bad_usage(arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and "usage: " in done.stderr and done.stdout == ""


FINDINGS: dict[str, Any] = {
    "complete": False,
    **{"ranks": 2, "parameters": 1234, "pieces": 5000, "sources": 3, "placed": 1},
    "unplaced": [{"source": "lm_head.weight", "explained": "tied"}, {"source": "up_proj", "explained": None}],
    "partly_placed": [{"source": "k_proj", "elements": 1024, "of": 2048, "first": [1, 0]}],
    "unwritten": [{"key": "dp0:pp0:pcp0:tp0:w", "elements": 1, "of": 2, "first": [1]}],
    "overlapping": [{"key": "dp0:pp0:pcp0:tp1:w", "elements": 3, "first": [0], "sources": ["a", "b"]}],
    "past_the_end": [{"key": "dp0:pp0:pcp0:tp1:v", "source": "a", "first_beyond": 7, "of": 6}],
    "replicas": [{"ranks": [f"dp{dp}:pp0:pcp0:tp0" for dp in range(6)], "parameters": 40}],
}


def test_every_finding_has_its_line() -> None:
    assert (
        audit_table(FINDINGS, "plan.json")
        == """\
INCOMPLETE: some are misplaced in plan.json
  ranks              2
  parameters     1,234
  pieces         5,000
  sources            3
  placed             1
  unplaced           1  placed on no rank
      up_proj
  unused             1  placed on no rank, with a reason
      lm_head.weight: tied
  partly placed      1
      k_proj: 1,024 of 2,048 elements, the first at [1, 0]
  unwritten          1
      dp0:pp0:pcp0:tp0:w: 1 of 2 elements, the first at [1]
  overlapping        1
      dp0:pp0:pcp0:tp1:w: 3 elements, the first at [0], from a and b
  past the end       1
      dp0:pp0:pcp0:tp1:v: element 7 of a, which has 6
  replicas           1  groups of ranks that hold the same
      dp0:pp0:pcp0:tp0 dp1:pp0:pcp0:tp0 dp2:pp0:pcp0:tp0 dp3:pp0:pcp0:tp0 and 2 more: 40 parameters"""
    )


def test_the_tensors_of_a_trainer_are_named_in_the_table() -> None:
    lists: dict[str, Any] = {name: [] for name in ("mismatches", "differing", "missing", "unexpected", "unwritten")}
    counts = {"parameters": 1, "compared": 1, "equal": 1, "ranks": ["dp0:pp0:pcp0:tp0"]}
    report = {"match": True, "checkpoint": None, "not_comparable": {}, "audit": FINDINGS, **lists, **counts}
    assert verify_table(report).startswith("MATCH: the weights are those of the tensors in memory\n")


def test_none_of_it_needs_torch_or_vllm(stack: ExitStack, ranks: list[Worker], tmp_path: Path) -> None:
    url, checkpoint = stack.enter_context(serving(ranks)).url, saved(ranks, tmp_path / "model")
    program = (
        "import sys; from vllm_weight_checker.cli import main; "
        f"assert main(['plan', '--url', '{url}', '-o', '{tmp_path}/p']) == main(['verify', '--url', '{url}']) == 0; "
        f"assert main(['expect', '--plan', '{tmp_path}/p', '--checkpoint', '{checkpoint}']) == 0; "
        f"assert main(['audit', '--plan', '{tmp_path}/p']) == 0; "
        "assert not {'torch', 'vllm', 'numpy', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
