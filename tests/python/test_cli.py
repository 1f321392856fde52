"""The command `weight-checker`, run as a command, against servers on this machine that play API servers."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from played_servers import PlayedServer, answering, report, serving
from simulated_engines import Worker, workers

COMMAND = [sys.executable, "-m", "vllm_weight_checker.cli"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


def held(ranks: list[Worker]) -> dict[str, str]:
    return {key: digest for worker in ranks for key, digest in worker.digests().items()}


def many(count: int, tp: int = 1) -> list[Worker]:
    return [
        Worker((0, 0, 0, rank), {f"layers.{i:03}.weight": bytes([i % 256] * 4) for i in range(count)})
        for rank in range(tp)
    ]


def test_the_whole_cycle(stack: ExitStack, tmp_path: Path) -> None:
    ranks = workers(tp=2)
    server = stack.enter_context(serving(ranks))
    baseline = tmp_path / "baseline.json"
    done = command("checksum", "--url", server.url, "-o", baseline)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"CHECKSUM: 8 digests, saved as {baseline}\n")
    assert json.loads(baseline.read_text()) == held(ranks)
    assert os.listdir(tmp_path) == ["baseline.json"]
    same = command("compare", "--url", server.url, "--baseline", baseline)
    assert (same.returncode, same.stdout.splitlines()[0]) == (0, f"MATCH: the weights are those of {baseline}")
    ranks[1].weights["layers.2.weight"] += b"!"
    other = command("compare", "--url", server.url, "--baseline", baseline)
    assert other.returncode == 1 and other.stdout.startswith("MISMATCH")
    assert "\n      dp0:pp0:pcp0:tp1:layers.2.weight\n" in other.stdout
    reset = command("reset", "--url", server.url, "--fill", "random", "--seed", 2**64 - 1)
    assert reset.returncode == 0 and reset.stdout.startswith("RESET: every parameter is overwritten (random)")
    assert server.requests[-1] == {"action": "reset", "detail": True, "fill": "random", "seed": 2**64 - 1}
    assert command("compare", "--url", server.url, "--baseline", baseline).returncode == 1


def test_the_tables(stack: ExitStack, tmp_path: Path) -> None:
    ranks = workers(tp=2)
    server = stack.enter_context(serving(ranks))
    size = sum(len(data) for worker in ranks for data in worker.weights.values())
    hidden = """\
  hidden      2  have no bytes here; VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS=1 when the engine starts keeps them as loaded
      dp0:pp0:pcp0:tp0:packed.weight
      dp0:pp0:pcp0:tp1:packed.weight
"""
    assert (
        command("checksum", "--url", server.url).stdout
        == f"""\
CHECKSUM: 8 digests, not saved: -o FILE saves them, --json prints them
  ranks       2  dp0:pp0:pcp0:tp0 dp0:pp0:pcp0:tp1
  parameters  8
  hashed      6  {size} bytes
{hidden}"""
    )
    baseline = held(ranks)
    ranks[0].weights["layers.0.weight"] += b"!"
    baseline["no rank"] = baseline.pop("dp0:pp0:pcp0:tp1:layers.1.weight")
    (tmp_path / "b").write_text(json.dumps(baseline))
    compared = command("compare", "--url", server.url, "--baseline", "b", cwd=tmp_path, env=environment())
    assert (
        compared.stdout
        == f"""\
MISMATCH: the weights are not those of b
  ranks       2  dp0:pp0:pcp0:tp0 dp0:pp0:pcp0:tp1
  parameters  8
  compared    5  4 equal, 1 differing
  skipped     3  2 hidden, 1 not in the baseline
{hidden}\
  differing   1
      dp0:pp0:pcp0:tp0:layers.0.weight
  missing     1  in the baseline only
      no rank
  unexpected  1  not in the baseline
      dp0:pp0:pcp0:tp1:layers.1.weight
"""
    )


def environment() -> dict[str, str]:
    """This process's, with paths that hold in another folder."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path)}


def test_long_lists_are_cut_with_a_count(stack: ExitStack, tmp_path: Path) -> None:
    ranks = many(1234, tp=6)
    server = stack.enter_context(serving(ranks))
    (tmp_path / "b").write_text(json.dumps({**held(ranks), **{key: "0" for key in held(ranks) if ":tp5:" in key}}))
    shown = command("compare", "--url", server.url, "--baseline", tmp_path / "b").stdout
    assert (
        "  ranks           6  dp0:pp0:pcp0:tp0 dp0:pp0:pcp0:tp1 dp0:pp0:pcp0:tp2 dp0:pp0:pcp0:tp3 and 2 more\n" in shown
    )
    assert "  parameters  7,404\n  compared    7,404  6,170 equal, 1,234 differing\n" in shown
    assert shown.count("tp5:layers") == 20 and "\n      and 1,214 more; --json names all\n" in shown


@pytest.mark.parametrize("action", ["checksum", "reset", "compare"])
def test_json_is_the_full_report(action: str, stack: ExitStack, tmp_path: Path) -> None:
    ranks = many(30, tp=2)
    baseline = {key: digest[::-1] for key, digest in held(ranks).items()}
    (tmp_path / "b").write_text(json.dumps(baseline))
    more = ["--baseline", tmp_path / "b"] if action == "compare" else []
    server = stack.enter_context(serving(ranks))
    done = command(action, "--json", "--url", server.url, *more)
    expected = report(ranks, 1, action, True, **({"baseline": baseline} if more else {}))
    assert json.loads(done.stdout) == expected and done.returncode == (action == "compare")


def test_several_urls(stack: ExitStack, tmp_path: Path) -> None:
    urls = [stack.enter_context(serving(workers(dp), 2)).url for dp in range(2)]
    both = command("checksum", "--url", urls[0], "--url", urls[1], "-o", tmp_path / "b")
    assert both.returncode == 0 and json.loads((tmp_path / "b").read_text()) == held(workers(0) + workers(1))
    one = command("checksum", "--url", urls[1])
    assert one.returncode == 2 and "no answer from dp0 of 2" in one.stderr and one.stdout == ""


def test_a_saved_report_is_a_baseline_too(stack: ExitStack, tmp_path: Path) -> None:
    server = stack.enter_context(serving(workers()))
    (tmp_path / "report").write_text(command("checksum", "--json", "--url", server.url).stdout)
    assert command("compare", "--url", server.url, "--baseline", tmp_path / "report").returncode == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"{}", "empty"),
        (b'{"checksums": {}}', "empty"),
        (b"[1]", "not list"),
        (b'{"match": true}', "'match' has True"),
        (b'{"a": "0", "a": "0"}', "names 'a' twice"),
    ],
)
def test_a_bad_baseline_is_no_mismatch(stack: ExitStack, tmp_path: Path, content: bytes | None, message: str) -> None:
    server = stack.enter_context(serving(workers()))
    path = tmp_path / "baseline.json"
    if content is not None:
        path.write_bytes(content)
    done = command("compare", "--url", server.url, "--baseline", path)
    assert done.returncode == 2 and message in done.stderr and str(path) in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr and server.requests == []


def test_nothing_compared_is_no_mismatch(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "b").write_text('{"dp1:pp0:pcp0:tp0:x": "0"}')
    done = command("compare", "--url", stack.enter_context(serving(workers())).url, "--baseline", tmp_path / "b")
    assert done.returncode == 2 and "nothing compared" in done.stderr


@pytest.mark.parametrize("status", [0, 404, 500])
def test_a_failure_leaves_the_saved_file_alone(stack: ExitStack, tmp_path: Path, status: int) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("old")
    done = command("checksum", "--url", stack.enter_context(answering(status, b"")).url, "-o", path)
    assert done.returncode == 2 and done.stderr.startswith("weight-checker: http://") and done.stdout == ""
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["baseline.json"]


def test_saving_replaces_whole_and_follows_links(stack: ExitStack, tmp_path: Path) -> None:
    server = stack.enter_context(serving(workers()))
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with open(tmp_path / "real") as before:
        assert command("checksum", "--url", server.url, "-o", tmp_path / "link").returncode == 0
        assert before.read() == "old"  # whoever was reading it goes on reading the old one
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "real").read_text()) == held(workers())


@pytest.mark.parametrize("place", ["/dev/null", ".", "no/such/folder/b.json"])
def test_a_place_that_cannot_be_written_is_refused_first(stack: ExitStack, tmp_path: Path, place: str) -> None:
    server = stack.enter_context(serving(workers()))
    done = command("checksum", "--url", server.url, "-o", place, cwd=tmp_path, env=environment())
    assert done.returncode == 2 and place in done.stderr and server.requests == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["verify"],
        ["checksum"],
        ["compare", "--url", "http://127.0.0.1:1"],
        ["reset", "--url", "http://127.0.0.1:1", "--fill", "ones"],
        ["reset", "--url", "http://127.0.0.1:1", "--seed", "-1"],
        ["reset", "--url", "http://127.0.0.1:1", "--seed", "18446744073709551616"],
        ["checksum", "--url", "http://127.0.0.1:1", "--timeout", "0"],
        ["checksum", "--url", "http://127.0.0.1:1", "--timeout", "nan"],
        ["checksum", "--url", "http://127.0.0.1:1", "--timeout", "soon"],
        ["checksum", "--url", "127.0.0.1:1"],
        ["checksum", "--url", "http://127.0.0.1:1", "--url", "http://127.0.0.1:1"],
    ],
)
def test_bad_usage(arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and done.stderr and done.stdout == "" and "Traceback" not in done.stderr


def test_the_version_is_the_crates() -> None:
    crate = (Path(__file__).parents[2] / "Cargo.toml").read_text().partition("[package]")[2]
    version = re.search(r'^version = "(.*)"$', crate, re.MULTILINE)
    assert version and command("--version").stdout == f"weight-checker {version[1]}\n"


def test_a_silent_server(stack: ExitStack) -> None:
    released = threading.Event()
    silent = stack.enter_context(PlayedServer(lambda request: (500, b"") if released.wait(60) else (0, b"")))
    stack.callback(released.set)
    done = command("checksum", "--url", silent.url, "--timeout", "0.2")
    assert done.returncode == 2 and "did not answer within 0.2 s" in done.stderr


def test_a_full_disk_behind_the_output(stack: ExitStack) -> None:
    server = stack.enter_context(serving(workers()))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "checksum", "--url", server.url], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr.startswith("weight-checker: the report cannot be printed: ")


def test_a_reader_that_leaves(stack: ExitStack) -> None:
    server = stack.enter_context(serving(many(3000)))
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "checksum", "--json", "--url", server.url], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_an_error_of_its_own_is_no_mismatch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vllm_weight_checker import cli

    monkeypatch.setattr(cli, "_checker", lambda options: 1 / 0)
    assert cli.main(["checksum", "--url", "http://127.0.0.1:1"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_progress_on_a_terminal_only(stack: ExitStack) -> None:
    server = stack.enter_context(serving(workers()))
    assert command("checksum", "--url", server.url).stderr == ""
    ours, theirs = pty.openpty()
    done = subprocess.run([*COMMAND, "checksum", "--url", server.url], stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = os.read(ours, 1000)
    os.close(ours)
    assert done.stdout.startswith("CHECKSUM") and shown.startswith(b"\rchecksum: 0 s") and shown.endswith(b"\r\x1b[K")


def test_interrupted(stack: ExitStack) -> None:
    asked, released = threading.Event(), threading.Event()

    def wait(request: dict[str, Any]) -> tuple[int, bytes]:
        asked.set()
        return (500, b"") if released.wait(60) else (0, b"")

    server = stack.enter_context(PlayedServer(wait))
    stack.callback(released.set)
    process = subprocess.Popen([*COMMAND, "checksum", "--url", server.url], stderr=subprocess.PIPE, text=True)
    assert asked.wait(60)
    process.send_signal(2)
    assert (process.communicate()[1], process.returncode) == ("weight-checker: interrupted\n", 2)


def test_it_needs_neither_torch_nor_vllm(stack: ExitStack) -> None:
    server = stack.enter_context(serving(workers()))
    program = (
        "import sys; from vllm_weight_checker.cli import main; "
        f"assert main(['checksum', '--url', '{server.url}']) == 0; "
        "assert not {'torch', 'vllm', 'numpy', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
